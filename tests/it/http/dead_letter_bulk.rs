//! The filters of dead letters, the verbs on all that match, and the record of who did what.

use std::time::Duration;

use diesel::connection::SimpleConnection;
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};
use tokio::time::sleep;

use super::dead_letters::{connect, get, ids, packed, post, store};
use super::{problem, selling, unlimited};
use crate::support::TestApp;
use crate::support::wait::until;

async fn found(app: &TestApp, query: &str) -> Json {
    let answer = get(app, query).await;
    assert_eq!(answer.status(), StatusCode::OK, "{query}");
    answer.json().await.unwrap()
}

fn bulk(filter: &Json, expected: u64) -> Json {
    json!({"filter": filter, "expected_count": expected, "reason": "by the test"})
}

async fn stepped(app: &TestApp, verb: &str, filter: &Json, expected: u64) -> Json {
    let answer = post(app, verb, Some(bulk(filter, expected))).await;
    assert_eq!(answer.status(), StatusCode::OK, "{verb}");
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
        ("?order=oldest", vec!["1", "2", "3"]),
        ("?order=newest&state=open", vec!["2", "1"]),
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
    let second = found(&app, "?limit=1&cursor=1&order=oldest").await;
    assert_eq!((ids(&second), &second["num_matching"]), (vec!["2"], &json!(2)));
    assert_eq!(second["next_cursor"], "2");
    for query in ["?sku_id=sku", "?buyer_id=x", "?request_id=x", "?since=now", "?order=x"] {
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
    let filter = json!({"state": "open", "origin": "consumer", "limit": 3});
    let refused =
        problem(post(&app, "/park", Some(bulk(&filter, 3))).await, 409, "other-count").await;
    assert_eq!(refused["actual"], 4);
    assert_eq!(found(&app, "").await["counts"]["parked"], 1, "nothing was changed");
    let open = json!({"state": "open"});
    for body in [
        Some(bulk(&json!({"state": "all"}), 6)),
        Some(bulk(&json!({"state": "replayed"}), 0)),
        Some(bulk(&json!({"state": "open", "x": 1}), 5)),
        Some(bulk(&json!({"state": "open", "limit": 501}), 5)),
        Some(json!({"filter": open, "expected_count": 5, "reason": " "})),
        Some(json!({"filter": open, "expected_count": 5, "max": 0})),
        Some(json!({"filter": open})),
        Some(json!({"expected_count": 5})),
        None,
    ] {
        problem(post(&app, "/park", body).await, 400, "invalid-request").await;
    }

    let first = stepped(&app, "/park", &filter, 4).await;
    assert_eq!(outcomes(&first), [("2", "parked"), ("3", "parked"), ("4", "parked")]);
    assert_eq!((&first["num_left"], &first["next_cursor"]), (&json!(1), &json!("2")));
    let rest = json!({"state": "open", "origin": "consumer", "cursor": "2"});
    let last = stepped(&app, "/park", &rest, 1).await;
    assert_eq!(outcomes(&last), [("1", "parked")]);
    assert_eq!((&last["num_left"], last.get("next_cursor")), (&json!(0), None));
    assert_eq!(outcomes(&stepped(&app, "/park", &filter, 0).await), [], "a repeat finds none");

    let parked = found(&app, "?state=parked").await;
    assert_eq!(ids(&parked), ["5", "4", "3", "2", "1"]);
    assert_eq!(parked["dead_letters"][1]["note"], "by the test");
    assert_eq!(ids(&found(&app, "?state=open").await), ["6"]);
    let expected = ["dead_letter:4", "park", "local", "by the test"].map(str::to_owned);
    assert_eq!(verbs(&app, "?subject=dead_letter:4").await, [expected]);
    assert_eq!(verbs(&app, "?subject=dead_letter:5").await.len(), 0);
}

#[tokio::test]
async fn a_verb_without_a_state_is_for_open_dead_letters() {
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", "00", 1), (2, 2, "consumer", "00", 1)]);
    let counted = post(&app, "/discard", Some(bulk(&json!({}), 2))).await;
    assert_eq!(problem(counted, 409, "other-count").await["actual"], 1);
    let step = stepped(&app, "/park", &json!({}), 1).await;
    assert_eq!((outcomes(&step), &step["num_left"]), (vec![("1", "parked")], &json!(0)));
    assert_eq!(stepped(&app, "/park", &json!({}), 0).await["dead_letters"], json!([]));
}

#[tokio::test]
async fn steps_may_begin_with_the_oldest_and_need_no_reason() {
    let app = selling(unlimited(), 5).await;
    store(&app, &(1..=3).map(|no| (no, 0, "consumer", "00", 1)).collect::<Vec<_>>());
    let step = async |filter: Json, expected_count: u64| -> Json {
        let body = json!({"filter": filter, "expected_count": expected_count, "max": 2});
        post(&app, "/park", Some(body)).await.json().await.unwrap()
    };
    let first = step(json!({"state": "open", "order": "oldest"}), 3).await;
    assert_eq!(outcomes(&first), [("1", "parked"), ("2", "parked")]);
    assert_eq!((&first["num_left"], &first["next_cursor"]), (&json!(1), &json!("2")));
    let last = step(json!({"state": "open", "order": "oldest", "cursor": "2"}), 1).await;
    assert_eq!((outcomes(&last), &last["num_left"]), (vec![("3", "parked")], &json!(0)));
    let parked = found(&app, "?state=parked&limit=1").await;
    assert_eq!(parked["dead_letters"][0]["note"], Json::Null);
}

/// A dead letter that is stored while a step begins is either expected or refuses the step.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_comes_meanwhile_is_not_acted_on() {
    const ROUNDS: i64 = 200;
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", "00", 1)]);
    let open = json!({"state": "open"});
    for round in 1..=ROUNDS {
        let storing = async {
            sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
            tokio::task::block_in_place(|| {
                store(&app, &[(round + 1, 0, "consumer", "00", 1)]);
            });
        };
        let parking = post(&app, "/park", Some(bulk(&open, 1)));
        let (answer, ()) = tokio::join!(parking, storing);
        if answer.status() == StatusCode::OK {
            let step: Json = answer.json().await.unwrap();
            assert_eq!(outcomes(&step).len(), 1, "round {round}: {step}");
        } else {
            let refused = problem(answer, 409, "other-count").await;
            assert_eq!(refused["actual"], 2, "round {round}");
            let rest = json!({"state": "open", "cursor": (round + 1).to_string()});
            assert_eq!(outcomes(&stepped(&app, "/park", &rest, 1).await).len(), 1);
        }
    }
}

