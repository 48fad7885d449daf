//! Builds a dead letter from a message or an outbox entry. Pure functions.
//!
//! Copies of one message must become one dead letter, wherever they were dead-lettered: the digest
//! covers the whole body and the headers that type the message, not reasons and attempts. Every
//! field is bounded, because a message of another application may hold anything.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::replay;
use crate::broker::{Delivery, Headers};
use crate::domain::RequestId;
use crate::domain::dead_letter::{
    BODY_BYTES_MAX, DeadLetterOrigin, MESSAGE_ID_CHARS_MAX, NewDeadLetter, TEXT_CHARS_MAX, clip,
};
use crate::messages::envelope;
use crate::outbox::DeadEntry;

/// Longest stored text of a header, in characters.
const HEADER_CHARS_MAX: usize = 500;

/// Message headers as stored with a dead letter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterHeaders {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Version of the envelope format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The installation, that is the ledger, that the message is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// Largest epoch of its intents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// Trace of the first intent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Publish time, epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_at_ms: Option<i64>,
    /// Where it was dead-lettered, as the dead-lettering component states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl DeadLetterHeaders {
    fn of(headers: &Headers, routing_key: Option<&str>) -> Self {
        let clipped =
            |text: &Option<String>| text.as_deref().map(|text| clip(text, HEADER_CHARS_MAX));
        Self {
            routing_key: routing_key.map(|key| clip(key, HEADER_CHARS_MAX)),
            content_type: clipped(&headers.content_type),
            version: headers.version,
            installation: clipped(&headers.installation),
            epoch: headers.epoch,
            traceparent: clipped(&headers.traceparent),
            sent_at_ms: headers.sent_at_ms,
            origin: clipped(&headers.origin),
        }
    }

    /// Parses stored headers. Malformed headers become empty headers; such a dead letter cannot be
    /// replayed.
    #[must_use]
    pub fn read(stored: &str) -> Self {
        serde_json::from_str(stored).unwrap_or_default()
    }

    /// The headers to open the body with.
    #[must_use]
    pub fn headers(&self) -> Headers {
        Headers {
            content_type: self.content_type.clone(),
            version: self.version,
            installation: self.installation.clone(),
            epoch: self.epoch,
            traceparent: self.traceparent.clone(),
            sent_at_ms: self.sent_at_ms,
            ..Headers::default()
        }
    }
}

/// A dead letter from the dead-letter queue. Consumers and the broker state in the headers where
/// they dead-lettered it; without such a header the origin is the broker.
#[must_use]
pub fn from_delivery(delivery: &Delivery, installation: &str, now_ms: i64) -> NewDeadLetter {
    let origin = match delivery.headers.origin.as_deref() {
        Some(place) if !delivery.headers.by_broker => {
            DeadLetterOrigin::from_name(place).unwrap_or(DeadLetterOrigin::Consumer)
        }
        _ => DeadLetterOrigin::Broker,
    };
    let reason = delivery.headers.reason.clone().unwrap_or_else(|| {
        "the broker gave it up: it was delivered too often without an end".to_owned()
    });
    of_delivery(delivery, origin, &reason, installation, now_ms)
}

fn of_delivery(
    delivery: &Delivery,
    origin: DeadLetterOrigin,
    reason: &str,
    installation: &str,
    now_ms: i64,
) -> NewDeadLetter {
    let headers = &delivery.headers;
    let stored = DeadLetterHeaders::of(headers, Some(&delivery.routing_key));
    NewDeadLetter {
        origin,
        attempts: headers.attempts.min(i32::MAX.unsigned_abs()),
        message_id: clip(&headers.message_id, MESSAGE_ID_CHARS_MAX),
        dead_at_ms: now_ms,
        ..new_dead_letter(headers, &stored, reason, &delivery.body, installation)
    }
}

