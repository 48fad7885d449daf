//! The requests that the reconciler publishes again, and how they end.

use std::time::Duration;

use floodgate::db::{DeadLetterStore, OrderWriter, RepairStore};
use floodgate::domain::{
    DeadLetterFilter, DeadLetterState, DeadLetterTransition, Failure, Refusal, RepairAction,
    RepairOutcome,
};
use floodgate::runtime::clock::Clock;

use super::reconciler::{
    SECOND, reserve, run_passes, simulation_with_lost_requests, sku_of_both, until_republished,
};
use crate::support::dead_letters::{new_dead_letter, read_dead_letters};
use crate::support::harness::in_system;
use crate::support::reconcilers::{reconciler, watermarks};
use crate::support::relays::Simulation;
use crate::support::wait::until;

#[test]
fn the_end_of_a_lost_request_is_recorded_once() {
    in_system(async {
        let simulation = Simulation::new(1);
        let watermarks = watermarks(&simulation);
        let sku = sku_of_both(&simulation).await;
        let placed = reserve(&simulation, &sku, 1).await;
        let refused = reserve(&simulation, &sku, 2).await;
        let process = reconciler(&simulation, &watermarks);
        until_republished(&simulation, &process, 2).await;
        assert!(simulation.ledger.repairs(None, 9).await.unwrap().is_empty());
        // A consumer decides the copies.
        assert!(simulation.ledger.place(vec![placed]).await.unwrap().is_some());
        let failure = Failure {
            request: refused.request,
            sku: sku.no,
            buyer: refused.buyer,
            quantity: 2,
            reason: Refusal::Ended,
            recorded_at_ms: 7,
        };
        simulation.ledger.record_failures(vec![failure]).await.unwrap();
        run_passes(&simulation, &process, 3, SECOND).await;
        let repairs = simulation.ledger.repairs(None, 9).await.unwrap();
        let mut ends: Vec<_> = repairs
            .iter()
            .map(|(_, one)| (one.request.unwrap(), one.action, one.outcome))
            .collect();
        ends.sort_unstable_by_key(|(request, ..)| *request);
        let action = RepairAction::Republish;
        let expected = [
            (placed.request, action, RepairOutcome::Compensated),
            (refused.request, action, RepairOutcome::FailedFinal),
        ];
        assert_eq!(ends, expected);
        let metric = |outcome| {
            process.metric(&format!(
                "floodgate_repairs_total{{verdict=\"leak\",outcome=\"{outcome}\"}}"
            ))
        };
        assert_eq!((metric("compensated"), metric("failed_final")), (1, 1));
    });
}

#[test]
fn a_replayed_dead_letter_on_its_way_is_not_published_again() {
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
        until_republished(&simulation, &process, 9).await;
        assert!(!simulation.queues.kept().contains_key(&4), "a consumer may hold it");
        // Checkpoints after the replay decide.
        simulation.clock.advance(Duration::from_millis(hour_ms.unsigned_abs()));
        until("the lost copy", async || {
            run_passes(&simulation, &process, 1, SECOND).await;
            simulation.queues.kept().contains_key(&4).then_some(())
        })
        .await;
    });
}
