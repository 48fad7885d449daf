//! Dead letters, returned messages, deleted queues and queue depths.

use std::time::Duration;

use floodgate::broker::{Error, Headers, Message, PublishOutcome, Route, Topology};
use floodgate::domain::DeadLetterOrigin;
use floodgate::services::dead_letters::new_dead_letter;
use lapin::types::{AMQPValue, FieldTable};

use super::{Backend, DELIVERIES_MAX, ids, message, messages, take};
use crate::support::intents::reader;
use crate::support::wait::until;

pub async fn dead_letters_wait_with_their_reason(backend: &dyn Backend) {
    let process = backend.open();
    let mut dead_letter = message(Route::Dead, 1);
    dead_letter.headers.reason = Some("poison".into());
    dead_letter.headers.origin = Some("orders.1".into());
    process.publish_confirmed(vec![dead_letter.clone()]).await;
    let found = process.drain(Route::Dead, 1).await;
    assert_eq!(found[0].headers, dead_letter.headers);
    assert_eq!(
        new_dead_letter::from_delivery(&found[0], &reader("0badcafe"), 1).origin,
        DeadLetterOrigin::Consumer
    );
    assert_eq!(found[0].body, dead_letter.body);
}

pub async fn a_message_delivered_too_often_is_a_dead_letter(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..1)).await;
    let mut dead_letters = process.subscribe(Route::Dead, 1).await;
    for num_previous in 0..=DELIVERIES_MAX {
        let mut subscription = process.subscribe(Route::Orders(0), 1).await;
        let delivery = take(subscription.as_mut(), 1).await.remove(0);
        assert_eq!(delivery.num_previous, num_previous);
    }
    let dead_letter = take(dead_letters.as_mut(), 1).await.remove(0);
    assert_eq!(dead_letter.headers.message_id, "m0");
    assert_eq!(dead_letter.headers.reason.as_deref(), Some("the broker: delivery_limit"));
    assert!(dead_letter.headers.origin.as_deref().unwrap().ends_with(".orders.0"));
    assert_eq!(
        new_dead_letter::from_delivery(&dead_letter, &reader("0badcafe"), 1).origin,
        DeadLetterOrigin::Broker
    );
    assert_eq!(process.num_ready("orders.0").await, 0);
}

/// The client library attaches a returned message to the next confirm, whichever message that is.
pub async fn a_message_that_no_queue_wants_is_refused_and_the_next_one_is_not(
    backend: &dyn Backend,
) {
    let process = backend.open();
    // All messages are in one window: a missing queue is declared again only before the next one.
    let mut outgoing = process.open_channel(1000);
    assert_eq!(
        outgoing.publish(messages(Route::Orders(0), 0..1)).await,
        [PublishOutcome::Confirmed]
    );
    backend.delete_queue("orders.1");
    let queue = |number: usize| u16::from(number % 10 == 3);
    let numbers = 1..801_usize;
    let batch = numbers.clone().map(|number| message(Route::Orders(queue(number)), number));
    let outcomes = outgoing.publish(batch.collect()).await;
    for (number, outcome) in numbers.clone().zip(&outcomes) {
        match queue(number) {
            0 => assert_eq!(*outcome, PublishOutcome::Confirmed, "{number}"),
            _ => {
                assert!(matches!(outcome, PublishOutcome::Refused { .. }), "{number}: {outcome:?}");
            }
        }
    }
    let kept = process.drain(Route::Orders(0), 721).await;
    let expected = numbers.filter(|number| queue(*number) == 0).map(|number| format!("m{number}"));
    assert_eq!(ids(&kept)[1..], expected.collect::<Vec<_>>());
    // The missing queue is declared again before the next window.
    assert_eq!(
        outgoing.publish(messages(Route::Orders(1), 900..901)).await,
        [PublishOutcome::Confirmed]
    );
    assert_eq!(ids(&process.drain(Route::Orders(1), 1).await), ["m900"]);
}

