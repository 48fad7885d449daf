//! The wire format, in files that a release never changes: other processes of an installation may
//! run another release. An unreadable message is refused with a reason that names the flaw.

use std::sync::Arc;

use bytes::Bytes;
use floodgate::actors::order_consumer::validate;
use floodgate::broker::{Delivery, Headers};
use floodgate::domain::{
    BucketNo, BuyerId, Currency, Epoch, OrderIntent, Phase, Policy, RequestId, Retention, Sale,
    Sku, SkuHistory, SkuNo, SlotReturns, TraceId,
};
use floodgate::messages::envelope;
use floodgate::messages::envelope::{DecodedIntents, EnvelopeReader, MalformedEnvelope};
use serde_json::Value as Json;

use crate::support::intents::{self, pack_into};

mod dead_letters;

const INSTALLATION: &str = "0badcafe";
const V3: &str = include_str!("envelope-v3.json");
const V4: &str = include_str!("envelope-v4.json");
const MALFORMED: &str = include_str!("malformed.json");

/// One malformed message: C20.
pub struct MalformedMessage {
    pub what: String,
    pub headers: Headers,
    pub body: Bytes,
    pub flaw: String,
    pub reason: String,
}

/// The twelve malformed messages of `malformed.json`.
pub fn malformed_messages() -> Vec<MalformedMessage> {
    let valid: Json = serde_json::from_str(V3).unwrap();
    let malformed_messages: Vec<Json> = serde_json::from_str(MALFORMED).unwrap();
    let malformed = malformed_messages.iter().map(|message| {
        let mut merged = valid["headers"].clone();
        for (name, value) in message["headers"].as_object().unwrap() {
            merged[name] = value.clone();
        }
        let text = |name: &str| message[name].as_str().unwrap().to_owned();
        MalformedMessage {
            what: text("what"),
            headers: headers(&merged),
            body: bytes(&message["body"]),
            flaw: text("flaw"),
            reason: text("reason"),
        }
    });
    malformed.collect()
}

fn headers(given: &Json) -> Headers {
    let text = |name: &str| given[name].as_str().map(str::to_owned);
    Headers {
        message_id: text("message_id").unwrap(),
        content_type: text("content_type"),
        version: given["version"].as_i64(),
        installation: text("installation"),
        epoch: given["epoch"].as_i64(),
        traceparent: text("traceparent"),
        topic: None,
        signature: Vec::new(),
        attempts: given["attempts"].as_u64().unwrap().try_into().unwrap(),
        sent_at_ms: given["sent_at_ms"].as_i64(),
        reason: None,
        origin: None,
        by_broker: false,
    }
}

/// A body: lines of hexadecimal digits, `hex`, `text`, or `times` copies of one `byte`.
fn bytes(given: &Json) -> Bytes {
    if let Some(text) = given["text"].as_str() {
        return Bytes::copy_from_slice(text.as_bytes());
    }
    if let Some(times) = given["times"].as_u64() {
        let byte = given["byte"].as_u64().unwrap().try_into().unwrap();
        return vec![byte; times.try_into().unwrap()].into();
    }
    let digits = match given.as_array() {
        Some(lines) => lines.iter().map(|line| line.as_str().unwrap()).collect(),
        None => given["hex"].as_str().unwrap().to_owned(),
    };
    let pair = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect::<Vec<_>>().into()
}

/// The SKU of the orders in the files.
fn sku() -> Sku {
    Sku {
        no: SkuNo(7),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 250,
        initial: 100,
        policy: Policy::Quota { limit: 5, max_quantity: 3 },
        buckets: 8,
        payment_window_s: 900,
        bar_lapsed: false,
        slot_returns: SlotReturns::default(),
        ends_max: 3,
        queue_timeout_s: 0,
        history: SkuHistory::default(),
    }
}

/// The sale of that SKU.
fn sale() -> Sale {
    Sale {
        no: 1,
        id: "sale".parse().unwrap(),
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: i64::MAX,
        closed_at_ms: None,
        phase: Phase::Open,
        epoch: Epoch(2),
        currency: Currency::default(),
        ticket_required: false,
        retention: Retention::default(),
        skus: vec![sku().into()],
    }
}

