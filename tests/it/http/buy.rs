//! The responses of `POST /v1/buy`, row by row of the contract.

use std::sync::atomic::{AtomicU64, Ordering};

use floodgate::config::Tier;
use floodgate::runtime::clock::wall_ms;
use futures_util::future::join_all;
use serde_json::{Value as Json, json};

use super::{Case, cases, fresh, one_per_buyer, problem, selling, settings, unlimited};
use crate::support::app::sale_body;
use crate::support::{TestApp, wait};

fn purchase(quantity: u32, request_id: &str) -> Json {
    json!({"sku_id": "sku", "quantity": quantity, "request_id": request_id})
}

#[tokio::test]
async fn an_accepted_purchase_is_an_order() {
    let app = selling(one_per_buyer(), 5).await;
    let response = app.buy("sale", 42, json!({"sku_id": "sku", "quantity": 2})).await;
    // Tier `pipeline` answers before the order is in the ledger, the other tiers after.
    let is_queued = app.settings.tier == Tier::Pipeline;
    assert_eq!(response.status(), if is_queued { 202 } else { 200 });
    let headers = response.headers().clone();
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["cache-control"], "no-store");
    assert!(headers.get("idempotent-replayed").is_none());
    assert!(headers["traceparent"].to_str().unwrap().starts_with("00-"));
    let mut body: Json = response.json().await.unwrap();
    let id = body["request_id"].as_str().unwrap().to_owned();
    let id = id.as_str();
    assert_eq!(headers["location"], format!("/v1/requests/{id}"));
    if is_queued {
        assert!(["1", "2"].contains(&headers["retry-after"].to_str().unwrap()));
        assert_eq!(body["state"], "queued");
        body = app.bought("sale", 42, json!({"sku_id": "sku", "quantity": 2})).await;
    }
    assert_eq!(body["state"], "success");
    let order = &body["order"];
    assert_eq!(order["request_id"], id);
    assert_eq!(order["sale_id"], "sale");
    assert_eq!(order["sku_id"], "sku");
    assert_eq!(order["buyer_id"], "42");
    assert_eq!(order["quantity"], 2);
    assert_eq!(order["amount"], 200);
    assert_eq!(order["state"], "pending_payment");
    let time = |name: &str| {
        let text = order[name].as_str().unwrap();
        chrono::DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()
    };
    // The window begins with the commit; the deadline is in whole seconds.
    let (pay_by, placed_at) = (time("pay_by"), time("placed_at"));
    assert_eq!(pay_by % 1_000, 0);
    let committed_at = pay_by - 900_000;
    assert!(placed_at - 1_000 < committed_at && committed_at <= wall_ms(), "{order}");
    assert!(order["pay_by"].as_str().unwrap().ends_with('Z'));
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn the_same_request_again_reads_the_first_answer() {
    let app = selling(unlimited(), 5).await;
    let id = app.request_id("sale", 1).await;
    let first = app.bought("sale", 1, purchase(2, &id)).await;
    for _ in 0..3 {
        let again = app.buy("sale", 1, purchase(2, &id)).await;
        assert_eq!(again.status(), 200);
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(again.json::<Json>().await.unwrap(), first);
    }
    wait::until("the stock that is left", async || {
        let (_, sale) = app.get("/v1/sales/sale", 1).await;
        (sale["skus"][0]["stock_left"] == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_same_request_with_other_content_is_refused() {
    let app = selling(one_per_buyer(), 5).await;
    let id = app.request_id("sale", 1).await;
    app.bought("sale", 1, purchase(2, &id)).await;
    let other = app.buy("sale", 1, purchase(1, &id)).await;
    problem(other, 422, "request-id-reused").await;
}

#[tokio::test]
async fn sold_out_is_final_and_repeats_of_the_winners_still_count() {
    let app = selling(one_per_buyer(), 2).await;
    let body = json!({"sku_id": "sku", "quantity": 1});
    for buyer in [1, 2] {
        app.bought("sale", buyer, body.clone()).await;
    }
    for buyer in 3..8 {
        let late = app.buy("sale", buyer, body.clone()).await;
        assert!(late.headers().get("retry-after").is_none());
        problem(late, 409, "sold-out").await;
    }
    assert_eq!(app.buy("sale", 1, body).await.status(), 200);
}

#[tokio::test]
async fn a_quota_refusal_states_what_the_buyer_has() {
    let app = selling(json!({"kind": "quota", "limit": 3, "max_quantity": 2}), 9).await;
    let first = app.request_id("sale", 1).await;
    app.bought("sale", 1, purchase(2, &first)).await;
    let second = app.request_id("sale", 1).await;
    let body = problem(app.buy("sale", 1, purchase(2, &second)).await, 409, "quota-exceeded").await;
    assert_eq!((&body["owned"], &body["limit"]), (&json!(2), &json!(3)));
    app.bought("sale", 1, purchase(1, &second)).await;
}

/// Without `max_quantity` one request may ask for as many units as the limit of the policy allows.
#[tokio::test]
async fn a_policy_without_a_maximum_has_its_limit_only() {
    let app = selling(json!({"kind": "quota", "limit": 3}), 9).await;
    let id = app.request_id("sale", 1).await;
    let body = problem(app.buy("sale", 1, purchase(4, &id)).await, 409, "quota-exceeded").await;
    assert_eq!((&body["owned"], &body["limit"]), (&json!(0), &json!(3)));
    app.bought("sale", 1, purchase(3, &id)).await;
    let id = app.request_id("sale", 2).await;
    problem(app.buy("sale", 2, purchase(1_000_001, &id)).await, 400, "invalid-request").await;

    let app = selling(json!({"kind": "unlimited"}), 9).await;
    let id = app.request_id("sale", 1).await;
    app.bought("sale", 1, purchase(9, &id)).await;

    let app = selling(json!({"kind": "one_per_buyer"}), 9).await;
    let two = json!({"sku_id": "sku", "quantity": 2});
    problem(app.buy("sale", 1, two).await, 400, "invalid-request").await;
}

#[tokio::test]
async fn a_draft_is_unknown_to_buyers() {
    let app = fresh();
    app.admin("/sales", Some(sale_body("sale", one_per_buyer(), 5, 1))).await;
    let sku = json!({"sku_id": "sku"});
    problem(app.buy("sale", 1, json!({"sku_id": "sku", "quantity": 1})).await, 404, "unknown-sku")
        .await;
    let answer = json!({"challenge_id": "x", "answer": "1"});
    for (path, body) in [("request-ids", sku), ("challenges", json!({})), ("tickets", answer)] {
        let call = app.client.post(app.url(&format!("/v1/sales/sale/{path}")));
        let answer = call.header("x-buyer-id", "1").json(&body).send().await.unwrap();
        problem(answer, 404, "unknown-sku").await;
    }
}

/// Paused is not "not started": a client that waited for `starts_at` would not wait at all.
#[tokio::test]
async fn a_paused_sale_says_so_until_it_ends() {
    let app = selling(one_per_buyer(), 5).await;
    let body = json!({"sku_id": "sku", "quantity": 1});
    app.bought("sale", 1, body.clone()).await;
    app.admin("/sales/sale/pause", Some(json!({}))).await;
    let paused = app.buy("sale", 2, body.clone()).await;
    let after: u32 = paused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((5..=10).contains(&after), "{after}");
    let paused = problem(paused, 403, "paused").await;
    assert!(paused.get("starts_at").is_none(), "{paused}");

    app.admin("/sales/sale/close", Some(json!({}))).await;
    problem(app.buy("sale", 2, body.clone()).await, 410, "ended").await;
    let again = app.buy("sale", 1, body).await;
    assert_eq!(again.status(), 200, "a closed sale still returns the order");
}

/// The request id of a header, and the two of a header and a body.
#[tokio::test]
async fn the_header_is_the_request_id_where_the_body_has_none() {
    let app = selling(unlimited(), 9).await;
    let buy = async |key: &str, in_body: Option<&str>| {
        let body = json!({"sku_id": "sku", "quantity": 1, "request_id": in_body});
        let call = app.client.post(app.url("/v1/buy/sale")).header("idempotency-key", key);
        call.header("x-buyer-id", "1").json(&body).send().await.unwrap()
    };
    let id = app.request_id("sale", 1).await;
    let first: Json = buy(&id, None).await.json().await.unwrap();
    assert_eq!(first["request_id"], json!(id), "{first}");
    let quoted = format!("\"{id}\"");
    for (key, in_body) in [(&id, None), (&quoted, None), (&id, Some(id.as_str()))] {
        let again = buy(key, in_body).await;
        assert_eq!(again.headers()["idempotent-replayed"], "true", "{key} {in_body:?}");
    }
    let other = app.request_id("sale", 1).await;
    problem(buy(&other, Some(&id)).await, 400, "invalid-request").await;
    for foreign in ["", "0f8fad5b-d9cb-469f-a165-70867728950e"] {
        problem(buy(foreign, None).await, 403, "request-id-invalid").await;
    }
    let call = app.client.post(app.url("/v1/buy/sale")).header("idempotency-key", &id);
    let twice = call.header("idempotency-key", &other).header("x-buyer-id", "1");
    let twice = twice.json(&json!({"sku_id": "sku", "quantity": 1})).send().await.unwrap();
    problem(twice, 400, "invalid-request").await;
}

#[tokio::test]
async fn another_quantity_without_an_id_names_the_first_purchase() {
    let app = selling(one_per_buyer(), 5).await;
    let body_of = |quantity: u32| json!({"sku_id": "sku", "quantity": quantity});
    let first = app.bought("sale", 1, body_of(2)).await;
    let second = problem(app.buy("sale", 1, body_of(1)).await, 409, "already-purchased").await;
    assert_eq!(second["request_id"], first["request_id"]);
    // The order ends, and the buyer may buy again: with the id that the answer names.
    let path = format!("/v1/orders/{}", first["request_id"].as_str().unwrap());
    let call = app.client.delete(app.url(&path)).header("x-buyer-id", "1").send();
    assert_eq!(call.await.unwrap().status(), 200);
    let again = wait::until("the id of the next purchase", async || {
        let second = problem(app.buy("sale", 1, body_of(1)).await, 409, "already-purchased").await;
        second.get("again").cloned()
    })
    .await;
    let body = json!({"sku_id": "sku", "quantity": 1, "request_id": again});
    app.bought("sale", 1, body).await;
    let third = problem(app.buy("sale", 1, body_of(3)).await, 409, "already-purchased").await;
    assert_eq!((&third["request_id"], third.get("again")), (&again, None));
}

#[tokio::test]
async fn the_window_counts_by_the_servers_clock() {
    let app = fresh();
    let at = |ms: i64| {
        let time = chrono::DateTime::from_timestamp_millis(wall_ms() + ms).unwrap();
        json!(time.to_rfc3339())
    };
    let sales =
        [("early", 60_000, 120_000), ("late", -120_000, -60_000), ("stopped", -120_000, -60_000)];
    for (sale, starts, ends) in sales {
        let mut body = sale_body(sale, one_per_buyer(), 5, 1);
        body["starts_at"] = at(starts);
        body["ends_at"] = at(ends);
        app.admin("/sales", Some(body)).await;
        app.admin(&format!("/sales/{sale}/open"), Some(json!({}))).await;
    }
    let body = json!({"sku_id": "sku", "quantity": 1});
    let early = problem(app.buy("early", 1, body.clone()).await, 403, "not-started").await;
    let (_, sale) = app.get("/v1/sales/early", 1).await;
    assert_eq!(early["starts_at"], sale["starts_at"]);
    assert!(early["starts_at"].is_string(), "{early}");
    problem(app.buy("late", 1, body.clone()).await, 410, "ended").await;
    // The end of a paused sale is not moved by the pause.
    app.admin("/sales/stopped/pause", Some(json!({}))).await;
    problem(app.buy("stopped", 1, body.clone()).await, 410, "ended").await;
    let mut dropped = sale_body("dropped", one_per_buyer(), 5, 1);
    dropped["starts_at"] = json!("2020-01-01T00:00:00Z");
    dropped["ends_at"] = json!("2020-01-02T00:00:00Z");
    app.admin("/sales", Some(dropped)).await;
    app.admin("/sales/dropped/close", Some(json!({}))).await;
    problem(app.buy("dropped", 1, body).await, 410, "ended").await;
}

#[tokio::test]
async fn unknown_sales_and_skus_are_refused_locally() {
    let app = selling(one_per_buyer(), 5).await;
    let body = json!({"sku_id": "sku", "quantity": 1});
    problem(app.buy("no-such-sale", 1, body).await, 404, "unknown-sku").await;
    let other = json!({"sku_id": "other", "quantity": 1});
    problem(app.buy("sale", 1, other).await, 404, "unknown-sku").await;
}

#[tokio::test]
async fn a_full_gate_is_busy_and_takes_nothing() {
    let (mut settings, _stores) = settings();
    settings.gate.permits = 1;
    let app = TestApp::start(settings);
    app.open_sale("sale", one_per_buyer(), 100_000, 1).await;
    let buyers = AtomicU64::new(1);
    let purchase = || json!({"sku_id": "sku", "quantity": 1});
    let crowd = || async {
        let first = buyers.fetch_add(32, Ordering::Relaxed);
        let calls = (first..first + 32).map(|buyer| app.buy("sale", buyer, purchase()));
        let answers = join_all(calls).await;
        let refused = (first..).zip(answers).filter(|(_, answer)| !answer.status().is_success());
        refused.last()
    };
    let (buyer, busy) = wait::until("a full gate", crowd).await;
    let after: u32 = busy.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3).contains(&after), "{after}");
    problem(busy, 503, "busy").await;
    // The gate releases its permits shortly after it has answered.
    let retry = async || {
        Some(app.buy("sale", buyer, purchase()).await).filter(|answer| answer.status() != 503)
    };
    let again = wait::until("a free permit", retry).await;
    assert!(again.status().is_success(), "{again:?}");
    assert!(
        again.headers().get("idempotent-replayed").is_none(),
        "the busy attempt was not accepted"
    );
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_is_unknown_not_failed() {
    let (mut settings, _stores) = settings();
    settings.http.answer_deadline_ms = 0;
    let app = TestApp::start(settings);
    app.open_sale("sale", one_per_buyer(), 100_000, 1).await;
    let buyers = AtomicU64::new(1);
    // A fast gate may answer before the deadline: the next buyer tries.
    let attempt = || async {
        let buyer = buyers.fetch_add(1, Ordering::Relaxed);
        let answer = app.buy("sale", buyer, json!({"sku_id": "sku", "quantity": 1})).await;
        let headers = answer.headers().clone();
        let (status, body) = (answer.status(), answer.json::<Json>().await.unwrap());
        (status == 202 && body["state"] != "queued").then_some((buyer, headers, body))
    };
    let (buyer, headers, body) = wait::until("an answer after the deadline", attempt).await;
    assert!(["1", "2"].contains(&headers["retry-after"].to_str().unwrap()));
    let location = headers["location"].to_str().unwrap().to_owned();
    assert_eq!(body["state"], "unknown");
    assert!(body["poll_after_ms"].as_u64().unwrap() > 0);

    // The deadline may have passed before the gate had the request: the buyer asks again.
    let order = wait::until("the order of the unknown request", || async {
        app.buy("sale", buyer, json!({"sku_id": "sku", "quantity": 1})).await;
        let (_, body) = app.get(&location, buyer).await;
        (body["state"] == "success").then_some(body)
    });
    assert_eq!(order.await["order"]["buyer_id"], buyer.to_string());
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    an_accepted_purchase_is_an_order,
    the_same_request_again_reads_the_first_answer,
    the_same_request_with_other_content_is_refused,
    sold_out_is_final_and_repeats_of_the_winners_still_count,
    a_quota_refusal_states_what_the_buyer_has,
    a_policy_without_a_maximum_has_its_limit_only,
    a_draft_is_unknown_to_buyers,
    a_paused_sale_says_so_until_it_ends,
    the_header_is_the_request_id_where_the_body_has_none,
    another_quantity_without_an_id_names_the_first_purchase,
    the_window_counts_by_the_servers_clock,
    unknown_sales_and_skus_are_refused_locally,
    a_full_gate_is_busy_and_takes_nothing,
    an_answer_that_does_not_come_in_time_is_unknown_not_failed,
];
