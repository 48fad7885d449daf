//! The order consumer: which deliveries it writes, which it dead-letters, and when it acknowledges.

use std::sync::Arc;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::OrderWriter;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{OrderIntent, Refusal, RequestId, TraceId};
use floodgate::messages::Quiet;
use tokio::sync::oneshot;

use crate::support::fake_broker::PublishAnswer;
use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;
use crate::support::intents::{INTENT_BYTES, pack};
use crate::support::offers::{self, ANY, open_offer};
use crate::support::order_consumer::{ConsumerHarness, envelope, quick};
use crate::support::wait::until;
use crate::wire::{MalformedMessage, malformed_messages};

fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

async fn has_order(harness: &ConsumerHarness, request: RequestId) -> bool {
    let ledger = &harness.harness.backends.ledger;
    ledger.order_timeline(request).await.unwrap().is_some()
}

#[test]
fn deliveries_become_orders_and_are_acknowledged() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        for first in (1..100).step_by(5) {
            harness.put(&harness.accept_all(first..first + 5).await);
        }
        harness.until_empty().await;
        harness.assert_orders(1..=100).await;
        assert_eq!(harness.broker.num_deliveries(), 20, "no message was redelivered");
        assert!(harness.broker.published().is_empty());
        assert_eq!(harness.metric("floodgate_consumer_deliveries_total"), 20);
        assert_eq!(harness.metric("floodgate_consumer_redelivered_total"), 0);
        assert_eq!(harness.metric("floodgate_placement_seconds_count"), 100);
        assert_eq!(harness.metric("floodgate_consumer_in_flight{queue=\"0\"}"), 0);
    });
}

#[test]
fn many_messages_are_gathered_into_few_transactions() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.put_each(1..=40).await;
        until("a full prefetch window", || async {
            (harness.broker.num_unacknowledged() == 16).then_some(())
        })
        .await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=40).await;
        assert_eq!(harness.broker.num_unacknowledged_max(), 16, "the prefetch");
        let largest = harness.ledger.batches().iter().map(Vec::len).max().unwrap();
        assert!(largest > 1, "{:?}", harness.ledger.batches());
    });
}

/// A submission without an outcome may have been committed: the handle must not report a failure.
#[test]
fn a_consumer_crash_after_its_commit_is_an_unknown_outcome() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let intent = harness.accept(1, 1).await;
        harness.ledger.set(Fault::WritesAndPanics(intent.request));
        let orders = harness.harness.actors.ledger_writer.clone();
        let written = orders.place_and_settle(vec![intent]).await;
        assert!(matches!(&written[..], [Err(error)] if !error.is_unwritten()), "{written:?}");
        harness.put(&harness.accept_all(2..=3).await);
        harness.ledger.set(Fault::None);
        harness.put(&[intent]);
        harness.until_empty().await;
        harness.assert_orders(1..=3).await;
    });
}

#[test]
fn a_redelivered_message_is_a_success() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let intents = harness.accept_all(1..=3).await;
        harness.put(&intents);
        harness.put(&intents);
        harness.until_empty().await;
        harness.put(&intents);
        harness.until_empty().await;
        harness.assert_orders(1..=3).await;
        assert!(harness.broker.published().is_empty());
    });
}

#[test]
fn only_the_bad_order_of_a_batch_becomes_a_dead_letter() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let mut intents = harness.accept_all(1..=4).await;
        intents[1].amount += 1;
        let (headers, mut body) = envelope(&intents);
        let torn = 2 * INTENT_BYTES + 22;
        body[torn] = 9;
        body.extend([7; 70]);
        harness.broker.put(headers, "0", body.clone());
        harness.put_each(5..=20).await;
        harness.until_empty().await;
        harness.ledger.set(Fault::None);
        let mut orders: Vec<u64> = harness.ledger.batches().concat();
        orders.sort_unstable();
        assert_eq!(orders, [1, 4].into_iter().chain(5..=20).collect::<Vec<_>>());
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), &dead[2].body[..]), (3, &[7; 70][..]), "the last one is cut");
        let invalid =
            dead.iter().find(|dead_letter| dead_letter.headers.message_id == "2-1").unwrap();
        assert_eq!(&invalid.body[..], pack(&intents[1]));
        let reason = invalid.headers.reason.as_deref().unwrap();
        assert!(reason.contains("amount 101"), "{reason}");
        assert_eq!(invalid.headers.origin.as_deref(), Some("orders.0"));
        let broken =
            dead.iter().find(|dead_letter| dead_letter.headers.message_id != "2-1").unwrap();
        assert_eq!(&broken.body[..], &body[2 * INTENT_BYTES..3 * INTENT_BYTES]);
        let reason = broken.headers.reason.as_deref().unwrap();
        assert_eq!(reason, "an intent: an unknown version");
        assert_eq!(harness.metric("floodgate_consumer_poison_total{reason=\"content\"}"), 1);
        assert_eq!(harness.metric("floodgate_consumer_poison_total{reason=\"intent\"}"), 2);
        assert_eq!(harness.metric("floodgate_consumer_dead_letters_total"), 3);
    });
}

