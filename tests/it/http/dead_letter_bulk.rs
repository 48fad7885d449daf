//! The filters of dead letters, the verbs on all that match, and the record of who did what.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::dead_letters::{get, ids, packed, post, store};
use super::{problem, selling, unlimited};
use crate::support::TestApp;

async fn found(app: &TestApp, query: &str) -> Json {
    let answer = get(app, query).await;
    assert_eq!(answer.status(), StatusCode::OK, "{query}");
    answer.json().await.unwrap()
}

async fn stepped(app: &TestApp, path: &str, expected: u64) -> Json {
    let body = json!({"expected": expected, "reason": "by the test"});
    let answer = post(app, path, Some(body)).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.json().await.unwrap()
}

/// Each dead letter of a step, with what became of it.
fn outcomes(step: &Json) -> Vec<(&str, &str)> {
    let items = step["dead_letters"].as_array().unwrap().iter();
    items
        .map(|item| {
            let text = if item["done"].is_string() { &item["done"] } else { &item["refused"] };
            (item["id"].as_str().unwrap(), text.as_str().unwrap())
        })
        .collect()
}

async fn verbs(app: &TestApp, query: &str) -> Vec<[String; 4]> {
    let answer = app.admin(&format!("/verbs{query}"), None).await;
    let text = |verb: &Json, name: &str| verb[name].as_str().unwrap_or("").to_owned();
    let names = ["subject", "verb", "operator", "reason"];
    let all = answer["verbs"].as_array().unwrap().iter();
    all.map(|verb| names.map(|name| text(verb, name))).collect()
}

#[tokio::test]
async fn dead_letters_are_found_by_every_condition() {
    let app = selling(unlimited(), 5).await;
    let dead_letter = |no, state, origin| (no, state, origin, "00", 1);
    store(
        &app,
        &[dead_letter(1, 0, "relay"), dead_letter(2, 0, "consumer"), dead_letter(3, 2, "consumer")],
    );
    for (query, expected) in [
        ("", vec!["3", "2", "1"]),
        ("?state=open", vec!["2", "1"]),
        ("?state=open&origin=consumer", vec!["2"]),
        ("?reason=REASON%202", vec!["2"]),
        ("?reason=100%25", vec![]),
        ("?reason=%20", vec!["3", "2", "1"]),
        ("?sale_id=sale", vec!["3", "2", "1"]),
        ("?sale_id=sale&sku_id=sku&buyer_id=7&request_id=200", vec!["2"]),
        ("?buyer_id=8", vec![]),
        ("?request_id=100&buyer_id=7", vec!["1"]),
        ("?since=2027-01-15T08:00:00Z", vec!["3", "2", "1"]),
        ("?since=2027-01-15T08:00:01Z", vec![]),
        ("?until=2027-01-15T08:00:00Z", vec![]),
        ("?until=2027-01-15T09:00:00%2B00:30&state=parked", vec!["3"]),
    ] {
        let page = found(&app, query).await;
        assert_eq!(ids(&page), expected, "{query}");
        assert_eq!(page["num_matching"], json!(expected.len()), "{query}");
    }
    let second = found(&app, "?limit=1&cursor=3").await;
    assert_eq!((ids(&second), &second["num_matching"]), (vec!["2"], &json!(2)));
    for query in ["?sku_id=sku", "?buyer_id=x", "?request_id=x", "?since=now"] {
        problem(get(&app, query).await, 400, "invalid-request").await;
    }
    for query in ["?sale_id=other", "?sale_id=sale&sku_id=other"] {
        problem(get(&app, query).await, 404, "unknown-sku").await;
    }
}

#[tokio::test]
async fn a_verb_on_all_that_match_runs_in_steps_and_only_on_the_expected_number() {
    let app = selling(unlimited(), 5).await;
    let open: Vec<_> = (1..=4).map(|no| (no, 0, "consumer", "00", 1)).collect();
    store(&app, &open);
    store(&app, &[(5, 2, "consumer", "00", 1), (6, 0, "relay", "00", 1)]);
    let path = "/park?state=open&origin=consumer&limit=3";
    let body = |expected| Some(json!({"expected": expected, "reason": "by the test"}));
    let refused = problem(post(&app, path, body(3)).await, 409, "other-count").await;
    assert_eq!(refused["actual"], 4);
    assert_eq!(found(&app, "").await["counts"]["parked"], 1, "nothing was changed");
    for (path, body) in [
        ("/park", body(5)),
        ("/park?state=replayed", body(0)),
        ("/park?state=open", Some(json!({"expected": 5, "reason": " "}))),
        ("/park?state=open", Some(json!({"reason": "x"}))),
        ("/park?state=open", None),
        ("/park?state=open&x=1", body(5)),
    ] {
        problem(post(&app, path, body).await, 400, "invalid-request").await;
    }

    let first = stepped(&app, path, 4).await;
    assert_eq!(outcomes(&first), [("2", "parked"), ("3", "parked"), ("4", "parked")]);
    assert_eq!((&first["num_left"], &first["next_cursor"]), (&json!(1), &json!("2")));
    let last = stepped(&app, &format!("{path}&cursor=2"), 1).await;
    assert_eq!(outcomes(&last), [("1", "parked")]);
    assert_eq!((&last["num_left"], last.get("next_cursor")), (&json!(0), None));
    assert_eq!(outcomes(&stepped(&app, path, 0).await), [], "a repeat finds none");

    let parked = found(&app, "?state=parked").await;
    assert_eq!(ids(&parked), ["5", "4", "3", "2", "1"]);
    assert_eq!(parked["dead_letters"][1]["note"], "by the test");
    assert_eq!(ids(&found(&app, "?state=open").await), ["6"]);
    let expected = ["letter:4", "park", "local", "by the test"].map(str::to_owned);
    assert_eq!(verbs(&app, "?subject=letter:4").await, [expected]);
    assert_eq!(verbs(&app, "?subject=letter:5").await.len(), 0);
}

