//! The reconciler records how the requests ended that it published again.

use floodgate::db::{OrderWriter, RepairStore};
use floodgate::domain::{Failure, Refusal, RepairAction, RepairOutcome};

use super::reconciler::{SECOND, reserve, run_passes, sku_of_both, until_republished};
use crate::support::harness::in_system;
use crate::support::reconcilers::{reconciler, watermarks};
use crate::support::relays::Simulation;

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
