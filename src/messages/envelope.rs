//! The message format between outbox and consumers: a versioned envelope of order intents.
//!
//! The body equals the outbox entry: packed intents, one after the other, each with the signature
//! that proves its origin; or what another program wrote there. All other data is in the headers,
//! so that a message can be checked, traced and replayed without decoding its body. Golden files in
//! `tests/it/wire/` hold the bytes. The version of a message is that of its intents.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::broker::{Delivery, Headers, Message, Route};
use crate::domain::named::named_enum;
use crate::domain::{self, DeadLetterOrigin, OrderIntent, RequestId};
use crate::redis::scripts::intent;
use crate::redis::scripts::intent::IntentKey;

/// The version that is written and read.
pub const VERSION: i64 = intent::VERSION as i64;

/// The content type of every envelope.
pub const CONTENT_TYPE: &str = "application/vnd.floodgate.intents";

/// The longest body that is decoded; more than ten times the configurable size. A dead letter keeps
/// it whole.
pub const BODY_BYTES_MAX: usize = domain::dead_letter::BODY_BYTES_MAX;

named_enum! {
    /// Why a message, or one intent of it, cannot be used; with its label value in metrics.
    EnvelopeFlaw {
        /// The content type is another one.
        Foreign => "foreign",
        /// The version is unsupported.
        Version => "version",
        /// The message belongs to another installation.
        Installation => "installation",
        /// The body is not a sequence of intents.
        Body => "body",
        /// The bytes of one intent cannot be decoded.
        Intent => "intent",
        /// No process of this installation wrote the intent.
        Forged => "forged",
        /// The request arrived outside the sale's window.
        Window => "window",
        /// No sale has the SKU.
        Sku => "sku",
        /// The intent contradicts the sale, or itself.
        Content => "content",
    }
}

/// Why a message, or one intent of it, cannot be used; a retry cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct MalformedEnvelope {
    pub flaw: EnvelopeFlaw,
    /// Description for operators.
    pub what: String,
}

impl MalformedEnvelope {
    pub fn new(flaw: EnvelopeFlaw, what: impl Into<String>) -> Self {
        Self { flaw, what: what.into() }
    }
}

/// The intents of a message, in order, each with its error if it cannot be used.
pub type DecodedIntents = Vec<Result<OrderIntent, MalformedEnvelope>>;

/// Reads the messages of one installation.
#[derive(Debug, Clone)]
pub struct EnvelopeReader {
    /// Messages of other installations are refused.
    pub installation: Arc<str>,
    pub key: IntentKey,
}

/// The headers of an envelope with this body, whether its intents can be read or not: the order
/// consumer separates those that it cannot read.
pub fn headers(body: &[u8], installation: &str, sent_at_ms: i64) -> Headers {
    let intents = intents_in(body);
    let first = intents.first();
    Headers {
        message_id: first
            .map_or_else(|| nameless(body), |first| format!("{}-{}", first.request, intents.len())),
        content_type: Some(CONTENT_TYPE.to_owned()),
        version: Some(VERSION),
        installation: Some(installation.to_owned()),
        epoch: intents.iter().map(|intent| intent.epoch.0).max(),
        traceparent: first.and_then(traceparent),
        sent_at_ms: Some(sent_at_ms),
        ..Headers::default()
    }
}

/// The message id of a body without one.
fn nameless(body: &[u8]) -> String {
    format!("nameless-{:016x}", xxh3_64(body))
}

/// The trace of the buyer's request, with the same parent id in every copy of the message. `None`
/// for an intent without a trace: an all-zero trace id is invalid.
fn traceparent(first: &OrderIntent) -> Option<String> {
    let trace = first.trace.known()?;
    Some(format!("00-{trace}-{:016x}-01", first.request.get()))
}

impl EnvelopeReader {
    /// Decodes the intents of a message, and verifies that a process of this installation wrote
    /// them. An unreadable one, also the cut one at the end, is an error beside its neighbours.
    ///
    /// # Errors
    /// The whole message cannot be used, or has no readable intent.
    pub fn decode(
        &self,
        headers: &Headers,
        body: &Bytes,
    ) -> Result<DecodedIntents, MalformedEnvelope> {
        if let Some((flaw, what)) = self.flaw_of(headers, body.len()) {
            return Err(MalformedEnvelope::new(flaw, what));
        }
        let decoded = |bytes: &[u8]| {
            let intent = intent::unpack(bytes).map_err(|error| {
                MalformedEnvelope::new(EnvelopeFlaw::Intent, format!("an intent: {error}"))
            })?;
            if !self.key.has_signed(bytes) {
                let what =
                    format!("request {}: no gate of this installation wrote it", intent.request);
                return Err(MalformedEnvelope::new(EnvelopeFlaw::Forged, what));
            }
            Ok(intent)
        };
        let intents: DecodedIntents = intent::split(body).map(decoded).collect();
        // Bytes of another program are one dead letter, and not one for each 78 of them.
        match intents.first() {
            Some(Err(first)) if intents.iter().all(is_unreadable) => Err(first.clone()),
            _ => Ok(intents),
        }
    }

