//! The AMQP encoding of [`Headers`]: properties and the header table.
//!
//! Any program may publish to these queues, so an unreadable value counts as missing, never as an
//! error. Texts are truncated to [`TEXT_BYTES_MAX`], so that a long error text does not inflate the
//! message.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::Headers;

/// Longest text in the header table, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Longest text in the properties, in bytes: AMQP encodes its length in one byte.
const SHORT_BYTES_MAX: usize = 255;
const PERSISTENT: u8 = 2;

const VERSION: &str = "floodgate-version";
const INSTALLATION: &str = "floodgate-installation";
const EPOCH: &str = "floodgate-epoch";
const ATTEMPTS: &str = "floodgate-attempts";
const SENT_AT_MS: &str = "floodgate-sent-at-ms";
const REASON: &str = "floodgate-reason";
const ORIGIN: &str = "floodgate-origin";
/// The HTTP header name of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// Earlier deliveries by a quorum queue; missing at the first delivery.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// The broker's dead-lettering events, latest first.
const X_DEATH: &str = "x-death";

/// Encodes the headers. `number` identifies the message among all of its channel, copies included:
/// the broker sends it back with a returned message.
pub(super) fn pack(headers: &Headers, number: u64) -> BasicProperties {
    let number_value = |value: Option<i64>| value.map(AMQPValue::LongLongInt);
    let text_value = |value: &Option<String>| {
        let text = value.as_deref().map(|value| truncate(value, TEXT_BYTES_MAX));
        text.map(|text| AMQPValue::LongString(text.into()))
    };
    let values = [
        (VERSION, number_value(headers.version)),
        (EPOCH, number_value(headers.epoch)),
        (ATTEMPTS, number_value(Some(headers.attempts.into()))),
        (SENT_AT_MS, number_value(headers.sent_at_ms)),
        (INSTALLATION, text_value(&headers.installation)),
        (TRACEPARENT, text_value(&headers.traceparent)),
        (REASON, text_value(&headers.reason)),
        (ORIGIN, text_value(&headers.origin)),
    ];
    let mut table = FieldTable::default();
    for (name, value) in values {
        if let Some(value) = value {
            table.insert(name.into(), value);
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

/// The `number` given to [`pack`].
pub(super) fn number(properties: &BasicProperties) -> Option<u64> {
    properties.correlation_id().as_ref()?.as_str().parse().ok()
}

/// Decodes the headers; unreadable ones are missing.
pub(super) fn unpack(properties: &BasicProperties) -> Headers {
    let text = |name| lookup(properties, name).and_then(text);
    let number = |name| lookup(properties, name).and_then(integer);
    let property =
        |value: &Option<ShortString>| value.as_ref().map(|value| value.as_str().to_owned());
    let broker_reason = broker_dead_letter(properties);
    let (reason, origin, by_broker) = match (text(REASON), text(ORIGIN), broker_reason) {
        (None, None, Some((reason, queue))) => (Some(reason), queue, true),
        (reason, origin, _) => (reason, origin, false),
    };
    Headers {
        message_id: property(properties.message_id()).unwrap_or_default(),
        content_type: property(properties.content_type()),
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

/// Number of earlier deliveries.
pub(super) fn num_previous(properties: &BasicProperties, redelivered: bool) -> u32 {
    let delivery_count = lookup(properties, DELIVERY_COUNT).and_then(integer).map(count);
    delivery_count.unwrap_or_default().max(redelivered.into())
}

/// Reason and queue, if the broker itself dead-lettered the message.
fn broker_dead_letter(properties: &BasicProperties) -> Option<(String, Option<String>)> {
    let events = lookup(properties, X_DEATH).and_then(AMQPValue::as_array)?;
    let Some(AMQPValue::FieldTable(latest)) = events.as_slice().first() else { return None };
    let field = |name| latest.inner().get(name).and_then(text);
    let reason = field("reason")?;
    Some((format!("the broker: {reason}"), field("queue")))
}

fn lookup<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => {
            let bytes = text.as_bytes();
            let bytes = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
            Some(truncate(&String::from_utf8_lossy(bytes), TEXT_BYTES_MAX).to_owned())
        }
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// A signed or unsigned integer of any width.
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

/// A foreign count, clamped to `u32`.
fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

fn short(value: &str) -> ShortString {
    truncate(value, SHORT_BYTES_MAX).into()
}

/// The longest valid UTF-8 prefix of at most `bytes_max` bytes.
fn truncate(value: &str, bytes_max: usize) -> &str {
    value.split_at(value.floor_char_boundary(bytes_max)).0
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
    fn unpack_reverses_pack() {
        for headers in [full(), Headers::default()] {
            let packed = pack(&headers, 42);
            assert_eq!(unpack(&packed), headers);
            assert_eq!(number(&packed), Some(42));
            assert_eq!(*packed.delivery_mode(), Some(2));
            assert_eq!(num_previous(&packed, false), 0);
        }
    }

    #[test]
    fn long_texts_are_truncated_between_characters() {
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
    fn an_unreadable_header_is_missing() {
        assert_eq!(unpack(&BasicProperties::default()), Headers::default());
        for value in [AMQPValue::Void, AMQPValue::Boolean(true), AMQPValue::Double(1.5)] {
            for name in [VERSION, EPOCH, ATTEMPTS, SENT_AT_MS, REASON, ORIGIN, X_DEATH] {
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
    fn foreign_counts_of_any_width_are_read() {
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
            assert_eq!(num_previous(&foreign(DELIVERY_COUNT, value), false), expected);
        }
        assert_eq!(num_previous(&BasicProperties::default(), true), 1);
    }

    #[test]
    fn a_dead_letter_of_the_broker_has_its_reason_and_queue() {
        let mut event = FieldTable::default();
        event.insert("reason".into(), AMQPValue::LongString("delivery_limit".into()));
        event.insert("queue".into(), AMQPValue::LongString("fg.orders.0".into()));
        let events: FieldArray = vec![AMQPValue::FieldTable(event)].into();
        let properties = foreign(X_DEATH, AMQPValue::FieldArray(events));
        let headers = unpack(&properties);
        assert_eq!(headers.reason.as_deref(), Some("the broker: delivery_limit"));
        assert!(headers.origin.is_some() && headers.by_broker);
        // A consumer that dead-letters the message later sets its own origin, which takes
        // precedence.
        let mut table = properties.headers().clone().unwrap();
        table.insert(ORIGIN.into(), AMQPValue::LongString("orders.0".into()));
        let later = unpack(&properties.with_headers(table));
        assert!(!later.by_broker && later.reason.is_none());
        assert!(!unpack(&pack(&headers, 1)).by_broker);
    }
}
