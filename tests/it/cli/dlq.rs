//! `floodgate dlq` against a server whose answers the test writes.

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

fn refused() -> (u16, Json) {
    (409, json!({ "title": "Dead letter not replayable", "detail": "it is cut\u{1b}[2J" }))
}

/// The requests below `/dead-letters`.
fn lines(api: &ScriptedApi) -> Vec<String> {
    api.lines().iter().map(|line| line.replace("/admin/v1/dead-letters", "")).collect()
}

#[test]
fn open_dead_letters_are_replayed_page_by_page_up_to_the_limit() {
    let api = api(|line| {
        Some(match line {
            "GET ?state=open&origin=relay&limit=3" => page_of(["9", "8"], Some("8")),
            "GET ?state=open&origin=relay&limit=2&cursor=8" => page_of(["7", "6"], Some("6")),
            "POST /7/replay" => done("published", "open"),
            "POST /8/replay" => done("resolved", "replayed"),
            "POST /6/replay" => done("published", "replayed"),
            _ => refused(),
        })
    });
    let words = ["dlq", "replay", "--all", "--origin", "relay", "--max", "3"];
    let output = api.run(&[&words[..], &["--json"]].concat());
    assert_eq!(code(&output), 1, "one was refused: {output:?}");
    assert!(stderr(&output).contains("there are more: --cursor 6"), "{output:?}");
    let posts: Vec<_> = lines(&api).into_iter().filter(|line| line.starts_with('P')).collect();
    assert_eq!(posts, ["POST /8/replay", "POST /9/replay", "POST /6/replay", "POST /7/replay"]);
    let summary = parsed(&output);
    let names = ["next_cursor", "num_published", "num_resolved", "num_refused"];
    let expected = [json!("6"), json!(2), json!(1), json!(1)];
    assert_eq!(names.map(|name| summary[name].clone()), expected);

    let expected = "dead letter 8: resolved\n\
                    dead letter 9: refused: Dead letter not replayable: it is cut.[2J\n\
                    dead letter 6: published\n\
                    dead letter 7: published, and it is open again\n\
                    2 published, 1 resolved (their requests had ended), 1 refused\n";
    assert_eq!(api.text(&words, 1), expected);
}

#[test]
fn refused_dead_letters_do_not_block_others_and_are_tried_once() {
    let two_pages = api(|line| {
        Some(match line {
            "GET ?state=open&limit=2" => page_of(["9", "8"], Some("8")),
            "GET ?state=open&limit=2&cursor=8" => page_of(["8", "7"], None),
            _ => refused(),
        })
    });
    let words = ["dlq", "replay", "--all", "--max", "2", "--json"];
    let summary = parsed(&two_pages.run(&words));
    assert_eq!(lines(&two_pages).len(), 2 + 3);
    assert_eq!((summary.get("next_cursor"), &summary["num_refused"]), (None, &json!(3)));

    let ignores_cursors = api(|line| {
        let is_list = line.starts_with("GET");
        Some(if is_list { page_of(["9", "8"], Some("8")) } else { refused() })
    });
    let output = ignores_cursors.run(&words);
    assert_eq!((code(&output), lines(&ignores_cursors).len()), (1, 2 + 2));
    assert_eq!(parsed(&output).get("next_cursor"), None);
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
    assert!(text.contains("\ndead letter 2: may have been done: http"), "{text}");
    let counts = "\n1 were so already, 1 may have been done, 1 not tried\n";
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
            "reason": format!("no such SKU\u{1b}[2J{}", "x".repeat(99)),
        }],
    });
    let text = ScriptedApi::always(200, page).text(&["dlq", "list"], 0);
    assert!(text.contains("17  open   consumer  4"), "{text}");
    assert!(text.contains("no such SKU.[2Jxx") && text.contains("xx..\n"), "{text}");
    assert!(text.contains("  9-1.]0;mine..  no such"), "{text}");
    assert!(text.ends_with("\n1 open, 2 replayed, 0 parked, 3 discarded\n"), "{text}");
    let none = json!({ "counts": { "open": 0, "replayed": 2, "parked": 0, "discarded": 0 } });
    let none = ScriptedApi::always(200, none);
    let text = none.text(&["dlq", "list"], 0);
    assert_eq!(text, "none of these (0 open, 2 replayed, 0 parked, 0 discarded)\n");
    let text = none.text(&["dlq", "replay", "--all"], 0);
    assert_eq!(text, "nothing to do: no open dead letter\n");
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
    let missing = ScriptedApi::always(404, json!({ "title": "No such dead letter" }));
    let output = missing.run(&["dlq", "show", "18"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("`floodgate dlq list --state all`"), "{output:?}");
}
