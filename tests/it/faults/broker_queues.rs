//! Queues and exchanges that are deleted or declared with other arguments.
//!
//! All cases share one server; each has its own namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::{
    Error, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route,
    Subscriber, Topology,
};
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const ROUNDS: usize = 4;
const WINDOW: usize = 512;
const BATCH: usize = 3_000;

fn topology(namespace: &str) -> Topology {
    Topology::new(namespace, 2, 1)
}

fn broker(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(topology(namespace));
    // A broker that deletes a queue may lose confirms, or answer nothing at all.
    options.confirm_timeout = Duration::from_secs(2);
    options.connect_timeout = Duration::from_secs(5);
    RabbitBroker::new(options).unwrap()
}

/// Like `broker`, with the topology declared beforehand under a long timeout.
async fn declared(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(topology(namespace));
    options.connect_timeout = Duration::from_mins(1);
    RabbitBroker::new(options).unwrap().depths().await.unwrap();
    broker(server, namespace)
}

fn message(route: Route, number: usize) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route, headers, body: Bytes::from_static(b"body") }
}

/// Every tenth message goes to queue 1, which is deleted.
fn route(number: usize) -> Route {
    Route::Orders(u16::from(number.is_multiple_of(10)))
}

#[test]
fn nothing_confirmed_is_lost_whatever_is_deleted() {
    let server = RabbitMq::start();
    run(async {
        for round in 0..ROUNDS {
            deleted_under_load(&server, round).await;
        }
        separate_connections(&server).await;
        deleted_exchange(&server).await;
        deleted_dead_letter_exchange(&server).await;
        foreign_arguments(&server).await;
    });
}

