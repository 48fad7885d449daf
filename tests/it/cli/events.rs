//! `floodgate events tail` against a server whose answers the test writes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;

use serde_json::{Value as Json, json};

use super::code;
use super::scripted::{ScriptedApi, stderr};
use crate::support::process::command;
use crate::support::wait::until_true;

fn event(number: u64) -> Json {
    let order = json!({
        "request_id": "7", "sale_id": "spring", "sku_id": "phone", "buyer_id": "42", "quantity": 2,
    });
    // Both kinds are printed alike.
    let what = if number == 2 { "request" } else { "order" };
    json!({
        "sequence": number.to_string(), "time": "2026-05-03T10:00:00.000Z", "type": "order.placed",
        "data": { what: order, "actor": "operator:\u{1b}[2J" },
    })
}

/// A feed of three events, in pages of two; it breaks off behind number 9.
fn api() -> ScriptedApi {
    ScriptedApi::start(|line| {
        let query = line.strip_prefix("GET /order-events?after=")?;
        let (after, rest) = query.split_once('&').unwrap();
        assert!(rest == "limit=500&wait_ms=0" || rest == "limit=500&wait_ms=20000", "{rest}");
        let page = match after {
            "0" => json!([event(1), event(2)]),
            "2" => json!([event(3)]),
            "3" => json!([]),
            "8" => json!([event(9)]),
            "7" => return Some((400, json!({ "title": "Invalid request", "detail": "no" }))),
            _ => return None,
        };
        Some((200, page))
    })
}

#[test]
fn the_feed_is_printed_to_its_end() {
    let api = api();
    let line = |number| {
        format!(
            "{number}  2026-05-03T10:00:00.000Z  order.placed  7  spring  phone  42  2  \
             operator:.[2J  -\n"
        )
    };
    assert_eq!(api.text(&["events", "tail"], 0), format!("{}{}{}", line(1), line(2), line(3)));
    assert_eq!(api.lines().len(), 3);
    assert_eq!(api.text(&["events", "tail", "--after", "2"], 0), line(3));
    let text = api.text(&["events", "tail", "--json"], 0);
    let printed: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed, [event(1), event(2), event(3)]);
}

#[test]
fn following_goes_on_until_the_server_ends_and_says_where_to_continue() {
    let api = api();
    let output = api.run(&["events", "tail", "--follow", "--after", "8"]);
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(String::from_utf8(output.stdout.clone()).unwrap().starts_with("9  "), "{output:?}");
    assert!(stderr(&output).contains("go on with --after 9"), "{output:?}");
    assert!(api.lines().iter().all(|line| line.ends_with("wait_ms=20000")));
}

#[test]
fn a_refusal_and_wrong_usage_have_their_exit_codes() {
    let output = api().run(&["events", "tail", "--after", "7"]);
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(!stderr(&output).contains("go on with"), "there is no such place: {output:?}");
    assert_eq!(code(&api().run(&["events", "tail", "--after=-1"])), 2);
    assert_eq!(code(&api().run(&["events"])), 2);
}

#[test]
fn a_result_that_cannot_be_written_is_an_error_with_the_place_to_go_on() {
    let api = api();
    let words = ["events", "tail", "--after", "2", "--internal-url", &api.url];
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(Path::new("/"), &words, &[]).stdout(full).output().unwrap();
    assert_eq!(code(&output), 2, "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("cannot be written") && said.contains("--after 2"), "{said}");
}

/// The second event comes once the reader has gone. The feed breaks off behind the last one.
#[test]
fn the_feed_ends_when_its_reader_has_gone() {
    for more in [&["--follow"][..], &[]] {
        let (gone, is_gone) = mpsc::channel();
        let api = ScriptedApi::start(move |line| {
            let after: u64 = line.split(['=', '&']).nth(1)?.parse().ok()?;
            if after == 1 {
                is_gone.recv().ok()?;
            }
            (after < 1_000).then(|| (200, json!([event(after + 1)])))
        });
        let words = [&["events", "tail", "--internal-url", &api.url], more].concat();
        let mut tail = command(Path::new("/"), &words, &[]);
        let mut tail = tail.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(tail.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("1  "), "{line}");
        drop(reader);
        gone.send(()).unwrap();
        until_true("the end of the command", || tail.try_wait().unwrap().is_some());
        assert_eq!(tail.wait().unwrap().code(), Some(0), "{more:?}");
    }
}

#[test]
fn a_server_below_the_prefix_of_a_proxy_is_reached() {
    let api = ScriptedApi::always(200, json!([]));
    let url = format!("{}/shop/", api.url);
    let words = ["events", "tail", "--internal-url", &url];
    let output = command(Path::new("/"), &words, &[]).output().unwrap();
    assert_eq!(code(&output), 0, "{output:?}");
    let lines = api.lines();
    assert!(lines[0].starts_with("GET /shop/admin/v1/order-events?"), "{lines:?}");
}
