//! The dead letter endpoints of operators, in a process without a broker. Replays are tested in
//! `actors/dead_letters.rs`.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::domain::{BucketNo, Epoch, OrderIntent, SkuNo, TraceId};
use reqwest::Response;
use serde_json::{Value as Json, json};

use super::{one_per_buyer, problem, selling, unlimited};
use crate::support::TestApp;
use crate::support::intents::pack;
use crate::support::offers::{buyer, request};

/// A connection to the ledger's file, as another process has one.
pub(super) fn connect(app: &TestApp) -> SqliteConnection {
    let file = app.settings.ledger.url.strip_prefix("sqlite://").unwrap();
    let mut conn = SqliteConnection::establish(file).unwrap();
    conn.batch_execute("PRAGMA busy_timeout = 5000").unwrap();
    conn
}

/// Stores dead letters in the ledger, as the collector of another process does: number, state,
/// origin, body in hexadecimal digits, length of the body.
pub(super) fn store(app: &TestApp, dead_letters: &[(i64, i16, &str, &str, i64)]) {
    let mut conn = connect(app);
    for (no, state, origin, body, body_bytes) in dead_letters {
        conn.batch_execute(&format!(
            "INSERT INTO dead_letters VALUES ({no}, x'{no:064x}', '{origin}', 'reason {no}', 3, \
             'm-{no}', '{{\"routing_key\":\"0\"}}', x'{body}', {body_bytes}, 1800000000000, 1, \
             {state}, 1800000000500, NULL); INSERT INTO dead_requests VALUES ({no}00, {no}, 1, 7)"
        ))
        .unwrap();
    }
}

/// Stores a dead letter with this one request.
fn store_with_request(app: &TestApp, no: i64, request: u64) {
    store(app, &[(no, 0, "consumer", &packed(request), 78)]);
    let update = format!("UPDATE dead_requests SET request_id = {request} WHERE letter_no = {no}");
    connect(app).batch_execute(&update).unwrap();
}

const TRACE_ID: TraceId = TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);

/// An intent as hexadecimal digits.
pub(super) fn packed(request_no: u64) -> String {
    let bytes = pack(&OrderIntent {
        request: request(request_no),
        sku: SkuNo(1),
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: buyer(7),
        quantity: 1,
        slot: 0,
        quota: None,
        amount: 100,
        placed_at_ms: 1_800_000_000_000,
        payment_window_s: 900,
        trace: TRACE_ID,
        published_at_ms: None,
    });
    let mut digits = String::new();
    for byte in bytes {
        write!(digits, "{byte:02x}").unwrap();
    }
    digits
}

pub(super) async fn get(app: &TestApp, path: &str) -> Response {
    let url = format!("http://{}/admin/v1/dead-letters{path}", app.internal);
    app.client.get(url).send().await.unwrap()
}

pub(super) async fn post(app: &TestApp, path: &str, body: Option<Json>) -> Response {
    let call = app.client.post(format!("http://{}/admin/v1/dead-letters{path}", app.internal));
    let call = if let Some(body) = body { call.json(&body) } else { call };
    call.send().await.unwrap()
}

