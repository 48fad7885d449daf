//! Publishes lost requests again, and records how they ended.

use super::Reconciler;
use super::copies::RecentCopies;
use crate::broker::{Message, PublishOutcome, Route};
use crate::db;
use crate::domain::{AuditVerdict, BucketKey, OrderIntent, Repair, RepairAction, RepairOutcome};
use crate::messages::envelope::{self, MalformedEnvelope};
use crate::redis::scripts::intent;

/// Most requests that one pass looks up for this.
const LOOKUPS_MAX: usize = 500;

/// Publishes lost requests of one bucket in envelopes like those of its outbox, and waits for the
/// confirms. Returns the confirmed requests, and the first error of the others. Declares
/// the topology once per pass and sets `topology_declared`.
pub(super) async fn republish(
    deps: &Reconciler,
    bucket: BucketKey,
    lost: &[OrderIntent],
    topology_declared: &mut bool,
) -> (Vec<OrderIntent>, Option<String>) {
    let (mut messages, mut envelopes) = (Vec::new(), Vec::new());
    let (mut confirmed, mut failure) = (Vec::new(), None);
    for envelope in lost.chunks(deps.settings.outbox.envelope_max.max(1)) {
        match message(deps, bucket, envelope) {
            Ok(message) => {
                messages.push(message);
                envelopes.push(envelope);
            }
            Err(malformed) => failure = failure.or(Some(malformed.to_string())),
        }
    }
    if messages.is_empty() {
        return (confirmed, failure);
    }
    // A missing binding may have lost the requests, and would lose the copies too.
    if !*topology_declared {
        if let Err(error) = deps.pipeline.publisher.declare().await {
            return (confirmed, Some(error.to_string()));
        }
        *topology_declared = true;
    }
    let sent = deps
        .pipeline
        .publisher
        .open_channel(deps.settings.relay.confirm_window)
        .publish(messages)
        .await;
    for (outcome, envelope) in sent.into_iter().zip(envelopes) {
        match outcome {
            PublishOutcome::Confirmed => confirmed.extend_from_slice(envelope),
            PublishOutcome::Refused { reason }
            | PublishOutcome::NotSent { reason }
            | PublishOutcome::Unknown { reason } => {
                failure = failure.or(Some(reason));
            }
        }
    }
    (confirmed, failure)
}

fn message(
    deps: &Reconciler,
    bucket: BucketKey,
    envelope: &[OrderIntent],
) -> Result<Message, MalformedEnvelope> {
    let (reader, now_ms) = (&deps.pipeline.reader, deps.clock.wall_ms());
    let mut body = Vec::with_capacity(envelope.len() * intent::INTENT_BYTES);
    for lost_intent in envelope {
        intent::pack_into(lost_intent, &reader.key, &mut body);
    }
    Ok(Message {
        route: Route::orders_of(bucket, deps.settings.amqp.queues),
        headers: envelope::headers(&body, &reader.installation, now_ms)?,
        body: body.into(),
    })
}

/// Records the ends of requests that were published again, each once. The next pass looks up again
/// what has no end yet, or could not be recorded.
pub(super) async fn record_ends(
    deps: &Reconciler,
    copies: &mut RecentCopies,
) -> Result<(), db::Error> {
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