/// A dead letter that is stored while a step begins is either expected or refuses the step.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_comes_meanwhile_is_not_acted_on() {
    const ROUNDS: i64 = 200;
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", "00", 1)]);
    let body = || Some(json!({"expected": 1, "reason": "by the test"}));
    for round in 1..=ROUNDS {
        let storing = async {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
            tokio::task::block_in_place(|| {
                store(&app, &[(round + 1, 0, "consumer", "00", 1)]);
            });
        };
        let parking = post(&app, "/park?state=open", body());
        let (answer, ()) = tokio::join!(parking, storing);
        if answer.status() == StatusCode::OK {
            let step: Json = answer.json().await.unwrap();
            assert_eq!(outcomes(&step).len(), 1, "round {round}: {step}");
        } else {
            let refused = problem(answer, 409, "other-count").await;
            assert_eq!(refused["actual"], 2, "round {round}");
            let cursor = format!("/park?state=open&cursor={}", round + 1);
            assert_eq!(outcomes(&stepped(&app, &cursor, 1).await).len(), 1);
        }
    }
}

#[tokio::test]
async fn a_dead_letter_that_refuses_the_verb_does_not_stop_the_others() {
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", &packed(100), 75), (2, 0, "consumer", "00", 1)]);
    let step = stepped(&app, "/discard?state=open", 2).await;
    let outcomes = outcomes(&step);
    assert_eq!(outcomes[0], ("1", "discarded"));
    assert!(outcomes[1].1.contains("cannot be read"), "{outcomes:?}");
    assert_eq!(step["dead_letters"][0]["state"], "discarded");
    let step = stepped(&app, "/replay?state=open", 1).await;
    assert_eq!(step["dead_letters"], json!([]));
    assert!(step["stopped"].as_str().unwrap().contains("no broker"), "{step}");
    assert_eq!(ids(&found(&app, "?state=open").await), ["2"]);
}

#[tokio::test]
async fn changes_by_operators_are_recorded_with_name_and_reason() {
    let app = selling(unlimited(), 5).await;
    let reason = |reason: &str| Some(json!({ "reason": reason }));
    for (verb, why) in [("pause", "rain"), ("pause", "rain again"), ("open", "sun")] {
        app.admin(&format!("/sales/sale/{verb}"), reason(why)).await;
    }
    let stock = json!({"delta": 2, "change_id": "c1", "reason": "found two more"});
    app.admin("/sales/sale/skus/sku/stock", Some(stock)).await;
    let url = format!("http://{}/admin/v1/sales/sale", app.internal);
    let change = app.client.request(Method::PATCH, url);
    let change = change.json(&json!({"title": "Other", "reason": "a typo"}));
    assert_eq!(change.send().await.unwrap().status(), StatusCode::OK);
    app.admin("/sales/sale/close", reason("sold out")).await;
    let row = |verb: &str, why: &str| ["sale:sale", verb, "local", why].map(str::to_owned);
    let expected = [
        row("close", "sold out"),
        row("change", "a typo"),
        row("stock", "found two more"),
        row("open", "sun"),
        row("pause", "rain"),
        row("open", ""),
    ];
    assert_eq!(verbs(&app, "?subject=sale:sale").await, expected);
    assert_eq!(verbs(&app, "?limit=2").await, expected[..2]);
    let page = app.admin("/verbs?limit=2", None).await;
    let next = page["next_cursor"].as_str().unwrap();
    assert_eq!(verbs(&app, &format!("?limit=2&cursor={next}")).await, expected[2..4]);
    let too_long = app.client.post(format!("http://{}/admin/v1/sales/sale/close", app.internal));
    let too_long = too_long.json(&json!({"reason": "x".repeat(1_001)})).send().await.unwrap();
    problem(too_long, 400, "invalid-request").await;

    let buckets = app.admin("/sales/sale/buckets", None).await;
    let sku = &buckets["skus"][0];
    assert_eq!((&sku["health"], &sku["why"]), (&json!("ready"), &Json::Null));
    assert_eq!((&sku["free"], &sku["left_in_ledger"]), (&json!(7), &json!(7)));
}
