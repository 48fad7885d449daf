//! Which lost requests the reconciler submits, and how they end.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::{DeadLetterStore, OrderWriter, RepairStore};
use floodgate::domain::{
    BucketKey, DeadLetterFilter, DeadLetterState, DeadLetterTransition, OrderIntent, RecordState,
    Refusal, RepairAction, RepairOutcome, Sale,
};
use floodgate::runtime::clock::Clock;
use floodgate::services::lost_requests::Submitter;
use floodgate::stock::Stock;

use super::reconciler::{
    SECOND, SUBMIT_MAX_S, placed, reserve, run_passes, simulation_with_lost_requests, sku_of_both,
    until_placed,
};
use crate::support::dead_letters::{new_dead_letter, read_dead_letters};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::harness::{START_MS, in_system};
use crate::support::offers;
use crate::support::order_consumer::ConsumerHarness;
use crate::support::reconcilers::{reconciler, reconciler_over, watermarks};
use crate::support::relays::{SKU, Simulation};
use crate::support::wait::until;

#[test]
fn the_end_of_a_lost_request_is_recorded_once() {
    in_system(async {
        let simulation = Simulation::new(1);
        let watermarks = watermarks(&simulation);
        let sku = sku_of_both(&simulation).await;
        // The first has the id of another buyer's order; of the others one is sold out.
        let reused = reserve(&simulation, &sku, 1).await;
        let foreign = OrderIntent { buyer: offers::buyer(77), ..reused };
        assert!(simulation.ledger.place(vec![foreign]).await.unwrap().is_some());
        simulation.ledger.put_units(sku.no, 2);
        reserve(&simulation, &sku, 2).await;
        reserve(&simulation, &sku, 3).await;
        let process = reconciler(&simulation, &watermarks);
        until("every end", async || {
            run_passes(&simulation, &process, 1, SECOND).await;
            (simulation.stock.num_unsettled(sku.no).await == Ok(0)).then_some(())
        })
        .await;
        run_passes(&simulation, &process, 10, SECOND).await;
        let repairs = simulation.ledger.repairs(None, 9).await.unwrap();
        assert!(repairs.iter().all(|(_, one)| one.action == RepairAction::Submit), "{repairs:?}");
        let num = |outcome| repairs.iter().filter(|(_, one)| one.outcome == outcome).count();
        let counts = (num(RepairOutcome::Compensated), num(RepairOutcome::FailedFinal));
        assert_eq!((repairs.len(), counts), (3, (1, 2)), "{repairs:?}");
        let metric = |outcome| {
            process.metric(&format!(
                "floodgate_repairs_total{{verdict=\"leak\",outcome=\"{outcome}\"}}"
            ))
        };
        assert_eq!((metric("compensated"), metric("failed_final")), (1, 2));
        let refused = ["sold-out", "request-id-reused"].map(|reason| {
            process.metric(&format!("floodgate_ledger_refused_total{{reason=\"{reason}\"}}"))
        });
        assert_eq!((process.metric("floodgate_orders_placed_total"), refused), (1, [1, 1]));
        let key = BucketKey { sku: sku.no, bucket: reused.bucket };
        let found = simulation.stock.record(key, reused.request, None).await.unwrap().unwrap();
        assert_eq!(found.state, RecordState::Failed(Refusal::RequestIdReused));
    });
}

#[test]
fn an_order_that_the_ledger_does_not_write_holds_up_no_other() {
    let third = offers::request(3);
    for (fault, reason, class) in [
        (Fault::Refuses(third), "order", "bug"),
        (Fault::Contended(third), "ledger", "retry"),
        (Fault::NeverAnswers(third), "ledger", "unknown"),
    ] {
        in_system(async {
            let (simulation, watermarks) = simulation_with_lost_requests().await;
            let ledger = Arc::new(FaultyLedger::new(simulation.ledger.clone()));
            ledger.set(fault);
            let process = reconciler_over(&simulation, &watermarks, ledger.clone());
            until_placed(&simulation, &process, 9).await;
            assert!(!placed(&simulation).await.contains(&3), "{fault:?}");
            until("the blocked bucket", async || (process.blocked(reason) == 1).then_some(()))
                .await;
            ledger.set(Fault::None);
            until_placed(&simulation, &process, 10).await;
            until("the gauge", async || (process.blocked(reason) == 0).then_some(())).await;
            assert_eq!(process.metric("floodgate_orders_placed_total"), 10, "{fault:?}");
            let errors = format!("floodgate_ledger_errors_total{{class=\"{class}\"}}");
            assert!(process.metric(&errors) > 0, "{fault:?}");
        });
    }
}

