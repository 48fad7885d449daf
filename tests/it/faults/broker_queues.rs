//! Queues and exchanges that somebody deletes or declares otherwise.
//!
//! One server for all of it, each case under a namespace of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::{
    Error, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route,
    Source, Subscriber, Topology,
};
use lapin::BasicProperties;
use lapin::options::{
    BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};

use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const ROUNDS: usize = 4;
const WINDOW: usize = 512;
const CALL: usize = 3_000;

fn topology(namespace: &str) -> Topology {
    Topology::new(namespace, 2, 1)
}

fn broker(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(topology(namespace));
    // A broker that deletes a queue may forget to confirm, or to answer at all.
    options.confirm_timeout = Duration::from_secs(2);
    options.connect_timeout = Duration::from_secs(5);
    RabbitBroker::new(options).unwrap()
}

/// The same where everything is declared, and taken without haste.
async fn declared(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(topology(namespace));
    options.connect_timeout = Duration::from_mins(1);
    RabbitBroker::new(options).unwrap().declare().await.unwrap();
    broker(server, namespace)
}

fn message(route: Route, number: usize) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route, headers, body: Bytes::from_static(b"body") }
}

/// Of two queues, one is deleted.
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
        with_connections_of_their_own(&server).await;
        without_exchange(&server).await;
        without_dead_letter_exchange(&server).await;
        beside_what_an_earlier_version_declared(&server).await;
        foreign_arguments(&server).await;
    });
}

