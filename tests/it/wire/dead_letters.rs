//! Dead letters: what is stored of a message, and the message that replays it.

use bytes::Bytes;
use floodgate::broker::{Delivery, Headers, Message, Route};
use floodgate::domain::dead_letter::{BODY_BYTES_MAX, MESSAGE_ID_CHARS_MAX, TEXT_CHARS_MAX};
use floodgate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterNo, DeadLetterOrigin, DeadLetterState, NewDeadLetter,
    OrderIntent, SkuNo,
};
use floodgate::messages::envelope;
use floodgate::services::dead_letters::new_dead_letter::{DeadLetterHeaders, from_delivery};
use floodgate::services::dead_letters::replay::{prepare, verified_intents};

use super::{INSTALLATION, reader};
use crate::support::intents::{INTENT_BYTES, pack_into};

const NOW: i64 = 1_800_000_000_000;

fn intent(request: u64) -> OrderIntent {
    OrderIntent { sku: SkuNo(5), ..super::intent(request, request, 1, 2) }
}

/// A message as the relay publishes it.
fn envelope(intents: &[OrderIntent]) -> (Headers, Bytes) {
    let mut body = Vec::new();
    for intent in intents {
        pack_into(intent, &mut body);
    }
    (envelope::headers(&body, INSTALLATION, 1), body.into())
}

fn content(headers: &Headers, body: &[u8]) -> DeadLetterContent {
    let dead_letter = DeadLetter {
        no: DeadLetterNo(1),
        origin: DeadLetterOrigin::Consumer,
        reason: String::new(),
        attempts: 9,
        message_id: String::new(),
        headers: serde_json::to_string(headers).unwrap(),
        body_bytes: body.len() as u64,
        dead_at_ms: 0,
        arrivals: 1,
        state: DeadLetterState::Open,
        changed_at_ms: 0,
        note: None,
    };
    DeadLetterContent { dead_letter, body: body.to_vec(), requests: Vec::new() }
}

fn ours() -> Headers {
    Headers {
        content_type: Some(envelope::CONTENT_TYPE.to_owned()),
        version: Some(envelope::VERSION),
        installation: Some(INSTALLATION.to_owned()),
        ..Headers::default()
    }
}

fn delivery(headers: Headers, body: Bytes) -> Delivery {
    Delivery { tag: 1, headers, routing_key: "0".to_owned(), num_previous: 0, body }
}

/// What is stored of an entry that a relay gives up.
fn by_relay(entry: &Bytes) -> NewDeadLetter {
    let message = envelope::dead_letter_of_entry(entry, INSTALLATION, 10, "ten tries");
    assert_eq!(message.route, Route::Dead);
    from_delivery(&delivery(message.headers, message.body), &reader(), NOW)
}

fn numbers(dead_letter: &NewDeadLetter) -> Vec<u64> {
    dead_letter.requests.iter().map(|dead| dead.request.get()).collect()
}

#[test]
fn copies_of_a_message_are_one_dead_letter_whatever_the_origin() {
    let (headers, body) = envelope(&[intent(7), intent(3)]);
    let by_relay = by_relay(&body);
    assert_eq!((by_relay.origin, by_relay.attempts), (DeadLetterOrigin::Relay, 10));
    assert_eq!((by_relay.reason.as_str(), &by_relay.body[..]), ("ten tries", &body[..]));
    assert_eq!((by_relay.message_id.as_str(), numbers(&by_relay)), ("7-2", vec![3, 7]));

    let consumed = Headers {
        origin: Some("orders.0".to_owned()),
        reason: Some("no such SKU".to_owned()),
        attempts: 4,
        ..headers.clone()
    };
    let by_consumer = from_delivery(&delivery(consumed, body.clone()), &reader(), NOW);
    assert_eq!(by_consumer.origin, DeadLetterOrigin::Consumer);
    assert_eq!((by_consumer.reason.as_str(), by_consumer.attempts), ("no such SKU", 4));
    let limited = Headers {
        origin: Some("fg.orders.0".to_owned()),
        reason: Some("the broker: delivery_limit".to_owned()),
        by_broker: true,
        ..headers.clone()
    };
    let by_broker = from_delivery(&delivery(limited, body.clone()), &reader(), NOW);
    assert_eq!(by_broker.origin, DeadLetterOrigin::Broker);
    assert_eq!(by_broker.reason, "the broker: delivery_limit");
    let without_origin = from_delivery(&delivery(headers, body), &reader(), NOW);
    assert_eq!(without_origin.origin, DeadLetterOrigin::Broker);
    for other in [by_consumer, by_broker] {
        assert_eq!((other.digest, other.requests), (by_relay.digest, by_relay.requests.clone()));
    }
}

#[test]
fn messages_of_another_type_or_installation_are_other_dead_letters() {
    let body = Bytes::from_static(b"{}");
    let digest = |headers| from_delivery(&delivery(headers, body.clone()), &reader(), NOW).digest;
    let kind = |text: &str| Headers { content_type: Some(text.into()), ..Headers::default() };
    let owner = |text: &str| Headers { installation: Some(text.into()), ..Headers::default() };
    let all = [digest(Headers::default()), digest(kind("")), digest(kind("a")), digest(owner("a"))];
    for (at, one) in all.iter().enumerate() {
        assert!(all.iter().skip(at + 1).all(|other| other != one));
    }
    let named = Headers { message_id: "x".to_owned(), attempts: 9, ..Headers::default() };
    assert_eq!(digest(named), all[0], "copies differ in message id and attempts");
}

