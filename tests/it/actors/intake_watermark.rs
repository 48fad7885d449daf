//! What a consumer announces of its order queue.

use std::time::Duration;

use floodgate::runtime::clock::Clock;

use crate::support::faulty_ledger::Fault;
use crate::support::intake::{IntakeRig, quick};
use crate::support::rig::{START_MS, in_system};
use crate::support::wait::until;

/// Waits for the next announcement but one: the first may have been under way.
async fn next(rig: &IntakeRig) -> i64 {
    let before = rig.watermarks.all().len();
    until("an announcement", || async { rig.watermarks.all().get(before + 1).copied() }).await
}

#[test]
fn with_nothing_in_hand_and_an_empty_queue_it_is_the_present_time() {
    in_system(async {
        let rig = IntakeRig::open().await;
        assert_eq!(next(&rig).await, rig.rig.clock.wall_ms());
        rig.rig.clock.advance(Duration::from_secs(9));
        assert_eq!(next(&rig).await, START_MS + 9_000);
    });
}

#[test]
fn with_something_in_hand_it_is_when_the_oldest_was_published() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Down);
        rig.put_each(1..=3).await;
        until("deliveries", || async { (rig.broker.num_unacknowledged() == 3).then_some(()) })
            .await;
        rig.rig.clock.advance(Duration::from_secs(9));
        assert_eq!(next(&rig).await, START_MS, "not the present time");
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        assert_eq!(next(&rig).await, START_MS + 9_000);
    });
}

#[test]
fn with_messages_in_the_queue_that_nobody_is_given_it_stays_behind() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each([1]).await;
        rig.until_empty().await;
        rig.broker.forget_consumer();
        rig.put_each([2]).await;
        rig.rig.clock.advance(Duration::from_secs(1));
        assert_eq!(next(&rig).await, START_MS, "when the last one was published");
        assert_eq!(rig.broker.num_ready(), 1);
    });
}

#[test]
fn without_a_subscription_nothing_is_announced() {
    in_system(async {
        let mut settings = quick();
        settings.amqp.reconnect_min_ms = 3_600_000;
        settings.amqp.reconnect_max_ms = 3_600_000;
        let rig = IntakeRig::open_with(&settings).await;
        next(&rig).await;
        rig.broker.go_away(true);
        rig.broker.end_subscription();
        let steps = || {
            let reports = rig.rig.actors.supervisor().report();
            reports.iter().filter(|r| r.kind == "order_consumer").map(|r| r.steps).sum::<u64>()
        };
        let before = steps();
        until("the end of the subscription", || async { (steps() > before).then_some(()) }).await;
        rig.rig.clock.advance(Duration::from_secs(9));
        let before = steps();
        // It does nothing but look at the time.
        until("some steps", || async { (steps() > before + 3).then_some(()) }).await;
        assert!(!rig.watermarks.all().contains(&(START_MS + 9_000)));
    });
}
