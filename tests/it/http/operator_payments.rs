//! Payments that wait for an operator, over HTTP.

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use reqwest::{Response, StatusCode};
use serde_json::{Value as Json, json};

use super::payments::{order, paying, pressed, reaches, started};
use super::{problem, unlimited};
use crate::support::TestApp;

async fn ask(app: &TestApp, path: &str) -> Response {
    let url = format!("http://{}/admin/v1/payments{path}", app.internal);
    app.client.get(url).send().await.unwrap()
}

async fn listed(app: &TestApp, query: &str) -> Json {
    let answer = ask(app, query).await;
    assert_eq!(answer.status(), StatusCode::OK, "{query}");
    answer.json().await.unwrap()
}

async fn retry(app: &TestApp, id: &str) -> Response {
    let url = format!("http://{}/admin/v1/payments/{id}/retry", app.internal);
    app.client.post(url).send().await.unwrap()
}

async fn done(app: &TestApp, id: &str) -> Json {
    let answer = retry(app, id).await;
    let status = answer.status();
    let body: Json = answer.json().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{id}: {body}");
    body["done"].clone()
}

/// Changes the ledger file by hand.
fn by_hand(app: &TestApp, sql: &str) {
    let file = app.settings.ledger.url.strip_prefix("sqlite://").unwrap();
    let mut conn = SqliteConnection::establish(file).unwrap();
    conn.batch_execute(&format!("PRAGMA busy_timeout = 5000; {sql}")).unwrap();
}