pub(super) fn ids(page: &Json) -> Vec<&str> {
    let dead_letters = page["dead_letters"].as_array().unwrap();
    dead_letters.iter().map(|dead_letter| dead_letter["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_in_pages() {
    let app = selling(unlimited(), 5).await;
    let none: Json = get(&app, "").await.json().await.unwrap();
    assert_eq!(none["counts"], json!({"open": 0, "replayed": 0, "parked": 0, "discarded": 0}));
    assert_eq!((ids(&none).len(), none.get("next_cursor")), (0, None));

    store(
        &app,
        &[
            (1, 0, "relay", "00", 1),
            (2, 1, "consumer", "00", 1),
            (3, 0, "broker", "00", 1),
            (4, 2, "broker", "00", 1),
        ],
    );
    let page: Json = get(&app, "?limit=3").await.json().await.unwrap();
    assert_eq!(ids(&page), ["4", "3", "2"]);
    assert_eq!(page["counts"], json!({"open": 2, "replayed": 1, "parked": 1, "discarded": 0}));
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest: Json = get(&app, &format!("?limit=3&cursor={cursor}")).await.json().await.unwrap();
    assert_eq!((ids(&rest), rest.get("next_cursor")), (vec!["1"], None));
    let dead_letter = &rest["dead_letters"][0];
    for (name, value) in [
        ("state", json!("open")),
        ("origin", json!("relay")),
        ("reason", json!("reason 1")),
        ("attempts", json!(3)),
        ("message_id", json!("m-1")),
        ("body_bytes", json!(1)),
        ("dead_at", json!("2027-01-15T08:00:00.000Z")),
        ("changed_at", json!("2027-01-15T08:00:00.500Z")),
    ] {
        assert_eq!(dead_letter[name], value, "{name}");
    }
    let open: Json = get(&app, "?state=open").await.json().await.unwrap();
    assert_eq!(ids(&open), ["3", "1"]);
    let of_relay: Json = get(&app, "?state=open&origin=relay").await.json().await.unwrap();
    assert_eq!(ids(&of_relay), ["1"]);
    for query in ["?limit=0", "?limit=501", "?cursor=x", "?state=dead", "?origin=x", "?x=1"] {
        problem(get(&app, query).await, 400, "invalid-request").await;
    }
}

#[tokio::test]
async fn a_dead_letter_is_shown_with_all_that_is_stored() {
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", "ff00682069", 5_000_000)]);
    let dead_letter: Json = get(&app, "/1").await.json().await.unwrap();
    assert_eq!(dead_letter["headers"], json!({"routing_key": "0"}));
    assert_eq!(dead_letter["body"], STANDARD.encode(b"\xff\0h i"));
    assert_eq!(
        (&dead_letter["preview"], &dead_letter["cut"]),
        (&json!("ff00682069"), &json!(true))
    );
    assert_eq!((&dead_letter["requests"], &dead_letter["intents"]), (&json!(["100"]), &json!([])));
    assert_eq!(dead_letter["replayable"], false);
    let reason = dead_letter["why_not"].as_str().unwrap();
    assert!(reason.contains("no broker"), "{reason}");
    for unknown in ["/2", "/x", "/-1", "/+1", "/1.0", "/9223372036854775808", "/%EF%BC%91"] {
        problem(get(&app, unknown).await, 404, "unknown-dead-letter").await;
    }
}

#[tokio::test]
async fn a_dead_letter_is_parked_with_a_note_and_stays_parked() {
    let app = selling(unlimited(), 5).await;
    let dead_letter = |no, state| (no, state, "consumer", "00", 1);
    store(&app, &[dead_letter(1, 0), dead_letter(2, 1)]);
    let too_long = json!({"reason": "x".repeat(1001)});
    problem(post(&app, "/1/park", Some(too_long)).await, 400, "invalid-request").await;
    for other in [json!({"why": 1}), json!({"note": "a test"})] {
        problem(post(&app, "/1/park", Some(other)).await, 400, "invalid-request").await;
    }

    let body = Some(json!({"reason": "another party"}));
    let done: Json = post(&app, "/1/park", body).await.json().await.unwrap();
    assert_eq!(
        (&done["done"], &done["dead_letter"]["state"]),
        (&json!("parked"), &json!("parked"))
    );
    assert_eq!(done["dead_letter"]["note"], "another party");
    let again: Json = post(&app, "/1/park", None).await.json().await.unwrap();
    assert_eq!(again["done"], "already");
    assert_eq!(again["dead_letter"]["note"], "another party");
    problem(post(&app, "/2/park", None).await, 409, "dead-letter-conflict").await;
    problem(post(&app, "/9/park", None).await, 404, "unknown-dead-letter").await;

    let document = app.client.get(format!("http://{}/openapi.json", app.internal));
    let document: Json = document.send().await.unwrap().json().await.unwrap();
    let members = &document["components"]["schemas"]["VerbBody"]["properties"];
    assert!(members["reason"].is_object() && members["note"].is_null(), "{members}");
}

/// The number of a request that is an order.
async fn ordered_request(app: &TestApp) -> u64 {
    let id = app.request_id("sale", 7).await;
    let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    assert_eq!(app.buy("sale", 7, purchase).await.status(), 200);
    id.split('-').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_dead_letter_is_discarded_unless_its_requests_are_orders() {
    let app = selling(unlimited(), 5).await;
    let ordered = ordered_request(&app).await;
    store(
        &app,
        &[
            (1, 0, "consumer", &packed(100), 78),
            (2, 1, "consumer", "00", 1),
            (3, 0, "consumer", "00", 1),
        ],
    );
    store_with_request(&app, 4, ordered);
    let too_long = json!({"reason": "x".repeat(1001)});
    problem(post(&app, "/1/discard", Some(too_long)).await, 400, "invalid-request").await;
    problem(post(&app, "/1/discard", Some(json!({"note": "x"}))).await, 400, "invalid-request")
        .await;

    let body = Some(json!({"reason": "cancelled"}));
    let done: Json = post(&app, "/1/discard", body).await.json().await.unwrap();
    let dead_letter = &done["dead_letter"];
    assert_eq!((&done["done"], &dead_letter["state"]), (&json!("discarded"), &json!("discarded")));
    assert_eq!(dead_letter["note"], "cancelled");
    let again: Json = post(&app, "/1/discard", None).await.json().await.unwrap();
    assert_eq!(
        (&again["done"], &again["dead_letter"]["note"]),
        (&json!("already"), &json!("cancelled"))
    );
    let trace = app.admin("/requests/100/trace", None).await;
    let stages = trace["stages"].as_array().unwrap();
    let stage_states: Vec<_> =
        stages.iter().map(|stage| (&stage["stage"], &stage["state"])).collect();
    let (discarded, failed) = (json!("discarded"), json!("failed"));
    let (gate, dead_letter, ledger) = (json!("gate"), json!("dead_letter"), json!("ledger"));
    assert_eq!(stage_states, [(&gate, &failed), (&dead_letter, &discarded), (&ledger, &failed)]);
    problem(post(&app, "/1/replay", None).await, 409, "dead-letter-conflict").await;
    problem(post(&app, "/1/park", None).await, 409, "dead-letter-conflict").await;
    let discarded: Json = get(&app, "/1").await.json().await.unwrap();
    let why_not = discarded["why_not"].as_str().unwrap();
    assert!(discarded["replayable"] == false && why_not.contains("was discarded"), "{discarded}");

    problem(post(&app, "/2/discard", None).await, 409, "dead-letter-conflict").await;
    problem(post(&app, "/3/discard", None).await, 409, "dead-letter-not-replayable").await;
    problem(post(&app, "/4/discard", None).await, 409, "dead-letter-ordered").await;
    problem(post(&app, "/9/discard", None).await, 404, "unknown-dead-letter").await;
    let page: Json = get(&app, "?state=discarded").await.json().await.unwrap();
    assert_eq!((ids(&page), &page["counts"]["discarded"]), (vec!["1"], &json!(1)));
}

/// A request of `one_per_buyer` that failed undecided does not stand in the way of the next one.
#[tokio::test]
async fn the_buyer_of_discarded_requests_buys_again_and_sees_what_is_bought() {
    let app = selling(one_per_buyer(), 5).await;
    let mine = async || app.get("/v1/sales/sale/mine", 7).await.1["skus"][0].clone();
    let mut id = app.request_id("sale", 7).await;
    for no in 1..=3 {
        store_with_request(&app, no, id.split('-').next().unwrap().parse().unwrap());
        let discarded = post(&app, &format!("/{no}/discard"), None).await;
        assert_eq!(discarded.status(), 200);
        let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        let failed = problem(app.buy("sale", 7, purchase).await, 409, "discarded").await;
        id = failed["again"].as_str().unwrap().to_owned();
        assert_eq!(mine().await, json!({"sku_id": "sku", "owned": 0, "request_id": id}));
        // Without an id, another quantity is a second purchase of the first request.
        let other = app.buy("sale", 7, json!({"sku_id": "sku", "quantity": 2})).await;
        let other = problem(other, 409, "discarded").await;
        assert!(no > 1 || other["again"] == id, "{other}");
    }
    let purchase = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
    app.bought("sale", 7, purchase).await;
    let expected = json!({"sku_id": "sku", "owned": 2, "request_id": id, "state": "success"});
    assert_eq!(mine().await, expected);
}

#[tokio::test]
async fn without_a_broker_a_replay_is_refused() {
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", "00", 1), (2, 1, "consumer", "00", 1)]);
    problem(post(&app, "/1/replay", None).await, 409, "no-broker").await;
    let done: Json = post(&app, "/2/replay", None).await.json().await.unwrap();
    assert_eq!(done["done"], "already", "a repeat returns the earlier outcome");
    problem(post(&app, "/9/replay", None).await, 404, "unknown-dead-letter").await;
}

#[tokio::test]
async fn without_a_broker_a_dead_letter_whose_requests_are_orders_is_resolved() {
    let app = selling(unlimited(), 5).await;
    store_with_request(&app, 1, ordered_request(&app).await);
    store_with_request(&app, 2, 100);
    let shown: Json = get(&app, "/1").await.json().await.unwrap();
    assert_eq!(shown["replayable"], true);
    let filter = json!({"state": "open", "order": "oldest"});
    let all = json!({"filter": filter, "expected_count": 2, "reason": "by the test"});
    let step: Json = post(&app, "/replay", Some(all)).await.json().await.unwrap();
    assert_eq!(step["dead_letters"][0]["done"], "resolved", "{step}");
    assert!(step["stopped"].as_str().unwrap().contains("no broker"), "{step}");
    problem(post(&app, "/2/replay", None).await, 409, "no-broker").await;
}

#[tokio::test]
async fn a_trace_and_an_audit_show_dead_letters() {
    let app = selling(unlimited(), 5).await;
    let (body, trace_id) = (packed(100), format!("{:032x}", TRACE_ID.0));
    store(&app, &[(1, 0, "consumer", &body, 78)]);
    let trace = app.admin("/requests/100/trace", None).await;
    assert_eq!((&trace["trace_id"], &trace["took_ms"]), (&json!(trace_id), &Json::Null));
    let stage = &trace["stages"][0];
    assert_eq!((&stage["stage"], &stage["state"]), (&json!("dead_letter"), &json!("open")));
    assert_eq!((&stage["holder"], &stage["reason"]), (&json!("dead letter 1"), &json!("reason 1")));
    let audited = app.admin("/audit", Some(json!({}))).await;
    assert_eq!((&audited["num_dead_letters"], &audited["holds"]), (&json!(1), &json!(true)));
    // By the ids of messages of one and of several requests, too.
    for message in ["100-1", "100-3"] {
        let of_message = app.admin(&format!("/requests/{message}/trace"), None).await;
        assert_eq!((&of_message["request"], &of_message["stages"][0]), (&json!("100"), stage));
        let page: Json = get(&app, &format!("?request_id={message}")).await.json().await.unwrap();
        assert_eq!(ids(&page), ["1"]);
    }
    for (id, status, code) in [
        ("7", 404, "not-found"),
        ("100-", 400, "invalid-request"),
        ("100-x", 400, "invalid-request"),
        ("nameless-1", 400, "invalid-request"),
    ] {
        let path = format!("http://{}/admin/v1/requests/{id}/trace", app.internal);
        let refused = app.client.get(path).send().await.unwrap();
        let refused = problem(refused, status, code).await;
        assert!(status == 400 || refused["request_id"] == "7", "{refused}");
    }
}

#[tokio::test]
async fn an_unreadable_dead_letter_hides_no_other_stage_of_a_trace() {
    let app = selling(unlimited(), 5).await;
    (1..=2).for_each(|no| store_with_request(&app, no, 100));
    let damage = "UPDATE dead_letters SET origin = 'whim' WHERE letter_no = 2";
    connect(&app).batch_execute(damage).unwrap();
    let trace = app.admin("/requests/100/trace", None).await;
    let stages: Vec<_> = trace["stages"].as_array().unwrap().iter().collect();
    let shown: Vec<_> =
        stages.iter().map(|it| (&it["stage"], &it["state"], &it["holder"])).collect();
    let (stage, first, second) =
        (json!("dead_letter"), json!("dead letter 1"), json!("dead letter 2"));
    let (open, unknown) = (json!("open"), json!("unknown"));
    assert_eq!(shown, [(&stage, &open, &first), (&stage, &unknown, &second)]);
    assert!(stages[1]["reason"].as_str().unwrap().contains("whim"), "{trace}");
    assert_eq!(trace["trace_id"], format!("{:032x}", TRACE_ID.0));
}
