//! Commands that call the admin API, against a server whose answers the test writes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::{code, floodgate, run};
use crate::support::servers::Port;

/// A server with the test's answers, and what it was asked.
pub struct ScriptedApi {
    pub url: String,
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedApi {
    /// Answers each request line, such as `POST /sales/spring/open`, with a status and a body; an
    /// empty one for `null`. Closes the connection where there is no answer.
    pub fn start(answer: impl Fn(&str) -> Option<(u16, Json)> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read(&mut stream);
                let line = request.split(" HTTP/").next().unwrap().replace("/admin/v1", "");
                log.lock().unwrap().push(request);
                let Some((status, body)) = answer(&line) else { continue };
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let (length, close) = (body.len(), "connection: close");
                let head = format!("HTTP/1.1 {status} X\r\n{close}\r\ncontent-length: {length}");
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
            }
        });
        Self { url, requests }
    }

    /// One answer to every request.
    pub fn always(status: u16, body: Json) -> Self {
        Self::start(move |_| Some((status, body.clone())))
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let (_, bind) = self.url.split_once("//").unwrap();
        floodgate(Path::new("/"), words).env("FLOODGATE__INTERNAL__BIND", bind).output().unwrap()
    }

    /// What the command prints as text. Requires its exit code.
    pub fn text(&self, words: &[&str], exit: i32) -> String {
        let output = self.run(words);
        assert_eq!(code(&output), exit, "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The bodies of the requests since the last call.
    pub fn bodies(&self) -> Vec<Json> {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let body = |request: &String| {
            serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
        };
        requests.iter().map(body).collect()
    }

    /// The lines of the requests since the last call.
    pub fn lines(&self) -> Vec<String> {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let line = |request: &String| request.split(" HTTP/").next().unwrap().to_owned();
        requests.iter().map(line).collect()
    }
}

fn read(stream: &mut TcpStream) -> String {
    let (mut request, mut bytes) = (String::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut bytes).unwrap();
        request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        let body = request.split_once("\r\n\r\n").map(|(_, body)| body);
        let is_complete = |body: &str| request.starts_with("GET") || body.ends_with('}');
        if read == 0 || body.is_some_and(is_complete) {
            return request;
        }
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn each_answer_maps_to_its_exit_code() {
    let problem = || json!({ "title": "no such sale", "detail": "s9\u{1b}[2J" });
    let cases = [
        (200, Json::Null, 0),
        (401, problem(), 3),
        (403, Json::Null, 3),
        (403, json!({ "title": "may only read", "code": "forbidden" }), 3),
        (404, problem(), 1),
        (409, problem(), 1),
        (404, json!({ "title": "x", "code": "not-found" }), 2),
        (404, Json::Null, 2),
        (404, json!({ "title": "x", "code": "not-found", "request_id": "7" }), 1),
        (503, problem(), 2),
        (502, Json::Null, 2),
    ];
    for (status, body, exit) in cases {
        let output = ScriptedApi::always(status, body).run(&["sale", "open", "s9"]);
        assert_eq!(code(&output), exit, "{status}: {output:?}");
    }
    let output = ScriptedApi::always(404, problem()).run(&["sale", "open", "s9"]);
    assert!(stderr(&output).contains("no such sale: s9.[2J\n    -> "), "{output:?}");
}

#[test]
fn a_server_without_an_answer_differs_from_no_server() {
    let output = ScriptedApi::start(|_| None).run(&["sale", "list"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("the outcome is not known"), "{output:?}");
    let closed = Port::claim().unwrap();
    let unusable = ["localhost:9090", "https://x", "://", &format!("http://{}", closed.addr())];
    for url in unusable {
        // With its own server named, the audit does not read the local ledger instead.
        for words in [["sale", "list"].as_slice(), &["audit"]] {
            let output = run(Path::new("/"), &[words, &["--internal-url", url]].concat());
            assert_eq!(code(&output), 2, "{output:?}");
            assert!(stderr(&output).contains(url), "{output:?}");
        }
    }
}

#[test]
fn a_request_carries_token_escaped_path_and_body() {
    let api = ScriptedApi::always(200, json!({}));
    let words = ["sale", "open", "a b/c", "--internal-url", &api.url];
    let (key, token) = ("FLOODGATE__ADMIN__TOKEN", "s3cret-0123456789");
    let output = floodgate(Path::new("/"), &words).env(key, token).output();
    assert_eq!(code(&output.unwrap()), 0);
    let request = api.requests.lock().unwrap()[0].clone();
    assert!(request.starts_with("POST /admin/v1/sales/a%20b%2Fc/open HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer s3cret-0123456789\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{}"), "{request}");
    assert_eq!(code(&api.run(&["sale", "open", ".."])), 2, "it would be another path");
}

#[test]
fn sales_are_shown_as_tables() {
    let sale = json!({
        "sale_id": "spring", "title": "Spring", "phase": "open",
        "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2030-01-02T00:00:00Z",
        "skus": [{ "sku_id": "phone", "title": "Phone", "stock_left": 3, "price": 10,
                   "policy": { "kind": "quota", "limit": 2 } }],
    });
    let (first, mut second) = (sale.clone(), sale.clone());
    second["sale_id"] = json!("summer");
    let api = ScriptedApi::start(move |line| {
        let page = if line.contains("cursor=7") {
            json!({ "sales": [second] })
        } else {
            json!({ "sales": [first], "next_cursor": "7" })
        };
        Some((200, page))
    });
    let text = api.text(&["sale", "list"], 0);
    for id in ["spring", "summer"] {
        assert!(text.contains(&format!("\n{id}  open   2030-01-01T00:00:00Z")), "{text}");
    }
    assert_eq!(api.lines().len(), 2, "a call for each page");
    let none = ScriptedApi::always(200, json!({ "sales": [] })).text(&["sale", "list"], 0);
    assert_eq!(none, "no sales; create one: floodgate sale create FILE\n");

    // A count that is not available is a question mark.
    let funnel = json!({ "stages": [
        { "stage": "unsettled", "count": 1200, "unit": "requests", "oldest_age_ms": 31_007 },
        { "stage": "broker", "count": null, "unit": "messages", "oldest_age_ms": null },
    ] });
    let api = ScriptedApi::start(move |line| {
        let verb = json!({ "at": "2030-01-01T00:00:00Z", "verb": "change", "operator": "anna",
            "detail": "price of phone 10 -> 9", "reason": "sold\u{1b}[2J" });
        let verbs = json!({ "verbs": [verb] });
        Some(match line {
            "GET /verbs?subject=sale%3Aspring&limit=10" => (200, verbs),
            line if line.ends_with("/funnel") => (200, funnel.clone()),
            _ => (200, sale.clone()),
        })
    });
    let text = api.text(&["sale", "show", "spring"], 0);
    assert!(text.contains("  change  price of phone 10 -> 9  anna  sold.[2J"), "{text}");
    assert!(text.starts_with("sale spring: Spring (open)\n"), "{text}");
    assert!(text.contains("FREE  PRICE  POLICY   TITLE\nphone  3     10     quota 2"), "{text}");
    assert!(text.contains("\nunsettled  1,200  requests  31.007 s"), "{text}");
    assert!(text.contains("\nbroker     ?      messages  -"), "{text}");
}

#[test]
fn an_unreadable_description_is_named() {
    let api = ScriptedApi::always(200, json!({}));
    let missing = api.run(&["sale", "create", "/nowhere/sale.json"]);
    assert!(stderr(&missing).contains("/nowhere/sale.json"), "{missing:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"sale_id\": }").unwrap();
    let broken = api.run(&["sale", "create", file.path().to_str().unwrap()]);
    assert!(stderr(&broken).contains("line 1 column 13"), "{broken:?}");
    assert_eq!((code(&missing), code(&broken), api.lines().len()), (2, 2, 0));

    let help = api.text(&["sale", "create", "--help"], 0);
    let example = help.split_once("sale.json:\n").unwrap().1;
    let mut examples = serde_json::Deserializer::from_str(example).into_iter::<Json>();
    assert_eq!(examples.next().unwrap().unwrap()["skus"][0]["initial_stock"], 1000);
}

#[test]
fn faults_of_other_sections_do_not_stop_an_operator() {
    let secret = ["--set", "auth.jwt_secret_file=/nowhere/secret"];
    let api = ScriptedApi::always(200, json!({ "sales": [] }));
    api.text(&[&["sale", "list"], &secret[..]].concat(), 0);
    let stopped = run(Path::new("/"), &[&["check-config"], &secret[..]].concat());
    assert_eq!(code(&stopped), 3);
    assert!(stderr(&stopped).contains("/nowhere/secret"), "{stopped:?}");
}

#[test]
fn a_rebuild_names_its_skus_and_each_refusal_has_its_remedy() {
    let words = ["rebuild", "--sale", "spring"];
    let rebuilt = json!({ "sale_id": "spring", "skus": ["phone", "case"] });
    let text = ScriptedApi::always(200, rebuilt).text(&words, 0);
    assert_eq!(text, "sale spring is rebuilt from the ledger: phone, case\n");
    for (status, problem, exit, remedy) in [
        (409, "no-buckets", 1, "restart that process"),
        (409, "ledger-behind", 1, "`floodgate sale open spring`"),
        (404, "unknown-sku", 1, "sale list"),
        (503, "busy", 2, "unless `floodgate doctor` fails on the buckets"),
    ] {
        let output =
            ScriptedApi::always(status, json!({ "title": "no", "code": problem })).run(&words);
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(stderr(&output).contains(remedy), "{output:?}");
    }
}

fn traced(stages: Json, next: &str, took_ms: Option<u64>, exit: i32) -> String {
    let trace = json!({
        "request": "9", "sku_id": "phone", "sale_id": null, "trace_id": "4bf9\u{1b}[8m",
        "stages": stages, "took_ms": took_ms, "next": next,
    });
    ScriptedApi::always(200, trace).text(&["trace", "9"], exit)
}

#[test]
fn a_trace_is_a_table_above_the_next_step() {
    let stages = json!([
        { "stage": "gate", "says": "waits for the ledger", "state": "queued", "quantity": 1,
          "at": "2030-01-01T00:00:00.000Z" },
        { "stage": "relay", "says": "is being published", "state": "queued", "holder": "node-1/2" },
    ]);
    let next = "wait: its relay publishes it; if it stays: `floodgate doctor`, \
        docs/runbooks/order-stuck.md";
    let text = traced(stages, next, None, 0);
    let head = "request 9, SKU phone, trace 4bf9.[8m\n\nSTAGE  STATE   AT";
    assert!(text.starts_with(head), "{text}");
    assert!(text.contains("\nrelay  queued  -                         node-1/2  -"), "{text}");
    let end = "if it stays: `floodgate doctor`, docs/runbooks/order-stuck.md\n";
    assert!(text.ends_with(end) && !text.contains("took"), "{text}");

    let untrusted = json!([{
        "stage": "dead_letter", "state": "open", "holder": "dead letter 17\u{1b}[1A",
        "reason": "no such SKU\u{1b}[2J\nnext: all is well",
    }]);
    let text = traced(untrusted, "next: floodgate dlq show 17\u{1b}[1A", None, 0);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    assert!(text.contains("  no such SKU.[2J.next: all is well\n"), "{text}");

    let stages = json!([
        { "stage": "relay", "state": "published", "at": "2030-01-01T00:00:00.020Z" },
        { "stage": "ledger", "state": "pending_payment", "at": "2030-01-01T00:00:00.041Z" },
    ]);
    let text = traced(stages, "done: it is an order", Some(41), 0);
    assert!(text.contains("\nrelay   published        2030-01-01T00:00:00.020Z"), "{text}");
    assert!(text.contains("\n\ntook 41 ms from the click to the ledger\ndone: "), "{text}");

    let missing =
        ScriptedApi::always(404, json!({ "title": "No such request" })).run(&["trace", "9"]);
    assert_eq!(code(&missing), 1);
    assert!(stderr(&missing).contains("order queues are empty"), "{missing:?}");
}

#[test]
fn a_trace_ends_with_the_next_step_of_the_server() {
    let stage = |state: &str| json!([{ "stage": "gate", "state": state }]);
    for (state, exit) in [("queued", 0), ("unknown", 2)] {
        let text = traced(stage(state), "wait: a relay takes it", None, exit);
        assert_eq!(text.lines().last().unwrap(), "wait: a relay takes it", "{text}");
    }
}

#[test]
fn the_exit_code_of_an_audit_is_never_better_than_the_report() {
    for (holds, could_tell, exit) in [
        (json!(true), json!(true), 0),
        (json!(true), json!(false), 2),
        (json!(false), json!(false), 1),
        (Json::Null, json!(true), 2),
        (Json::Null, Json::Null, 2),
    ] {
        let report = json!({ "holds": holds, "could_tell": could_tell });
        ScriptedApi::always(200, report).text(&["audit"], exit);
    }
    let report = json!({
        "holds": false, "could_tell": true, "num_orders": 7, "num_violations": 1,
        "num_dead_letters": 2,
        "violations": [
            { "invariant": "NoOversell", "verdict": "over_sell", "detail": "sku 3: 11 of 10" },
        ],
        "repairs": [
            { "action": "record", "outcome": "failed_final", "detail": "sku 3: 11 of 10" },
            { "action": "submit", "outcome": null, "detail": "request 9" },
        ],
        "judged": [{ "invariant": "LimitHeld", "evidence": "orders per buyer" }],
        "notes": ["gates were busy"],
    });
    let expected = [
        "VIOLATED: 1 found (7 orders read, 2 dead letters)",
        "  violated  NoOversell: OVER_SELL: sku 3: 11 of 10",
        "  repair    record: FAILED_FINAL: sku 3: 11 of 10",
        "  repair    submit: planned: request 9",
        "  judged    LimitHeld: orders per buyer",
        "  note      gates were busy",
    ];
    let text = ScriptedApi::always(200, report).text(&["audit"], 1);
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_refused_audit_is_no_violation() {
    for (status, code, exit) in [(404, "a", 2), (409, "b", 2), (401, "c", 3), (403, "d", 3)] {
        let problem = json!({"code": code, "title": "Refused", "status": status});
        ScriptedApi::always(status, problem).text(&["audit"], exit);
    }
}

#[test]
fn an_audit_without_server_and_ledger_is_undecided() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(code(&run(directory.path(), &["audit"])), 2, "no ledger");
    assert_eq!(code(&run(directory.path(), &["migrate"])), 0);
    assert_eq!(code(&run(directory.path(), &["audit"])), 2, "the gates are not judged");
    let closed = Port::claim().unwrap();
    let own = format!("internal.bind={}", closed.addr());
    let own = run(directory.path(), &["audit", "--set", &own]);
    assert!(stderr(&own).contains("reading the ledger itself"), "{own:?}");
    let named = format!("http://{}", closed.addr());
    let named = run(directory.path(), &["audit", "--internal-url", &named]);
    assert_eq!(code(&named), 2);
    assert!(named.stdout.is_empty(), "the ledger may be another server's: {named:?}");
    let unknown = run(directory.path(), &["audit", "--sale", "spring"]);
    assert_eq!(code(&unknown), 2);
    assert!(stderr(&unknown).contains("spring"), "{unknown:?}");
}

#[test]
fn every_verb_takes_a_reason() {
    let description = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(description.path(), super::SALE).unwrap();
    let file = description.path().to_str().unwrap();
    let api = ScriptedApi::always(200, json!({}));
    for verb in [
        &["sale", "create", file][..],
        &["sale", "open", "spring"],
        &["rebuild", "--sale", "spring", "--sku", "phone", "--bucket", "3"],
        &["audit", "--repair"],
        &["payments", "retry", "7-42-123-1"],
        &["dlq", "replay", "17"],
    ] {
        api.run(&[verb, &["--reason", "rain"]].concat());
        let sent = api.bodies().pop().unwrap();
        assert_eq!(sent["reason"], "rain", "{verb:?}");
        if verb[0] == "rebuild" {
            assert_eq!((&sent["sku_id"], &sent["bucket"]), (&json!("phone"), &json!(3)));
        }
    }
}