fn intent(request: u64, buyer: u64, quantity: u32, bucket: u16) -> OrderIntent {
    OrderIntent {
        request: RequestId::new(request).unwrap(),
        sku: SkuNo(7),
        bucket: BucketNo(bucket),
        epoch: Epoch(2),
        buyer: BuyerId::new(buyer).unwrap(),
        quantity,
        slot: i64::try_from(request).unwrap(),
        quota: Some(5),
        amount: 250 * i64::from(quantity),
        placed_at_ms: 1_800_000_000_000,
        payment_window_s: 900,
        trace: TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
        published_at_ms: None,
    }
}

fn reader() -> EnvelopeReader {
    intents::reader(INSTALLATION)
}

fn validated(headers: Headers, body: Bytes) -> Result<DecodedIntents, MalformedEnvelope> {
    let routing_key = "0".to_owned();
    let delivery = Delivery { tag: 1, headers, routing_key, num_previous: 0, body };
    let sale = Arc::new(sale());
    let lookup = |no| (no == SkuNo(7)).then(|| (Arc::clone(&sale), Arc::clone(&sale.skus[0])));
    Ok(validate(&delivery, &reader(), true, lookup)?.expect("the catalog is fresh"))
}

#[test]
fn version_3_is_read_and_written_byte_for_byte() {
    let file: Json = serde_json::from_str(V3).unwrap();
    let (expected, body) = (headers(&file["headers"]), bytes(&file["body"]));
    let intents = [intent(1001, 1, 1, 6), intent(1002, 2, 3, 3)];
    let read = validated(expected.clone(), body.clone()).unwrap();
    let published_at_ms = Some(1_800_000_000_123);
    assert_eq!(read, intents.map(|intent| Ok(OrderIntent { published_at_ms, ..intent })));
    assert_eq!(intents.iter().flat_map(intents::pack).collect::<Vec<_>>(), body);
    assert_eq!(envelope::headers(&body, INSTALLATION, 1_800_000_000_123), expected);
}

#[test]
fn every_bit_of_an_intent_is_signed() {
    let file: Json = serde_json::from_str(V3).unwrap();
    let (headers, body) = (headers(&file["headers"]), bytes(&file["body"]));
    for bit in 0..8 * intents::INTENT_BYTES {
        let mut forged = body.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let read = reader().decode(&headers, &forged.into()).unwrap();
        let flaw = read[0].as_ref().unwrap_err().flaw.name();
        assert!(["forged", "intent"].contains(&flaw), "bit {bit}: {flaw}");
        assert!(read[1].is_ok(), "bit {bit} is of the other intent");
    }
    let other = EnvelopeReader { key: intents::IntentKey::new(&[8; 32]), ..reader() };
    for read in other.decode(&headers, &body).unwrap() {
        assert_eq!(read.unwrap_err().flaw.name(), "forged");
    }
}

