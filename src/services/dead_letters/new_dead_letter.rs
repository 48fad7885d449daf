//! Builds a dead letter from a message. Pure functions.
//!
//! Copies of one message must become one dead letter, wherever they were dead-lettered: the digest
//! covers the whole body and the headers that type the message, not reasons and attempts. Every
//! field is bounded, because a message of another application may hold anything.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::replay;
use crate::broker::{Delivery, Headers, SIGNATURE_HEADERS};
use crate::domain::dead_letter::{
    BODY_BYTES_MAX, DeadLetterOrigin, MESSAGE_ID_CHARS_MAX, NewDeadLetter, TEXT_CHARS_MAX,
};
use crate::domain::text::clip;
use crate::domain::{OrderIntent, OrderKey};
use crate::messages::envelope::EnvelopeReader;

/// The origin of dead letters from the queue of payment events.
pub const PAYMENTS: &str = "payments";

/// Longest stored text of a header, in characters.
const HEADER_CHARS_MAX: usize = 500;

/// Message headers as stored with a dead letter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterHeaders {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    #[serde(flatten)]
    pub message: Headers,
}

impl DeadLetterHeaders {
    fn of(headers: &Headers, routing_key: Option<&str>) -> Self {
        let clipped =
            |text: &Option<String>| text.as_deref().map(|text| clip(text, HEADER_CHARS_MAX));
        let message = Headers {
            content_type: clipped(&headers.content_type),
            installation: clipped(&headers.installation),
            traceparent: clipped(&headers.traceparent),
            origin: clipped(&headers.origin),
            ..headers.clone()
        };
        Self { routing_key: routing_key.map(|key| clip(key, HEADER_CHARS_MAX)), message }
    }

    /// Whether the message is a payment event: its consumer or the broker names its queue.
    pub fn is_payment(&self) -> bool {
        let origin = self.message.origin.as_deref().unwrap_or_default();
        origin == PAYMENTS || origin.ends_with(".payments")
    }

    /// Parses stored headers. Malformed ones become empty: the dead letter cannot be replayed.
    pub fn read(stored: &str) -> Self {
        serde_json::from_str(stored).unwrap_or_default()
    }
}

/// A dead letter from the queue `dead`. A relay names itself in the headers, a consumer its queue,
/// such as `orders.3`; without such a header, or with that of the broker, its origin is the broker.
pub fn from_delivery(delivery: &Delivery, reader: &EnvelopeReader, now_ms: i64) -> NewDeadLetter {
    let headers = &delivery.headers;
    let origin = match headers.origin.as_deref().filter(|_| !headers.by_broker) {
        Some(origin) if origin == DeadLetterOrigin::Relay.name() => DeadLetterOrigin::Relay,
        Some(_) => DeadLetterOrigin::Consumer,
        None => DeadLetterOrigin::Broker,
    };
    let no_reason = "it names no reason: another program published it to the queue of dead letters";
    let reason = headers.reason.as_deref().unwrap_or(no_reason);
    let routing_key = Some(delivery.routing_key.as_str());
    let requests = verified_requests(headers, &delivery.body, reader);
    new_dead_letter(origin, now_ms, headers, routing_key, reason, &delivery.body, requests)
}

/// A dead letter of a signed webhook that cannot be read, as the queue of payment events would have
/// given it up: a replay sends it there. Repeats of the webhook are the same dead letter.
pub fn from_webhook<'w>(
    header: impl Fn(&str) -> Option<&'w str>,
    body: &Bytes,
    reason: &str,
    now_ms: i64,
) -> NewDeadLetter {
    let sent = |name: &str| header(name).map(|value| (name.to_owned(), value.to_owned()));
    let headers = Headers {
        message_id: header("webhook-id").unwrap_or_default().to_owned(),
        signature: SIGNATURE_HEADERS.iter().filter_map(|name| sent(name)).collect(),
        origin: Some(PAYMENTS.to_owned()),
        ..Headers::default()
    };
    let origin = DeadLetterOrigin::Consumer;
    new_dead_letter(origin, now_ms, &headers, None, reason, body, Vec::new())
}

fn new_dead_letter(
    origin: DeadLetterOrigin,
    dead_at_ms: i64,
    headers: &Headers,
    routing_key: Option<&str>,
    reason: &str,
    body: &Bytes,
    requests: Vec<OrderKey>,
) -> NewDeadLetter {
    let kept = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    let reason = if kept.len() < body.len() {
        format!("{reason} (only the first {BODY_BYTES_MAX} of {} bytes are kept)", body.len())
    } else {
        reason.to_owned()
    };
    let stored = DeadLetterHeaders::of(headers, routing_key);
    NewDeadLetter {
        digest: digest(headers, body),
        origin,
        reason: clip(&reason, TEXT_CHARS_MAX),
        attempts: headers.attempts.min(i32::MAX.unsigned_abs()),
        message_id: clip(&headers.message_id, MESSAGE_ID_CHARS_MAX),
        headers: serde_json::to_string(&stored).unwrap_or_default(),
        body: kept.to_vec(),
        body_bytes: body.len() as u64,
        requests,
        dead_at_ms,
    }
}

/// The requests whose end state is this dead letter: all requests of the message if it can be
/// replayed, otherwise none. A request must not end where it cannot be replayed: it counts as lost,
/// and the reconciler submits it.
fn verified_requests(headers: &Headers, body: &Bytes, reader: &EnvelopeReader) -> Vec<OrderKey> {
    let intents = replay::verified_intents(headers, body, reader).unwrap_or_default();
    let mut requests: Vec<OrderKey> = intents.iter().map(OrderIntent::key).collect();
    requests.sort_unstable_by_key(|dead| (dead.request, dead.sku, dead.buyer));
    requests.dedup_by_key(|dead| dead.request);
    requests
}

fn digest(headers: &Headers, body: &[u8]) -> [u8; 32] {
    let version = headers.version.map(|version| version.to_string());
    let mut digest = Sha256::new();
    for part in [&headers.content_type, &version, &headers.installation] {
        // Length-prefixed, so that different parts never give the same input.
        let text = part.as_deref().unwrap_or_default();
        digest.update([u8::from(part.is_some())]);
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.update(body);
    digest.finalize().into()
}
