//! The crash points of the order intake, by name: C10. What was not acknowledged comes again, and
//! coming again changes nothing.

use floodgate::redis::scripts::intent::pack;

use crate::support::fake_broker::Says;
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::intake::IntakeRig;
use crate::support::rig::in_system;
use crate::support::wait::until;

async fn until_in_hand(rig: &IntakeRig, count: usize) {
    until("deliveries in hand", || async {
        (rig.broker.num_unacknowledged() == count).then_some(())
    })
    .await;
}

/// Crash point `delivered_not_submitted`.
#[test]
fn delivered_not_submitted_comes_again() {
    in_system(async {
        let rig = IntakeRig::open().await;
        // What is in front of the ledger when the intake dies has reached nobody.
        rig.ledger.set(Fault::Down);
        rig.put_each(1..=5).await;
        until_in_hand(&rig, 5).await;
        rig.kill().await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        assert_eq!(rig.broker.num_deliveries(), 10);
        rig.assert_orders(1..=5).await;
    });
}

/// Before the transaction: the intake dies while its submission is inside the consumer, which
/// goes on; both bring the same orders.
#[test]
fn an_intake_that_dies_over_a_transaction_doubles_nothing() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.put_each(1..=5).await;
        until_in_hand(&rig, 5).await;
        rig.kill().await;
        until_in_hand(&rig, 5).await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=5).await;
        assert_eq!(rig.metric("floodgate_consumer_redelivered_total"), 5);
        assert!(rig.broker.published().is_empty());
    });
}

/// Crash point `committed_not_acknowledged`: after COMMIT, before the acknowledgement.
#[test]
fn committed_not_acknowledged_is_acknowledged_when_it_comes_again() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.broker.lose_acks(true);
        rig.put_each(1..=5).await;
        rig.assert_orders(1..=5).await;
        assert_eq!(rig.broker.num_unacknowledged(), 5);
        rig.broker.go_away(true);
        rig.kill().await;
        rig.broker.lose_acks(false);
        rig.broker.go_away(false);
        rig.until_empty().await;
        assert_eq!(rig.broker.num_deliveries(), 10);
        rig.assert_orders(1..=5).await;
        assert!(rig.broker.published().is_empty(), "a repeat is a success");
        let landings = rig.metric("floodgate_placement_seconds_count");
        assert_eq!(landings, 5, "a repeat is no landing");
    });
}

/// Crash point `dead_lettered_not_acknowledged`: it is confirmed, the original comes again.
#[test]
fn dead_lettered_not_acknowledged_is_one_order_and_one_dead_letter() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let good = rig.accept(1, 1).await;
        let mut bad = rig.intent(2, 2);
        bad.amount = 7;
        rig.broker.lose_acks(true);
        rig.put(&[good, bad]);
        until("a dead letter", || async { (rig.broker.dead().len() == 1).then_some(()) }).await;
        rig.broker.go_away(true);
        rig.kill().await;
        rig.broker.lose_acks(false);
        rig.broker.go_away(false);
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!(dead.len(), 2, "it came again");
        assert!(dead.iter().all(|letter| *letter == dead[0]), "one dead letter: {dead:?}");
        assert_eq!(&dead[0].body[..], pack(&bad));
        rig.assert_orders(1..=1).await;
    });
}

/// A stock in trouble holds up no order: the ledger has it, the delivery is acknowledged, and the
/// result is written when stock and ledger are compared, or when a gate submits it again.
#[test]
fn orders_are_acknowledged_at_commit_whatever_the_stock_says() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.stock.set_deaf(true);
        rig.put_each(1..=40).await;
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, 40);
        assert_eq!(rig.broker.num_deliveries(), 40, "none came twice");
        assert_eq!(rig.metric("floodgate_consumer_retries_total"), 0);
        assert!(rig.broker.published().is_empty());
        for request in 1..=40 {
            assert!(!rig.is_settled(request).await);
        }
        rig.stock.set_deaf(false);
        (1..=40).for_each(|request| rig.put_repeat(request));
        rig.until_empty().await;
        rig.assert_orders(1..=40).await;
    });
}

/// A server of the stock that is gone answers nothing for a while: no order waits for it, and only
/// a few batches wait for their results to be written.
#[test]
fn a_stock_that_answers_nothing_holds_up_no_order() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.stock.set(StockFault::ResultsWait);
        for request in 1..=12 {
            rig.put_each([request]).await;
            rig.until_empty().await;
        }
        assert_eq!(rig.rig.num_orders().await, 12);
        assert_eq!((rig.broker.num_deliveries(), rig.stock.num_waiting()), (12, 8));
        rig.stock.set(StockFault::None);
        (1..=12).for_each(|request| rig.put_repeat(request));
        rig.until_empty().await;
        rig.assert_orders(1..=12).await;
    });
}

/// The consumer dies with many submissions of the intake inside.
#[test]
fn a_consumer_that_crashes_over_one_order_costs_no_other_an_attempt() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Kills(floodgate::domain::RequestId::new(1).unwrap()));
        rig.put_each(1..=16).await;
        until("the others", || async { (rig.rig.num_orders().await == 15).then_some(()) }).await;
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "1-1"));
    });
}

/// The broker's side is gone for a while at the worst time: a copy is to be confirmed.
#[test]
fn an_intake_that_dies_while_copies_wait_publishes_them_again() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.broker.say(Says::NotSent);
        let mut bad = rig.intent(1, 1);
        bad.amount = 7;
        rig.put(&[bad]);
        until("a try", || async { (rig.broker.num_tried() > 0).then_some(()) }).await;
        rig.kill().await;
        rig.broker.say(Says::Yes);
        rig.until_empty().await;
        assert_eq!(rig.broker.dead().len(), 1);
    });
}