/// A dead letter from the outbox. Its headers are those that the relay would have published; empty
/// if the entry is malformed.
#[must_use]
pub fn from_outbox_entry(entry: &DeadEntry, installation: &str) -> NewDeadLetter {
    let headers =
        envelope::headers(&entry.bytes, installation, entry.dead_at_ms).unwrap_or_default();
    let stored = DeadLetterHeaders { sent_at_ms: None, ..DeadLetterHeaders::of(&headers, None) };
    NewDeadLetter {
        attempts: entry.attempts.min(i32::MAX.unsigned_abs()),
        message_id: clip(&headers.message_id, MESSAGE_ID_CHARS_MAX),
        dead_at_ms: entry.dead_at_ms,
        ..new_dead_letter(&headers, &stored, &entry.reason, &entry.bytes, installation)
    }
}

/// The common fields; the callers replace origin, attempts, message id and time.
fn new_dead_letter(
    headers: &Headers,
    stored: &DeadLetterHeaders,
    reason: &str,
    body: &Bytes,
    installation: &str,
) -> NewDeadLetter {
    let kept = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    let reason = if kept.len() < body.len() {
        format!("{reason} (only the first {BODY_BYTES_MAX} of {} bytes are kept)", body.len())
    } else {
        reason.to_owned()
    };
    NewDeadLetter {
        digest: digest(headers, body),
        origin: DeadLetterOrigin::Relay,
        reason: clip(&reason, TEXT_CHARS_MAX),
        attempts: 0,
        message_id: String::new(),
        headers: serde_json::to_string(stored).unwrap_or_default(),
        body: kept.to_vec(),
        body_bytes: body.len() as u64,
        requests: requests_in(headers, body, installation),
        dead_at_ms: 0,
    }
}