    /// Why a whole message cannot be used; `None`: its intents can be decoded.
    fn flaw_of(&self, headers: &Headers, length: usize) -> Option<(EnvelopeFlaw, String)> {
        let Headers { content_type, version, installation: owner, .. } = headers;
        Some(match (content_type.as_deref(), *version, owner.as_deref()) {
            (None, ..) => {
                (EnvelopeFlaw::Foreign, format!("no content type; {CONTENT_TYPE} was expected"))
            }
            (Some(other), ..) if other != CONTENT_TYPE => {
                (EnvelopeFlaw::Foreign, format!("content type {other:?}, not {CONTENT_TYPE}"))
            }
            (_, None, _) => (EnvelopeFlaw::Version, "no version".to_owned()),
            (_, Some(newer), _) if newer > VERSION => {
                let remedy = "upgrade the consumers, then replay";
                let what = format!("version {newer} is newer than {VERSION}: {remedy}");
                (EnvelopeFlaw::Version, what)
            }
            (_, Some(unknown), _) if unknown != VERSION => {
                (EnvelopeFlaw::Version, format!("unknown version {unknown}"))
            }
            (.., None) => (EnvelopeFlaw::Installation, "no installation".to_owned()),
            (.., Some(other)) if *other != *self.installation => {
                (EnvelopeFlaw::Installation, format!("it belongs to installation {other:?}"))
            }
            _ if length > BODY_BYTES_MAX => {
                let what =
                    format!("{length} bytes are more than the {BODY_BYTES_MAX} of any envelope");
                (EnvelopeFlaw::Body, what)
            }
            _ if length < intent::INTENT_BYTES => {
                (EnvelopeFlaw::Body, format!("{length} bytes are no whole number of intents"))
            }
            _ => return None,
        })
    }
}

fn is_unreadable(decoded: &Result<OrderIntent, MalformedEnvelope>) -> bool {
    matches!(decoded, Err(malformed) if malformed.flaw == EnvelopeFlaw::Intent)
}

/// The dead letter of a whole message: its body and headers. A missing message id is replaced by a
/// hash of the body.
pub fn dead_letter(delivery: &Delivery, queue: u16, reason: &str) -> Message {
    let mut headers = dead_letter_headers(delivery, origin(queue, delivery), reason);
    if headers.message_id.is_empty() {
        headers.message_id = nameless(&delivery.body);
    }
    Message { route: Route::Dead, headers, body: delivery.body.clone() }
}

/// The dead letter of the intent at this position of a message: its bytes, and the headers of the
/// message with the intent's own message id, epoch, trace and attempts.
pub fn dead_letter_of_intent(
    delivery: &Delivery,
    position: usize,
    queue: u16,
    attempts: u32,
    reason: &str,
) -> Message {
    let bytes = intent::split(&delivery.body).nth(position).unwrap_or_default();
    let bytes = delivery.body.slice_ref(bytes);
    let mut headers = dead_letter_headers(delivery, origin(queue, delivery), reason);
    headers.attempts = attempts;
    if let Ok(intent) = intent::unpack(&bytes) {
        headers.message_id = format!("{}-1", intent.request);
        headers.epoch = Some(intent.epoch.0);
        headers.traceparent = traceparent(&intent);
    } else {
        headers.message_id = format!("{}-{:016x}", headers.message_id, xxh3_64(&bytes));
        headers.epoch = None;
        headers.traceparent = None;
    }
    Message { route: Route::Dead, headers, body: bytes }
}

/// The dead letter of an outbox entry that a relay gave up: at most its first [`BODY_BYTES_MAX`]
/// bytes. Without the time of the publish, so that its copies are equal.
pub fn dead_letter_of_entry(
    entry: &Bytes,
    installation: &str,
    attempts: u32,
    reason: &str,
) -> Message {
    let body = entry.slice(..entry.len().min(BODY_BYTES_MAX));
    let headers = Headers {
        attempts,
        sent_at_ms: None,
        reason: Some(reason.to_owned()),
        origin: Some(DeadLetterOrigin::Relay.name().to_owned()),
        ..headers(&body, installation, 0)
    };
    Message { route: Route::Dead, headers, body }
}

/// The headers of a delivery that was consumed from `origin`, and cannot be used.
pub fn dead_letter_headers(delivery: &Delivery, origin: String, reason: &str) -> Headers {
    let (origin, reason) = (Some(origin), Some(reason.to_owned()));
    Headers { reason, origin, ..delivery.headers.clone() }
}

/// The origin of a dead letter: its order queue, and the routing key if it differs.
fn origin(queue: u16, delivery: &Delivery) -> String {
    let routing_key = &delivery.routing_key;
    if *routing_key == queue.to_string() {
        format!("orders.{queue}")
    } else {
        format!("orders.{queue}, routing key {routing_key:?}")
    }
}

/// The request ids of the readable intents of a body, for logs and searches; unchecked.
pub fn requests_in(body: &[u8]) -> Vec<RequestId> {
    intents_in(body).into_iter().map(|intent| intent.request).collect()
}

/// The readable intents of a body, for display and logs; unchecked.
pub fn intents_in(body: &[u8]) -> Vec<OrderIntent> {
    intent::split(body).filter_map(|bytes| intent::unpack(bytes).ok()).collect()
}