/// A broker that is short of memory stops reading from whoever publishes: acknowledgements must not
/// stop with it.
async fn with_connections_of_their_own(server: &RabbitMq) {
    let broker = declared(server, "apart").await;
    // Both are kept: a channel goes with its user.
    let mut outgoing = broker.outgoing(1);
    let sent = outgoing.publish(vec![message(Route::Orders(0), 1)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    let mut subscription = broker.subscribe(Source::Orders(0), 1).await.unwrap();
    subscription.next().await.unwrap();
    until("two connections in use", async || {
        let listed = server.ctl(&["list_connections", "client_properties", "channels"]);
        let with_channel = |name: &str| {
            let own = listed.lines().filter(|line| line.contains(name));
            own.filter(|line| !line.trim().ends_with("\t0")).count()
        };
        let both =
            with_channel("floodgate-publishing") > 0 && with_channel("floodgate-consuming") > 0;
        both.then_some(())
    })
    .await;
}

/// Nobody subscribes here: whoever publishes brings the exchange back.
async fn without_exchange(server: &RabbitMq) {
    let broker = declared(server, "exchange").await;
    let mut outgoing = broker.outgoing(WINDOW);
    let mut try_one = async || outgoing.publish(vec![message(Route::Orders(1), 0)]).await;
    assert_eq!(try_one().await, [PublishOutcome::Confirmed]);
    server.delete_exchange("exchange.intents");
    until("an exchange", async || (try_one().await == [PublishOutcome::Confirmed]).then_some(()))
        .await;
}

/// Everything that waits in these queues, by number.
async fn numbers_in(broker: &RabbitBroker, sources: &[Source]) -> BTreeSet<usize> {
    let mut numbers = BTreeSet::new();
    for source in sources {
        let mut subscription = broker.subscribe(*source, 500).await.unwrap();
        let acks = subscription.acks();
        let name = match source {
            Source::Orders(queue) => format!("orders.{queue}"),
            Source::Dead => "dead".to_owned(),
        };
        // What is on its way to us waits in no queue: silence counts after one that was empty.
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

/// Publishes messages of both queues in one call and deletes one queue in the middle of it; the
/// results, from number 1 on. A broker may answer that with an error of its own (541), or lose
/// confirmations: then much is unknown.
async fn publish_and_delete(
    server: &RabbitMq,
    broker: &RabbitBroker,
    outgoing: &mut dyn PublishChannel,
    queue: &str,
) -> Vec<PublishOutcome> {
    let batch = (1..=CALL).map(|number| message(route(number), number)).collect();
    let deleting = async {
        until("some messages", async || {
            let depths = broker.depths().await.unwrap();
            depths.iter().any(|one| one.queue == "orders.1" && one.num_ready > 20).then_some(())
        })
        .await;
        server.delete_queue(queue);
    };
    let (mut results, ()) = tokio::join!(outgoing.publish(batch), deleting);
    // It heals, whatever the broker did.
    until("a message to the queue that was deleted", async || {
        let number = (results.len() + 1).next_multiple_of(10);
        results.resize(number - 1, PublishOutcome::NotSent { reason: String::new() });
        results.extend(outgoing.publish(vec![message(route(number), number)]).await);
        (results.last() == Some(&PublishOutcome::Confirmed)).then_some(())
    })
    .await;
    results
}

/// Messages that were in the queue go with it. From the first one on that came too late for it,
/// what is confirmed is in a queue: the broker returns the others, and the client library says so
/// with confirmations of their neighbours.
async fn deleted_under_load(server: &RabbitMq, round: usize) {
    let namespace = format!("deleted-{round}");
    let broker = declared(server, &namespace).await;
    let mut outgoing = broker.outgoing(WINDOW);
    let sent = outgoing.publish(vec![message(Route::Orders(1), 0)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    broker.depths().await.unwrap();
    let queue = format!("{namespace}.orders.1");
    let results = publish_and_delete(server, &broker, outgoing.as_mut(), &queue).await;
    let found = numbers_in(&broker, &[Source::Orders(0), Source::Orders(1)]).await;
    assert!(found.contains(&results.len()), "the last one was confirmed, and no queue has it");
    let mut is_late = false;
    for (number, sent) in (1..=CALL).zip(&results) {
        let is_refused = matches!(sent, PublishOutcome::Refused { .. });
        if route(number) == Route::Orders(0) {
            assert!(!is_refused, "{number}: {sent:?}");
            assert!(
                *sent != PublishOutcome::Confirmed || found.contains(&number),
                "{number} is lost"
            );
        } else {
            is_late |= is_refused;
            let is_lost = *sent == PublishOutcome::Confirmed && !found.contains(&number);
            assert!(!is_late || !is_lost, "{number}: confirmed, and no queue has it");
        }
    }
}

/// Delivers a message more often than it may be.
async fn deliver_too_often(broker: &RabbitBroker) {
    for _ in 0..2 {
        let mut subscription = broker.subscribe(Source::Orders(0), 1).await.unwrap();
        subscription.next().await.unwrap();
    }
}

/// C21: a dead letter without a place to go stays where it is.
async fn without_dead_letter_exchange(server: &RabbitMq) {
    let broker = declared(server, "undead").await;
    let sent = broker.outgoing(1).publish(vec![message(Route::Orders(0), 7)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    // Both connections are there: a new one would declare it again.
    broker.depths().await.unwrap();
    server.delete_exchange("undead.dead");
    deliver_too_often(&broker).await;
    until("the message to leave the line", async || {
        let depths = broker.depths().await.unwrap();
        depths.iter().any(|one| one.queue == "orders.0" && one.num_ready == 0).then_some(())
    })
    .await;
    assert_eq!(server.num_ready("undead.dead"), Some(0));
    broker.declare().await.unwrap();
    let mut dead = broker.subscribe(Source::Dead, 1).await.unwrap();
    let letter = tokio::time::timeout(Duration::from_secs(60), dead.next()).await;
    assert_eq!(letter.expect("a dead letter").unwrap().headers.message_id, "7");
}

/// An installation that was declared by a version with delay queues and an alternate exchange
/// starts, and what still waits in a delay queue comes back.
async fn beside_what_an_earlier_version_declared(server: &RabbitMq) {
    server.with_channel(async |channel| {
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        for (exchange, alternate) in
            [("old.unroutable", None), ("old.orders", Some("old.unroutable"))]
        {
            let mut arguments = FieldTable::default();
            if let Some(alternate) = alternate {
                let alternate = AMQPValue::LongString(alternate.into());
                arguments.insert("alternate-exchange".into(), alternate);
            }
            let kind = lapin::ExchangeKind::Direct;
            channel.exchange_declare(exchange.into(), kind, durable, arguments).await.unwrap();
        }
        let mut delay = FieldTable::default();
        delay.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        delay.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("old.orders".into()));
        delay.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString("0".into()));
        delay.insert("x-message-ttl".into(), AMQPValue::LongLongInt(3_000));
        let queue = QueueDeclareOptions::durable();
        channel.queue_declare("old.retry.3000".into(), queue, delay).await.unwrap();
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let properties = properties.with_message_id("1".into());
        let waits =
            channel.basic_publish("".into(), "old.retry.3000".into(), options, b"", properties);
        waits.await.unwrap();
    });
    let broker = declared(server, "old").await;
    // As the earlier version left it: its exchange is bound to the order queues.
    server.with_channel(async |channel| {
        let (queue, exchange) = ("old.orders.0".into(), "old.orders".into());
        let options = QueueBindOptions::default();
        channel
            .queue_bind(queue, exchange, "0".into(), options, FieldTable::default())
            .await
            .unwrap();
    });
    let sent = broker.outgoing(1).publish(vec![message(Route::Orders(0), 2)]).await;
    assert_eq!(sent, [PublishOutcome::Confirmed]);
    until("both messages", async || {
        let depths = broker.depths().await.unwrap();
        depths.iter().any(|one| one.queue == "orders.0" && one.num_ready == 2).then_some(())
    })
    .await;
    let found = numbers_in(&broker, &[Source::Orders(0)]).await;
    assert_eq!(found, BTreeSet::from([1, 2]));
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
        let told = broker.declare().await.unwrap_err();
        assert!(matches!(told, Error::Topology { .. }), "{told}");
        let said = told.to_string();
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
        let refused = broker.subscribe(Source::Orders(0), 1).await.err();
        assert_eq!(refused, Some(told));
        let sent = broker.outgoing(1).publish(vec![message(Route::Orders(0), 1)]).await;
        let PublishOutcome::NotSent { reason } = &sent[0] else { panic!("{sent:?}") };
        assert_eq!(*reason, said);
    }
}
