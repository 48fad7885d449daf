//! The stages of one request between gate and ledger, from what each store has of it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::{
    BucketKey, BuyerId, DeadLetter, DeadLetterNo, DeadLetterState, Failure, OrderTimeline,
    RecordState, RequestRecord, SkuNo, TraceId,
};
use crate::http::buyers::views::rfc3339;

/// Stages of one request.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceView {
    /// Number of the request.
    pub(super) request: String,
    /// Null if the SKU is not known; `sku_id` likewise.
    pub(super) sale_id: Option<String>,
    pub(super) sku_id: Option<String>,
    pub(super) buyer_id: Option<String>,
    /// Trace id of the purchase, if a stage has it.
    pub(super) trace_id: Option<String>,
    /// Milliseconds from the purchase to the row in the ledger, if both times are known. The times
    /// may come from different machines.
    pub(super) took_ms: Option<u64>,
    /// In the order of the flow.
    pub(super) stages: Vec<StageView>,
    /// What an operator does now, for people: `done: ..`, `next: ..` or `wait: ..`.
    pub(super) next: String,
}

/// Record of one stage.
#[derive(Debug, Serialize, ToSchema)]
pub struct StageView {
    /// `gate`, `outbox`, `relay`, `broker`, `dead_letter` or `ledger`.
    pub(super) stage: &'static str,
    /// Explanation, for people.
    pub(super) says: &'static str,
    /// `queued`, `published`, `failed`, or the state of the order or the dead letter; `unknown` if
    /// the stage is unavailable.
    pub(super) state: &'static str,
    /// Reason of a failure or of the unavailability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The relay worker or the dead letter that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    /// Of a dead letter in the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_letter_id: Option<String>,
    /// Units, if the stage has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quantity: Option<u32>,
    /// `gate`: time of the purchase, which is the order's `placed_at`; `relay`: time of the
    /// publish; `dead_letter`: when the message was dead-lettered; `ledger`: when the order or the
    /// failure was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
}

impl StageView {
    pub(super) fn new(stage: &'static str, says: &'static str, state: &'static str) -> Self {
        let (reason, holder, dead_letter_id) = (None, None, None);
        Self { stage, says, state, reason, holder, dead_letter_id, quantity: None, at: None }
    }

    /// With its reason.
    pub(super) fn with_reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// Of a dead letter in the ledger.
    pub(super) fn with_dead_letter(self, no: DeadLetterNo) -> Self {
        let holder = Some(format!("dead letter {no}"));
        Self { holder, dead_letter_id: Some(no.to_string()), ..self }
    }

    /// With its units and its time, epoch milliseconds.
    fn with_units_at(self, quantity: u32, at_ms: i64) -> Self {
        Self { quantity: Some(quantity), at: Some(rfc3339(at_ms)), ..self }
    }

    /// A stage whose store cannot be read now.
    pub(super) fn unavailable(stage: &'static str, error: &impl std::error::Error) -> Self {
        Self::new(stage, "is not available", "unknown").with_reason(error.to_string())
    }
}

/// Findings of all stages.
#[derive(Debug, Default)]
pub(super) struct TraceFindings {
    pub(super) sku: Option<SkuNo>,
    pub(super) buyer: Option<BuyerId>,
    pub(super) trace: Option<TraceId>,
    pub(super) gate: Option<StageView>,
    pub(super) placed_at_ms: Option<i64>,
    /// The bucket that has the request as queued, while the ledger has no result.
    pub(super) queued_in: Option<BucketKey>,
    /// Stages between gate and ledger.
    pub(super) pipeline: Vec<StageView>,
    pub(super) ledger: Option<StageView>,
    pub(super) recorded_at_ms: Option<i64>,
    /// Stages whose store cannot be read.
    pub(super) unavailable: Vec<StageView>,
}

impl TraceFindings {
    /// Adds the stages that the ledger has of an order.
    pub(super) fn add_order(&mut self, timeline: &OrderTimeline) {
        let OrderTimeline { order, trace, published_at_ms, recorded_at_ms } = *timeline;
        (self.sku, self.buyer) = (Some(order.sku), Some(order.buyer));
        self.trace = trace.known();
        (self.placed_at_ms, self.recorded_at_ms) = (Some(order.placed_at_ms), Some(recorded_at_ms));
        let state = order.state.name();
        // Replaced by the gate's own record if it has one. An order proves a purchase even if its
        // bucket was emptied or cannot be read.
        let gate = StageView::new("gate", "accepted the request", state);
        self.gate = Some(gate.with_units_at(order.quantity, order.placed_at_ms));
        self.pipeline.extend(published_at_ms.map(|at_ms| StageView {
            at: Some(rfc3339(at_ms)),
            ..StageView::new("relay", "sent it to the broker", "published")
        }));
        let ledger = StageView::new("ledger", "order", state);
        self.ledger = Some(ledger.with_units_at(order.quantity, recorded_at_ms));
    }

