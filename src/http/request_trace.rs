//! "Where is my order?": every stage between gate and ledger that knows one request, for operators.

use serde::Serialize;
use utoipa::ToSchema;

use super::problem::{Code, Problem};
use super::state::Parts;
use super::views::rfc3339;
use crate::domain::{
    BucketNo, BuyerId, DeadLetter, LetterState, RequestId, SkuNo, Standing, TraceId,
};
use crate::outbox::Place;
use crate::stock::{self, BucketKey, RequestStanding};
use crate::tier::Pipeline;
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
    /// `gate`, `outbox`, `relay`, `broker`, `dead_letter` or `ledger`.
    stage: &'static str,
    /// What it says, for people.
    says: &'static str,
    /// `queued`, `failed`, `dead`, `replayed`, or the state of the order.
    state: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Who has it in hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// Units, where the stage knows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantity: Option<u32>,
    /// `gate`: when it was asked; `ledger`: `placed_at`, or when the failure was recorded;
    /// `dead_letter`: when it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl StageView {
    fn new(stage: &'static str, says: &'static str, state: &'static str) -> Self {
        Self { stage, says, state, reason: None, holder: None, quantity: None, at: None }
    }

    fn of(mut self, quantity: u32, at_ms: i64) -> Self {
        (self.quantity, self.at) = (Some(quantity), Some(rfc3339(at_ms)));
        self
    }

    fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// What is known, piece by piece.
#[derive(Default)]
struct Known {
    sku: Option<SkuNo>,
    buyer: Option<BuyerId>,
    trace: Option<TraceId>,
    gate: Option<StageView>,
    /// The bucket that knows it, while the ledger has not answered.
    waiting_in: Option<BucketKey>,
    between: Vec<StageView>,
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
    match ask_gates(parts, request, &mut known).await {
        // What the ledger says is the last word, also while the gates cannot be asked.
        Err(_busy) if known.ledger.is_some() => {}
        asked => asked?,
    }
    if let (Some(pipeline), Some(key)) = (&parts.pipeline, known.waiting_in) {
        known.between = on_its_way(pipeline, key, request).await?;
    }
    let letters = parts.ledger.dead_letters_with(request).await?;
    if letters.iter().any(|letter| letter.state != LetterState::Replayed) {
        // It is there and nowhere else.
        known.between.retain(|stage| stage.stage != "broker");
    }
    known.between.extend(letters.iter().rev().map(letter_stage));
    if known.ledger.is_none() && known.gate.is_none() && known.between.is_empty() {
        let detail = "No gate and no row of the ledger knows it: it was never accepted.";
        let problem = Problem::from(Code::NotFound).with_detail(detail);
        return Err(problem.with("request_id", request.to_string()));
    }
    let place = known.sku.and_then(|sku| parts.catalog.of_sku(sku));
    Ok(TraceView {
        request,
        sale_id: place.as_ref().map(|(listed, _)| listed.sale.id.to_string()),
        sku_id: place.as_ref().map(|(_, sku)| sku.id.to_string()),
        buyer_id: known.buyer,
        trace_id: known.trace.map(|trace| trace.to_string()),
        stages: known.gate.into_iter().chain(known.between).chain(known.ledger).collect(),
    })
}

async fn ask_ledger(parts: &Parts, request: RequestId, known: &mut Known) -> Result<(), Problem> {
    if let Some(order) = parts.ledger.order(request).await? {
        known.sku = Some(order.sku);
        known.buyer = Some(order.buyer);
        let stage = StageView::new("ledger", "order", order.state.name());
        known.ledger = Some(stage.of(order.quantity, order.placed_at_ms));
    } else if let Some(failure) = parts.ledger.failure(request).await? {
        known.sku = Some(failure.sku);
        known.buyer = Some(failure.buyer);
        let stage = StageView::new("ledger", "recorded failure", "failed");
        let stage = stage.of(failure.quantity, failure.recorded_at_ms);
        known.ledger = Some(stage.because(failure.reason.code()));
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
        for bucket in (0..sku.buckets).map(BucketNo) {
            let key = BucketKey { sku: sku.no, bucket };
            let found = match parts.stock.find(key, request).await {
                Err(stock::Error::NotLoaded(_)) => continue,
                found => found?,
            };
            let Some(found) = found else { continue };
            known.sku = Some(sku.no);
            known.gate = Some(gate_stage(&found));
            if found.standing == Standing::Queued {
                known.waiting_in = Some(key);
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

/// Where between gate and ledger a request is that both know of as under way.
async fn on_its_way(
    pipeline: &Pipeline,
    key: BucketKey,
    request: RequestId,
) -> Result<Vec<StageView>, Problem> {
    let stage = match pipeline.outbox.find(key, request).await? {
        Some(Place::Waiting) => StageView::new("outbox", "waits for a relay", "queued"),
        Some(Place::InHand { worker }) => StageView {
            holder: Some(worker),
            ..StageView::new("relay", "is being published", "queued")
        },
        Some(Place::Dead { reason }) => {
            StageView::new("dead_letter", "given up by the relay", "dead").because(reason)
        }
        // Queues cannot be looked into: what no stage around them has is there, or was lost there
        // and is sent again.
        None => StageView::new("broker", "is in a queue, or in a consumer's hand", "queued"),
    };
    Ok(vec![stage])
}

/// A letter that was replayed is told, too: it explains why the request took so long.
fn letter_stage(letter: &DeadLetter) -> StageView {
    let (says, state) = match letter.state {
        LetterState::Open => ("waits for an operator", "dead"),
        LetterState::Parked => ("set aside by an operator", "dead"),
        LetterState::Replayed => ("was put on its way again", "replayed"),
    };
    StageView {
        holder: Some(format!("dead letter {}", letter.no)),
        reason: Some(letter.reason.clone()),
        at: Some(rfc3339(letter.dead_at_ms)),
        ..StageView::new("dead_letter", says, state)
    }
}

fn gate_stage(found: &RequestStanding) -> StageView {
    let stage = match found.standing {
        Standing::Queued => StageView::new("gate", "waits for the ledger", "queued"),
        Standing::Ordered { state, .. } => StageView::new("gate", "has the order", state.name()),
        Standing::Failed(refusal) => {
            StageView::new("gate", "failed", "failed").because(refusal.code())
        }
    };
    stage.of(found.quantity, found.asked_at_ms)
}
