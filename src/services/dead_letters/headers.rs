//! A message that was given up becomes a letter. Pure.
//!
//! Copies of one message must become one letter, wherever it died: the digest is over the whole
//! body and over what the message says it is, not over reasons and attempts. Everything has a
//! bound, because another party's message may hold anything.

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

/// Characters that are kept of each header of another party.
const HEADER_CHARS_MAX: usize = 500;

/// What travelled beside the body, as a letter keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterHeaders {
    /// The key it was published with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// What the body is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Version of the wire format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Whose ledger it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// The largest opening that its intents know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// The trace of the first click.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// When it was published, epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_at_ms: Option<i64>,
    /// Where it was given up, as whoever did it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl DeadLetterHeaders {
    fn of(headers: &Headers, routing_key: Option<&str>) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(|text| clip(text, HEADER_CHARS_MAX));
        Self {
            routing_key: routing_key.map(|key| clip(key, HEADER_CHARS_MAX)),
            content_type: text(&headers.content_type),
            version: headers.version,
            installation: text(&headers.installation),
            epoch: headers.epoch,
            traceparent: text(&headers.traceparent),
            sent_at_ms: headers.sent_at_ms,
            origin: text(&headers.origin),
        }
    }

    /// Reads what a letter keeps. Anything that is not readable is as good as not there: such a
    /// letter cannot be opened, and says so.
    #[must_use]
    pub fn read(kept: &str) -> Self {
        serde_json::from_str(kept).unwrap_or_default()
    }

    /// The headers to judge the body by.
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

/// A letter out of the queue of dead letters. The broker tells where it did it itself, and a
/// consumer that gives up says where; where nobody says anything, it was no consumer.
#[must_use]
pub fn of_dead(delivery: &Delivery, installation: &str, now_ms: i64) -> NewDeadLetter {
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
    let sealed = DeadLetterHeaders::of(headers, Some(&delivery.routing_key));
    NewDeadLetter {
        origin,
        attempts: headers.attempts.min(i32::MAX.unsigned_abs()),
        message_id: clip(&headers.message_id, MESSAGE_ID_CHARS_MAX),
        dead_at_ms: now_ms,
        ..seal(headers, &sealed, reason, &delivery.body, installation)
    }
}

/// A letter out of an outbox. Its headers are those that the relay would have sent, where the entry
/// can be read at all.
#[must_use]
pub fn of_entry(entry: &DeadEntry, installation: &str) -> NewDeadLetter {
    let headers =
        envelope::headers(&entry.bytes, installation, entry.dead_at_ms).unwrap_or_default();
    let sealed = DeadLetterHeaders { sent_at_ms: None, ..DeadLetterHeaders::of(&headers, None) };
    NewDeadLetter {
        attempts: entry.attempts.min(i32::MAX.unsigned_abs()),
        message_id: clip(&headers.message_id, MESSAGE_ID_CHARS_MAX),
        dead_at_ms: entry.dead_at_ms,
        ..seal(&headers, &sealed, &entry.reason, &entry.bytes, installation)
    }
}

fn seal(
    headers: &Headers,
    sealed: &DeadLetterHeaders,
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
        headers: serde_json::to_string(sealed).unwrap_or_default(),
        body: kept.to_vec(),
        body_bytes: body.len() as u64,
        requests: requests(headers, body, installation),
        dead_at_ms: 0,
    }
}