pub async fn a_deleted_queue_ends_its_subscription_and_the_next_one_declares_it(
    backend: &dyn Backend,
) {
    let process = backend.open();
    let mut subscription = process.subscribe(Route::Orders(1), 10).await;
    let mut other = process.subscribe(Route::Orders(2), 10).await;
    process.publish_confirmed(messages(Route::Orders(1), 0..3)).await;
    take(subscription.as_mut(), 1).await;
    backend.delete_queue("orders.1");
    let error = loop {
        // Deliveries already in flight may still arrive.
        let next = tokio::time::timeout(Duration::from_secs(30), subscription.next());
        match next.await.expect("the end of the subscription") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    subscription.acks().up_to(1).await;
    drop(subscription);

    let mut subscription = process.subscribe(Route::Orders(1), 10).await;
    process
        .publish_confirmed(vec![message(Route::Orders(1), 7), message(Route::Orders(2), 8)])
        .await;
    assert_eq!(ids(&take(subscription.as_mut(), 1).await), ["m7"]);
    assert_eq!(ids(&take(other.as_mut(), 1).await), ["m8"]);
}

pub async fn depths_count_messages_and_consumers(backend: &dyn Backend) {
    let process = backend.open();
    let batch = [Route::Orders(0), Route::Orders(0), Route::Dead];
    process.publish_confirmed(batch.map(|route| message(route, 0)).to_vec()).await;
    let mut subscription = process.subscribe(Route::Orders(0), 1).await;
    take(subscription.as_mut(), 1).await;
    let _idle = process.subscribe(Route::Orders(1), 1).await;
    backend.delete_queue("orders.2");
    let expected = [("dead", 1, 0), ("orders.0", 1, 1), ("orders.1", 0, 1), ("orders.2", 0, 0)];
    let expected = expected.map(|(queue, ready, consumers)| (queue.to_owned(), ready, consumers));
    until("the depths", async || {
        let depths = process.subscriber.depths().await.unwrap();
        let depths = depths.into_iter().map(|one| (one.queue, one.num_ready, one.num_consumers));
        depths.eq(expected.clone()).then_some(())
    })
    .await;
    for (route, ready, consumers) in [(Route::Dead, 1, 0), (Route::Orders(1), 0, 1)] {
        let depth = process.subscriber.depth(route).await.unwrap();
        assert_eq!((depth.num_ready, depth.num_consumers), (ready, consumers), "{depth:?}");
    }
    // Publishing still works after a missing queue.
    let extra = Message { headers: Headers::default(), ..message(Route::Orders(1), 0) };
    process.publish_confirmed(vec![extra]).await;
}

/// Without these arguments a broker may lose a message that it dead-letters, or redeliver one for
/// ever.
#[test]
fn every_queue_is_replicated_and_dead_letters_at_least_once() {
    let topology = Topology::new("shop", 2, 100);
    let exchanges: Vec<_> = topology.exchanges().into_iter().map(|one| one.name).collect();
    assert_eq!(exchanges, ["shop.unreadable", "shop.dead", "shop.intents"]);
    let expected = [
        ("shop.unreadable", None, i64::from(i32::MAX)),
        ("shop.dead", Some("shop.unreadable"), 50),
        ("shop.orders.0", Some("shop.dead"), 100),
        ("shop.orders.1", Some("shop.dead"), 100),
    ];
    let queues = topology.queues();
    assert_eq!(queues.len(), expected.len());
    for (queue, (name, target, limit)) in queues.iter().zip(expected) {
        let mut arguments = FieldTable::default();
        let text = |value: &str| AMQPValue::LongString(value.into());
        arguments.insert("x-queue-type".into(), text("quorum"));
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(limit));
        if let Some(target) = target {
            arguments.insert("x-dead-letter-exchange".into(), text(target));
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        assert_eq!((queue.name.as_str(), queue.arguments()), (name, arguments));
        assert!(exchanges.contains(&queue.binding.exchange), "{queue:?}");
    }
    let last = topology.address(Route::Orders(1)).unwrap();
    assert_eq!((last.exchange.as_str(), last.key.as_str()), ("shop.intents", "1"));
    assert_eq!(topology.address(Route::Orders(2)), None);
    assert_eq!(topology.address(Route::Events), None);
    let with_events = Topology { has_events: true, ..topology.clone() };
    let exchanges = with_events.exchanges();
    assert_eq!(exchanges.last().unwrap().name, "shop.events");
    assert_eq!(with_events.address(Route::Events).unwrap().exchange, "shop.events");
    assert_eq!((with_events.queues(), with_events.queue(Route::Events).is_err()), (queues, true));
    assert!(topology.queue(Route::Orders(2)).is_err());
}

#[test]
fn every_queue_with_a_consumer_is_live() {
    let topology = Topology::new("shop", 1, 100);
    let topology = Topology { has_payments: true, delays_s: vec![60], ..topology };
    let live: Vec<_> = topology.live_queues().into_iter().map(|queue| queue.name).collect();
    let sources = [Route::Dead, Route::Orders(0), Route::Payments, Route::Due, Route::Delay(60)];
    let expected = sources.map(|source| format!("shop.{}", source.queue().unwrap()));
    assert_eq!(live, expected);
    assert_eq!(sources.map(|source| topology.queue(source).unwrap().name), expected);
}

#[test]
fn short_names_have_no_namespace() {
    let topology = Topology::new("shop", 2, 100);
    assert_eq!(topology.short("shop.orders.1"), "orders.1");
    assert_eq!(topology.short("shopping.orders.1"), "shopping.orders.1");
}
