//! The contract of every broker, as one suite. A new backend implements [`Backend`]; no case
//! depends on the backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use floodgate::broker::{
    Delivery, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route,
    Subscriber, Subscription, Topology,
};

use crate::support::memory_broker::MemoryBroker;
use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;

mod consuming;
mod publishing;
mod routing;
mod silent;
mod unreadable;

const QUEUES: u16 = 3;
const DELIVERIES_MAX: u32 = 3;

/// Both ports of one process.
pub struct Process {
    pub publisher: Arc<dyn Publisher>,
    pub subscriber: Arc<dyn Subscriber>,
}

/// A broker that outlives the processes that use it. Each case starts with empty queues.
#[async_trait(?Send)]
pub trait Backend {
    /// Connects another process.
    fn open(&self) -> Process;

    /// Deletes a queue. The name has no namespace.
    fn delete_queue(&self, queue: &str);
}

fn topology(namespace: &str) -> Topology {
    Topology::new(namespace, QUEUES, DELIVERIES_MAX)
}

struct Memory(MemoryBroker);

impl Memory {
    fn fresh() -> Self {
        Self(MemoryBroker::new(topology("case")))
    }
}

#[async_trait(?Send)]
impl Backend for Memory {
    fn open(&self) -> Process {
        let broker = Arc::new(self.0.elsewhere());
        Process { publisher: broker.clone(), subscriber: broker }
    }

    fn delete_queue(&self, queue: &str) {
        self.0.lose_queue(queue);
    }
}

/// One server for all cases, because it starts slowly. Each case has its own namespace.
struct Rabbit<'a> {
    server: &'a RabbitMq,
    case: &'static str,
}

#[async_trait(?Send)]
impl Backend for Rabbit<'_> {
    fn open(&self) -> Process {
        let options = self.server.options(topology(self.case));
        let broker = Arc::new(RabbitBroker::new(options).unwrap());
        Process { publisher: broker.clone(), subscriber: broker }
    }

    fn delete_queue(&self, queue: &str) {
        self.server.delete_queue(&format!("{}.{queue}", self.case));
    }
}

fn message(route: Route, number: usize) -> Message {
    Message {
        route,
        headers: Headers { message_id: format!("m{number}"), ..Headers::default() },
        body: Bytes::from(format!("body {number}")),
    }
}

fn messages(route: Route, numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers.map(|number| message(route, number)).collect()
}

fn ids(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.headers.message_id.clone()).collect()
}

fn expected_ids(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("m{number}")).collect()
}

impl Process {
    fn open_channel(&self, window: usize) -> Box<dyn PublishChannel> {
        self.publisher.open_channel(window)
    }

    /// Publishes messages and requires every confirm.
    async fn publish_confirmed(&self, messages: Vec<Message>) {
        let outcomes = self.open_channel(64).publish(messages).await;
        assert!(
            outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed),
            "{outcomes:?}"
        );
    }

    async fn subscribe(&self, source: Route, prefetch: u16) -> Box<dyn Subscription> {
        self.subscriber.subscribe(source, prefetch).await.unwrap()
    }

    /// Receives and acknowledges `count` messages of a queue.
    async fn drain(&self, source: Route, count: usize) -> Vec<Delivery> {
        let mut subscription = self.subscribe(source, 100).await;
        let acks = subscription.acks();
        let mut deliveries = Vec::new();
        while deliveries.len() < count {
            let chunk = take(subscription.as_mut(), 100.min(count - deliveries.len())).await;
            deliveries.extend(chunk);
            acks.up_to(deliveries.len() as u64).await;
        }
        deliveries
    }

    async fn num_ready(&self, queue: &str) -> u64 {
        let depths = self.subscriber.depths().await.unwrap();
        depths.iter().find(|depth| depth.queue == queue).expect(queue).num_ready
    }
}

/// Receives `count` deliveries in order; fails after 30 s without one.
async fn take(subscription: &mut dyn Subscription, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(30), subscription.next());
        deliveries.push(next.await.expect("a delivery").unwrap());
    }
    deliveries
}

macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            publishing:
                confirmed_messages_are_delivered_in_order_with_their_headers
                every_window_keeps_the_order
                many_publish_at_once
                large_and_empty_bodies_arrive
                messages_without_a_queue_are_refused
                a_closed_process_sends_nothing;
            consuming:
                no_more_than_the_prefetch_is_out
                one_acknowledgement_is_for_one_and_one_for_all_before
                unacknowledged_deliveries_are_redelivered
                acknowledging_twice_does_no_harm
                waiting_may_be_given_up_without_losing_a_delivery
                a_closed_process_gives_back;
            routing:
                dead_letters_wait_with_their_reason
                a_message_delivered_too_often_is_a_dead_letter
                a_message_that_no_queue_wants_is_refused_and_the_next_one_is_not
                a_deleted_queue_ends_its_subscription_and_the_next_one_declares_it
                depths_count_messages_and_consumers;
        }
    };
}

macro_rules! as_tests {
    ($fresh:expr; $($module:ident: $($case:ident)+;)+) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                super::super::run(async {
                    super::super::$module::$case(&$fresh).await;
                });
            })+
        })+
    };
}

mod memory {
    all_cases! { as_tests! crate::conformance::broker::Memory::fresh(); }
}

macro_rules! one_by_one {
    ($server:expr; $($module:ident: $($case:ident)+;)+) => {
        $($({
            let case = stringify!($case);
            println!("{}::{case}", stringify!($module));
            $module::$case(&Rabbit { server: $server, case }).await;
        })+)+
    };
}

#[test]
fn rabbitmq_keeps_every_promise() {
    let server = RabbitMq::start();
    run(async {
        all_cases! { one_by_one! &server; }
    });
}