#[test]
fn an_unreadable_intent_is_an_error_beside_its_neighbours() {
    let file: Json = serde_json::from_str(V3).unwrap();
    for broken in [0, 1] {
        let mut body = bytes(&file["body"]).to_vec();
        body[broken * 78 + 22] = 99;
        // The last one is cut.
        body.extend_from_within(..70);
        let headers = envelope::headers(&body, INSTALLATION, 5);
        let read = reader().decode(&headers, &body.into()).unwrap();
        let flaw = |one: &Result<OrderIntent, MalformedEnvelope>| {
            one.as_ref().err().map(|malformed| malformed.flaw.name())
        };
        let mut expected = [None, None, Some("intent")];
        expected[broken] = Some("intent");
        assert_eq!(read.iter().map(flaw).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn bytes_without_a_readable_intent_are_one_flaw() {
    for length in [0, 7, 77, 78, 156, 1_000] {
        let body = Bytes::from(vec![b'x'; length]);
        let headers = envelope::headers(&body, INSTALLATION, 5);
        assert!(headers.message_id.starts_with("nameless-"), "{length}");
        let flaw = reader().decode(&headers, &body).unwrap_err().flaw.name();
        assert_eq!(flaw, if length < 78 { "body" } else { "intent" }, "{length}");
    }
}

#[test]
fn a_newer_version_is_refused_with_what_to_do() {
    let file: Json = serde_json::from_str(V4).unwrap();
    let refused = reader().decode(&headers(&file["headers"]), &bytes(&file["body"]));
    assert_eq!(refused.unwrap_err().what, file["refused"].as_str().unwrap());
}

#[test]
fn every_malformed_message_has_its_flaw_and_its_reason() {
    let malformed_messages = malformed_messages();
    assert_eq!(malformed_messages.len(), 12);
    for MalformedMessage { what, headers, body, flaw, reason } in malformed_messages {
        let malformed = match validated(headers, body) {
            Err(malformed) => malformed,
            Ok(mut intents) => intents.remove(0).expect_err(&what),
        };
        assert_eq!((malformed.flaw.name(), malformed.what), (&flaw[..], reason), "{what}");
    }
}

#[test]
fn a_message_without_our_headers_is_foreign() {
    let file: Json = serde_json::from_str(V3).unwrap();
    let (valid, body) = (headers(&file["headers"]), bytes(&file["body"]));
    for (invalid, flaw) in [
        (Headers { content_type: None, ..valid.clone() }, "foreign"),
        (Headers { version: None, ..valid.clone() }, "version"),
        (Headers { version: Some(1), ..valid.clone() }, "version"),
        (Headers { installation: None, ..valid.clone() }, "installation"),
        (Headers { installation: Some("00000000".to_owned()), ..valid }, "installation"),
    ] {
        let refused = reader().decode(&invalid, &body).unwrap_err();
        assert_eq!(refused.flaw.name(), flaw);
    }
}

#[test]
fn a_dead_letter_keeps_the_message_and_the_reason() {
    let file: Json = serde_json::from_str(V3).unwrap();
    let (valid, body) = (headers(&file["headers"]), bytes(&file["body"]));
    let delivery = |headers: &Headers, key: &str| Delivery {
        tag: 1,
        headers: headers.clone(),
        routing_key: key.to_owned(),
        num_previous: 0,
        body: body.clone(),
    };
    let dead_letter = envelope::dead_letter(&delivery(&valid, "3"), 3, "why");
    assert_eq!(dead_letter.body, body);
    let expected = Headers {
        reason: Some("why".to_owned()),
        origin: Some("orders.3".to_owned()),
        ..valid.clone()
    };
    assert_eq!(dead_letter.headers, expected);

    let without_headers = Headers::default();
    let foreign = envelope::dead_letter(&delivery(&without_headers, "else"), 3, &"ä".repeat(1000));
    assert_eq!(foreign.headers.origin.as_deref(), Some("orders.3, routing key \"else\""));
    assert_eq!(
        foreign.headers,
        envelope::dead_letter(&delivery(&without_headers, "else"), 3, &"ä".repeat(1000)).headers
    );
    assert!(foreign.headers.message_id.starts_with("nameless-"));

    let part = envelope::dead_letter_of_intent(&delivery(&valid, "3"), 1, 3, 2, "why");
    assert_eq!(part.body, body.slice(78..));
    assert_eq!((part.headers.message_id.as_str(), part.headers.attempts), ("1002-1", 2));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000003ea-01";
    assert_eq!(part.headers.traceparent.as_deref(), Some(trace));
}

#[test]
fn an_intent_without_a_trace_has_no_trace_context() {
    let traceless = OrderIntent { trace: TraceId(0), ..intent(1002, 2, 3, 3) };
    let mut body = Vec::new();
    pack_into(&traceless, &mut body);
    let without_trace = envelope::headers(&body, INSTALLATION, 5);
    assert_eq!(without_trace.traceparent, None);
    let body = Bytes::from(body);
    let delivery = Delivery {
        tag: 1,
        // The trace of another intent of the same message.
        headers: Headers { traceparent: Some("00-1-2-01".to_owned()), ..without_trace },
        routing_key: "3".to_owned(),
        num_previous: 0,
        body: body.clone(),
    };
    assert_eq!(
        envelope::dead_letter_of_intent(&delivery, 0, 3, 2, "why").headers.traceparent,
        None
    );
}