#[tokio::test]
async fn a_dead_letter_that_refuses_the_verb_does_not_stop_the_others() {
    let app = selling(unlimited(), 5).await;
    store(&app, &[(1, 0, "consumer", &packed(100), 78), (2, 0, "consumer", "00", 1)]);
    let open = json!({"state": "open"});
    let step = stepped(&app, "/discard", &open, 2).await;
    let outcomes = outcomes(&step);
    assert_eq!(outcomes[0], ("1", "discarded"));
    assert!(outcomes[1].1.contains("cannot be read"), "{outcomes:?}");
    assert_eq!(step["dead_letters"][0]["state"], "discarded");
    let refused = post(&app, "/replay", Some(bulk(&open, 1))).await;
    problem(refused, 409, "no-broker").await;
    assert_eq!(ids(&found(&app, "?state=open").await), ["2"]);
}

#[tokio::test]
async fn an_unreadable_row_is_named_and_stops_no_other_dead_letter() {
    let app = selling(unlimited(), 5).await;
    let bodies = [packed(100), packed(200)];
    store(&app, &[(1, 0, "consumer", &bodies[0], 79), (2, 0, "consumer", &bodies[1], 79)]);
    let failure = "INSERT INTO failed_requests (request_id, sku_no, buyer_id, quantity, reason, \
                   recorded_at_ms) VALUES (100, 1, 7, 1, 'whim', 1)";
    connect(&app).batch_execute(failure).unwrap();
    let single = post(&app, "/1/discard", None).await;
    let single = problem(single, 409, "dead-letter-unreadable").await;
    assert!(single["detail"].as_str().unwrap().contains("reason is whim"), "{single}");
    let step = stepped(&app, "/discard", &json!({"state": "open"}), 2).await;
    let outcomes = outcomes(&step);
    assert!(outcomes[0].1.contains("reason is whim"), "{outcomes:?}");
    assert_eq!((outcomes[1], &step["stopped"]), (("2", "discarded"), &Json::Null));
}

