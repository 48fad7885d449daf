//! Cancellation of requests: what is decided stays decided, in every tier. Queued requests:
//! `faults/cancelling.rs`, `faults/pipeline_ending.rs`.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::payments::call;
use super::{Case, cases, one_per_buyer, problem, selling, unlimited};

#[tokio::test]
async fn a_request_that_is_an_order_cannot_be_cancelled() {
    let app = selling(one_per_buyer(), 5).await;
    let order = app.bought("sale", 1, json!({"sku_id": "sku", "quantity": 1})).await;
    let path = format!("/v1/requests/{}", order["request_id"].as_str().unwrap());
    for _ in 0..2 {
        let answer = call(&app, Method::DELETE, &path, 1).await;
        let decided = problem(answer, 409, "already-decided").await;
        assert_eq!(
            (&decided["state"], &decided["request_id"]),
            (&json!("success"), &order["request_id"])
        );
        assert!(decided.get("reason").is_none(), "{decided}");
    }
    assert_eq!(app.get(&path, 1).await.1["state"], "success");
}

#[tokio::test]
async fn only_the_owner_of_an_accepted_request_can_cancel_it() {
    let app = selling(unlimited(), 5).await;
    let id = app.request_id("sale", 1).await;
    let path = format!("/v1/requests/{id}");
    let early = problem(call(&app, Method::DELETE, &path, 1).await, 404, "not-found").await;
    assert_eq!((&early["state"], &early["request_id"]), (&json!("not_found"), &json!(id)));
    app.bought("sale", 1, json!({"sku_id": "sku", "quantity": 1, "request_id": id})).await;
    problem(call(&app, Method::DELETE, &path, 2).await, 404, "not-found").await;
    let other = if id.ends_with('x') { 'y' } else { 'x' };
    let forged = format!("/v1/requests/{}{other}", &id[..id.len() - 1]);
    problem(call(&app, Method::DELETE, &forged, 1).await, 404, "not-found").await;
    let stranger = app.client.delete(app.url(&path)).send().await.unwrap();
    assert_eq!(stranger.status(), StatusCode::UNAUTHORIZED);
    problem(call(&app, Method::DELETE, &path, 1).await, 409, "already-decided").await;
}

/// The next answer knows a cancellation: of the request, of the limit, and of a new purchase.
#[tokio::test]
async fn a_cancelled_order_is_over_with_the_answer() {
    let app = selling(json!({"kind": "quota", "limit": 1, "max_quantity": 1}), 50).await;
    for buyer in 1..=10 {
        for _ in 0..2 {
            let id = app.request_id("sale", buyer).await;
            let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
            app.bought("sale", buyer, purchase).await;
            let cancelled = call(&app, Method::DELETE, &format!("/v1/orders/{id}"), buyer).await;
            assert_eq!(cancelled.status(), StatusCode::OK);
            let (_, request) = app.get(&format!("/v1/requests/{id}"), buyer).await;
            assert_eq!(request["order"]["state"], "cancelled", "{request}");
            let (_, mine) = app.get("/v1/sales/sale/mine", buyer).await;
            assert_eq!(mine["skus"][0]["owned"], 0, "{mine}");
        }
    }
}

#[tokio::test]
async fn the_unit_of_a_cancelled_order_is_sold_to_the_next_buyer() {
    let app = selling(one_per_buyer(), 1).await;
    for buyer in 1..=5 {
        let purchase = json!({"sku_id": "sku", "quantity": 1});
        let order = app.bought("sale", buyer, purchase.clone()).await;
        let other = app.buy("sale", 100 + buyer, purchase).await;
        problem(other, 409, "sold-out").await;
        let path = format!("/v1/orders/{}", order["request_id"].as_str().unwrap());
        let cancelled = call(&app, Method::DELETE, &path, buyer).await;
        assert_eq!(cancelled.status(), StatusCode::OK);
    }
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    a_request_that_is_an_order_cannot_be_cancelled,
    only_the_owner_of_an_accepted_request_can_cancel_it,
    a_cancelled_order_is_over_with_the_answer,
    the_unit_of_a_cancelled_order_is_sold_to_the_next_buyer,
];
