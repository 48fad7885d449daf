//! The order intake: what it takes in, what it keeps out, and what it acknowledges.

use std::sync::Arc;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::Ledger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{OrderIntent, Refusal, RequestId, TraceId};
use floodgate::messages::Quiet;
use floodgate::redis::scripts::intent::{INTENT_BYTES, pack};
use tokio::sync::oneshot;

use crate::support::fake_broker::Says;
use crate::support::faulty_ledger::Fault;
use crate::support::intake::{IntakeRig, envelope, quick};
use crate::support::offers::{self, ANY, open_offer};
use crate::support::rig::in_system;
use crate::support::wait::until;
use crate::wire::{Beast, zoo};

fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

#[test]
fn what_is_delivered_becomes_orders_and_is_acknowledged() {
    in_system(async {
        let rig = IntakeRig::open().await;
        for first in (1..100).step_by(5) {
            rig.put(&rig.accept_all(first..first + 5).await);
        }
        rig.until_empty().await;
        rig.assert_orders(1..=100).await;
        assert_eq!(rig.broker.num_deliveries(), 20, "none came twice");
        assert!(rig.broker.published().is_empty());
        assert_eq!(rig.metric("floodgate_consumer_deliveries_total"), 20);
        assert_eq!(rig.metric("floodgate_consumer_redelivered_total"), 0);
        assert_eq!(rig.metric("floodgate_placement_seconds_count"), 100);
        assert_eq!(rig.metric("floodgate_consumer_in_flight{queue=\"0\"}"), 0);
    });
}

#[test]
fn many_messages_are_gathered_into_few_transactions() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.put_each(1..=40).await;
        until("a full hand", || async { (rig.broker.num_unacknowledged() == 16).then_some(()) })
            .await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=40).await;
        assert_eq!(rig.broker.num_unacknowledged_max(), 16, "the prefetch");
        let largest = rig.ledger.batches().iter().map(Vec::len).max().unwrap();
        assert!(largest > 1, "{:?}", rig.ledger.batches());
    });
}

/// Whoever is told nothing must not believe that nothing was written.
#[test]
fn a_consumer_that_crashed_after_its_commit_is_a_doubt() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let intent = rig.accept(1, 1).await;
        rig.ledger.set(Fault::WritesAndKills(intent.request));
        let orders = rig.rig.actors.orders().clone();
        assert_eq!(orders.place(vec![intent]).await, [None]);
        rig.put(&rig.accept_all(2..=3).await);
        rig.ledger.set(Fault::None);
        rig.put(&[intent]);
        rig.until_empty().await;
        rig.assert_orders(1..=3).await;
    });
}

#[test]
fn a_message_that_comes_again_is_a_success() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let intents = rig.accept_all(1..=3).await;
        rig.put(&intents);
        rig.put(&intents);
        rig.until_empty().await;
        rig.put(&intents);
        rig.until_empty().await;
        rig.assert_orders(1..=3).await;
        assert!(rig.broker.published().is_empty());
    });
}

#[test]
fn one_bad_order_among_good_ones_is_a_dead_letter_alone() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let mut intents = rig.accept_all(1..=4).await;
        intents[1].amount += 1;
        let (headers, mut body) = envelope(&intents);
        let torn = 2 * INTENT_BYTES + 19;
        body[torn] = 9;
        rig.broker.put(headers, "0", body.clone());
        rig.put_each(5..=20).await;
        rig.until_empty().await;
        rig.ledger.set(Fault::None);
        let mut orders: Vec<u64> = rig.ledger.batches().concat();
        orders.sort_unstable();
        assert_eq!(orders, [1, 4].into_iter().chain(5..=20).collect::<Vec<_>>());
        let dead = rig.broker.dead();
        assert_eq!(dead.len(), 2);
        let whole = dead.iter().find(|letter| letter.headers.message_id == "2-1").unwrap();
        assert_eq!(&whole.body[..], pack(&intents[1]));
        let reason = whole.headers.reason.as_deref().unwrap();
        assert!(reason.contains("amount 101"), "{reason}");
        assert_eq!(whole.headers.origin.as_deref(), Some("orders.0"));
        let broken = dead.iter().find(|letter| letter.headers.message_id != "2-1").unwrap();
        assert_eq!(&broken.body[..], &body[2 * INTENT_BYTES..3 * INTENT_BYTES]);
        let reason = broken.headers.reason.as_deref().unwrap();
        assert_eq!(reason, "an intent: an unknown version");
        assert_eq!(rig.metric("floodgate_consumer_poison_total{reason=\"content\"}"), 1);
        assert_eq!(rig.metric("floodgate_consumer_poison_total{reason=\"intent\"}"), 1);
        assert_eq!(rig.metric("floodgate_consumer_dead_letters_total"), 2);
    });
}