/// The requests whose end state is this dead letter: all requests of the message if it can be
/// replayed, otherwise none. A request must not end where it cannot be replayed; its gate resubmits
/// it.
fn requests_in(headers: &Headers, body: &Bytes, installation: &str) -> Vec<RequestId> {
    let intents = replay::intents_of(headers, body, installation).unwrap_or_default();
    let mut requests: Vec<RequestId> = intents.iter().map(|intent| intent.request).collect();
    requests.sort_unstable();
    requests.dedup();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::dead_letters::replay::tests::{INSTALLATION, envelope, intent};

    const NOW: i64 = 1_800_000_000_000;

    fn delivery(headers: Headers, body: Bytes) -> Delivery {
        Delivery { tag: 1, headers, routing_key: "0".to_owned(), num_previous: 0, body }
    }

    fn numbers(dead_letter: &NewDeadLetter) -> Vec<u64> {
        dead_letter.requests.iter().map(|request| request.get()).collect()
    }

    #[test]
    fn copies_of_a_message_are_one_dead_letter_whatever_the_origin() {
        let (headers, body) = envelope(&[intent(7), intent(3)]);
        let entry = DeadEntry {
            id: Box::default(),
            bytes: body.clone(),
            reason: "ten tries".to_owned(),
            attempts: 10,
            dead_at_ms: NOW,
        };
        let by_relay = from_outbox_entry(&entry, INSTALLATION);
        assert_eq!((by_relay.origin, by_relay.attempts), (DeadLetterOrigin::Relay, 10));
        assert_eq!((by_relay.message_id.as_str(), numbers(&by_relay)), ("7-2", vec![3, 7]));

        let consumed = Headers {
            origin: Some("orders.0".to_owned()),
            reason: Some("no such SKU".to_owned()),
            attempts: 4,
            ..headers.clone()
        };
        let by_consumer = from_delivery(&delivery(consumed, body.clone()), INSTALLATION, NOW);
        assert_eq!(by_consumer.origin, DeadLetterOrigin::Consumer);
        assert_eq!((by_consumer.reason.as_str(), by_consumer.attempts), ("no such SKU", 4));
        let limited = Headers {
            origin: Some("fg.orders.0".to_owned()),
            reason: Some("the broker: delivery_limit".to_owned()),
            by_broker: true,
            ..headers.clone()
        };
        let by_broker = from_delivery(&delivery(limited, body.clone()), INSTALLATION, NOW);
        assert_eq!(by_broker.origin, DeadLetterOrigin::Broker);
        assert_eq!(by_broker.reason, "the broker: delivery_limit");
        let without_origin = from_delivery(&delivery(headers, body), INSTALLATION, NOW);
        assert_eq!(without_origin.origin, DeadLetterOrigin::Broker);
        for other in [by_consumer, by_broker] {
            assert_eq!(
                (other.digest, other.requests),
                (by_relay.digest, by_relay.requests.clone())
            );
        }
    }

    #[test]
    fn messages_of_another_type_or_installation_are_other_dead_letters() {
        let body = Bytes::from_static(b"{}");
        let digest =
            |headers| from_delivery(&delivery(headers, body.clone()), INSTALLATION, NOW).digest;
        let kind = |text: &str| Headers { content_type: Some(text.into()), ..Headers::default() };
        let owner = |text: &str| Headers { installation: Some(text.into()), ..Headers::default() };
        let all =
            [digest(Headers::default()), digest(kind("")), digest(kind("a")), digest(owner("a"))];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| other != one));
        }
        let named = Headers { message_id: "x".to_owned(), attempts: 9, ..Headers::default() };
        assert_eq!(digest(named), all[0], "copies differ in message id and attempts");
    }

    #[test]
    fn a_long_body_is_truncated_and_the_reason_states_it() {
        let body = Bytes::from(vec![7; BODY_BYTES_MAX + 1]);
        let dead_letter =
            from_delivery(&delivery(Headers::default(), body.clone()), INSTALLATION, NOW);
        assert_eq!(dead_letter.body.len(), BODY_BYTES_MAX);
        assert_eq!(dead_letter.body_bytes, BODY_BYTES_MAX as u64 + 1);
        assert!(
            dead_letter.reason.contains("only the first 1048576 of 1048577"),
            "{}",
            dead_letter.reason
        );
        let shorter = delivery(Headers::default(), body.slice(1..));
        assert_ne!(dead_letter.digest, from_delivery(&shorter, INSTALLATION, NOW).digest);
    }

    #[test]
    fn only_a_replayable_dead_letter_is_the_end_state_of_its_requests() {
        let (ours, body) = envelope(&[intent(7), intent(3)]);
        let of = |headers: &Headers, body: &Bytes| {
            numbers(&from_delivery(&delivery(headers.clone(), body.clone()), INSTALLATION, NOW))
        };
        assert_eq!(of(&ours, &body), [3, 7]);
        // Request ids of another installation may equal ours.
        let foreign = Headers { installation: Some("somebody".to_owned()), ..ours.clone() };
        assert!(of(&foreign, &body).is_empty());
        let newer = Headers { version: Some(envelope::VERSION + 1), ..ours.clone() };
        assert!(of(&newer, &body).is_empty());
        assert!(of(&Headers::default(), &body).is_empty());
        let mut torn = body.to_vec();
        torn.pop();
        assert!(of(&ours, &torn.into()).is_empty());
        let mut one_is_broken = body.to_vec();
        one_is_broken[19] = 99;
        assert!(of(&ours, &one_is_broken.clone().into()).is_empty());
        let entry = DeadEntry {
            id: Box::default(),
            bytes: one_is_broken.into(),
            reason: "an unknown version".to_owned(),
            attempts: 0,
            dead_at_ms: NOW,
        };
        assert!(numbers(&from_outbox_entry(&entry, INSTALLATION)).is_empty());
    }

    #[test]
    fn foreign_headers_are_clipped_and_parsed_again() {
        let headers = Headers {
            message_id: "é".repeat(300),
            content_type: Some("秒".repeat(9000)),
            reason: Some("r".repeat(9000)),
            attempts: u32::MAX,
            ..Headers::default()
        };
        let dead_letter = from_delivery(&delivery(headers, Bytes::new()), INSTALLATION, NOW);
        assert_eq!(dead_letter.message_id.chars().count(), MESSAGE_ID_CHARS_MAX);
        assert_eq!(dead_letter.reason.chars().count(), TEXT_CHARS_MAX);
        assert!(
            dead_letter.attempts <= i32::MAX.unsigned_abs() && dead_letter.headers.len() < 4000
        );
        let read = DeadLetterHeaders::read(&dead_letter.headers);
        assert_eq!(read.content_type.unwrap().chars().count(), HEADER_CHARS_MAX);
        assert_eq!(read.routing_key.as_deref(), Some("0"));
        assert_eq!(DeadLetterHeaders::read("no JSON"), DeadLetterHeaders::default());
    }
}