#[tokio::test]
async fn an_unreadable_dead_letter_is_named_in_its_page_and_refuses_the_verb_alone() {
    let app = selling(unlimited(), 5).await;
    let all: Vec<_> = (1..=4).map(|no| (no, 0, "consumer", "00", 1)).collect();
    store(&app, &all);
    let damage = "UPDATE dead_letters SET origin = 'whim' WHERE letter_no IN (2, 3)";
    connect(&app).batch_execute(damage).unwrap();
    let unreadable = |page: &Json| {
        let one = |one: &Json| (one["id"].clone(), one["reason"].as_str().unwrap().to_owned());
        page["unreadable"].as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let page = found(&app, "?limit=2").await;
    assert_eq!((ids(&page), &page["next_cursor"]), (vec!["4"], &json!("3")));
    let named = unreadable(&page);
    assert_eq!((named.len(), &named[0].0), (1, &json!("3")));
    assert!(named[0].1.contains("dead letter 3") && named[0].1.contains("whim"), "{named:?}");
    let rest = found(&app, "?limit=2&cursor=3").await;
    assert_eq!((ids(&rest), unreadable(&rest).len()), (vec!["1"], 1));
    let step = stepped(&app, "/park", &json!({"state": "open"}), 4).await;
    let outcomes = outcomes(&step);
    assert_eq!((outcomes[0], outcomes[3]), (("1", "parked"), ("4", "parked")));
    for (id, refused) in &outcomes[1..3] {
        assert!(refused.contains("whim"), "{id}: {refused}");
    }
}

#[tokio::test]
async fn a_step_that_the_ledger_stopped_is_repeated_and_skips_no_dead_letter() {
    let app = selling(unlimited(), 5).await;
    store(&app, &(1..=4).map(|no| (no, 0, "consumer", "00", 1)).collect::<Vec<_>>());
    let mut ledger = connect(&app);
    ledger
        .batch_execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON dead_letters WHEN NEW.letter_no = 2 \
             BEGIN SELECT RAISE(ABORT, 'on purpose'); END",
        )
        .unwrap();
    let filter = json!({"state": "open", "order": "oldest", "limit": 3});
    let stopped = stepped(&app, "/park", &filter, 4).await;
    assert_eq!(outcomes(&stopped), [("1", "parked")]);
    assert!(stopped["stopped"].is_string(), "{stopped}");
    assert_eq!((&stopped["num_left"], stopped.get("next_cursor")), (&json!(3), None));
    ledger.batch_execute("DROP TRIGGER refuse").unwrap();
    let repeated = stepped(&app, "/park", &filter, 3).await;
    assert_eq!(outcomes(&repeated), [("2", "parked"), ("3", "parked"), ("4", "parked")]);
}

#[tokio::test]
async fn a_verb_whose_caller_hangs_up_is_carried_out_and_recorded() {
    let app = selling(unlimited(), 5).await;
    store(&app, &(1..=3).map(|no| (no, 0, "consumer", "00", 1)).collect::<Vec<_>>());
    let mut ledger = connect(&app);
    let rest = bulk(&json!({"state": "open"}), 2).to_string();
    for (path, body, num_parked) in [("3/park", "{}", 1), ("park", &*rest, 3)] {
        until("a record of every dead letter", async || {
            app.hang_up(&mut ledger, &format!("/dead-letters/{path}"), body).await;
            for _ in 0..20 {
                let recorded = verbs(&app, "").await;
                if recorded.iter().filter(|[_, verb, ..]| verb == "park").count() == num_parked {
                    return Some(());
                }
                sleep(Duration::from_millis(50)).await;
            }
            None
        })
        .await;
    }
    assert_eq!(ids(&found(&app, "?state=parked").await), ["3", "2", "1"]);
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
    for _repeat_changes_nothing in 0..2 {
        let change = app.client.request(Method::PATCH, &url);
        let change = change.json(&json!({"title": "Other", "reason": "a typo"}));
        assert_eq!(change.send().await.unwrap().status(), StatusCode::OK);
    }
    app.admin("/sales/sale/close", reason("sold out")).await;
    let row = |verb: &str, why: &str| ["sale:sale", verb, "local", why].map(str::to_owned);
    let expected = [
        row("close", "sold out"),
        row("change", "a typo"),
        row("stock", "found two more"),
        row("open", "sun"),
        row("pause", "rain"),
        row("open", ""),
        row("create", ""),
    ];
    assert_eq!(verbs(&app, "?subject=sale:sale").await, expected);
    assert_eq!(verbs(&app, "?limit=2").await, expected[..2]);
    let page = app.admin("/verbs?limit=2", None).await;
    let next = page["next_cursor"].as_str().unwrap();
    assert_eq!(verbs(&app, &format!("?limit=2&cursor={next}")).await, expected[2..4]);
    for subject in ["bogus", "sale", "", "Sale:sale"] {
        let url = format!("http://{}/admin/v1/verbs?subject={subject}", app.internal);
        problem(app.client.get(url).send().await.unwrap(), 400, "invalid-request").await;
    }
    assert_eq!(verbs(&app, "?subject=dead_letter:9").await, [] as [[String; 4]; 0]);
    for unusable in ["x".repeat(1_001), " ".to_owned()] {
        let close = app.client.post(format!("http://{}/admin/v1/sales/sale/close", app.internal));
        let close = close.json(&json!({ "reason": unusable })).send().await.unwrap();
        problem(close, 400, "invalid-request").await;
    }

    let buckets = app.admin("/sales/sale/buckets", None).await;
    let sku = &buckets["skus"][0];
    assert_eq!((&sku["health"], &sku["why"]), (&json!("ready"), &Json::Null));
    assert_eq!((&sku["free"], &sku["left_in_ledger"]), (&json!(7), &json!(7)));
}
