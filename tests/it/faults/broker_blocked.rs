//! C09: a broker short of memory or disk takes no messages, and goes on taking acknowledgements.
//! One queue of which nothing is heard holds up no other.

use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::{
    BrokerStatus, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route,
    Source, Subscriber, Topology,
};

use crate::support::offers::run;
use crate::support::servers::rabbitmq::{Alarm, RabbitMq};
use crate::support::wait::until;

fn message(number: usize) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route: Route::Orders(0), headers, body: Bytes::from_static(b"body") }
}

#[test]
fn a_blocked_broker_takes_acknowledgements_and_no_messages() {
    let server = RabbitMq::start();
    blocked(&server, Alarm::Memory, "memory");
    blocked(&server, Alarm::Disk, "disk");
}

async fn is_sent(outgoing: &mut Box<dyn PublishChannel>, message: Message) -> Option<()> {
    (outgoing.publish(vec![message]).await == [PublishOutcome::Confirmed]).then_some(())
}

fn blocked(server: &RabbitMq, alarm: Alarm, namespace: &str) {
    run(async {
        let mut options = server.options(Topology::new(namespace, 1, 100));
        let patient = RabbitBroker::new(options.clone()).unwrap();
        let sent = patient.outgoing(20).publish((0..20).map(message).collect()).await;
        assert_eq!(sent, vec![PublishOutcome::Confirmed; 20]);
        patient.close().await;
        options.confirm_timeout = Duration::from_millis(500);
        let broker = RabbitBroker::new(options).unwrap();
        let mut outgoing = broker.outgoing(4);
        // The time limit is short: a first message may be late on a busy machine.
        let elsewhere = || Message { route: Route::Dead, ..message(0) };
        until("a confirmation in time", async || is_sent(&mut outgoing, elsewhere()).await).await;
        let mut subscription = broker.subscribe(Source::Orders(0), 10).await.unwrap();
        let acks = subscription.acks();
        for _ in 0..10 {
            subscription.next().await.unwrap();
        }
        server.alarm(alarm, true);

        // The broker tells of its alarm when somebody publishes.
        let results = outgoing.publish((100..110).map(message).collect()).await;
        let is_open = |sent: &PublishOutcome| {
            matches!(sent, PublishOutcome::Unknown { .. } | PublishOutcome::NotSent { .. })
        };
        assert!(results.iter().all(is_open), "{results:?}");
        assert!(matches!(results[0], PublishOutcome::Unknown { .. }), "{results:?}");
        assert!(matches!(results[9], PublishOutcome::NotSent { .. }), "{results:?}");
        until("the broker to tell", async || {
            (broker.reach() == BrokerStatus::Blocked).then_some(())
        })
        .await;
        for _ in 0..50 {
            let sent = outgoing.publish(vec![message(200)]).await.remove(0);
            assert!(matches!(sent, PublishOutcome::NotSent { .. }), "{sent:?}");
        }

        // The prefetch is used up: each further delivery shows that acknowledgements arrive.
        acks.up_to(10).await;
        for _ in 0..10 {
            let delivery = subscription.next().await.unwrap();
            acks.one(delivery.tag).await;
        }
        until("an empty queue", async || {
            let depths = broker.depths().await.unwrap();
            depths.iter().any(|one| one.queue == "orders.0" && one.num_ready == 0).then_some(())
        })
        .await;

        server.alarm(alarm, false);
        until("the broker to take messages again", async || {
            (broker.reach() == BrokerStatus::Up).then_some(())
        })
        .await;
        // What was unknown may come, before what is sent now.
        until("a confirmation", async || is_sent(&mut outgoing, message(300)).await).await;
        loop {
            let delivery = subscription.next().await.unwrap();
            let number: usize = delivery.headers.message_id.parse().unwrap();
            assert!((100..110).contains(&number) || number == 300, "{number}");
            if number == 300 {
                break;
            }
        }
        broker.close().await;
    });
}

/// As without majority: the queue's process takes messages and never says so.
#[test]
fn a_queue_that_confirms_nothing_holds_up_no_other() {
    let server = RabbitMq::start();
    run(async {
        let mut options = server.options(Topology::new("deaf", 2, 100));
        options.confirm_timeout = Duration::from_millis(500);
        let broker = RabbitBroker::new(options).unwrap();
        let mut outgoing = broker.outgoing(8);
        let to =
            |queue: u16, number: usize| Message { route: Route::Orders(queue), ..message(number) };
        let mixed =
            || (0..8).map(|number| to(u16::from(number % 2 == 1), number)).collect::<Vec<_>>();
        let is_confirmed = |sent: &PublishOutcome| *sent == PublishOutcome::Confirmed;
        until("both queues", async || {
            outgoing.publish(mixed()).await.iter().all(is_confirmed).then_some(())
        })
        .await;

        server.ctl(&["eval", "sys:suspend('%2F_deaf.orders.1')."]);
        let first = outgoing.publish(mixed()).await;
        assert!(!first.iter().any(is_confirmed), "nobody knows whose fault it is: {first:?}");
        until("the other queue alone", async || {
            let sent = outgoing.publish(mixed()).await;
            let (well, deaf): (Vec<_>, Vec<_>) =
                sent.iter().enumerate().partition(|(n, _)| n % 2 == 0);
            assert!(!deaf.iter().any(|(_, sent)| is_confirmed(sent)), "{sent:?}");
            well.iter().all(|(_, sent)| is_confirmed(sent)).then_some(())
        })
        .await;

        server.ctl(&["eval", "sys:resume('%2F_deaf.orders.1')."]);
        until("both queues again", async || {
            outgoing.publish(mixed()).await.iter().all(is_confirmed).then_some(())
        })
        .await;
        broker.close().await;
    });
}
