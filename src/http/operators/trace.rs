//! Trace of one request for operators: every stage between gate and ledger that has a record of it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::db;
use crate::domain::{
    BucketKey, BuyerId, DeadLetter, DeadLetterFilter, DeadLetterNo, DeadLetterState, Failure,
    OrderTimeline, Phase, RequestId, RequestStatus, SkuNo, TraceId,
};
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::buyers::views::rfc3339;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpDeps;
use crate::messages::envelope;
use crate::outbox::{self, EntryLocation};
use crate::stock::{self, StoredRequest};
use crate::tier::Pipeline;

/// Stages of one request.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceView {
    /// Number of the request.
    request: String,
    /// Null if the SKU is not known; `sku_id` likewise.
    sale_id: Option<String>,
    sku_id: Option<String>,
    buyer_id: Option<String>,
    /// Trace id of the purchase, if a stage has it.
    trace_id: Option<String>,
    /// Milliseconds from the purchase to the row in the ledger, if both times are known. The times
    /// may come from different machines.
    took_ms: Option<u64>,
    /// In the order of the flow.
    stages: Vec<StageView>,
}

/// Record of one stage.
#[derive(Debug, Serialize, ToSchema)]
pub struct StageView {
    /// `gate`, `outbox`, `relay`, `broker`, `dead_letter` or `ledger`.
    stage: &'static str,
    /// Explanation, for people.
    says: &'static str,
    /// `queued`, `published`, `failed`, `dead`, `replayed`, `discarded`, or the state of the order;
    /// `unknown` if the stage is unavailable.
    state: &'static str,
    /// Reason of a failure or of the unavailability.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The relay worker or the dead letter that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// Units, if the stage has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantity: Option<u32>,
    /// `gate`: time of the purchase, which is the order's `placed_at`; `relay`: time of the
    /// publish; `dead_letter`: when the message was dead-lettered; `ledger`: when the order or the
    /// failure was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl StageView {
    fn new(stage: &'static str, says: &'static str, state: &'static str) -> Self {
        Self { stage, says, state, reason: None, holder: None, quantity: None, at: None }
    }

    /// With its reason.
    fn with_reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// With its units and its time, epoch milliseconds.
    fn with_units_at(self, quantity: u32, at_ms: i64) -> Self {
        Self { quantity: Some(quantity), at: Some(rfc3339(at_ms)), ..self }
    }

    /// A stage whose store cannot be read now.
    fn unavailable(stage: &'static str, error: &impl std::error::Error) -> Self {
        Self::new(stage, "is not available", "unknown").with_reason(error.to_string())
    }
}

/// Findings of all stages.
#[derive(Debug, Default)]
struct TraceFindings {
    sku: Option<SkuNo>,
    buyer: Option<BuyerId>,
    trace: Option<TraceId>,
    gate: Option<StageView>,
    accepted_at_ms: Option<i64>,
    /// The bucket that has the request as queued, while the ledger has no result.
    queued_in: Option<BucketKey>,
    /// Stages between gate and ledger.
    pipeline: Vec<StageView>,
    ledger: Option<StageView>,
    recorded_at_ms: Option<i64>,
    /// Stages whose store cannot be read.
    unavailable: Vec<StageView>,
}

impl TraceFindings {
    /// Adds the stages that the ledger has of an order.
    fn add_order(&mut self, timeline: &OrderTimeline) {
        let OrderTimeline { order, trace, published_at_ms, recorded_at_ms } = *timeline;
        (self.sku, self.buyer) = (Some(order.sku), Some(order.buyer));
        self.trace = trace.known();
        (self.accepted_at_ms, self.recorded_at_ms) = (Some(order.placed_at_ms), recorded_at_ms);
        let state = order.state.name();
        // Replaced by the gate's own record if it has one. An order proves a purchase even if its
        // bucket was emptied or cannot be read.
        let gate = StageView::new("gate", "accepted the request", state);
        self.gate = Some(gate.with_units_at(order.quantity, order.placed_at_ms));
        self.pipeline.extend(published_at_ms.map(|at_ms| StageView {
            at: Some(rfc3339(at_ms)),
            ..StageView::new("relay", "published it", "published")
        }));
        self.ledger = Some(StageView {
            quantity: Some(order.quantity),
            at: recorded_at_ms.map(rfc3339),
            ..StageView::new("ledger", "order", state)
        });
    }

