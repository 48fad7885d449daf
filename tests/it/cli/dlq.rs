//! `floodgate dlq` against a server whose answers the test writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value as Json, json};

use super::scripted::{ScriptedApi, stderr};
use super::{code, json as parsed};

const CONTROL_CHARS: &str = "9-1\u{1b}]0;mine\u{7}\r";

fn api(answer: impl Fn(&str) -> Option<(u16, Json)> + Send + 'static) -> ScriptedApi {
    ScriptedApi::start(move |line| answer(&line.replace("/dead-letters", "")))
}

fn page_of(ids: [&str; 2], next: Option<&str>) -> (u16, Json) {
    let dead_letters = ids.map(|id| json!({ "id": id }));
    (200, json!({ "dead_letters": dead_letters, "next_cursor": next }))
}

fn done(done: &str, state: &str) -> (u16, Json) {
    (200, json!({ "done": done, "dead_letter": { "state": state } }))
}

/// A step of a verb on all that match.
fn step(items: &[(&str, &str)], num_left: u64, next: Option<&str>) -> (u16, Json) {
    let item = |(id, done): &(&str, &str)| match *done {
        "refused" => json!({ "id": id, "refused": "it is cut\u{1b}[2J" }),
        done => json!({ "id": id, "done": done, "state": "replayed" }),
    };
    let items: Vec<Json> = items.iter().map(item).collect();
    (200, json!({ "dead_letters": items, "num_left": num_left, "next_cursor": next }))
}

#[test]
fn all_that_match_are_replayed_step_by_step_up_to_the_limit() {
    let steps = || {
        let num_steps = AtomicUsize::new(0);
        api(move |line| {
            assert_eq!(line, "POST /replay");
            Some(match num_steps.fetch_add(1, Ordering::SeqCst) {
                0 => step(&[("8", "resolved"), ("9", "refused")], 70, Some("8")),
                1 => step(&[("6", "published"), ("7", "published")], 68, Some("6")),
                _ => step(&[("5", "published")], 67, Some("5")),
            })
        })
    };
    let words = [
        "dlq",
        "replay",
        "--all",
        "--origin",
        "relay",
        "--sale",
        "spring",
        "--expected",
        "72",
        "--reason",
        "mended",
    ];
    let limited = [&words[..], &["--max", "53"]].concat();
    let api = steps();
    let output = api.run(&[&limited[..], &["--json"]].concat());
    let summary = parsed(&output);
    let names = ["num_published", "num_resolved", "num_refused"];
    let counts = names.map(|name| summary[name].as_u64().unwrap());
    assert_eq!((counts[1], counts[2]), (1, 1), "{summary}");
    assert_eq!((&summary["next_cursor"], &summary["num_left"]), (&json!("5"), &json!(67)));
    assert_eq!(code(&output), 1, "one was refused: {output:?}");
    assert!(stderr(&output).contains("more: --cursor 5 --expected 67\n"), "{output:?}");
    let bodies = api.bodies();
    let body = |expected: u64, max: u64, cursor: Option<&str>| {
        let mut filter = json!({"state": "open", "origin": "relay", "sale_id": "spring"});
        if let Some(cursor) = cursor {
            filter["cursor"] = json!(cursor);
        }
        json!({"filter": filter, "expected_count": expected, "max": max, "reason": "mended"})
    };
    let expected = [body(72, 50, None), body(70, 50, Some("8")), body(68, 49, Some("6"))];
    assert_eq!(bodies[..3], expected, "each step has its own number");

    let api = steps();
    let text = api.text(&[&words[..], &["--max", "2"]].concat(), 1);
    let lines = "dead letter 8: resolved\ndead letter 9: refused: it is cut.[2J\n";
    assert!(text.starts_with(lines), "{text}");
}

#[test]
fn the_last_step_ends_the_run_and_another_number_changes_nothing() {
    let num_runs = AtomicUsize::new(0);
    let api = api(move |line| {
        assert_eq!(line, "POST /discard");
        Some(match num_runs.fetch_add(1, Ordering::SeqCst) {
            0 => step(&[("1", "discarded"), ("2", "already")], 0, None),
            _ => (409, json!({ "code": "other-count", "title": "Another number" })),
        })
    });
    let with = |state: &str| {
        let words = ["dlq", "discard", "--all", "--state", state, "--contains", "no sale"];
        [&words[..], &["--expected", "2", "--reason", "cancelled"]].concat().join("\n")
    };
    let run = |state: &str| api.run(&with(state).split('\n').collect::<Vec<_>>());
    let output = run("parked");
    assert_eq!(code(&output), 0, "{output:?}");
    let sent = api.bodies().remove(0);
    assert_eq!(sent["filter"], json!({"state": "parked", "reason": "no sale"}));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("\n1 discarded, 1 done before\n"), "{text}");
    let output = run("open");
    assert_eq!((code(&output), output.stdout.len()), (1, 0), "{output:?}");
    assert!(stderr(&output).contains("--dry-run"), "{output:?}");

    let stopped = ScriptedApi::always(
        200,
        json!({ "dead_letters": [], "num_left": 5, "stopped": "the ledger is not available" }),
    );
    let words = ["dlq", "park", "--all", "--expected", "7", "--reason", "x", "--json"];
    for (more, next_cursor) in [(&[][..], Json::Null), (&["--cursor", "9"][..], json!("9"))] {
        let output = stopped.run(&[&words[..], more].concat());
        assert_eq!((code(&output), &parsed(&output)["next_cursor"]), (2, &next_cursor));
        let note = stderr(&output).contains("there are more: --cursor 9 --expected 5\n");
        assert_eq!(note, !more.is_empty(), "{output:?}");
        assert!(stderr(&output).contains("the ledger is not available"), "{output:?}");
        assert_eq!(stopped.lines().len(), 1);
    }
}