#[test]
fn an_unknown_sku_is_looked_up_once_before_it_is_poison() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let mut stranger = rig.intent(1, 1);
        stranger.sku.0 += 77;
        rig.put(&[stranger]);
        rig.until_empty().await;
        assert_eq!(rig.refreshed.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(rig.broker.dead().len(), 1);
        assert_eq!(rig.metric("floodgate_consumer_poison_total{reason=\"sku\"}"), 1);
    });
}

#[test]
fn a_sale_that_was_created_elsewhere_is_learned_of() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let intents = rig.create_elsewhere(1..=3).await;
        rig.ledger.set(Fault::Down);
        rig.put(&intents);
        until("looks", || async {
            (rig.refreshed.load(std::sync::atomic::Ordering::SeqCst) > 2).then_some(())
        })
        .await;
        assert_eq!((rig.broker.num_unacknowledged(), rig.broker.num_tried()), (1, 0));
        rig.ledger.set(Fault::None);
        // Nobody has loaded its buckets here, which is no reason not to write its orders.
        rig.until_empty().await;
        for intent in intents {
            let order =
                rig.rig.backends.ledger.journey(intent.request).await.unwrap().map(|it| it.order);
            assert!(order.is_some());
        }
        assert!(rig.broker.published().is_empty(), "{:?}", rig.broker.published());
    });
}

/// What an operator did to an old sale is no reason not to know a new one.
#[test]
fn a_sale_that_cannot_be_loaded_keeps_no_other_sale_unknown() {
    in_system(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let ledger = Arc::new(SqliteLedger::open(&OpenOptions::new(&file)).unwrap());
        let sku = open_offer(ledger.as_ref(), "broken", ANY, 100).await;
        ledger.place(vec![offers::intent(&sku, 900, 900, 1)]).await.unwrap();
        let mut writer = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        writer.batch_execute("PRAGMA busy_timeout = 5000").unwrap();
        writer.batch_execute("PRAGMA ignore_check_constraints = ON").unwrap();
        writer.batch_execute("UPDATE orders SET state = 99").unwrap();

        let rig = IntakeRig::open_on(&quick(), ledger).await;
        let intents = rig.create_elsewhere(1..=3).await;
        rig.rig.desk.look().await.unwrap_err();
        assert!(rig.rig.catalog.sale("elsewhere").is_some(), "the look itself tells of it");
        let late = open_offer(rig.ledger.as_ref(), "late", ANY, 100).await;
        assert!(rig.rig.catalog.of_sku(late.no).is_none());
        let told = rig.rig.desk.learn().await.unwrap();
        assert_eq!(told.len(), 4);
        assert!(rig.rig.catalog.of_sku(late.no).is_some());
        rig.put(&intents);
        rig.until_empty().await;
        for intent in intents {
            assert!(
                rig.rig
                    .backends
                    .ledger
                    .journey(intent.request)
                    .await
                    .unwrap()
                    .map(|it| it.order)
                    .is_some()
            );
        }
    });
}

#[test]
fn a_refusal_of_the_ledger_is_recorded_and_acknowledged() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each(1..=1).await;
        rig.until_empty().await;
        // Another gate took it for the same buyer.
        rig.put(&[rig.intent(2, 1)]);
        rig.until_empty().await;
        let failure = rig.rig.backends.ledger.failure(request(2)).await.unwrap().unwrap();
        assert_eq!(failure.reason, Refusal::AlreadyPurchased { first: request(1) });
        assert!(rig.broker.published().is_empty());
        assert_eq!(rig.rig.num_orders().await, 1);
    });
}

#[test]
fn an_old_subscription_acknowledges_nothing_of_the_next_one() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.put_each(1..=3).await;
        until("deliveries", || async { (rig.broker.num_unacknowledged() == 3).then_some(()) })
            .await;
        rig.broker.end_subscription();
        until("all again", || async { (rig.broker.num_deliveries() == 6).then_some(()) }).await;
        // The first one cannot come to an end: neither here nor through a copy of it.
        rig.broker.say(Says::NotSent);
        rig.ledger.set(Fault::Refuses(request(1)));
        until("the others", || async { (rig.broker.num_unacknowledged() == 1).then_some(()) })
            .await;
        until("copies", || async { (rig.broker.num_tried() > 3).then_some(()) }).await;
        assert_eq!(rig.broker.num_unacknowledged(), 1);
        rig.ledger.set(Fault::None);
        rig.broker.say(Says::Yes);
        rig.until_empty().await;
        rig.broker.replay();
        rig.until_empty().await;
        rig.assert_orders(1..=3).await;
        assert_eq!(rig.metric("floodgate_consumer_redelivered_total"), 3);
    });
}

