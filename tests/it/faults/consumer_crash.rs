//! The crash points of the order consumer, by name: C10. An unacknowledged delivery is redelivered,
//! and a redelivery changes nothing.

use crate::support::fake_broker::PublishAnswer;
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::harness::in_system;
use crate::support::intents::pack;
use crate::support::order_consumer::ConsumerHarness;
use crate::support::wait::until;

async fn until_unacknowledged(harness: &ConsumerHarness, count: usize) {
    until("unacknowledged deliveries", || async {
        (harness.broker.num_unacknowledged() == count).then_some(())
    })
    .await;
}

/// Crash point `delivered_not_submitted`.
#[test]
fn delivered_not_submitted_is_redelivered() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        // The deliveries wait for the ledger when the consumer crashes.
        harness.ledger.set(Fault::Down);
        harness.put_each(1..=5).await;
        until_unacknowledged(&harness, 5).await;
        harness.kill().await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        assert_eq!(harness.broker.num_deliveries(), 10);
        harness.assert_orders(1..=5).await;
    });
}

/// Before the transaction: the consumer crashes while the ledger writer has its submission. The
/// submission and the redeliveries place the same orders.
#[test]
fn a_consumer_crash_during_a_transaction_duplicates_nothing() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.put_each(1..=5).await;
        until_unacknowledged(&harness, 5).await;
        harness.kill().await;
        until_unacknowledged(&harness, 5).await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=5).await;
        assert_eq!(harness.metric("floodgate_consumer_redelivered_total"), 5);
        assert!(harness.broker.published().is_empty());
    });
}

/// Crash point `committed_not_acknowledged`: after COMMIT, before the acknowledgement.
#[test]
fn committed_not_acknowledged_is_acknowledged_when_redelivered() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.broker.lose_acks(true);
        harness.put_each(1..=5).await;
        harness.assert_orders(1..=5).await;
        until("the placements", async || {
            (harness.metric("floodgate_placement_seconds_count") == 5).then_some(())
        })
        .await;
        assert_eq!(harness.broker.num_unacknowledged(), 5);
        harness.broker.set_unavailable(true);
        harness.kill().await;
        harness.broker.lose_acks(false);
        harness.broker.set_unavailable(false);
        harness.until_empty().await;
        assert_eq!(harness.broker.num_deliveries(), 10);
        harness.assert_orders(1..=5).await;
        assert!(harness.broker.published().is_empty(), "a repeat is a success");
        let num_placements = harness.metric("floodgate_placement_seconds_count");
        assert_eq!(num_placements, 5, "a repeat is no placement");
    });
}

/// Crash point `dead_lettered_not_acknowledged`: confirmed, then the original is redelivered.
#[test]
fn dead_lettered_not_acknowledged_is_one_order_and_one_dead_letter() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let good = harness.accept(1, 1).await;
        let mut bad = harness.intent(2, 2);
        bad.amount = 7;
        harness.broker.lose_acks(true);
        harness.put(&[good, bad]);
        until("a dead letter", || async { (harness.broker.dead().len() == 1).then_some(()) }).await;
        harness.broker.set_unavailable(true);
        harness.kill().await;
        harness.broker.lose_acks(false);
        harness.broker.set_unavailable(false);
        harness.until_empty().await;
        let dead = harness.broker.dead();
        assert_eq!(dead.len(), 2, "the original was redelivered");
        assert!(
            dead.iter().all(|dead_letter| *dead_letter == dead[0]),
            "one dead letter: {dead:?}"
        );
        assert_eq!(&dead[0].body[..], pack(&bad));
        harness.assert_orders(1..=1).await;
    });
}

/// A failing stock delays no order: the order is committed and its delivery acknowledged. The
/// result is written when stock and ledger are reconciled, or when a gate resubmits the request.
#[test]
fn orders_are_acknowledged_at_commit_whatever_the_stock_answers() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.stock.set_refusing(true);
        harness.put_each(1..=40).await;
        harness.until_empty().await;
        assert_eq!(harness.harness.num_orders().await, 40);
        assert_eq!(harness.broker.num_deliveries(), 40, "none was redelivered");
        assert_eq!(harness.metric("floodgate_consumer_retries_total"), 0);
        assert!(harness.broker.published().is_empty());
        for request in 1..=40 {
            assert!(!harness.is_settled(request).await);
        }
        harness.stock.set_refusing(false);
        (1..=40).for_each(|request| harness.put_repeat(request));
        harness.until_empty().await;
        harness.assert_orders(1..=40).await;
    });
}

/// A stock server that answers nothing for a while delays no order, and only a few batches wait for
/// their results to be written.
#[test]
fn a_stock_that_answers_nothing_holds_up_no_order() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.stock.set(StockFault::ResultsWait);
        for request in 1..=12 {
            harness.put_each([request]).await;
            harness.until_empty().await;
        }
        assert_eq!(harness.harness.num_orders().await, 12);
        assert_eq!((harness.broker.num_deliveries(), harness.stock.num_waiting()), (12, 8));
        harness.stock.set(StockFault::None);
        (1..=12).for_each(|request| harness.put_repeat(request));
        harness.until_empty().await;
        harness.assert_orders(1..=12).await;
    });
}

/// The ledger writer crashes with many submissions of the consumer queued.
#[test]
fn a_consumer_that_crashes_over_one_order_costs_no_other_an_attempt() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Kills(floodgate::domain::RequestId::new(1).unwrap()));
        harness.put_each(1..=16).await;
        until("the other orders", || async {
            (harness.harness.num_orders().await == 15).then_some(())
        })
        .await;
        harness.until_empty().await;
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "1-1"));
    });
}

/// The consumer crashes while the broker is unavailable and a copy waits for its confirm.
#[test]
fn a_consumer_crash_while_copies_wait_publishes_them_again() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.broker.say(PublishAnswer::NotSent);
        let mut bad = harness.intent(1, 1);
        bad.amount = 7;
        harness.put(&[bad]);
        until("a publish attempt", || async {
            (harness.broker.num_publish_attempts() > 0).then_some(())
        })
        .await;
        harness.kill().await;
        harness.broker.say(PublishAnswer::Yes);
        harness.until_empty().await;
        assert_eq!(harness.broker.dead().len(), 1);
    });
}
