use lapin::types::FieldArray;

use super::*;

fn full() -> Headers {
    Headers {
        message_id: "7-64".into(),
        content_type: Some("application/x".into()),
        version: Some(1),
        installation: Some("f100d6a7".into()),
        epoch: Some(i64::MAX),
        topic: None,
        traceparent: Some("00-1-2-01".into()),
        signature: vec![("webhook-id".to_owned(), "evt_1".to_owned())],
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
