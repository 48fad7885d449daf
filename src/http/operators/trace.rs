//! Trace of one request for operators: every stage between gate and ledger that has a record of it.

use super::dead_letter_filter::request_number;
use super::trace_stages::{StageView, TraceFindings, TraceView};
use crate::db;
use crate::domain::{
    BucketKey, DeadLetterFilter, DeadLetterNo, Phase, RecordState, RequestId, TraceId,
};
use crate::http::buyers::request_ids::RequestIds;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpDeps;
use crate::messages::envelope;
use crate::outbox::{self, EntryLocation};
use crate::stock;
use crate::tier::Pipeline;

/// Finds a request by its request id or by its number. The signature is not verified: operators may
/// read every request. A store that cannot be read becomes a stage with state `unknown`.
///
/// # Errors
/// `invalid-request` if `id` is malformed, `not-found` if every store was read and has no record.
pub async fn trace(deps: &HttpDeps, id: &str) -> Result<TraceView, Problem> {
    let sent = RequestIds::read(id);
    let request = request_number(id)?;
    let mut findings = TraceFindings { sku: sent.map(|id| id.sku_no), ..TraceFindings::default() };
    let query = read_ledger(deps, request, &mut findings);
    let ledger = db::with_timeout("a trace", query).await;
    let gates = read_gates(deps, request, &mut findings).await;
    if let (Some(pipeline), Some(key)) = (&deps.pipeline, findings.queued_in)
        && let Err(error) = read_outbox(pipeline, key, request, &mut findings).await
    {
        findings.unavailable.push(StageView::unavailable("outbox", &error));
    }
    let ledger = match ledger {
        Ok(()) => {
            let query = read_dead_letters(deps, request, &mut findings);
            db::with_timeout("a trace", query).await
        }
        failed => failed,
    };
    // A result of the ledger is final: unavailable gates are then irrelevant.
    if let (Err(error), None) = (&gates, &findings.ledger) {
        findings.unavailable.push(StageView::unavailable("gate", error));
    }
    if let Err(error) = &ledger {
        findings.unavailable.push(StageView::unavailable("ledger", error));
    }
    let listed_sku = findings.sku.and_then(|sku| deps.catalog.of_sku(sku));
    let ids = listed_sku.map(|(listed, sku)| (listed.sale.id.to_string(), sku.id.to_string()));
    let (sale_id, sku_id) = ids.unzip();
    let view = TraceView {
        request: request.to_string(),
        sale_id,
        sku_id,
        buyer_id: findings.buyer.map(|buyer| buyer.to_string()),
        trace_id: findings.trace.map(|trace| trace.to_string()),
        took_ms: findings.took_ms(),
        stages: findings.stages(),
    };
    if view.stages.is_empty() {
        let detail = "No gate, no row of the ledger and no dead letter has this request.";
        let problem = Problem::from(ProblemCode::NotFound).with_detail(detail);
        return Err(problem.with("request_id", view.request));
    }
    Ok(view)
}

/// Adds the order or the recorded failure.
async fn read_ledger(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), db::Error> {
    if let Some(timeline) = deps.ledger.order_timeline(request).await? {
        findings.add_order(&timeline);
    } else if let Some(failure) = deps.ledger.failure(request).await? {
        findings.add_failure(&failure);
    }
    Ok(())
}

/// Adds the dead letters of the request.
async fn read_dead_letters(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), db::Error> {
    let filter = DeadLetterFilter::with(request);
    let dead_letters = deps.ledger.dead_letters(filter, u32::MAX).await?;
    findings.add_dead_letters(&dead_letters);
    if let (None, Some(newest)) = (findings.trace, dead_letters.first()) {
        findings.trace = trace_in(deps, newest.no, request).await?;
    }
    Ok(())
}

/// Adds the record of the gate. Reads every bucket of the SKU, or of all SKUs if the SKU is not
/// known, one after the other.
async fn read_gates(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), stock::Error> {
    let (all, known_sku) = (deps.catalog.all(), findings.sku);
    // Draft sales have no buckets.
    let sold = all.iter().filter(|listed| listed.sale.phase != Phase::Draft);
    let skus = sold.flat_map(|listed| &listed.skus);
    let mut candidates = skus.filter(|sku| known_sku.is_none_or(|no| no == sku.no));
    let (mut is_found, mut not_loaded) = (false, None);
    while !is_found && let Some(sku) = candidates.next() {
        for key in BucketKey::all_of(sku) {
            let found = match deps.stock.record(key, request, None).await {
                Err(error @ stock::Error::NotLoaded(_)) => {
                    not_loaded = not_loaded.or(Some(error));
                    continue;
                }
                found => found?,
            };
            let Some(found) = found else { continue };
            is_found = true;
            findings.sku = Some(sku.no);
            findings.add_gate_record(&found);
            if found.state == RecordState::Queued && findings.ledger.is_none() {
                findings.queued_in = Some(key);
                let open = deps.stock.unsettled(key, i64::MAX).await?;
                if let Some(intent) = open.iter().find(|intent| intent.request == request) {
                    findings.buyer = Some(intent.buyer);
                    findings.trace = intent.trace.known();
                }
            }
        }
    }
    // A bucket that is not loaded may have accepted the request before.
    match not_loaded {
        Some(error) if !is_found => Err(error),
        _ => Ok(()),
    }
}

/// Adds the pipeline stage of a request that its gate has as queued and the ledger does not have.
async fn read_outbox(
    pipeline: &Pipeline,
    key: BucketKey,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), outbox::Error> {
    let found = pipeline.outbox.find(key, request).await?;
    findings.trace = findings.trace.or_else(|| found.as_ref()?.trace.known());
    findings.pipeline.push(match found.map(|found| found.location) {
        Some(EntryLocation::Waiting) => StageView::new("outbox", "waits for a relay", "queued"),
        Some(EntryLocation::Claimed { worker }) => StageView {
            holder: Some(worker),
            ..StageView::new("relay", "is being published", "queued")
        },
        Some(EntryLocation::Dead { reason }) => {
            StageView::new("dead_letter", "dead-lettered by the relay", "dead").with_reason(reason)
        }
        // Queues cannot be searched. A request in no other stage is in a queue, or was lost there
        // and will be published again.
        None => StageView::new("broker", "is in a queue, or unacknowledged", "queued"),
    });
    Ok(())
}

/// The trace of a request in the body of a dead letter.
async fn trace_in(
    deps: &HttpDeps,
    no: DeadLetterNo,
    request: RequestId,
) -> Result<Option<TraceId>, db::Error> {
    let content = deps.ledger.dead_letter(no).await?;
    let intents = content.map(|content| envelope::intents_in(&content.body)).unwrap_or_default();
    let intent = intents.iter().find(|intent| intent.request == request);
    Ok(intent.and_then(|intent| intent.trace.known()))
}
