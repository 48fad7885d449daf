use serde_json::{Value as Json, json};

use super::*;
use crate::domain::{DeadLetterOrigin, Epoch, Order, OrderState, Refusal};

const CLICK_MS: i64 = 1_800_000_000_000;

fn journey(published_at_ms: Option<i64>, recorded_at_ms: Option<i64>) -> OrderTimeline {
    let order = Order {
        request: RequestId::new(9).unwrap(),
        sku: SkuNo(1),
        epoch: Epoch(1),
        buyer: BuyerId::new(7).unwrap(),
        quantity: 2,
        slot: 9,
        amount: 200,
        state: OrderState::Paid,
        placed_at_ms: CLICK_MS,
        pay_by_ms: CLICK_MS + 900_000,
    };
    OrderTimeline { order, trace: TraceId(5), published_at_ms, recorded_at_ms }
}

fn letter(no: i64, state: DeadLetterState, dead_at_ms: i64) -> DeadLetter {
    DeadLetter {
        no: DeadLetterNo(no),
        origin: DeadLetterOrigin::Consumer,
        reason: "why".to_owned(),
        attempts: 1,
        message_id: "9-1".to_owned(),
        headers: String::new(),
        body_bytes: 75,
        dead_at_ms,
        arrivals: 1,
        state,
        changed_at_ms: dead_at_ms,
        note: None,
    }
}

/// Stage, state and milliseconds after the click, as they are shown.
fn shown(known: TraceSources) -> Vec<(String, String, Option<i64>)> {
    let stages = serde_json::to_value(known.stages()).unwrap();
    let text = |of: &Json| of.as_str().unwrap().to_owned();
    let after = |at: &Json| {
        let at = chrono::DateTime::parse_from_rfc3339(at.as_str()?).unwrap();
        Some(at.timestamp_millis() - CLICK_MS)
    };
    let line = |of: &Json| (text(&of["stage"]), text(&of["state"]), after(&of["at"]));
    stages.as_array().unwrap().iter().map(line).collect()
}

fn line(stage: &str, state: &str, after_ms: Option<i64>) -> (String, String, Option<i64>) {
    (stage.to_owned(), state.to_owned(), after_ms)
}

#[test]
fn an_order_tells_each_stage_with_its_time() {
    let mut known = TraceSources::default();
    known.add_order(&journey(Some(CLICK_MS + 20), Some(CLICK_MS + 41)));
    assert_eq!((known.took_ms(), known.trace), (Some(41), Some(TraceId(5))));
    let way = [
        line("gate", "paid", Some(0)),
        line("relay", "published", Some(20)),
        line("ledger", "paid", Some(41)),
    ];
    assert_eq!(shown(known), way);
}

#[test]
fn what_nobody_noted_is_left_out() {
    let mut known = TraceSources::default();
    known.add_order(&OrderTimeline { trace: TraceId(0), ..journey(None, None) });
    assert_eq!((known.took_ms(), known.trace), (None, None));
    assert_eq!(shown(known), [line("gate", "paid", Some(0)), line("ledger", "paid", None)]);
    // The consumer's clock is behind.
    let mut known = TraceSources::default();
    known.add_order(&journey(None, Some(CLICK_MS - 1)));
    assert_eq!(known.took_ms(), None);
}

#[test]
fn a_gate_that_still_waits_says_so_next_to_the_order() {
    let mut known = TraceSources::default();
    known.add_order(&journey(None, Some(CLICK_MS + 41)));
    known.add_standing(&StoredRequest::from((2, CLICK_MS, RequestStatus::Queued)));
    assert_eq!(shown(known), [line("gate", "queued", Some(0)), line("ledger", "paid", Some(41))]);
}

#[test]
fn an_order_that_was_dead_meanwhile_tells_it_where_it_happened() {
    let letters = [
        letter(2, DeadLetterState::Replayed, CLICK_MS + 30),
        letter(1, DeadLetterState::Replayed, CLICK_MS + 10),
    ];
    let mut known = TraceSources::default();
    known.add_order(&journey(Some(CLICK_MS + 50), Some(CLICK_MS + 60)));
    known.add_letters(&letters);
    let way = [
        line("gate", "paid", Some(0)),
        line("dead_letter", "replayed", Some(10)),
        line("dead_letter", "replayed", Some(30)),
        line("relay", "published", Some(50)),
        line("ledger", "paid", Some(60)),
    ];
    assert_eq!(shown(known), way);
}

#[test]
fn a_request_in_an_open_letter_is_in_no_queue() {
    for (state, there) in [(DeadLetterState::Open, "dead"), (DeadLetterState::Replayed, "replayed")]
    {
        let mut known = TraceSources::default();
        known.between.push(StageView::new("broker", "is in a queue", "queued"));
        known.add_letters(&[letter(1, state, CLICK_MS + 10)]);
        let queue = line("broker", "queued", None);
        let dead = line("dead_letter", there, Some(10));
        let expected = if there == "dead" { vec![dead] } else { vec![queue, dead] };
        assert_eq!(shown(known), expected);
    }
}

#[test]
fn a_failure_tells_its_reason_and_how_long_it_took() {
    let mut known = TraceSources::default();
    known.add_failure(&Failure {
        request: RequestId::new(9).unwrap(),
        sku: SkuNo(1),
        buyer: BuyerId::new(7).unwrap(),
        quantity: 2,
        reason: Refusal::SoldOut,
        recorded_at_ms: CLICK_MS + 41,
    });
    assert_eq!(known.took_ms(), None, "nobody knows when it was asked for");
    let standing = RequestStatus::Failed(Refusal::SoldOut);
    known.add_standing(&StoredRequest::from((2, CLICK_MS, standing)));
    assert_eq!(known.took_ms(), Some(41));
    let stages = serde_json::to_value(known.stages()).unwrap();
    assert_eq!(stages[1]["reason"], json!("sold-out"));
    assert_eq!(stages[1]["state"], json!("failed"));
}