#[test]
fn a_request_that_its_sale_contradicts_is_not_submitted() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let (sale, _) = simulation.catalog.of_sku(SKU).unwrap();
        simulation.catalog.put(&Sale { ends_at_ms: 1, ..(*sale).clone() });
        let process = reconciler(&simulation, &watermarks);
        run_passes(&simulation, &process, SUBMIT_MAX_S, SECOND).await;
        until("two blocked buckets", async || (process.blocked("order") == 2).then_some(())).await;
        assert!(placed(&simulation).await.is_empty());
        simulation.catalog.put(&sale);
        until_placed(&simulation, &process, 10).await;
        until("the gauge", async || (process.blocked("order") == 0).then_some(())).await;
    });
}

#[test]
fn a_replayed_dead_letter_on_its_way_is_not_submitted() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let letters = vec![new_dead_letter(&[3]), new_dead_letter(&[4])];
        simulation.ledger.store_dead_letters(letters, 1).await.unwrap();
        // One was replayed before any checkpoint of the walk and is lost; one only a moment ago.
        let hour_ms = 3_600_000;
        let filter = DeadLetterFilter::default();
        for letter in read_dead_letters(&*simulation.ledger, filter, 2).await {
            let content = simulation.ledger.dead_letter(letter.no).await.unwrap().unwrap();
            let is_recent = content.requests[0].get() == 4;
            let now_ms = simulation.clock.wall_ms();
            let replayed = DeadLetterTransition {
                no: letter.no,
                from: letter.state,
                arrivals: letter.arrivals,
                to: DeadLetterState::Replayed,
                note: None,
                at_ms: if is_recent { now_ms + hour_ms } else { now_ms },
            };
            assert!(simulation.ledger.transition_dead_letter(replayed).await.unwrap());
        }
        let process = reconciler(&simulation, &watermarks);
        until_placed(&simulation, &process, 9).await;
        assert!(!placed(&simulation).await.contains(&4), "a consumer may hold it");
        // Checkpoints after the replay decide.
        simulation.clock.advance(Duration::from_millis(hour_ms.unsigned_abs()));
        until("the lost request", async || {
            run_passes(&simulation, &process, 1, SECOND).await;
            placed(&simulation).await.contains(&4).then_some(())
        })
        .await;
    });
}

/// Messages arrive after their requests were submitted as lost, one also before.
#[test]
fn a_late_message_of_a_submitted_request_changes_nothing() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let intents = harness.accept_all(1..=3).await;
        let sku = intents[0].sku;
        let cancelled = intents[1].failure(Refusal::CancelledByBuyer, START_MS);
        harness.ledger.record_failures(vec![cancelled]).await.unwrap();
        harness.put(&intents[2..]);
        harness.until_empty().await;
        let (sale, offered) = harness.harness.catalog.of_sku(sku).unwrap();
        let (ledger, stock) = (harness.ledger.as_ref(), harness.stock.as_ref());
        let submitter = Submitter { ledger, stock, metrics: &harness.metrics, now_ms: START_MS };
        let (placed, failed) = (RepairOutcome::Compensated, RepairOutcome::FailedFinal);
        for (intent, outcome) in intents.iter().zip([placed, failed, placed]) {
            let key = BucketKey { sku, bucket: intent.bucket };
            let (repairs, submitted) = submitter.submit(&sale, &offered, key, &[*intent]).await;
            submitted.unwrap();
            let ends: Vec<_> = repairs.iter().map(|one| (one.request, one.outcome)).collect();
            assert_eq!(ends, [(Some(intent.request), outcome)]);
        }
        let left = harness.stock.left(sku);
        harness.put(&intents);
        harness.until_empty().await;
        harness.assert_orders([1, 3]).await;
        assert_eq!(harness.stock.left(sku), left);
        assert!(!harness.is_settled(2).await);
        assert!(harness.broker.published().is_empty(), "no dead letter");
    });
}