/// What is delivered again must not wait behind submissions that nobody waits for: an intake that
/// dies more often than the ledger is quick would never see one of its own come back.
#[test]
fn submissions_of_a_lost_hand_are_withdrawn() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.put_each(1..=3).await;
        for lost in 1..=6 {
            let delivered = 3 * lost;
            until("deliveries", async || (rig.broker.num_deliveries() == delivered).then_some(()))
                .await;
            if lost % 2 == 0 { rig.kill().await } else { rig.broker.end_subscription() }
        }
        until("the last hand", async || (rig.broker.num_deliveries() == 21).then_some(())).await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=3).await;
        let written: usize = rig.ledger.batches().iter().map(Vec::len).sum();
        assert!(written <= 6, "the first submission had begun, the last was awaited: {written}");
    });
}

#[test]
fn a_broker_that_comes_back_is_subscribed_to_again() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each(1..=3).await;
        rig.until_empty().await;
        rig.broker.go_away(true);
        rig.broker.end_subscription();
        rig.put_each(4..=6).await;
        assert_eq!(rig.broker.num_ready(), 3);
        rig.broker.go_away(false);
        rig.until_empty().await;
        rig.assert_orders(1..=6).await;
    });
}

#[test]
fn quiet_finishes_what_is_inside_and_gives_the_rest_back() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.put_each(1..=20).await;
        until("a full hand", || async { (rig.broker.num_unacknowledged() == 16).then_some(()) })
            .await;
        let (done, mut idle) = oneshot::channel();
        rig.intake.get().unwrap().try_send(Quiet { done }).unwrap();
        tokio::task::yield_now().await;
        assert!(idle.try_recv().is_err(), "submissions are inside");
        rig.ledger.set(Fault::None);
        idle.await.unwrap();
        assert_eq!(rig.broker.num_unacknowledged(), 0);
        let num_orders = rig.rig.num_orders().await;
        assert_eq!(num_orders + rig.broker.num_ready(), 20);
        assert!(num_orders > 0, "what was inside is finished");
    });
}

#[test]
fn quiet_does_not_wait_for_a_ledger_that_is_away() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Down);
        rig.put_each(1..=3).await;
        until("a closed door", || async { rig.rig.actors.breaker().is_open().then_some(()) }).await;
        let (done, idle) = oneshot::channel();
        rig.intake.get().unwrap().try_send(Quiet { done }).unwrap();
        idle.await.unwrap();
        assert_eq!((rig.broker.num_ready(), rig.broker.num_unacknowledged()), (3, 0));
    });
}

/// C20: every malformed message ends where people find it, with its own bytes, and nobody waits.
#[test]
fn the_poison_zoo_ends_among_the_dead_letters_and_good_orders_go_on() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let zoo = zoo();
        for (beast, good) in zoo.iter().zip(1..) {
            rig.broker.put(beast.headers.clone(), "0", beast.body.clone());
            rig.put_each(good * 10..good * 10 + 5).await;
        }
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, zoo.len() * 5);
        let dead = rig.broker.dead();
        assert_eq!(dead.len(), zoo.len());
        for Beast { what, body, .. } in zoo {
            let letter = dead.iter().find(|letter| letter.body == body);
            let letter = letter.unwrap_or_else(|| panic!("no dead letter of {what}"));
            assert!(letter.headers.reason.is_some() && letter.headers.origin.is_some(), "{what}");
        }
        assert_eq!(rig.broker.num_deliveries(), 72, "each came once");
        rig.rig.assert_holds().await;
    });
}

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = diesel::sql_types::Binary)]
    trace_id: Vec<u8>,
}

#[test]
fn the_trace_of_the_click_is_in_the_row() {
    in_system(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let ledger = SqliteLedger::open(&OpenOptions::new(&file)).unwrap();
        let rig = IntakeRig::open_on(&quick(), Arc::new(ledger)).await;
        let clicked = TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        let intent = rig.accept(1, 1).await;
        rig.put(&[OrderIntent { trace: clicked, ..intent }]);
        rig.until_empty().await;
        let mut reader = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        let rows: Vec<Row> =
            diesel::sql_query("SELECT trace_id FROM orders").load(&mut reader).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].trace_id, clicked.0.to_be_bytes());
    });
}
