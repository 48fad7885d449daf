//! "Where is my order?": every stage between gate and ledger that knows one request, for operators.

use serde::Serialize;
use utoipa::ToSchema;

use crate::db;
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterFilter, DeadLetterNo, DeadLetterState, Failure, OrderTimeline,
    Phase, RequestId, RequestStatus, SkuNo, TraceId,
};
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::buyers::views::rfc3339;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpDeps;
use crate::messages::envelope;
use crate::outbox::{self, EntryPlace};
use crate::stock::{self, BucketKey, StoredRequest};
use crate::tier::Pipeline;

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
    /// The trace of the click, where anybody knows it.
    trace_id: Option<String>,
    /// From the click to the row in the ledger, milliseconds, where both times are known. Several
    /// machines have several clocks.
    took_ms: Option<u64>,
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
    /// `queued`, `published`, `failed`, `dead`, `replayed`, or the state of the order; `unknown`
    /// where the stage cannot be asked now.
    state: &'static str,
    /// Why it failed, or cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Who has it in hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// Units, where the stage knows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantity: Option<u32>,
    /// `gate`: when it was asked, which is the order's `placed_at`; `relay`: when the message that
    /// brought the order was published; `dead_letter`: when it was given up; `ledger`: when order
    /// or failure was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl StageView {
    fn new(stage: &'static str, says: &'static str, state: &'static str) -> Self {
        Self { stage, says, state, reason: None, holder: None, quantity: None, at: None }
    }

    fn of(mut self, quantity: u32) -> Self {
        self.quantity = Some(quantity);
        self
    }

    fn at(mut self, at_ms: i64) -> Self {
        self.at = Some(rfc3339(at_ms));
        self
    }

    fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// A stage that cannot be asked now.
    fn silent(stage: &'static str, error: &impl std::error::Error) -> Self {
        Self::new(stage, "cannot be asked now", "unknown").because(error.to_string())
    }
}

/// What is known, piece by piece.
#[derive(Debug, Default)]
struct TraceSources {
    sku: Option<SkuNo>,
    buyer: Option<BuyerId>,
    trace: Option<TraceId>,
    gate: Option<StageView>,
    asked_at_ms: Option<i64>,
    /// The bucket that knows it, while the ledger has not answered.
    waiting_in: Option<BucketKey>,
    between: Vec<StageView>,
    ledger: Option<StageView>,
    recorded_at_ms: Option<i64>,
    /// Stages that cannot be asked.
    silent: Vec<StageView>,
}

impl TraceSources {
    /// Takes over what the ledger says of an order.
    fn add_order(&mut self, journey: &OrderTimeline) {
        let OrderTimeline { order, trace, published_at_ms, recorded_at_ms } = *journey;
        (self.sku, self.buyer) = (Some(order.sku), Some(order.buyer));
        self.trace = trace.known();
        (self.asked_at_ms, self.recorded_at_ms) = (Some(order.placed_at_ms), recorded_at_ms);
        let state = order.state.name();
        // Gates that know it will say more. A bucket that was emptied, or cannot be asked, does not
        // make the order one that nobody asked for.
        let gate = StageView::new("gate", "was asked", state);
        self.gate = Some(gate.of(order.quantity).at(order.placed_at_ms));
        let published = |at_ms| StageView::new("relay", "published it", "published").at(at_ms);
        self.between.extend(published_at_ms.map(published));
        let ledger = StageView::new("ledger", "order", state).of(order.quantity);
        self.ledger = Some(StageView { at: recorded_at_ms.map(rfc3339), ..ledger });
    }

    /// Takes over what the ledger says of a failure.
    fn add_failure(&mut self, failure: &Failure) {
        (self.sku, self.buyer) = (Some(failure.sku), Some(failure.buyer));
        self.recorded_at_ms = Some(failure.recorded_at_ms);
        let ledger = StageView::new("ledger", "recorded failure", "failed");
        let ledger = ledger.of(failure.quantity).at(failure.recorded_at_ms);
        self.ledger = Some(ledger.because(failure.reason.code()));
    }

