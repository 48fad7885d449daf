//! The watermark that an order consumer announces for its queue.

use std::time::Duration;

use floodgate::runtime::clock::Clock;

use crate::support::faulty_ledger::Fault;
use crate::support::harness::{START_MS, in_system};
use crate::support::order_consumer::{ConsumerHarness, quick};
use crate::support::wait::until;

/// Skips one announcement, which may have been in flight, and returns the next.
async fn next(harness: &ConsumerHarness) -> i64 {
    let before = harness.watermarks.all().len();
    until("an announcement", || async { harness.watermarks.all().get(before + 1).copied() }).await
}

#[test]
fn with_nothing_in_flight_and_an_empty_queue_it_is_the_present_time() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        assert_eq!(next(&harness).await, harness.harness.clock.wall_ms());
        harness.harness.clock.advance(Duration::from_secs(9));
        assert_eq!(next(&harness).await, START_MS + 9_000);
    });
}

#[test]
fn with_deliveries_in_flight_it_is_when_the_oldest_was_published() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Down);
        harness.put_each(1..=3).await;
        until("deliveries", || async { (harness.broker.num_unacknowledged() == 3).then_some(()) })
            .await;
        harness.harness.clock.advance(Duration::from_secs(9));
        assert_eq!(next(&harness).await, START_MS, "not the present time");
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        assert_eq!(next(&harness).await, START_MS + 9_000);
    });
}

#[test]
fn with_messages_that_are_not_delivered_it_stays_behind() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each([1]).await;
        harness.until_empty().await;
        harness.broker.forget_consumer();
        harness.put_each([2]).await;
        harness.harness.clock.advance(Duration::from_secs(1));
        assert_eq!(next(&harness).await, START_MS, "when the last delivered message was published");
        assert_eq!(harness.broker.num_ready(), 1);
    });
}

#[test]
fn without_a_subscription_nothing_is_announced() {
    in_system(async {
        let mut settings = quick();
        settings.amqp.reconnect_min_ms = 3_600_000;
        settings.amqp.reconnect_max_ms = 3_600_000;
        let harness = ConsumerHarness::open_with(&settings).await;
        next(&harness).await;
        harness.broker.set_unavailable(true);
        harness.broker.end_subscription();
        let steps = || {
            let reports = harness.harness.actors.supervisor.report();
            reports.iter().filter(|r| r.kind == "order_consumer").map(|r| r.steps).sum::<u64>()
        };
        let before = steps();
        until("the end of the subscription", || async { (steps() > before).then_some(()) }).await;
        harness.harness.clock.advance(Duration::from_secs(9));
        let before = steps();
        // Without a subscription a step only checks the timers.
        until("some steps", || async { (steps() > before + 3).then_some(()) }).await;
        assert!(!harness.watermarks.all().contains(&(START_MS + 9_000)));
    });
}
