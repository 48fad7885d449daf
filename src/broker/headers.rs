//! What travels beside the body, in AMQP: properties and the table of headers.
//!
//! Whoever publishes to our queues may put anything there: what cannot be read is not there, and
//! never an error. Texts are cut at [`TEXT_BYTES_MAX`], so that a message stays small whatever
//! somebody else's error said.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::Headers;

/// Longest text in the table of headers, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Longest text in the properties, in bytes: the protocol counts them in one byte.
const SHORT_BYTES_MAX: usize = 255;
const PERSISTENT: u8 = 2;

const VERSION: &str = "floodgate-version";
const INSTALLATION: &str = "floodgate-installation";
const EPOCH: &str = "floodgate-epoch";
const ATTEMPTS: &str = "floodgate-attempts";
const SENT_AT_MS: &str = "floodgate-sent-at-ms";
const REASON: &str = "floodgate-reason";
const ORIGIN: &str = "floodgate-origin";
/// As HTTP calls it (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// How often a quorum queue delivered the message before; not there at the first delivery.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// What the broker did with the message, latest first.
const DEATHS: &str = "x-death";
/// The death of a message that waited in a delay queue of an earlier version: the way back, not an
/// end.
const EXPIRED: &str = "expired";

/// Our headers as AMQP has them. `number` tells the message from all others of its channel, copies
/// included: it comes back with a message that the broker returns.
pub(super) fn pack(headers: &Headers, number: u64) -> BasicProperties {
    let mut table = FieldTable::default();
    let numbers = [
        (VERSION, headers.version),
        (EPOCH, headers.epoch),
        (ATTEMPTS, Some(i64::from(headers.attempts))),
        (SENT_AT_MS, headers.sent_at_ms),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            table.insert(name.into(), AMQPValue::LongLongInt(value));
        }
    }
    let texts = [
        (INSTALLATION, &headers.installation),
        (TRACEPARENT, &headers.traceparent),
        (REASON, &headers.reason),
        (ORIGIN, &headers.origin),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            let text = cut(value, TEXT_BYTES_MAX);
            table.insert(name.into(), AMQPValue::LongString(text.into()));
        }
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&headers.message_id))
        .with_correlation_id(short(&number.to_string()))
        .with_headers(table);
    if let Some(content_type) = &headers.content_type {
        properties = properties.with_content_type(short(content_type));
    }
    properties
}

/// The number of [`pack`].
pub(super) fn number(properties: &BasicProperties) -> Option<u64> {
    properties.correlation_id().as_ref()?.as_str().parse().ok()
}

/// Our headers, as far as they can be read.
pub(super) fn unpack(properties: &BasicProperties) -> Headers {
    let text = |name| lookup(properties, name).and_then(text);
    let number = |name| lookup(properties, name).and_then(integer);
    let own = |value: &Option<ShortString>| value.as_ref().map(|value| value.as_str().to_owned());
    let death = death(properties);
    let (reason, origin, by_broker) = match (text(REASON), text(ORIGIN), death) {
        (None, None, Some((reason, queue))) => (Some(reason), queue, true),
        (reason, origin, _) => (reason, origin, false),
    };
    Headers {
        message_id: own(properties.message_id()).unwrap_or_default(),
        content_type: own(properties.content_type()),
        version: number(VERSION),
        installation: text(INSTALLATION),
        epoch: number(EPOCH),
        traceparent: text(TRACEPARENT),
        attempts: number(ATTEMPTS).map_or(0, count),
        sent_at_ms: number(SENT_AT_MS),
        reason,
        origin,
        by_broker,
    }
}

/// How often the message was delivered before.
pub(super) fn num_before(properties: &BasicProperties, redelivered: bool) -> u32 {
    let told = lookup(properties, DELIVERY_COUNT).and_then(integer).map(count);
    told.unwrap_or_default().max(redelivered.into())
}

/// Why and in which queue the broker itself made the message a dead letter, if it did.
fn death(properties: &BasicProperties) -> Option<(String, Option<String>)> {
    let deaths = lookup(properties, DEATHS).and_then(AMQPValue::as_array)?;
    let Some(AMQPValue::FieldTable(latest)) = deaths.as_slice().first() else { return None };
    let told = |name| latest.inner().get(name).and_then(text);
    let reason = told("reason").filter(|reason| reason != EXPIRED)?;
    Some((format!("the broker: {reason}"), told("queue")))
}

fn lookup<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => {
            let bytes = text.as_bytes();
            let bytes = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
            Some(cut(&String::from_utf8_lossy(bytes), TEXT_BYTES_MAX).to_owned())
        }
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// A whole number, of whatever width the publisher's language has.
fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match *value {
        AMQPValue::ShortShortInt(number) => number.into(),
        AMQPValue::ShortShortUInt(number) => number.into(),
        AMQPValue::ShortInt(number) => number.into(),
        AMQPValue::ShortUInt(number) => number.into(),
        AMQPValue::LongInt(number) => number.into(),
        AMQPValue::LongUInt(number) => number.into(),
        AMQPValue::LongLongInt(number) => number,
        _ => return None,
    })
}