#[test]
fn nothing_is_sent_for_an_incomplete_selection() {
    let api = ScriptedApi::always(500, json!({}));
    for words in [
        &["dlq", "discard", "--all", "--reason", "x"][..],
        &["dlq", "discard", "--all", "--expected", "3"],
        &["dlq", "discard", "--all", "--expected", "3", "--reason", " "],
        &["dlq", "discard", "--all", "--state", "all", "--expected", "3", "--reason", "x"],
        &["dlq", "discard", "17", "--sale", "spring"],
        &["dlq", "discard", "17", "--expected", "1"],
        &["dlq", "discard", "17", "--dry-run"],
        &["dlq", "discard", "17", "--cursor", "3"],
        &["dlq", "discard", "17", "--all", "--expected", "1", "--reason", "x"],
        &["dlq", "discard"],
        &["dlq", "list", "--sku", "phone"],
        &["dlq", "list", "--since", "yesterday"],
    ] {
        let output = api.run(words);
        assert_eq!(code(&output), 2, "{words:?}: {output:?}");
    }
    assert_eq!(api.lines(), [""; 0]);
}

#[test]
fn a_dry_run_shows_what_matches() {
    let api = api(|line| {
        let (status, mut page) = page_of(["9", "8"], Some("8"));
        page["num_matching"] = json!(60);
        let is_expected =
            line == "GET ?state=open&buyer_id=7&until=2030-01-01T00%3A00%3A00Z&limit=50";
        is_expected.then_some((status, page))
    });
    let words = ["dlq", "park", "--all", "--buyer", "7", "--until", "2030-01-01T00:00:00Z"];
    let output = api.run(&[&words[..], &["--dry-run"]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stderr(&output).contains("60 match, nothing was changed"), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("60 match; "));
}

#[test]
fn an_unknown_outcome_is_not_counted_as_not_tried() {
    let breaks_off = || {
        api(|line| match line {
            "POST /1/replay" => Some(done("already", "replayed")),
            _ => None,
        })
    };
    let output = breaks_off().run(&["dlq", "replay", "1", "2", "3", "--json"]);
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(stderr(&output).contains("repeats do no harm"), "{output:?}");
    let summary = parsed(&output);
    assert_eq!(summary["dead_letters"][1]["id"], "2");
    assert!(summary["dead_letters"][1]["unknown"].is_string(), "{summary}");
    let counts = ["num_already", "num_unknown", "num_not_tried"].map(|name| summary[name].clone());
    assert_eq!(counts, [1, 1, 1].map(|count| json!(count)));
    let text = breaks_off().text(&["dlq", "replay", "1", "2", "3"], 2);
    assert!(text.contains("\ndead letter 2: outcome unknown: http"), "{text}");
    let counts = "\n1 done before, 1 of unknown outcome, 1 not tried\n";
    assert!(text.ends_with(counts), "{text}");

    // Certain: the broker did not take it. Uncertain: it did not confirm.
    let away = ScriptedApi::always(503, json!({ "title": "Broker away", "code": "broker-away" }));
    let unconfirmed =
        ScriptedApi::always(503, json!({ "title": "Not confirmed", "code": "not-confirmed" }));
    for (api, num_refused, num_unknown) in [(&away, 1, 0), (&unconfirmed, 0, 1)] {
        let output = api.run(&["dlq", "replay", "1", "2", "--json"]);
        let summary = parsed(&output);
        let counts =
            ["num_refused", "num_unknown", "num_not_tried"].map(|name| summary[name].clone());
        assert_eq!(counts, [num_refused, num_unknown, 1].map(|count| json!(count)), "{summary}");
        assert_eq!(code(&output), 2);
        assert!(stderr(&output).contains("`floodgate doctor`"), "{output:?}");
    }
    let output = away.run(&["dlq", "replay", "..", "--json"]);
    assert_eq!(parsed(&output)["num_unknown"], 0, "nothing was sent: {output:?}");
}

#[test]
fn a_list_is_a_table_with_its_counts() {
    let page = json!({
        "counts": { "open": 1, "replayed": 2, "parked": 0, "discarded": 3 },
        "dead_letters": [{
            "id": "17", "state": "open", "origin": "consumer", "attempts": 4,
            "dead_at": "2030-01-01T00:00:00.000Z", "message_id": CONTROL_CHARS,
            "reason": format!("no such SKU\u{1b}[2J{}: the table is full", "x".repeat(99)),
        }],
    });
    let text = ScriptedApi::always(200, page).text(&["dlq", "list"], 0);
    assert!(text.contains("17  open   consumer  4"), "{text}");
    assert!(text.contains("no such SKU.[2Jxx"), "{text}");
    assert!(text.contains("xx..xx") && text.contains("x: the table is full\n"), "{text}");
    assert!(text.contains("  9-1.]0;mine..  no such"), "{text}");
    assert!(text.ends_with("\n1 open, 2 replayed, 0 parked, 3 discarded\n"), "{text}");
    let none = json!({ "counts": { "open": 0, "replayed": 2, "parked": 0, "discarded": 0 } });
    let none = ScriptedApi::always(200, none);
    let text = none.text(&["dlq", "list"], 0);
    assert_eq!(text, "no dead letter matches (0 open, 2 replayed, 0 parked, 0 discarded)\n");
    let none = ScriptedApi::always(200, json!({ "dead_letters": [], "num_left": 0 }));
    let words = ["dlq", "replay", "--all", "--expected", "0", "--reason", "x"];
    assert_eq!(none.text(&words, 0), "nothing was done\n");
}

#[test]
fn a_list_names_what_cannot_be_read_beside_the_others() {
    let (status, mut page) = page_of(["9", "7"], None);
    page["unreadable"] = json!([{ "id": "8", "reason": "dead letter 8: origin is whim\u{1b}[2J" }]);
    let api = ScriptedApi::always(status, page);
    let output = api.run(&["dlq", "list"]);
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(stderr(&output).contains("correct the named columns"), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let named = "dead letter 8 cannot be read: dead letter 8: origin is whim.[2J\n";
    assert!(text.contains("\n9 ") && text.contains("\n7 ") && text.contains(named), "{text}");
    let shown = parsed(&api.run(&["dlq", "list", "--json"]));
    assert_eq!(shown["unreadable"][0]["id"], "8");
}

#[test]
fn a_dead_letter_shows_the_next_step() {
    let mut dead_letter = json!({
        "id": "17", "state": "open", "reason": "no such SKU", "message_id": CONTROL_CHARS,
        "intents": [{ "request": "9", "quantity": 2 }],
    });
    let show =
        |answer: &Json| ScriptedApi::always(200, answer.clone()).text(&["dlq", "show", "17"], 0);
    let text = show(&dead_letter);
    assert!(text.starts_with("dead letter 17 (open)\n"), "{text}");
    assert!(text.contains("\nreason       no such SKU\n"), "{text}");
    assert!(text.contains("\nmessage      9-1.]0;mine..\n"), "{text}");
    assert!(text.contains("\n9        -     -    -      2"), "{text}");
    assert!(text.ends_with("next: floodgate dlq replay 17\n"), "{text}");
    dead_letter["why_not"] = json!("no content type");
    assert!(show(&dead_letter).ends_with("it cannot be replayed: no content type\n"));
    let unknown = json!({ "title": "No such dead letter", "code": "unknown-dead-letter" });
    let missing = ScriptedApi::always(404, unknown);
    let output = missing.run(&["dlq", "show", "18"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("`floodgate dlq list --state all`"), "{output:?}");
}

#[test]
fn a_refusal_names_what_helps() {
    let answered =
        |code: &str, status| ScriptedApi::always(status, json!({ "title": code, "code": code }));
    let all = ["dlq", "replay", "--all", "--expected", "1", "--reason", "x"];
    for words in [&["dlq", "replay", "17", "18"][..], &all] {
        let output = answered("no-broker", 409).run(words);
        assert_eq!(code(&output), 1, "{output:?}");
        assert!(stderr(&output).contains("then park or discard it"), "{output:?}");
    }
    let output = answered("unknown-sku", 404).run(&["dlq", "list", "--sale", "zz"]);
    assert!(stderr(&output).contains("`floodgate sale list`"), "{output:?}");
    for more in [&[][..], &["--reason", " "]] {
        let output = answered("x", 500).run(&[&["dlq", "discard", "20"][..], more].concat());
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(stderr(&output).contains("-> give --reason"), "{output:?}");
    }
    let incomplete = answered("x", 500).run(&["dlq", "replay", "--all", "--reason", "x"]);
    assert_eq!((code(&incomplete), incomplete.stdout), (2, Vec::new()));
}
