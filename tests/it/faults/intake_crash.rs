//! The crash points of the order intake, by name: C10. What was not acknowledged comes again, and
//! coming again changes nothing.

use floodgate::broker::Route;
use floodgate::scripts::intent::pack;

use crate::support::fake_broker::Says;
use crate::support::faulty_ledger::Fault;
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
        assert_eq!(rig.metric("floodgate_intake_redelivered_total"), 5);
        assert!(rig.broker.published().is_empty());
    });
}

/// Crash point `landed_not_acknowledged`: after COMMIT, before the acknowledgement.
#[test]
fn landed_not_acknowledged_is_acknowledged_when_it_comes_again() {
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
        let landings = rig.metric("floodgate_landing_seconds_count");
        assert_eq!(landings, 5, "a repeat is no landing");
    });
}

/// Crash point `copied_not_acknowledged`: the copy is confirmed, the original comes again.
#[test]
fn copied_not_acknowledged_is_one_order_and_one_dead_letter() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let good = rig.accept(1, 1).await;
        let mut bad = rig.intent(2, 2);
        bad.amount = 7;
        rig.ledger.set(Fault::Refuses(good.request));
        rig.broker.lose_acks(true);
        rig.put(&[good, bad]);
        until("two copies", || async { (rig.broker.published().len() == 2).then_some(()) }).await;
        rig.broker.go_away(true);
        rig.kill().await;
        rig.broker.lose_acks(false);
        rig.broker.go_away(false);
        rig.until_empty().await;
        let published = rig.broker.published();
        assert_eq!(published.len(), 4, "both again");
        let dead = rig.broker.dead();
        assert!(dead.iter().all(|letter| *letter == dead[0]), "one dead letter: {dead:?}");
        assert_eq!(&dead[0].body[..], pack(&bad));
        rig.ledger.set(Fault::None);
        rig.broker.end_delays();
        rig.until_empty().await;
        rig.assert_orders(1..=1).await;
        assert!(rig.broker.published().iter().all(|copy| copy.route == Route::Dead));
    });
}

/// After the acknowledgement and before the results: that cannot happen, because results come
/// first. While the stock does not hear of them, nothing is acknowledged, and who dies then leaves
/// everything to be delivered again.
#[test]
fn nothing_is_acknowledged_before_its_result_is_in_the_stock() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.stock.set_deaf(true);
        rig.put_each(1..=5).await;
        until("rows", || async { (rig.rig.num_orders().await == 5).then_some(()) }).await;
        rig.kill().await;
        until_in_hand(&rig, 5).await;
        assert_eq!(rig.broker.num_deliveries(), 10);
        for request in 1..=5 {
            assert!(!rig.is_settled(request).await);
        }
        rig.stock.set_deaf(false);
        rig.until_empty().await;
        for request in 1..=5 {
            assert!(rig.is_settled(request).await);
        }
        rig.assert_orders(1..=5).await;
        assert!(rig.broker.published().is_empty(), "it is nobody's attempt");
    });
}

/// The consumer dies with many submissions of the intake inside.
#[test]
fn a_consumer_that_dies_once_costs_nobody_an_attempt_who_was_not_in_its_hand() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Kills(floodgate::domain::RequestId::new(1).unwrap()));
        rig.put_each(1..=16).await;
        until("the others", || async { (rig.rig.num_orders().await == 15).then_some(()) }).await;
        rig.until_empty().await;
        let published = rig.broker.published();
        assert!(published.iter().all(|copy| copy.headers.message_id == "1-1"), "{published:?}");
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
