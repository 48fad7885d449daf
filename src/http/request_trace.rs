//! "Where is my order?": what gate and ledger know of one request, for operators.

use serde::Serialize;
use utoipa::ToSchema;

use super::problem::{Code, Problem};
use super::state::Parts;
use super::views::rfc3339;
use crate::domain::{BucketNo, BuyerId, RequestId, SkuNo, Standing, TraceId};
use crate::stock::{BucketKey, RequestStanding};
use crate::tokens::RequestTokens;

/// The way of one request.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceView {
    /// The request's number.
    #[schema(value_type = String)]
    request: RequestId,
    /// The SKU it is for.
    sale_id: Option<String>,
    sku_id: Option<String>,
    /// Who asked.
    #[schema(value_type = Option<String>)]
    buyer_id: Option<BuyerId>,
    /// The trace of the click, as long as the ledger has not answered.
    trace_id: Option<String>,
    /// What was found, in the order of the flow.
    stages: Vec<StageView>,
}

/// What one stage knows.
#[derive(Debug, Serialize, ToSchema)]
pub struct StageView {
    /// `gate` or `ledger`.
    stage: &'static str,
    /// What it says, for people.
    says: &'static str,
    /// `queued`, `failed`, or the state of the order.
    state: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Units.
    quantity: u32,
    /// `gate`: when it was asked; `ledger`: `placed_at`, or when the failure was recorded.
    at: String,
}

/// What is known, piece by piece.
#[derive(Default)]
struct Known {
    sku: Option<SkuNo>,
    buyer: Option<BuyerId>,
    trace: Option<TraceId>,
    gate: Option<StageView>,
    ledger: Option<StageView>,
}

/// Looks a request up, by the id its buyer has or by its bare number. Signatures are not checked:
/// operators may look at every request.
///
/// # Errors
/// `invalid-request` when it is no id, `not-found` when nobody knows it, `busy`.
pub async fn trace(parts: &Parts, written: &str) -> Result<TraceView, Problem> {
    let token = RequestTokens::read(written);
    let number = token.map_or_else(|| written.parse().ok(), |id| Some(id.number));
    let request: RequestId =
        number.ok_or_else(|| Problem::invalid("request_id must be a request id or its number"))?;
    let mut known = Known { sku: token.map(|id| id.sku_no), ..Known::default() };
    ask_ledger(parts, request, &mut known).await?;
    ask_gates(parts, request, &mut known).await?;
    if known.ledger.is_none() && known.gate.is_none() {
        let detail = "No gate and no row of the ledger knows it: it was never accepted.";
        return Err(Problem::from(Code::NotFound).with_detail(detail));
    }
    let place = known.sku.and_then(|sku| parts.catalog.of_sku(sku));
    Ok(TraceView {
        request,
        sale_id: place.as_ref().map(|(listed, _)| listed.sale.id.to_string()),
        sku_id: place.as_ref().map(|(_, sku)| sku.id.to_string()),
        buyer_id: known.buyer,
        trace_id: known.trace.map(|trace| trace.to_string()),
        stages: known.gate.into_iter().chain(known.ledger).collect(),
    })
}

async fn ask_ledger(parts: &Parts, request: RequestId, known: &mut Known) -> Result<(), Problem> {
    if let Some(order) = parts.ledger.order(request).await? {
        known.sku = Some(order.sku);
        known.buyer = Some(order.buyer);
        known.ledger = Some(StageView {
            stage: "ledger",
            says: "order",
            state: order.state.name(),
            reason: None,
            quantity: order.quantity,
            at: rfc3339(order.placed_at_ms),
        });
    } else if let Some(failure) = parts.ledger.failure(request).await? {
        known.sku = Some(failure.sku);
        known.buyer = Some(failure.buyer);
        known.ledger = Some(StageView {
            stage: "ledger",
            says: "recorded failure",
            state: "failed",
            reason: Some(failure.reason.code()),
            quantity: failure.quantity,
            at: rfc3339(failure.recorded_at_ms),
        });
    }
    Ok(())
}

/// Asks every bucket of the SKU, or of all SKUs where nobody knows which: one request at a time.
async fn ask_gates(parts: &Parts, request: RequestId, known: &mut Known) -> Result<(), Problem> {
    let (all, known_sku) = (parts.catalog.all(), known.sku);
    let skus = all.iter().flat_map(|listed| &listed.skus);
    let mut candidates = skus.filter(|sku| known_sku.is_none_or(|no| no == sku.no));
    while known.gate.is_none()
        && let Some(sku) = candidates.next()
    {
        if !parts.actors.directory().has(sku.no) {
            continue;
        }
        for bucket in (0..sku.buckets).map(BucketNo) {
            let key = BucketKey { sku: sku.no, bucket };
            let Some(found) = parts.stock.find(key, request).await? else { continue };
            known.sku = Some(sku.no);
            known.gate = Some(gate_stage(&found));
            if found.standing == Standing::Queued {
                let open = parts.stock.unsettled(key, i64::MAX).await?;
                if let Some(intent) = open.iter().find(|intent| intent.request == request) {
                    known.buyer = Some(intent.buyer);
                    known.trace = Some(intent.trace);
                }
            }
        }
    }
    Ok(())
}

fn gate_stage(found: &RequestStanding) -> StageView {
    let (says, state, reason) = match found.standing {
        Standing::Queued => ("waits for the ledger", "queued", None),
        Standing::Ordered { state, .. } => ("has the order", state.name(), None),
        Standing::Failed(refusal) => ("failed", "failed", Some(refusal.code())),
    };
    let at = rfc3339(found.asked_at_ms);
    StageView { stage: "gate", says, state, reason, quantity: found.quantity, at }
}