    /// Adds the recorded failure of the ledger.
    pub(super) fn add_failure(&mut self, failure: &Failure) {
        (self.sku, self.buyer) = (Some(failure.sku), Some(failure.buyer));
        self.recorded_at_ms = Some(failure.recorded_at_ms);
        let ledger = StageView::new("ledger", "recorded failure", "failed");
        let ledger = ledger.with_reason(failure.reason.code());
        self.ledger = Some(ledger.with_units_at(failure.quantity, failure.recorded_at_ms));
    }

    /// Adds the record of a gate.
    pub(super) fn add_gate_record(&mut self, record: &RequestRecord) {
        let stage = match record.state {
            RecordState::Queued { .. } => StageView::new("gate", "waits for the ledger", "queued"),
            RecordState::Ordered { state, .. } => {
                StageView::new("gate", "has the order", state.name())
            }
            RecordState::Failed(refusal) => {
                StageView::new("gate", "failed", "failed").with_reason(refusal.code())
            }
        };
        self.gate = Some(stage.with_units_at(record.quantity, record.placed_at_ms));
        (self.buyer, self.placed_at_ms) = (Some(record.buyer), Some(record.placed_at_ms));
    }

    /// Adds the dead letters of the request. `dead_letters` is sorted newest first.
    pub(super) fn add_dead_letters(&mut self, dead_letters: &[DeadLetter]) {
        if dead_letters.iter().any(|dead_letter| dead_letter.state.holds_requests()) {
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
    pub(super) fn took_ms(&self) -> Option<u64> {
        u64::try_from(self.recorded_at_ms?.checked_sub(self.placed_at_ms?)?).ok()
    }

    pub(super) fn stages(self) -> Vec<StageView> {
        let found = self.gate.into_iter().chain(self.pipeline).chain(self.ledger);
        found.chain(self.unavailable).collect()
    }
}

/// The operator's next step, by the request's last final stage, or by the stage it waits in.
pub(super) fn next_step(stages: &[StageView]) -> String {
    let (unread, read): (Vec<_>, Vec<_>) =
        stages.iter().partition(|stage| stage.state == "unknown");
    if let Some(ledger) = read.iter().rfind(|stage| stage.stage == "ledger") {
        if ledger.state != "failed" {
            return "done: it is an order; the same purchase sent again reads it".to_owned();
        }
        let reason = ledger.reason.as_deref().unwrap_or("-");
        return format!("done: the ledger recorded the failure of the request; reason: {reason}");
    }
    if let Some(unread) = unread.first() {
        if unread.dead_letter_id.is_some() {
            return "next: `floodgate dlq list --state all` says what cannot be read".to_owned();
        }
        return format!(
            "next: `floodgate doctor` says why the {} cannot be read; nothing is lost, and waiting \
             requests go on when it is back",
            unread.stage
        );
    }
    let waits = |stage: &&&StageView| ["open", "parked"].contains(&stage.state);
    if let Some(no) = read.iter().rfind(waits).and_then(|stage| stage.dead_letter_id.as_ref()) {
        return format!("next: floodgate dlq show {no}, then replay, park or discard it");
    }
    let why = match stages.last().map(|stage| stage.stage) {
        Some("outbox") => "a relay takes it",
        Some("relay") => "its relay publishes it",
        Some("broker") => "a consumer takes it",
        Some("dead_letter") => "it was replayed",
        _ => "the ledger has not answered",
    };
    format!("wait: {why}; if it stays: `floodgate doctor`, docs/runbooks/order-stuck.md")
}

/// Replayed dead letters are included: they explain a long duration.
fn dead_letter_stage(dead_letter: &DeadLetter) -> StageView {
    let says = match dead_letter.state {
        DeadLetterState::Open => "waits for an operator",
        DeadLetterState::Parked => "parked by an operator",
        DeadLetterState::Replayed => "replayed by an operator",
        DeadLetterState::Discarded => "discarded by an operator",
    };
    StageView {
        at: Some(rfc3339(dead_letter.dead_at_ms)),
        ..StageView::new("dead_letter", says, dead_letter.state.name())
            .with_reason(&dead_letter.reason)
            .with_dead_letter(dead_letter.no)
    }
}

#[cfg(test)]
#[path = "trace_stages_tests.rs"]
mod tests;
