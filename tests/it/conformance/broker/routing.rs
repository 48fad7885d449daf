//! Where messages go when they do not simply wait for a consumer.

use std::time::Duration;

use floodgate::broker::{Error, Headers, Message, PublishOutcome, Route, Source};
use floodgate::domain::DeadLetterOrigin;
use floodgate::services::dead_letters::headers;

use super::{Backend, DELIVERIES_MAX, ids, message, messages, take};
use crate::support::wait::until;

pub async fn dead_letters_wait_with_their_reason(backend: &dyn Backend) {
    let process = backend.open();
    let mut letter = message(Route::Dead, 1);
    letter.headers.reason = Some("poison".into());
    letter.headers.origin = Some("orders.1".into());
    process.put(vec![letter.clone()]).await;
    let found = process.drain(Source::Dead, 1).await;
    assert_eq!(found[0].headers, letter.headers);
    assert_eq!(headers::of_dead(&found[0], "0badcafe", 1).origin, DeadLetterOrigin::Consumer);
    assert_eq!(found[0].body, letter.body);
}

pub async fn what_is_delivered_too_often_is_a_dead_letter(backend: &dyn Backend) {
    let process = backend.open();
    process.put(messages(Route::Orders(0), 0..1)).await;
    let mut dead = process.subscribe(Source::Dead, 1).await;
    for num_before in 0..=DELIVERIES_MAX {
        let mut subscription = process.subscribe(Source::Orders(0), 1).await;
        let delivery = take(subscription.as_mut(), 1).await.remove(0);
        assert_eq!(delivery.num_before, num_before);
    }
    let letter = take(dead.as_mut(), 1).await.remove(0);
    assert_eq!(letter.headers.message_id, "m0");
    assert_eq!(letter.headers.reason.as_deref(), Some("the broker: delivery_limit"));
    assert!(letter.headers.origin.as_deref().unwrap().ends_with(".orders.0"));
    assert_eq!(headers::of_dead(&letter, "0badcafe", 1).origin, DeadLetterOrigin::Broker);
    assert_eq!(process.num_ready("orders.0").await, 0);
}

/// The client library attaches a return to whichever confirmation comes next.
pub async fn a_message_that_no_queue_wants_is_refused_and_the_next_one_is_not(
    backend: &dyn Backend,
) {
    let process = backend.open();
    // All of them are under way together: what is missing is declared again before the next window.
    let mut outgoing = process.outgoing(1000);
    assert_eq!(
        outgoing.publish(messages(Route::Orders(0), 0..1)).await,
        [PublishOutcome::Confirmed]
    );
    backend.lose("orders.1");
    let queue = |number: usize| u16::from(number % 10 == 3);
    let numbers = 1..801_usize;
    let batch = numbers.clone().map(|number| message(Route::Orders(queue(number)), number));
    let results = outgoing.publish(batch.collect()).await;
    for (number, result) in numbers.clone().zip(&results) {
        match queue(number) {
            0 => assert_eq!(*result, PublishOutcome::Confirmed, "{number}"),
            _ => assert!(matches!(result, PublishOutcome::Refused { .. }), "{number}: {result:?}"),
        }
    }
    let kept = process.drain(Source::Orders(0), 721).await;
    let expected = numbers.filter(|number| queue(*number) == 0).map(|number| format!("m{number}"));
    assert_eq!(ids(&kept)[1..], expected.collect::<Vec<_>>());
    // What is missing is declared again before the next message.
    assert_eq!(
        outgoing.publish(messages(Route::Orders(1), 900..901)).await,
        [PublishOutcome::Confirmed]
    );
    assert_eq!(ids(&process.drain(Source::Orders(1), 1).await), ["m900"]);
}

pub async fn a_deleted_queue_ends_its_subscription_and_the_next_one_declares_it(
    backend: &dyn Backend,
) {
    let process = backend.open();
    let mut subscription = process.subscribe(Source::Orders(1), 10).await;
    let mut other = process.subscribe(Source::Orders(2), 10).await;
    process.put(messages(Route::Orders(1), 0..3)).await;
    take(subscription.as_mut(), 1).await;
    backend.lose("orders.1");
    let error = loop {
        // Deliveries that were under way may still come.
        let next = tokio::time::timeout(Duration::from_secs(30), subscription.next());
        match next.await.expect("an end") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    subscription.acks().up_to(1).await;
    drop(subscription);

    let mut subscription = process.subscribe(Source::Orders(1), 10).await;
    process.put(vec![message(Route::Orders(1), 7), message(Route::Orders(2), 8)]).await;
    assert_eq!(ids(&take(subscription.as_mut(), 1).await), ["m7"]);
    assert_eq!(ids(&take(other.as_mut(), 1).await), ["m8"]);
}

pub async fn declaring_brings_back_what_is_missing(backend: &dyn Backend) {
    let process = backend.open();
    process.put(messages(Route::Orders(0), 0..1)).await;
    for queue in ["orders.2", "dead"] {
        backend.lose(queue);
    }
    process.publisher.declare().await.unwrap();
    process.publisher.declare().await.unwrap();
    let routes = [Route::Orders(2), Route::Dead];
    process.put(routes.map(|route| message(route, 5)).to_vec()).await;
    assert_eq!(ids(&process.drain(Source::Orders(2), 1).await), ["m5"]);
    assert_eq!(ids(&process.drain(Source::Dead, 1).await), ["m5"]);
}

pub async fn depths_tell_what_waits_and_who_consumes(backend: &dyn Backend) {
    let process = backend.open();
    let batch = [Route::Orders(0), Route::Orders(0), Route::Dead];
    process.put(batch.map(|route| message(route, 0)).to_vec()).await;
    let mut subscription = process.subscribe(Source::Orders(0), 1).await;
    take(subscription.as_mut(), 1).await;
    let _idle = process.subscribe(Source::Orders(1), 1).await;
    backend.lose("orders.2");
    let expected = [("dead", 1, 0), ("orders.0", 1, 1), ("orders.1", 0, 1), ("orders.2", 0, 0)];
    let expected = expected.map(|(queue, ready, consumers)| (queue.to_owned(), ready, consumers));
    until("the depths", async || {
        let depths = process.subscriber.depths().await.unwrap();
        let depths = depths.into_iter().map(|one| (one.queue, one.num_ready, one.num_consumers));
        depths.eq(expected.clone()).then_some(())
    })
    .await;
    // Still of use, although a queue was missing.
    let extra = Message { headers: Headers::default(), ..message(Route::Orders(1), 0) };
    process.put(vec![extra]).await;
}