#[test]
fn a_long_body_is_truncated_and_the_reason_states_it() {
    let body = Bytes::from(vec![7; BODY_BYTES_MAX + 1]);
    let dead_letter = from_delivery(&delivery(Headers::default(), body.clone()), &reader(), NOW);
    assert_eq!(dead_letter.body.len(), BODY_BYTES_MAX);
    assert_eq!(dead_letter.body_bytes, BODY_BYTES_MAX as u64 + 1);
    assert!(
        dead_letter.reason.contains("only the first 1048576 of 1048577"),
        "{}",
        dead_letter.reason
    );
    let shorter = delivery(Headers::default(), body.slice(1..));
    assert_ne!(dead_letter.digest, from_delivery(&shorter, &reader(), NOW).digest);
}

#[test]
fn only_a_replayable_dead_letter_is_the_end_state_of_its_requests() {
    let (ours, body) = envelope(&[intent(7), intent(3)]);
    let of = |headers: &Headers, body: &Bytes| {
        numbers(&from_delivery(&delivery(headers.clone(), body.clone()), &reader(), NOW))
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
    one_is_broken[22] = 99;
    assert!(of(&ours, &one_is_broken.clone().into()).is_empty());
    assert!(numbers(&by_relay(&one_is_broken.into())).is_empty());
}

#[test]
fn of_an_entry_that_is_too_long_its_first_bytes_are_published() {
    let (_, body) = envelope(&[intent(7)]);
    let entry = Bytes::from(body.repeat(BODY_BYTES_MAX / body.len() + 1));
    let dead_letter = by_relay(&entry);
    assert_eq!(dead_letter.body, entry[..BODY_BYTES_MAX]);
    assert!(numbers(&dead_letter).is_empty(), "its last intent is cut: it cannot be replayed");
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
    let dead_letter = from_delivery(&delivery(headers, Bytes::new()), &reader(), NOW);
    assert_eq!(dead_letter.message_id.chars().count(), MESSAGE_ID_CHARS_MAX);
    assert_eq!(dead_letter.reason.chars().count(), TEXT_CHARS_MAX);
    assert!(dead_letter.attempts <= i32::MAX.unsigned_abs() && dead_letter.headers.len() < 4000);
    let read = DeadLetterHeaders::read(&dead_letter.headers);
    assert_eq!(read.message.content_type.unwrap().chars().count(), 500);
    assert_eq!(read.routing_key.as_deref(), Some("0"));
    assert_eq!(DeadLetterHeaders::read("no JSON"), DeadLetterHeaders::default());
}

#[test]
fn a_replay_goes_to_the_queue_of_its_first_intent_with_new_headers() {
    let (_, body) = envelope(&[intent(7), intent(8)]);
    let message = prepare(&content(&ours(), &body), &reader(), 4, 77).unwrap();
    let intents = verified_intents(&message.headers, &message.body, &reader()).unwrap();
    assert_eq!(intents, [intent(7), intent(8)]);
    let Message { route, headers, body: sent } = message;
    assert_eq!((route, sent), (Route::Orders(3), body));
    assert_eq!((headers.message_id.as_str(), headers.attempts), ("7-2", 0));
    assert_eq!((headers.sent_at_ms, headers.reason), (Some(77), None));
}

#[test]
fn a_replayed_payment_event_has_the_time_of_its_replay() {
    let headers = Headers { origin: Some("payments".to_owned()), ..Headers::default() };
    let message = prepare(&content(&headers, b"{}"), &reader(), 4, 77).unwrap();
    assert_eq!((message.route, message.headers.sent_at_ms), (Route::Payments, Some(77)));
}

#[test]
fn the_error_states_why_it_cannot_be_replayed() {
    let (_, body) = envelope(&[intent(7), intent(8)]);
    let why = |content: &DeadLetterContent| prepare(content, &reader(), 4, 0).unwrap_err().what;
    let mut cut = content(&ours(), &body);
    cut.dead_letter.body_bytes += 1;
    let lengths = format!("the first {} of its {} bytes", body.len(), body.len() + 1);
    assert!(why(&cut).contains(&lengths), "{}", why(&cut));
    let mut broken = body.to_vec();
    broken[INTENT_BYTES + 22] = 99;
    let broken = why(&content(&ours(), &broken));
    assert!(broken.contains("1 of its 2 intents cannot be read"), "{broken}");
    let newer = Headers { version: Some(envelope::VERSION + 1), ..ours() };
    assert!(why(&content(&newer, &body)).contains("newer"));
    let foreign = Headers { installation: Some("x".to_owned()), ..ours() };
    assert!(why(&content(&foreign, &body)).contains("belongs to"));
    assert!(why(&content(&Headers::default(), b"hello")).contains("no content type"));
    assert!(why(&content(&ours(), b"")).contains("no whole number"));
}
