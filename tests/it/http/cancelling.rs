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

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    a_request_that_is_an_order_cannot_be_cancelled,
    only_the_owner_of_an_accepted_request_can_cancel_it,
];