#[test]
fn an_unknown_sku_is_looked_up_once_before_it_is_poison() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let mut unknown_sku = harness.intent(1, 1);
        unknown_sku.sku.0 += 77;
        harness.put(&[unknown_sku]);
        harness.until_empty().await;
        assert_eq!(harness.refreshed.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(harness.broker.dead().len(), 1);
        assert_eq!(harness.metric("floodgate_consumer_poison_total{reason=\"sku\"}"), 1);
    });
}

#[test]
fn a_sale_that_another_process_created_is_loaded() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let intents = harness.create_elsewhere(1..=3).await;
        harness.ledger.set(Fault::Down);
        harness.put(&intents);
        until("catalog refreshes", || async {
            (harness.refreshed.load(std::sync::atomic::Ordering::SeqCst) > 2).then_some(())
        })
        .await;
        assert_eq!(
            (harness.broker.num_unacknowledged(), harness.broker.num_publish_attempts()),
            (1, 0)
        );
        harness.ledger.set(Fault::None);
        // Orders are written although the buckets of the sale are not loaded in this process.
        harness.until_empty().await;
        for intent in intents {
            assert!(has_order(&harness, intent.request).await);
        }
        assert!(harness.broker.published().is_empty(), "{:?}", harness.broker.published());
    });
}

/// A sale that was damaged by hand must not keep newer sales out of the catalog.
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

        let harness = ConsumerHarness::open_on(&quick(), ledger).await;
        let intents = harness.create_elsewhere(1..=3).await;
        harness.harness.sync().await.unwrap_err();
        assert!(
            harness.harness.catalog.sale("elsewhere").is_some(),
            "the failed sync still adds the sale"
        );
        let late = open_offer(harness.ledger.as_ref(), "late", ANY, 100).await;
        assert!(harness.harness.catalog.of_sku(late.no).is_none());
        let sales = harness.harness.sales.refresh_catalog().await.unwrap();
        assert_eq!(sales.len(), 4);
        assert!(harness.harness.catalog.of_sku(late.no).is_some());
        harness.put(&intents);
        harness.until_empty().await;
        for intent in intents {
            assert!(has_order(&harness, intent.request).await);
        }
    });
}

#[test]
fn a_refusal_of_the_ledger_is_recorded_and_acknowledged() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each(1..=1).await;
        harness.until_empty().await;
        // Another gate accepted a second request of the same buyer.
        harness.put(&[harness.intent(2, 1)]);
        harness.until_empty().await;
        let failure = harness.harness.backends.ledger.failure(request(2)).await.unwrap().unwrap();
        assert_eq!(failure.reason, Refusal::AlreadyPurchased { first: request(1) });
        assert!(harness.broker.published().is_empty());
        assert_eq!(harness.harness.num_orders().await, 1);
    });
}

#[test]
fn an_old_subscription_acknowledges_nothing_of_the_next_one() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.put_each(1..=3).await;
        until("deliveries", || async { (harness.broker.num_unacknowledged() == 3).then_some(()) })
            .await;
        harness.broker.end_subscription();
        until("all redelivered", || async { (harness.broker.num_deliveries() == 6).then_some(()) })
            .await;
        // Request 1 stays unacknowledged: the ledger refuses it, and no copy is published.
        harness.broker.say(PublishAnswer::NotSent);
        harness.ledger.set(Fault::Refuses(request(1)));
        until("the other orders", || async {
            (harness.broker.num_unacknowledged() == 1).then_some(())
        })
        .await;
        until("publish attempts", || async {
            (harness.broker.num_publish_attempts() > 3).then_some(())
        })
        .await;
        assert_eq!(harness.broker.num_unacknowledged(), 1);
        harness.ledger.set(Fault::None);
        harness.broker.say(PublishAnswer::Yes);
        harness.until_empty().await;
        harness.broker.replay();
        harness.until_empty().await;
        harness.assert_orders(1..=3).await;
        assert_eq!(harness.metric("floodgate_consumer_redelivered_total"), 3);
    });
}

