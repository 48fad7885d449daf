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
/// The headers that sign a webhook; a payment event has them as its webhook would.
pub const SIGNATURE_HEADERS: [&str; 4] =
    ["webhook-id", "webhook-timestamp", "webhook-signature", "stripe-signature"];
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
    for (name, value) in &headers.signature {
        let value = truncate(value, TEXT_BYTES_MAX);
        table.insert(name.as_str().into(), AMQPValue::LongString(value.into()));
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
        topic: None,
        signature: SIGNATURE_HEADERS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), text(name)?)))
            .collect(),
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
#[path = "headers_tests.rs"]
mod tests;
