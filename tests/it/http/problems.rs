//! Every error is a problem document, and every response belongs to a trace.

use reqwest::Method;
use serde_json::json;

use super::{Case, cases, one_per_buyer, problem, selling};

#[tokio::test]
async fn unknown_paths_are_problems_on_both_listeners() {
    let app = selling(one_per_buyer(), 5).await;
    for address in [app.public, app.internal] {
        for path in ["/", "/v1", "/v1/sales/", "/v2/sales", "/admin/v1/nothing", "/..%2f", "/%ff"] {
            let answer = app.client.get(format!("http://{address}{path}")).send().await.unwrap();
            problem(answer, 404, "not-found").await;
        }
    }
}

#[tokio::test]
async fn wrong_methods_are_told_the_right_ones() {
    let app = selling(one_per_buyer(), 5).await;
    let cases = [
        (app.public, "/v1/buy/sale", Method::GET, "POST"),
        (app.public, "/v1/buy/sale", Method::DELETE, "POST"),
        (app.public, "/v1/sales", Method::POST, "GET, HEAD"),
        (app.public, "/v1/orders", Method::PUT, "GET, HEAD"),
        (app.public, "/v1/sales/sale/request-ids", Method::GET, "POST"),
        (app.internal, "/admin/v1/sales", Method::DELETE, "GET, HEAD, POST"),
        (app.internal, "/admin/v1/sales/sale/open", Method::GET, "POST"),
        (app.internal, "/livez", Method::POST, "GET, HEAD"),
    ];
    for (address, path, method, allow) in cases {
        let url = format!("http://{address}{path}");
        let answer = app.client.request(method, url).send().await.unwrap();
        assert_eq!(answer.headers()["allow"], allow, "{path}");
        problem(answer, 405, "method-not-allowed").await;
    }
}

#[tokio::test]
async fn head_is_answered_like_get_without_a_body() {
    let app = selling(one_per_buyer(), 5).await;
    for url in [app.url("/v1/sales"), format!("http://{}/livez", app.internal)] {
        let answer = app.client.head(url).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.bytes().await.unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_trace_goes_on_in_answers_and_problems() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let app = selling(one_per_buyer(), 1).await;
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let buy = |buyer: u64| {
        let call = app.client.post(app.url("/v1/buy/sale")).header("traceparent", &traceparent);
        let call = call.header("x-buyer-id", buyer.to_string());
        call.json(&json!({"sku_id": "sku", "quantity": 1})).send()
    };
    let bought = buy(1).await.unwrap();
    assert!(bought.status().is_success(), "{bought:?}");
    assert!(bought.headers()["traceparent"].to_str().unwrap().starts_with(&format!("00-{TRACE}-")));
    let late = problem(buy(2).await.unwrap(), 409, "sold-out").await;
    assert_eq!(late["trace_id"], TRACE);

    let read =
        |path: &str| app.client.get(app.url(path)).header("traceparent", &traceparent).send();
    let sales = read("/v1/sales").await.unwrap();
    assert!(sales.headers()["traceparent"].to_str().unwrap().contains(TRACE));
    for (path, status, code) in
        [("/v1/orders", 401, "unauthenticated"), ("/nowhere", 404, "not-found")]
    {
        assert_eq!(problem(read(path).await.unwrap(), status, code).await["trace_id"], TRACE);
    }

    let fresh = app.client.post(app.url("/v1/buy/sale")).header("traceparent", "00-0-0-00");
    let fresh = problem(fresh.send().await.unwrap(), 401, "unauthenticated").await;
    assert_ne!(fresh["trace_id"], TRACE);
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    unknown_paths_are_problems_on_both_listeners,
    wrong_methods_are_told_the_right_ones,
    head_is_answered_like_get_without_a_body,
    a_trace_goes_on_in_answers_and_problems,
];