    /// Takes over what a gate says.
    fn add_standing(&mut self, found: &StoredRequest) {
        let stage = match found.standing {
            RequestStatus::Queued => StageView::new("gate", "waits for the ledger", "queued"),
            RequestStatus::Ordered { state, .. } => {
                StageView::new("gate", "has the order", state.name())
            }
            RequestStatus::Failed(refusal) => {
                StageView::new("gate", "failed", "failed").because(refusal.code())
            }
        };
        self.gate = Some(stage.of(found.quantity).at(found.asked_at_ms));
        self.asked_at_ms = Some(found.asked_at_ms);
    }

    /// Takes over the dead letters that it is in, newest first.
    fn add_letters(&mut self, letters: &[DeadLetter]) {
        if letters.iter().any(|letter| letter.state.is_end()) {
            // It is there and nowhere else.
            self.between.retain(|stage| stage.stage != "broker");
        }
        self.between.extend(letters.iter().rev().map(letter_stage));
        if self.ledger.is_some() {
            // Nothing here is where it waits: all of it has happened.
            self.between.sort_by(|one, other| one.at.cmp(&other.at));
        }
    }

    /// From the click to the row; `None` also where clocks differ by more than that.
    fn took_ms(&self) -> Option<u64> {
        u64::try_from(self.recorded_at_ms?.checked_sub(self.asked_at_ms?)?).ok()
    }

    /// Whether there is nothing to tell, not even that somebody cannot be asked.
    fn is_empty(&self) -> bool {
        let asked = [&self.gate, &self.ledger].into_iter().flatten();
        asked.chain(&self.between).chain(&self.silent).next().is_none()
    }

    fn stages(self) -> Vec<StageView> {
        let said = self.gate.into_iter().chain(self.between).chain(self.ledger);
        said.chain(self.silent).collect()
    }
}

/// Looks a request up, by the id its buyer has or by its bare number. Signatures are not checked:
/// operators may look at every request. What cannot be asked is a stage that says so: the others
/// are worth more than nothing.
///
/// # Errors
/// `invalid-request` when it is no id, `not-found` when everybody was asked and nobody knows it.
pub async fn trace(deps: &HttpDeps, written: &str) -> Result<TraceView, Problem> {
    let token = RequestTokens::read(written);
    let number = token.map_or_else(|| written.parse().ok(), |id| Some(id.number));
    let request: RequestId =
        number.ok_or_else(|| Problem::invalid("request_id must be a request id or its number"))?;
    let mut known = TraceSources { sku: token.map(|id| id.sku_no), ..TraceSources::default() };
    let looked_up = ask_ledger(deps, request, &mut known);
    let ledger = db::look("a trace", looked_up).await;
    let gates = ask_gates(deps, request, &mut known).await;
    if let (Some(pipeline), Some(key)) = (&deps.pipeline, known.waiting_in)
        && let Err(error) = on_its_way(pipeline, key, request, &mut known).await
    {
        known.silent.push(StageView::silent("outbox", &error));
    }
    let ledger = match ledger {
        Ok(()) => {
            let letters = ask_letters(deps, request, &mut known);
            db::look("a trace", letters).await
        }
        silent => silent,
    };
    // What the ledger says is the last word, also while the gates cannot be asked.
    if let (Err(error), None) = (&gates, &known.ledger) {
        known.silent.push(StageView::silent("gate", error));
    }
    if let Err(error) = &ledger {
        known.silent.push(StageView::silent("ledger", error));
    }
    if known.is_empty() {
        let detail = "No gate, no row of the ledger and no dead letter knows it.";
        let problem = Problem::from(ProblemCode::NotFound).with_detail(detail);
        return Err(problem.with("request_id", request.to_string()));
    }
    let place = known.sku.and_then(|sku| deps.catalog.of_sku(sku));
    Ok(TraceView {
        request,
        sale_id: place.as_ref().map(|(listed, _)| listed.sale.id.to_string()),
        sku_id: place.as_ref().map(|(_, sku)| sku.id.to_string()),
        buyer_id: known.buyer,
        trace_id: known.trace.map(|trace| trace.to_string()),
        took_ms: known.took_ms(),
        stages: known.stages(),
    })
}

/// Takes over order or failure.
async fn ask_ledger(
    deps: &HttpDeps,
    request: RequestId,
    known: &mut TraceSources,
) -> Result<(), db::Error> {
    if let Some(journey) = deps.ledger.journey(request).await? {
        known.add_order(&journey);
    } else if let Some(failure) = deps.ledger.failure(request).await? {
        known.add_failure(&failure);
    }
    Ok(())
}

