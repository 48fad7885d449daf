use serde_json::{Value as Json, json};

use super::*;
use crate::domain::{
    DeadLetterNo, DeadLetterOrigin, Epoch, Order, OrderState, RecordState, Refusal, RequestId,
    samples,
};

const PLACED_AT_MS: i64 = 1_800_000_000_000;

fn timeline(published_at_ms: Option<i64>, recorded_at_ms: i64) -> OrderTimeline {
    let order = Order { state: OrderState::Paid, ..samples::intent(9).order(1_800_000_000_000) };
    OrderTimeline { order, trace: TraceId(5), published_at_ms, recorded_at_ms }
}

fn record(state: RecordState) -> RequestRecord {
    let buyer = BuyerId::new(7).unwrap();
    RequestRecord { buyer, quantity: 2, placed_at_ms: PLACED_AT_MS, state }
}

fn dead_letter(no: i64, state: DeadLetterState, dead_at_ms: i64) -> DeadLetter {
    DeadLetter {
        no: DeadLetterNo(no),
        origin: DeadLetterOrigin::Consumer,
        reason: "why".to_owned(),
        attempts: 1,
        message_id: "9-1".to_owned(),
        headers: String::new(),
        body_bytes: 79,
        dead_at_ms,
        arrivals: 1,
        state,
        changed_at_ms: dead_at_ms,
        note: None,
    }
}

/// Stage, state and milliseconds after the purchase, as rendered.
fn rendered(findings: TraceFindings) -> Vec<(String, String, Option<i64>)> {
    let stages = serde_json::to_value(findings.stages()).unwrap();
    let text = |of: &Json| of.as_str().unwrap().to_owned();
    let after = |at: &Json| {
        let at = chrono::DateTime::parse_from_rfc3339(at.as_str()?).unwrap();
        Some(at.timestamp_millis() - PLACED_AT_MS)
    };
    let stage = |of: &Json| (text(&of["stage"]), text(&of["state"]), after(&of["at"]));
    stages.as_array().unwrap().iter().map(stage).collect()
}

fn stage(stage: &str, state: &str, after_ms: Option<i64>) -> (String, String, Option<i64>) {
    (stage.to_owned(), state.to_owned(), after_ms)
}

#[test]
fn a_stage_without_a_record_is_omitted() {
    let mut findings = TraceFindings::default();
    findings.add_order(&OrderTimeline { trace: TraceId(0), ..timeline(None, PLACED_AT_MS + 2) });
    assert_eq!((findings.took_ms(), findings.trace), (Some(2), None));
    assert_eq!(
        rendered(findings),
        [stage("gate", "paid", Some(0)), stage("ledger", "paid", Some(2))]
    );
    // The consumer's clock is slow.
    let mut findings = TraceFindings::default();
    findings.add_order(&timeline(None, PLACED_AT_MS - 1));
    assert_eq!(findings.took_ms(), None);
}

#[test]
fn a_gate_without_the_result_is_queued_beside_the_order() {
    let mut findings = TraceFindings::default();
    findings.add_order(&timeline(None, PLACED_AT_MS + 41));
    findings.add_gate_record(&record(RecordState::Queued { epoch: Epoch(1) }));
    assert_eq!(
        rendered(findings),
        [stage("gate", "queued", Some(0)), stage("ledger", "paid", Some(41))]
    );
}

#[test]
fn replayed_dead_letters_of_an_order_are_sorted_by_time() {
    let dead_letters = [
        dead_letter(2, DeadLetterState::Replayed, PLACED_AT_MS + 30),
        dead_letter(1, DeadLetterState::Replayed, PLACED_AT_MS + 10),
    ];
    let mut findings = TraceFindings::default();
    findings.add_order(&timeline(Some(PLACED_AT_MS + 50), PLACED_AT_MS + 60));
    assert_eq!((findings.took_ms(), findings.trace), (Some(60), Some(TraceId(5))));
    findings.add_dead_letters(&dead_letters);
    let expected = [
        stage("gate", "paid", Some(0)),
        stage("dead_letter", "replayed", Some(10)),
        stage("dead_letter", "replayed", Some(30)),
        stage("relay", "published", Some(50)),
        stage("ledger", "paid", Some(60)),
    ];
    assert_eq!(rendered(findings), expected);
}

#[test]
fn a_request_in_an_open_dead_letter_is_in_no_queue() {
    for (state, expected_state) in
        [(DeadLetterState::Open, "open"), (DeadLetterState::Replayed, "replayed")]
    {
        let mut findings = TraceFindings::default();
        findings.pipeline.push(StageView::new("broker", "is in a queue", "queued"));
        findings.add_dead_letters(&[dead_letter(1, state, PLACED_AT_MS + 10)]);
        let queue = stage("broker", "queued", None);
        let dead = stage("dead_letter", expected_state, Some(10));
        let expected = if expected_state == "open" { vec![dead] } else { vec![queue, dead] };
        assert_eq!(rendered(findings), expected);
    }
}

#[test]
fn a_failure_has_its_reason_and_its_duration() {
    let mut findings = TraceFindings::default();
    findings.add_failure(&Failure {
        request: RequestId::new(9).unwrap(),
        sku: SkuNo(1),
        buyer: BuyerId::new(7).unwrap(),
        quantity: 2,
        reason: Refusal::SoldOut,
        recorded_at_ms: PLACED_AT_MS + 41,
    });
    assert_eq!(findings.took_ms(), None, "the time of the purchase is unknown");
    findings.add_gate_record(&record(RecordState::Failed(Refusal::SoldOut)));
    assert_eq!(findings.took_ms(), Some(41));
    let stages = serde_json::to_value(findings.stages()).unwrap();
    assert_eq!(stages[1]["reason"], json!("sold-out"));
    assert_eq!(stages[1]["state"], json!("failed"));
}

#[test]
fn the_next_step_is_that_of_the_furthest_stage() {
    let of = |stage, state| StageView::new(stage, "", state).with_reason("r");
    let dead = |state| of("dead_letter", state).with_dead_letter(DeadLetterNo(17));
    for (later, words) in [
        (vec![], "wait: the ledger has not answered; if it stays: `floodgate doctor`"),
        (vec![of("outbox", "queued")], "wait: a relay takes it"),
        (vec![of("relay", "queued")], "wait: its relay publishes it"),
        (vec![of("broker", "queued")], "wait: a consumer takes it"),
        (vec![of("ledger", "paid")], "done: it is an order"),
        (vec![of("ledger", "failed")], "done: the ledger recorded the failure"),
        (vec![dead("open")], "next: floodgate dlq show 17"),
        (vec![of("dead_letter", "replayed")], "wait: it was replayed"),
        (vec![dead("open"), of("ledger", "paid")], "done: it is an order"),
        (vec![dead("unknown")], "next: `floodgate dlq list --state all`"),
        (vec![of("ledger", "paid"), dead("unknown")], "done: it is an order"),
        (
            vec![of("ledger", "unknown")],
            "next: `floodgate doctor` says why the ledger cannot be read",
        ),
    ] {
        let next = next_step(&[of("gate", "queued")].into_iter().chain(later).collect::<Vec<_>>());
        assert!(next.starts_with(words), "{next}");
    }
}