    /// Adds the recorded failure of the ledger.
    fn add_failure(&mut self, failure: &Failure) {
        (self.sku, self.buyer) = (Some(failure.sku), Some(failure.buyer));
        self.recorded_at_ms = Some(failure.recorded_at_ms);
        let ledger = StageView::new("ledger", "recorded failure", "failed");
        let ledger = ledger.with_reason(failure.reason.code());
        self.ledger = Some(ledger.with_units_at(failure.quantity, failure.recorded_at_ms));
    }

    /// Adds the record of a gate.
    fn add_gate_record(&mut self, stored: &StoredRequest) {
        let stage = match stored.status {
            RequestStatus::Queued => StageView::new("gate", "waits for the ledger", "queued"),
            RequestStatus::Ordered { state, .. } => {
                StageView::new("gate", "has the order", state.name())
            }
            RequestStatus::Failed(refusal) => {
                StageView::new("gate", "failed", "failed").with_reason(refusal.code())
            }
        };
        self.gate = Some(stage.with_units_at(stored.quantity, stored.asked_at_ms));
        self.accepted_at_ms = Some(stored.asked_at_ms);
    }

    /// Adds the dead letters of the request. `dead_letters` is sorted newest first.
    fn add_dead_letters(&mut self, dead_letters: &[DeadLetter]) {
        if dead_letters.iter().any(|dead_letter| dead_letter.state.is_end()) {
            // The request ends in a dead letter, so it is in no queue.
            self.pipeline.retain(|stage| stage.stage != "broker");
        }
        self.pipeline.extend(dead_letters.iter().rev().map(dead_letter_stage));
        if self.ledger.is_some() {
            // The request is finished: these stages are history, in the order of time.
            self.pipeline.sort_by(|one, other| one.at.cmp(&other.at));
        }
    }

    /// From the purchase to the row. `None` also if clock skew makes the duration negative.
    fn took_ms(&self) -> Option<u64> {
        u64::try_from(self.recorded_at_ms?.checked_sub(self.accepted_at_ms?)?).ok()
    }

    fn stages(self) -> Vec<StageView> {
        let found = self.gate.into_iter().chain(self.pipeline).chain(self.ledger);
        found.chain(self.unavailable).collect()
    }
}

/// Finds a request by its request id or by its number. The signature is not verified: operators may
/// read every request. A store that cannot be read becomes a stage with state `unknown`.
///
/// # Errors
/// `invalid-request` if `id` is malformed, `not-found` if every store was read and has no record.
pub async fn trace(deps: &HttpDeps, id: &str) -> Result<TraceView, Problem> {
    let token = RequestTokens::read(id);
    let number = token.map_or_else(|| id.parse().ok(), |id| Some(id.number));
    let request: RequestId =
        number.ok_or_else(|| Problem::invalid("request_id must be a request id or its number"))?;
    let mut findings = TraceFindings { sku: token.map(|id| id.sku_no), ..TraceFindings::default() };
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
            let found = match deps.stock.status(key, request, None).await {
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
            if found.status == RequestStatus::Queued && findings.ledger.is_none() {
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
    findings.pipeline.push(match found.map(|found| found.place) {
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

/// Replayed dead letters are included: they explain a long duration.
fn dead_letter_stage(dead_letter: &DeadLetter) -> StageView {
    let (says, state) = match dead_letter.state {
        DeadLetterState::Open => ("waits for an operator", "dead"),
        DeadLetterState::Parked => ("parked by an operator", "dead"),
        DeadLetterState::Replayed => ("replayed by an operator", "replayed"),
        DeadLetterState::Discarded => ("discarded by an operator", "discarded"),
    };
    StageView {
        holder: Some(format!("dead letter {}", dead_letter.no)),
        at: Some(rfc3339(dead_letter.dead_at_ms)),
        ..StageView::new("dead_letter", says, state).with_reason(&dead_letter.reason)
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