/// Redeliveries must not queue behind abandoned submissions: if the consumer restarts faster than
/// the ledger answers, none of its own submissions would ever complete.
#[test]
fn submissions_of_a_lost_subscription_are_withdrawn() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.put_each(1..=3).await;
        for lost in 1..=6 {
            let delivered = 3 * lost;
            until("deliveries", async || {
                (harness.broker.num_deliveries() == delivered).then_some(())
            })
            .await;
            if lost % 2 == 0 { harness.kill().await } else { harness.broker.end_subscription() }
        }
        until("the last deliveries", async || {
            (harness.broker.num_deliveries() == 21).then_some(())
        })
        .await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=3).await;
        let written: usize = harness.ledger.batches().iter().map(Vec::len).sum();
        assert!(written <= 6, "only the first and the last submission may be written: {written}");
    });
}

#[test]
fn a_broker_that_comes_back_is_subscribed_to_again() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each(1..=3).await;
        harness.until_empty().await;
        harness.broker.set_unavailable(true);
        harness.broker.end_subscription();
        harness.put_each(4..=6).await;
        assert_eq!(harness.broker.num_ready(), 3);
        harness.broker.set_unavailable(false);
        harness.until_empty().await;
        harness.assert_orders(1..=6).await;
    });
}

#[test]
fn quiet_finishes_in_flight_orders_and_gives_the_rest_back() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.put_each(1..=20).await;
        until("a full prefetch window", || async {
            (harness.broker.num_unacknowledged() == 16).then_some(())
        })
        .await;
        let (done, mut idle) = oneshot::channel();
        harness.consumer.get().unwrap().try_send(Quiet { done }).unwrap();
        tokio::task::yield_now().await;
        assert!(idle.try_recv().is_err(), "submissions are in flight");
        harness.ledger.set(Fault::None);
        idle.await.unwrap();
        assert_eq!(harness.broker.num_unacknowledged(), 0);
        let num_orders = harness.harness.num_orders().await;
        assert_eq!(num_orders + harness.broker.num_ready(), 20);
        assert!(num_orders > 0, "in-flight submissions complete");
    });
}

#[test]
fn quiet_does_not_wait_for_a_ledger_that_is_away() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Down);
        harness.put_each(1..=3).await;
        until("an open breaker", || async {
            harness.harness.actors.breaker.is_open().then_some(())
        })
        .await;
        let (done, idle) = oneshot::channel();
        harness.consumer.get().unwrap().try_send(Quiet { done }).unwrap();
        idle.await.unwrap();
        assert_eq!((harness.broker.num_ready(), harness.broker.num_unacknowledged()), (3, 0));
    });
}

/// C20: every malformed message becomes a dead letter with its own bytes and delays no other.
#[test]
fn poison_messages_become_dead_letters_and_good_orders_go_on() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let malformed_messages = malformed_messages();
        for (malformed, good) in malformed_messages.iter().zip(1..) {
            harness.broker.put(malformed.headers.clone(), "0", malformed.body.clone());
            harness.put_each(good * 10..good * 10 + 5).await;
        }
        harness.until_empty().await;
        assert_eq!(harness.harness.num_orders().await, malformed_messages.len() * 5);
        let dead = harness.broker.dead();
        assert_eq!(dead.len(), malformed_messages.len());
        for MalformedMessage { what, body, .. } in malformed_messages {
            let dead_letter = dead.iter().find(|dead_letter| dead_letter.body == body);
            let dead_letter = dead_letter.unwrap_or_else(|| panic!("no dead letter for {what}"));
            let headers = &dead_letter.headers;
            assert!(headers.reason.is_some() && headers.origin.is_some(), "{what}");
        }
        assert_eq!(harness.broker.num_deliveries(), 72, "each message was delivered once");
        harness.harness.assert_holds().await;
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
        let harness = ConsumerHarness::open_on(&quick(), Arc::new(ledger)).await;
        let trace = TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        let intent = harness.accept(1, 1).await;
        harness.put(&[OrderIntent { trace, ..intent }]);
        harness.until_empty().await;
        let mut reader = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        let rows: Vec<Row> =
            diesel::sql_query("SELECT trace_id FROM orders").load(&mut reader).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].trace_id, trace.0.to_be_bytes());
    });
}