/// A broker with a memory alarm stops reading from publishing connections, so acknowledgements need
/// a connection of their own.
async fn separate_connections(server: &RabbitMq) {
    let broker = declared(server, "connections").await;
    // Both handles are kept, because dropping one closes its channel.
    let mut outgoing = broker.open_channel(1);
    let sent = outgoing.publish(vec![message(Route::Orders(0), 1)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    let mut subscription = broker.subscribe(Route::Orders(0), 1).await.unwrap();
    subscription.next().await.unwrap();
    until("two connections in use", async || {
        let listed = server.ctl(&["list_connections", "client_properties", "channels"]);
        let num_in_use = |name: &str| {
            let own = listed.lines().filter(|line| line.contains(name));
            own.filter(|line| !line.trim().ends_with("\t0")).count()
        };
        let both = num_in_use("floodgate-publishing") > 0 && num_in_use("floodgate-consuming") > 0;
        both.then_some(())
    })
    .await;
}

/// Without a subscriber, the publisher declares the exchange again.
async fn deleted_exchange(server: &RabbitMq) {
    let broker = declared(server, "exchange").await;
    let mut outgoing = broker.open_channel(WINDOW);
    let mut try_one = async || outgoing.publish(vec![message(Route::Orders(1), 0)]).await;
    assert_eq!(try_one().await, [PublishOutcome::Confirmed]);
    server.delete_exchange("exchange.intents");
    until("an exchange", async || (try_one().await == [PublishOutcome::Confirmed]).then_some(()))
        .await;
}

/// Drains these queues and returns the numbers of their messages.
async fn numbers_in(broker: &RabbitBroker, sources: &[Route]) -> BTreeSet<usize> {
    let mut numbers = BTreeSet::new();
    for source in sources {
        let mut subscription = broker.subscribe(*source, 500).await.unwrap();
        let acks = subscription.acks();
        let name = match source {
            Route::Orders(queue) => format!("orders.{queue}"),
            Route::Dead => "dead".to_owned(),
            other => panic!("{other:?} is not read here"),
        };
        // A delivery in flight is in no queue: only a timeout after an empty queue ends the loop.
        let mut was_empty = false;
        loop {
            let next = tokio::time::timeout(Duration::from_millis(200), subscription.next()).await;
            if let Ok(delivery) = next {
                let delivery = delivery.unwrap();
                numbers.insert(delivery.headers.message_id.parse().unwrap());
                acks.up_to(delivery.tag).await;
                was_empty = false;
            } else if was_empty {
                break;
            } else {
                let depths = broker.depths().await.unwrap();
                was_empty = depths.iter().all(|one| one.queue != name || one.num_ready == 0);
            }
        }
    }
    numbers
}

/// Publishes messages for both queues in one call and deletes one queue meanwhile. Returns the
/// outcomes, from number 1 on. The broker may answer with an internal error (541) or lose confirms:
/// then many outcomes are unknown.
async fn publish_and_delete(
    server: &RabbitMq,
    broker: &RabbitBroker,
    outgoing: &mut dyn PublishChannel,
    queue: &str,
) -> Vec<PublishOutcome> {
    let batch = (1..=BATCH).map(|number| message(route(number), number)).collect();
    let deleting = async {
        until("some messages", async || {
            let depths = broker.depths().await.unwrap();
            depths.iter().any(|one| one.queue == "orders.1" && one.num_ready > 20).then_some(())
        })
        .await;
        server.delete_queue(queue);
    };
    let (mut results, ()) = tokio::join!(outgoing.publish(batch), deleting);
    // Publishing recovers after every reaction of the broker.
    until("a confirm of the deleted queue", async || {
        let number = (results.len() + 1).next_multiple_of(10);
        results.resize(number - 1, PublishOutcome::NotSent { reason: String::new() });
        results.extend(outgoing.publish(vec![message(route(number), number)]).await);
        (results.last() == Some(&PublishOutcome::Confirmed)).then_some(())
    })
    .await;
    results
}

/// Messages in the queue are deleted with it. From the first refused message on, every confirmed
/// message is in a queue: the broker returns the others, and the client library reports a return
/// with the confirms of neighbouring messages.
async fn deleted_under_load(server: &RabbitMq, round: usize) {
    let namespace = format!("deleted-{round}");
    let broker = declared(server, &namespace).await;
    let mut outgoing = broker.open_channel(WINDOW);
    let sent = outgoing.publish(vec![message(Route::Orders(1), 0)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    broker.depths().await.unwrap();
    let queue = format!("{namespace}.orders.1");
    let results = publish_and_delete(server, &broker, outgoing.as_mut(), &queue).await;
    let found = numbers_in(&broker, &[Route::Orders(0), Route::Orders(1)]).await;
    assert!(
        found.contains(&results.len()),
        "the last message was confirmed, and no queue holds it"
    );
    let mut is_refusing = false;
    for (number, sent) in (1..=BATCH).zip(&results) {
        let is_refused = matches!(sent, PublishOutcome::Refused { .. });
        if route(number) == Route::Orders(0) {
            assert!(!is_refused, "{number}: {sent:?}");
            assert!(
                *sent != PublishOutcome::Confirmed || found.contains(&number),
                "{number} is lost"
            );
        } else {
            is_refusing |= is_refused;
            let is_lost = *sent == PublishOutcome::Confirmed && !found.contains(&number);
            assert!(!is_refusing || !is_lost, "{number}: confirmed, and no queue holds it");
        }
    }
}

/// Delivers a message more often than its delivery limit permits.
async fn exceed_delivery_limit(broker: &RabbitBroker) {
    for _ in 0..2 {
        let mut subscription = broker.subscribe(Route::Orders(0), 1).await.unwrap();
        subscription.next().await.unwrap();
    }
}

/// C21: a dead letter is kept while its exchange is missing.
async fn deleted_dead_letter_exchange(server: &RabbitMq) {
    let broker = declared(server, "no-exchange").await;
    let sent = broker.open_channel(1).publish(vec![message(Route::Orders(0), 7)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    // Both connections are open: a new one would declare the exchange again.
    broker.depths().await.unwrap();
    server.delete_exchange("no-exchange.dead");
    exceed_delivery_limit(&broker).await;
    until("the message to leave the queue", async || {
        let depths = broker.depths().await.unwrap();
        depths.iter().any(|one| one.queue == "orders.0" && one.num_ready == 0).then_some(())
    })
    .await;
    assert_eq!(server.num_ready("no-exchange.dead"), Some(0));
    declared(server, "no-exchange").await;
    let mut dead = broker.subscribe(Route::Dead, 1).await.unwrap();
    let dead_letter = tokio::time::timeout(Duration::from_secs(60), dead.next()).await;
    assert_eq!(dead_letter.expect("a dead letter").unwrap().headers.message_id, "7");
}

async fn foreign_arguments(server: &RabbitMq) {
    server.with_channel(async |channel| {
        let durable = QueueDeclareOptions::durable;
        let none = FieldTable::default;
        channel.queue_declare("foreign.orders.1".into(), durable(), none()).await.unwrap();
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = lapin::ExchangeKind::Fanout;
        channel.exchange_declare("kind.intents".into(), kind, options, none()).await.unwrap();
    });
    for (namespace, expected) in [
        (
            "foreign",
            ["queue foreign.orders.1", "x-dead-letter-exchange", "rabbitmqctl delete_queue"],
        ),
        ("kind", ["exchange kind.intents", "type", "delete the exchange"]),
    ] {
        let broker = broker(server, namespace);
        let error = broker.depths().await.unwrap_err();
        assert!(matches!(error, Error::Topology { .. }), "{error}");
        let text = error.to_string();
        assert!(expected.iter().all(|part| text.contains(part)), "{text}");
        let refused = broker.subscribe(Route::Orders(0), 1).await.err();
        assert_eq!(refused, Some(error));
        let sent = broker.open_channel(1).publish(vec![message(Route::Orders(0), 1)]).await;
        let PublishOutcome::NotSent { reason } = &sent[0] else { panic!("{sent:?}") };
        assert_eq!(*reason, text);
    }
}