/// A count that somebody else wrote.
fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

fn short(value: &str) -> ShortString {
    cut(value, SHORT_BYTES_MAX).into()
}

/// The longest beginning of so many bytes that is a text.
fn cut(value: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(value.len())).rev().find(|&end| value.is_char_boundary(end));
    end.and_then(|end| value.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldArray;

    use super::*;

    fn full() -> Headers {
        Headers {
            message_id: "7-64".into(),
            content_type: Some("application/x".into()),
            version: Some(1),
            installation: Some("f100d6a7".into()),
            epoch: Some(i64::MAX),
            traceparent: Some("00-1-2-01".into()),
            attempts: 3,
            sent_at_ms: Some(-1),
            reason: Some("häßlich".into()),
            origin: Some("orders.1".into()),
            by_broker: false,
        }
    }

    #[test]
    fn headers_come_back_as_they_were_packed() {
        for headers in [full(), Headers::default()] {
            let packed = pack(&headers, 42);
            assert_eq!(unpack(&packed), headers);
            assert_eq!(number(&packed), Some(42));
            assert_eq!(*packed.delivery_mode(), Some(2));
            assert_eq!(num_before(&packed, false), 0);
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ä".repeat(70_000);
        let headers = Headers {
            message_id: long.clone(),
            content_type: Some(long.clone()),
            reason: Some(long),
            ..full()
        };
        let read = unpack(&pack(&headers, 1));
        assert_eq!(read.message_id, "ä".repeat(127));
        assert_eq!(read.content_type.unwrap().len(), 254);
        assert_eq!(read.reason.unwrap(), "ä".repeat(512));
    }

    fn foreign(name: &str, value: AMQPValue) -> BasicProperties {
        let mut table = FieldTable::default();
        table.insert(name.into(), value);
        BasicProperties::default().with_headers(table)
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        assert_eq!(unpack(&BasicProperties::default()), Headers::default());
        for value in [AMQPValue::Void, AMQPValue::Boolean(true), AMQPValue::Double(1.5)] {
            for name in [VERSION, EPOCH, ATTEMPTS, SENT_AT_MS, REASON, ORIGIN, DEATHS] {
                let properties = foreign(name, value.clone());
                assert_eq!(unpack(&properties), Headers::default(), "{name} {value:?}");
                assert_eq!(number(&properties), None);
            }
        }
        let bytes = AMQPValue::LongString(vec![0xff, b'a'].into());
        assert_eq!(unpack(&foreign(REASON, bytes)).reason.unwrap(), "\u{fffd}a");
        let huge = AMQPValue::LongString(vec![0xff; 70_000].into());
        assert!(unpack(&foreign(REASON, huge)).reason.unwrap().len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn counts_of_others_are_read_whatever_their_width() {
        for (value, expected) in [
            (AMQPValue::ShortShortInt(-3), 0),
            (AMQPValue::ShortShortUInt(3), 3),
            (AMQPValue::ShortInt(3), 3),
            (AMQPValue::ShortUInt(3), 3),
            (AMQPValue::LongInt(3), 3),
            (AMQPValue::LongUInt(3), 3),
            (AMQPValue::LongLongInt(i64::MAX), u32::MAX),
        ] {
            assert_eq!(unpack(&foreign(ATTEMPTS, value.clone())).attempts, expected);
            assert_eq!(num_before(&foreign(DELIVERY_COUNT, value), false), expected);
        }
        assert_eq!(num_before(&BasicProperties::default(), true), 1);
    }

    #[test]
    fn a_dead_letter_of_the_broker_says_why_and_one_that_only_waited_does_not() {
        for (reason, expected) in
            [("delivery_limit", Some("the broker: delivery_limit".to_owned())), ("expired", None)]
        {
            let mut death = FieldTable::default();
            death.insert("reason".into(), AMQPValue::LongString(reason.into()));
            death.insert("queue".into(), AMQPValue::LongString("fg.orders.0".into()));
            let deaths: FieldArray = vec![AMQPValue::FieldTable(death)].into();
            let properties = foreign(DEATHS, AMQPValue::FieldArray(deaths));
            let headers = unpack(&properties);
            assert_eq!(headers.reason, expected);
            assert_eq!(headers.origin.is_some(), expected.is_some());
            assert_eq!(headers.by_broker, expected.is_some());
            // A consumer that gave it up since says so itself; what it sends on is its own word.
            let mut table = properties.headers().clone().unwrap();
            table.insert(ORIGIN.into(), AMQPValue::LongString("orders.0".into()));
            let later = unpack(&properties.with_headers(table));
            assert!(!later.by_broker && later.reason.is_none());
            assert!(!unpack(&pack(&headers, 1)).by_broker);
        }
    }
}
