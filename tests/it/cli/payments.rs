//! `floodgate payments` against a server whose answers the test writes.

use serde_json::{Value as Json, json};

use super::code;
use super::scripted::{ScriptedApi, stderr};

const ID: &str = "7-42-123-1";

/// One given-up refund, one payment in doubt on a further page, and one unmatched report.
fn api() -> ScriptedApi {
    ScriptedApi::start(|line| {
        let page = |payments: Json, next: Option<&str>| {
            Some((200, json!({ "payments": payments, "next_cursor": next })))
        };
        let payment = |id: &str, state: &str| {
            let reason = "\u{1b}[2J";
            json!({ "id": id, "state": state, "amount": 100, "currency": "CNY", "reason": reason })
        };
        match line {
            "GET /payments?state=refund_failed&limit=50" => {
                page(json!([payment(ID, "refund_failed")]), None)
            }
            "GET /payments?state=in_doubt&limit=50" => {
                page(json!([payment("7-43-124-1", "started")]), Some("7-43-124-1"))
            }
            "GET /payments?state=unmatched&limit=50" => {
                page(json!([payment("event:demo:evt_1", "unmatched")]), None)
            }
            "GET /payments?state=in_doubt&limit=2&cursor=7-43-124-1" => page(json!([]), None),
            "POST /payments/7-42-123-1/retry" => Some((200, json!({ "done": "refund_due" }))),
            "POST /payments/7-42-999-1/retry" => Some((
                404,
                json!({ "code": "not-found", "title": "Not found", "payment": "7-42-999-1" }),
            )),
            _ => None,
        }
    })
}

#[test]
fn payments_that_wait_are_printed_by_state() {
    let api = api();
    let output = api.run(&["payments", "list"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["ID", "STATE", "ORDER"]);
    let shown: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(
        shown,
        [(ID, "refund_failed"), ("7-43-124-1", "in_doubt"), ("event:demo:evt_1", "unmatched")]
    );
    assert!(text.contains(".[2J") && !text.contains('\u{1b}'), "{text}");
    assert!(stderr(&output).contains("--state in_doubt --cursor 7-43-124-1"), "{output:?}");
    let next =
        ["payments", "list", "--state", "in_doubt", "--limit", "2", "--cursor", "7-43-124-1"];
    assert!(api.text(&next, 0).contains("no payment waits"));
    let json: Json = serde_json::from_str(&api.text(&["payments", "list", "--json"], 0)).unwrap();
    assert_eq!(json["payments"].as_array().unwrap().len(), 3);
    assert_eq!(json["next_cursors"], json!({ "in_doubt": "7-43-124-1" }));
}

#[test]
fn a_retry_says_what_was_done_and_goes_on_after_a_refusal() {
    let api = api();
    let output = api.run(&["payments", "retry", "7-42-999-1", ID]);
    assert_eq!(code(&output), 1, "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.starts_with("payment 7-42-999-1: refused: "), "{text}");
    assert!(text.ends_with("payment 7-42-123-1: refund_due\n"), "{text}");
    let remedy = "-> `floodgate payments list` shows what is open; repeats do no harm\n";
    let other_state = ["payments", "list", "--state", "resolved"];
    for words in [&["payments", "retry", "other", ID][..], &other_state] {
        let output = api.run(words);
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(stderr(&output).contains(remedy), "{output:?}");
    }
    assert_eq!(code(&api.run(&["payments", "retry"])), 2);
    assert_eq!(code(&api.run(&["payments", "list", "--state", "lost"])), 2);
}

#[test]
fn reports_are_resolved_with_a_reason() {
    let api = ScriptedApi::start(|line| {
        Some(match line {
            "POST /payments/event:demo:evt_1/resolve" => (200, json!({ "done": "resolved" })),
            _ => (404, json!({ "code": "not-found", "title": "Not found", "payment": ID })),
        })
    });
    let words = ["payments", "resolve", "event:demo:evt_1", ID, "--reason", "refunded by hand"];
    let text = api.text(&words, 1);
    assert!(text.starts_with("payment event:demo:evt_1: resolved\n"), "{text}");
    assert!(text.contains(&format!("payment {ID}: refused: Not found")), "{text}");
    assert_eq!(api.bodies()[0], json!({ "reason": "refunded by hand" }));
    assert_eq!(code(&api.run(&["payments", "resolve", ID])), 2, "without a reason");
}
