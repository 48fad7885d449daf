//! Lost requests on their way to the consumers again.

use super::ReconcilerDeps;
use crate::broker::{Message, PublishOutcome, Route};
use crate::domain::OrderIntent;
use crate::messages::envelope;
use crate::messages::envelope::MalformedEnvelope;
use crate::redis::scripts::intent;
use crate::stock::BucketKey;

/// Publishes lost requests of one bucket, as its outbox would have, and waits for the
/// confirmations. Returns how many were confirmed, and why the others were not. `has_declared`: the
/// topology was declared in this pass.
pub(super) async fn republish(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    lost: &[OrderIntent],
    has_declared: &mut bool,
) -> (usize, Option<String>) {
    let (mut messages, mut counts) = (Vec::new(), Vec::new());
    let (mut confirmed, mut failure) = (0, None);
    for envelope in lost.chunks(deps.limits.envelope_max.max(1)) {
        match message(deps, bucket, envelope) {
            Ok(message) => {
                messages.push(message);
                counts.push(envelope.len());
            }
            Err(malformed) => failure = failure.or(Some(malformed.to_string())),
        }
    }
    if messages.is_empty() {
        return (0, failure);
    }
    // Perhaps they were lost because a binding is missing, and copies would go the same way.
    if !*has_declared {
        if let Err(error) = deps.publisher.declare().await {
            return (0, Some(error.to_string()));
        }
        *has_declared = true;
    }
    let sent = deps.publisher.outgoing(deps.limits.window).publish(messages).await;
    for (sent, count) in sent.into_iter().zip(counts) {
        match sent {
            PublishOutcome::Confirmed => confirmed += count,
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
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    envelope: &[OrderIntent],
) -> Result<Message, MalformedEnvelope> {
    let mut body = Vec::with_capacity(envelope.len() * intent::INTENT_BYTES);
    for lost in envelope {
        intent::pack_into(lost, &mut body);
    }
    Ok(Message {
        route: Route::orders_of(bucket, deps.limits.queues),
        headers: envelope::headers(&body, &deps.installation, deps.clock.wall_ms())?,
        body: body.into(),
    })
}