/// The requests that end in this letter: all of it, if it can be replayed as it is. Otherwise none:
/// what was accepted must not end where nothing can bring it back, and is sent again from the
/// records of its gate.
fn requests(headers: &Headers, body: &Bytes, installation: &str) -> Vec<RequestId> {
    let intents = replay::intents_of(headers, body, installation).unwrap_or_default();
    let mut found: Vec<RequestId> = intents.iter().map(|intent| intent.request).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn digest(headers: &Headers, body: &[u8]) -> [u8; 32] {
    let version = headers.version.map(|version| version.to_string());
    let mut digest = Sha256::new();
    for part in [&headers.content_type, &version, &headers.installation] {
        // With its length before it, so that no two parts can be taken for two others.
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
        Delivery { tag: 1, headers, routing_key: "0".to_owned(), num_before: 0, body }
    }

    fn numbers(letter: &NewDeadLetter) -> Vec<u64> {
        letter.requests.iter().map(|request| request.get()).collect()
    }

    #[test]
    fn one_message_is_one_letter_wherever_it_dies() {
        let (headers, body) = envelope(&[intent(7), intent(3)]);
        let entry = DeadEntry {
            id: Box::default(),
            bytes: body.clone(),
            reason: "ten tries".to_owned(),
            attempts: 10,
            dead_at_ms: NOW,
        };
        let by_relay = of_entry(&entry, INSTALLATION);
        assert_eq!((by_relay.origin, by_relay.attempts), (DeadLetterOrigin::Relay, 10));
        assert_eq!((by_relay.message_id.as_str(), numbers(&by_relay)), ("7-2", vec![3, 7]));

        let consumed = Headers {
            origin: Some("orders.0".to_owned()),
            reason: Some("no such SKU".to_owned()),
            attempts: 4,
            ..headers.clone()
        };
        let by_consumer = of_dead(&delivery(consumed, body.clone()), INSTALLATION, NOW);
        assert_eq!(by_consumer.origin, DeadLetterOrigin::Consumer);
        assert_eq!((by_consumer.reason.as_str(), by_consumer.attempts), ("no such SKU", 4));
        let limited = Headers {
            origin: Some("fg.orders.0".to_owned()),
            reason: Some("the broker: delivery_limit".to_owned()),
            by_broker: true,
            ..headers.clone()
        };
        let by_broker = of_dead(&delivery(limited, body.clone()), INSTALLATION, NOW);
        assert_eq!(by_broker.origin, DeadLetterOrigin::Broker);
        assert_eq!(by_broker.reason, "the broker: delivery_limit");
        let by_nobody = of_dead(&delivery(headers, body), INSTALLATION, NOW);
        assert_eq!(by_nobody.origin, DeadLetterOrigin::Broker);
        for other in [by_consumer, by_broker] {
            assert_eq!(
                (other.digest, other.requests),
                (by_relay.digest, by_relay.requests.clone())
            );
        }
    }

    #[test]
    fn what_differs_in_kind_is_another_letter() {
        let body = Bytes::from_static(b"{}");
        let plain = |headers| of_dead(&delivery(headers, body.clone()), INSTALLATION, NOW).digest;
        let kind = |text: &str| Headers { content_type: Some(text.into()), ..Headers::default() };
        let whose = |text: &str| Headers { installation: Some(text.into()), ..Headers::default() };
        let all = [plain(Headers::default()), plain(kind("")), plain(kind("a")), plain(whose("a"))];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| other != one));
        }
        let named = Headers { message_id: "x".to_owned(), attempts: 9, ..Headers::default() };
        assert_eq!(plain(named), all[0], "copies differ in such things");
    }

    #[test]
    fn a_long_body_is_cut_and_says_so() {
        let body = Bytes::from(vec![7; BODY_BYTES_MAX + 1]);
        let letter = of_dead(&delivery(Headers::default(), body.clone()), INSTALLATION, NOW);
        assert_eq!(letter.body.len(), BODY_BYTES_MAX);
        assert_eq!(letter.body_bytes, BODY_BYTES_MAX as u64 + 1);
        assert!(letter.reason.contains("only the first 1048576 of 1048577"), "{}", letter.reason);
        let shorter = delivery(Headers::default(), body.slice(1..));
        assert_ne!(letter.digest, of_dead(&shorter, INSTALLATION, NOW).digest);
    }

    #[test]
    fn only_what_can_be_replayed_is_the_end_of_its_requests() {
        let (ours, body) = envelope(&[intent(7), intent(3)]);
        let of = |headers: &Headers, body: &Bytes| {
            numbers(&of_dead(&delivery(headers.clone(), body.clone()), INSTALLATION, NOW))
        };
        assert_eq!(of(&ours, &body), [3, 7]);
        // Their numbers may be ours.
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
        assert!(numbers(&of_entry(&entry, INSTALLATION)).is_empty());
    }

    #[test]
    fn another_partys_headers_are_clipped_and_read_back() {
        let headers = Headers {
            message_id: "é".repeat(300),
            content_type: Some("秒".repeat(9000)),
            reason: Some("r".repeat(9000)),
            attempts: u32::MAX,
            ..Headers::default()
        };
        let letter = of_dead(&delivery(headers, Bytes::new()), INSTALLATION, NOW);
        assert_eq!(letter.message_id.chars().count(), MESSAGE_ID_CHARS_MAX);
        assert_eq!(letter.reason.chars().count(), TEXT_CHARS_MAX);
        assert!(letter.attempts <= i32::MAX.unsigned_abs() && letter.headers.len() < 4000);
        let read = DeadLetterHeaders::read(&letter.headers);
        assert_eq!(read.content_type.unwrap().chars().count(), HEADER_CHARS_MAX);
        assert_eq!(read.routing_key.as_deref(), Some("0"));
        assert_eq!(DeadLetterHeaders::read("no JSON"), DeadLetterHeaders::default());
    }
}
