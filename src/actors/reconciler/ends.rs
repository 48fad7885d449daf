//! Records how lost requests ended that were published again.

use super::Reconciler;
use super::copies::RecentCopies;
use crate::db;
use crate::domain::{AuditVerdict, Repair, RepairAction, RepairOutcome};

/// Most requests that one pass looks up for this.
const LOOKUPS_MAX: usize = 500;

/// Records the ends of requests that were published again, each once. The next pass looks up again
/// what has no end yet, or could not be recorded.
pub(super) async fn record_ends(deps: &Reconciler, copies: &mut RecentCopies) {
    if let Err(error) = try_record_ends(deps, copies).await {
        tracing::warn!(%error, "ends of lost requests not recorded, retrying");
    }
}

async fn try_record_ends(deps: &Reconciler, copies: &mut RecentCopies) -> Result<(), db::Error> {
    let now_ms = deps.clock.wall_ms();
    let intents = copies.unrecorded(LOOKUPS_MAX, now_ms);
    if intents.is_empty() {
        return Ok(());
    }
    let ledger = &deps.backends.ledger;
    let found = ledger.examine(intents.clone()).await?;
    let mut repairs = Vec::new();
    for intent in intents {
        let request = intent.request;
        let order = found.orders.get(&request).filter(|order| order.answers(&intent));
        let (outcome, end) = match (found.failures.get(&request), order) {
            (Some(reason), _) => (RepairOutcome::FailedFinal, reason.code()),
            (None, Some(_)) => (RepairOutcome::Compensated, "placed"),
            (None, None) => continue,
        };
        repairs.push(Repair {
            sku: intent.sku,
            request: Some(request),
            verdict: AuditVerdict::Leak,
            action: RepairAction::Republish,
            outcome,
            detail: format!("request {request}: published again: {end}"),
            at_ms: now_ms,
        });
    }
    ledger.record_repairs(repairs.clone()).await?;
    copies.set_recorded(repairs.iter().filter_map(|repair| repair.request));
    for repair in &repairs {
        deps.metrics.repair(repair.verdict, repair.outcome);
    }
    Ok(())
}
