//! Consuming: prefetch, acknowledgements and redelivery.

use std::time::Duration;

use floodgate::broker::{Error, Route, Subscription};

use super::{Backend, expected_ids, ids, messages, take};
use crate::support::wait::until;

const ORDERS: Route = Route::Orders(0);

/// Waits 50 ms and returns whether no delivery arrived. On a slow machine a late delivery can go
/// unnoticed: a false pass is possible, a false failure is not.
async fn receives_nothing(subscription: &mut dyn Subscription) -> bool {
    tokio::time::timeout(Duration::from_millis(50), subscription.next()).await.is_err()
}

pub async fn no_more_than_the_prefetch_is_out(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..10)).await;
    let mut subscription = process.subscribe(ORDERS, 4).await;
    take(subscription.as_mut(), 4).await;
    assert!(receives_nothing(subscription.as_mut()).await);
    assert_eq!(process.num_ready("orders.0").await, 6);
    subscription.acks().one(2).await;
    assert_eq!(take(subscription.as_mut(), 1).await[0].tag, 5);
    assert!(receives_nothing(subscription.as_mut()).await);
    subscription.acks().up_to(5).await;
    assert_eq!(ids(&take(subscription.as_mut(), 4).await), expected_ids(5..9));
}

pub async fn one_acknowledgement_is_for_one_and_one_for_all_before(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..8)).await;
    let mut subscription = process.subscribe(ORDERS, 8).await;
    take(subscription.as_mut(), 8).await;
    let acks = subscription.acks();
    acks.one(6).await;
    acks.up_to(3).await;
    acks.one(5).await;
    drop(subscription);
    // Acknowledgements after the end of the subscription have no effect.
    acks.up_to(8).await;
    let mut again = ids(&process.drain(ORDERS, 3).await);
    again.sort_unstable();
    assert_eq!(again, ["m3", "m6", "m7"]);
    assert_eq!(process.num_ready("orders.0").await, 0);
}

pub async fn unacknowledged_deliveries_are_redelivered(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..5)).await;
    let mut subscription = process.subscribe(ORDERS, 10).await;
    let first = take(subscription.as_mut(), 5).await;
    assert!(first.iter().all(|delivery| delivery.num_previous == 0));
    drop(subscription);
    let again = backend.open().drain(ORDERS, 5).await;
    assert_eq!(ids(&again), expected_ids(0..5));
    assert!(again.iter().all(|delivery| delivery.num_previous == 1), "{again:?}");
    assert_eq!(again.iter().map(|delivery| delivery.tag).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

pub async fn acknowledging_twice_does_no_harm(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..4)).await;
    let mut subscription = process.subscribe(ORDERS, 2).await;
    take(subscription.as_mut(), 2).await;
    let acks = subscription.acks();
    acks.up_to(2).await;
    acks.up_to(2).await;
    acks.one(1).await;
    acks.one(99).await;
    assert_eq!(ids(&take(subscription.as_mut(), 2).await), expected_ids(2..4));
}

pub async fn waiting_may_be_given_up_without_losing_a_delivery(backend: &dyn Backend) {
    let process = backend.open();
    let mut subscription = process.subscribe(ORDERS, 200).await;
    let producer = backend.open();
    let (mut seen, mut sent) = (Vec::new(), 0);
    while seen.len() < 100 {
        if sent < 100 {
            producer.publish_confirmed(messages(Route::Orders(0), sent..sent + 10)).await;
            sent += 10;
        }
        // Cancel `next` after one poll.
        tokio::select! {
            biased;
            delivery = subscription.next() => seen.push(delivery.unwrap()),
            () = tokio::task::yield_now() => {}
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(ids(&seen), expected_ids(0..100));
}

pub async fn a_closed_process_gives_back(backend: &dyn Backend) {
    let process = backend.open();
    process.publish_confirmed(messages(Route::Orders(0), 0..2)).await;
    let mut subscription = process.subscribe(ORDERS, 2).await;
    take(subscription.as_mut(), 2).await;
    process.subscriber.close().await;
    let error = subscription.next().await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(process.subscriber.subscribe(ORDERS, 2).await.is_err());
    let other = backend.open();
    until("the messages to come back", async || {
        (other.num_ready("orders.0").await == 2).then_some(())
    })
    .await;
    assert_eq!(ids(&other.drain(ORDERS, 2).await), expected_ids(0..2));
}