fn ids(page: &Json) -> Vec<&str> {
    let payments = page["payments"].as_array().unwrap();
    payments.iter().map(|payment| payment["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_refund_that_was_given_up_is_listed_and_tried_again() {
    let app = paying(unlimited(), 10).await;
    let request = order(&app, 1).await;
    let payment = started(&app, &request).await;
    pressed(&app, &payment, "wrong_amount").await;
    reaches(&app, &request, "pending_payment", "refund_due").await;
    assert_eq!(listed(&app, "").await, json!({ "payments": [] }));
    by_hand(&app, "UPDATE payments SET state = 4, refund_due_ms = NULL, reason = 'card closed'");

    let page = listed(&app, "").await;
    let row = &page["payments"][0];
    let names = ["state", "sale_id", "buyer_id", "order_state", "amount", "reason"];
    let expected = ["refund_failed", "sale", "1", "pending_payment"].map(|text| json!(text));
    let expected = [&expected[..], &[json!(101), json!("card closed")]].concat();
    assert_eq!(names.map(|name| row[name].clone()).to_vec(), expected);
    let id = ids(&page)[0].to_owned();
    assert!(id.ends_with("-1"), "{id}");
    assert_eq!(done(&app, &id).await, "refund_due");
    assert_eq!(listed(&app, "").await, json!({ "payments": [] }));
    assert_eq!(ids(&listed(&app, "?state=refund_due").await), [&id]);
    by_hand(&app, "UPDATE payments SET state = 5, refund_due_ms = NULL, refunded_total = received");
    assert_eq!(done(&app, &id).await, "already");
    let retries = app.admin(&format!("/verbs?subject=payment:{id}"), None).await;
    let retries = retries["verbs"].as_array().unwrap();
    let named = |one: &Json| (one["verb"].clone(), one["operator"].clone());
    let named: Vec<_> = retries.iter().map(named).collect();
    assert_eq!(named, [(json!("retry"), json!("local"))], "only the one that changed something");
}

#[tokio::test]
async fn reports_of_unknown_payments_are_listed_until_they_are_matched() {
    let app = paying(unlimited(), 10).await;
    let request = order(&app, 1).await;
    let payment = started(&app, &request).await;
    let open = listed(&app, "?state=started").await;
    let attempt = ids(&open)[0].to_owned();
    let (known, price) = (payment["payment_id"].as_str().unwrap(), 100);
    let now_ms = floodgate::runtime::clock::wall_ms();
    for (number, payment_id) in [(1, "unknown"), (2, known)] {
        by_hand(
            &app,
            &format!(
                "INSERT INTO payment_events (provider, event_id, payment_id, outcome, received, \
                 currency, refunded_total, at_ms, attempt) VALUES ('demo', 'evt_{number}', \
                 '{payment_id}', 8, {price}, 'CNY', 0, {now_ms}, NULLIF('{attempt}', ''))"
            ),
        );
    }
    by_hand(&app, "UPDATE payment_events SET attempt = NULL WHERE event_id = 'evt_1'");
    let first = listed(&app, "?state=unmatched&limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = listed(&app, &format!("?state=unmatched&cursor={cursor}")).await;
    assert_eq!((ids(&first), ids(&second)), (vec!["event:demo:evt_1"], vec!["event:demo:evt_2"]));
    assert_eq!(second.get("next_cursor"), None);
    let number = request.split('-').next().unwrap();
    assert_eq!(second["payments"][0]["request_id"], json!(number));
    assert_eq!(done(&app, "event:demo:evt_1").await, "unmatched");
    assert_eq!(done(&app, "event:demo:evt_2").await, "applied");
    reaches(&app, &request, "paid", "applied").await;
    assert_eq!(done(&app, "event:demo:evt_2").await, "already");
    assert_eq!(ids(&listed(&app, "?state=unmatched").await), ["event:demo:evt_1"]);
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn an_open_payment_is_asked_about_and_unknown_ones_are_not_found() {
    let app = paying(unlimited(), 10).await;
    let request = order(&app, 1).await;
    started(&app, &request).await;
    assert_eq!(listed(&app, "?state=in_doubt").await, json!({ "payments": [] }));
    let open = listed(&app, "?state=started").await;
    assert_eq!(done(&app, ids(&open)[0]).await, "asked");
    reaches(&app, &request, "paying", "started").await;
    by_hand(&app, "UPDATE orders SET due_ms = NULL");
    assert_eq!(ids(&listed(&app, "?state=in_doubt").await), ids(&open));
    for unknown in ["nothing", "event:demo:evt_1", "event:demo", "1-1-1-1"] {
        problem(retry(&app, unknown).await, 404, "not-found").await;
    }
    let refused = problem(ask(&app, "?state=lost").await, 400, "invalid-request").await;
    assert!(refused["detail"].as_str().unwrap().contains("state"), "{refused}");
    problem(ask(&app, "?cursor=x").await, 400, "invalid-request").await;
}

#[tokio::test]
async fn a_report_whose_money_was_settled_elsewhere_is_resolved_for_good() {
    let app = paying(unlimited(), 10).await;
    let request = order(&app, 1).await;
    let payment = started(&app, &request).await;
    let known = payment["payment_id"].as_str().unwrap();
    let now_ms = floodgate::runtime::clock::wall_ms();
    let report = |event: &str, payment_id: &str| {
        format!(
            "INSERT INTO payment_events (provider, event_id, payment_id, outcome, received, \
             currency, refunded_total, at_ms) VALUES \
             ('demo', '{event}', '{payment_id}', 8, 100, 'CNY', 0, {now_ms})"
        )
    };
    by_hand(&app, &report("evt_1", "unknown"));
    let resolve = async |id: &str, body: Json| {
        let url = format!("http://{}/admin/v1/payments/{id}/resolve", app.internal);
        app.client.post(url).json(&body).send().await.unwrap()
    };
    let why = || json!({"reason": "refunded at the provider"});
    for body in [json!({}), json!({"reason": " "})] {
        problem(resolve("event:demo:evt_1", body).await, 400, "invalid-request").await;
    }
    for unknown in ["event:demo:evt_2", "1-1-1-1", "nothing"] {
        problem(resolve(unknown, why()).await, 404, "not-found").await;
    }
    let audit = app.assert_audit_holds().await;
    let counts = |audit: &Json| {
        ["num_unmatched_reports", "num_resolved_reports"].map(|name| audit[name].clone())
    };
    assert_eq!(counts(&audit), [json!(1), json!(0)]);
    for expected in ["resolved", "already"] {
        let answer: Json = resolve("event:demo:evt_1", why()).await.json().await.unwrap();
        assert_eq!(answer["done"], expected);
    }
    assert_eq!(listed(&app, "?state=unmatched").await, json!({ "payments": [] }));
    let resolved = listed(&app, "?state=resolved").await;
    assert_eq!(ids(&resolved), ["event:demo:evt_1"]);
    assert_eq!(resolved["payments"][0]["state"], "resolved");
    assert_eq!(counts(&app.assert_audit_holds().await), [json!(0), json!(1)]);
    let record = app.admin("/verbs?subject=payment:event:demo:evt_1", None).await;
    let record = &record["verbs"][0];
    assert_eq!((&record["verb"], &record["operator"]), (&json!("resolve"), &json!("local")));
    assert_eq!(record["reason"], "refunded at the provider");

    // Its payment is known, and yet takes no money: that was settled.
    by_hand(&app, &format!("UPDATE payment_events SET payment_id = '{known}'"));
    assert_eq!(done(&app, "event:demo:evt_1").await, "already");
    reaches(&app, &request, "paying", "started").await;
    by_hand(&app, &report("evt_3", known));
    assert_eq!(retry(&app, "event:demo:evt_3").await.status(), StatusCode::OK);
    reaches(&app, &request, "paid", "applied").await;
    problem(resolve("event:demo:evt_3", why()).await, 404, "not-found").await;
}