/// Takes over the dead letters that it is in.
async fn ask_letters(
    deps: &HttpDeps,
    request: RequestId,
    known: &mut TraceSources,
) -> Result<(), db::Error> {
    let letters = deps.ledger.dead_letters(DeadLetterFilter::with(request), u32::MAX).await?;
    known.add_letters(&letters);
    if let (None, Some(letter)) = (known.trace, letters.first()) {
        known.trace = trace_in(deps, letter.no, request).await?;
    }
    Ok(())
}

/// Asks every bucket of the SKU, or of all SKUs where nobody knows which: one request at a time.
async fn ask_gates(
    deps: &HttpDeps,
    request: RequestId,
    known: &mut TraceSources,
) -> Result<(), stock::Error> {
    let (all, known_sku) = (deps.catalog.all(), known.sku);
    // Drafts have no buckets yet.
    let sold = all.iter().filter(|listed| listed.sale.phase != Phase::Draft);
    let skus = sold.flat_map(|listed| &listed.skus);
    let mut candidates = skus.filter(|sku| known_sku.is_none_or(|no| no == sku.no));
    let (mut is_found, mut not_loaded) = (false, None);
    while !is_found && let Some(sku) = candidates.next() {
        for key in BucketKey::all_of(sku) {
            let found = match deps.stock.find(key, request).await {
                Err(error @ stock::Error::NotLoaded(_)) => {
                    not_loaded = not_loaded.or(Some(error));
                    continue;
                }
                found => found?,
            };
            let Some(found) = found else { continue };
            is_found = true;
            known.sku = Some(sku.no);
            known.add_standing(&found);
            if found.standing == RequestStatus::Queued && known.ledger.is_none() {
                known.waiting_in = Some(key);
                let open = deps.stock.unsettled(key, i64::MAX).await?;
                if let Some(intent) = open.iter().find(|intent| intent.request == request) {
                    known.buyer = Some(intent.buyer);
                    known.trace = intent.trace.known();
                }
            }
        }
    }
    // A bucket that is not loaded has perhaps forgotten what it accepted.
    match not_loaded {
        Some(error) if !is_found => Err(error),
        _ => Ok(()),
    }
}

/// Where between gate and ledger a request is that both know of as under way.
async fn on_its_way(
    pipeline: &Pipeline,
    key: BucketKey,
    request: RequestId,
    known: &mut TraceSources,
) -> Result<(), outbox::Error> {
    let found = pipeline.outbox.find(key, request).await?;
    known.trace = known.trace.or_else(|| found.as_ref()?.trace.known());
    known.between.push(match found.map(|found| found.place) {
        Some(EntryPlace::Waiting) => StageView::new("outbox", "waits for a relay", "queued"),
        Some(EntryPlace::InHand { worker }) => StageView {
            holder: Some(worker),
            ..StageView::new("relay", "is being published", "queued")
        },
        Some(EntryPlace::Dead { reason }) => {
            StageView::new("dead_letter", "given up by the relay", "dead").because(reason)
        }
        // Queues cannot be looked into: what no stage around them has is there, or was lost there
        // and is sent again.
        None => StageView::new("broker", "is in a queue, or in a consumer's hand", "queued"),
    });
    Ok(())
}

/// The trace of a request, as the bytes of a dead letter have it.
async fn trace_in(
    deps: &HttpDeps,
    letter: DeadLetterNo,
    request: RequestId,
) -> Result<Option<TraceId>, db::Error> {
    let whole = deps.ledger.dead_letter(letter).await?;
    let intents = whole.map(|whole| envelope::intents_in(&whole.body)).unwrap_or_default();
    let intent = intents.iter().find(|intent| intent.request == request);
    Ok(intent.and_then(|intent| intent.trace.known()))
}

/// A letter that was replayed is told, too: it explains why the request took so long.
fn letter_stage(letter: &DeadLetter) -> StageView {
    let (says, state) = match letter.state {
        DeadLetterState::Open => ("waits for an operator", "dead"),
        DeadLetterState::Parked => ("set aside by an operator", "dead"),
        DeadLetterState::Replayed => ("was put on its way again", "replayed"),
        DeadLetterState::Discarded => ("was given up by an operator", "discarded"),
    };
    StageView {
        holder: Some(format!("dead letter {}", letter.no)),
        ..StageView::new("dead_letter", says, state).because(&letter.reason).at(letter.dead_at_ms)
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
