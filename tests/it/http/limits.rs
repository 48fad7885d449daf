//! Limits of buyers and addresses.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;
use reqwest::{Method, Response};
use serde_json::{Value as Json, json};

use super::payments::call;
use super::{Case, cases, problem, settings, unlimited};
use crate::support::TestApp;
use crate::support::app::Stores;

/// A server with an open sale, `sale`, and these limits: of a buyer per second and per minute, of
/// an address per second.
async fn limited([second, minute, address]: [u32; 3]) -> (TestApp, Stores) {
    let (mut settings, stores) = settings();
    settings.limits.buyer_per_second = second;
    settings.limits.buyer_per_minute = minute;
    settings.limits.address_per_second = address;
    settings.http.trusted_proxies = vec!["::ffff:127.0.0.1".parse().unwrap()];
    let app = TestApp::start(settings);
    app.open_sale("sale", unlimited(), 5, 1).await;
    (app, stores)
}

/// Calls until a call is refused, and returns the refusal. The others have this status: `count` of
/// them and, on a slow machine, one more for each time of `refill` that they took.
async fn refusal(
    call: impl AsyncFn() -> Response,
    status: u16,
    (count, refill): (u32, Duration),
) -> Response {
    let begun = now_monotonic();
    let mut num_admitted = 0;
    loop {
        let answer = call().await;
        if answer.status() == 429 {
            assert!(num_admitted >= count, "refused after {num_admitted} of {count} calls");
            return answer;
        }
        assert_eq!(answer.status(), status, "{answer:?}");
        num_admitted += 1;
        let num_refilled = num_admitted.saturating_sub(count);
        assert!(begun.elapsed() >= refill * num_refilled, "{num_admitted} instead of {count}");
    }
}

async fn refused_by(answer: Response, policy: &str) {
    let headers = answer.headers().clone();
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let after: u64 = text("retry-after").parse().unwrap();
    let (name, rest) = policy.split_once(';').unwrap();
    assert_eq!(text("ratelimit-policy"), format!("\"{name}\";{rest}"));
    let limit = text("ratelimit");
    let wait: u64 = limit.rsplit_once("t=").unwrap().1.parse().unwrap();
    assert!(limit.starts_with(&format!("\"{name}\";r=0;t=")), "{limit}");
    assert!(wait >= 1 && (wait..=wait + wait.max(4) * 3 / 10 + 1).contains(&after), "{after}");
    let body = problem(answer, 429, "rate-limited").await;
    assert_eq!(body["violated-policies"], json!([name]));
}

#[tokio::test]
async fn a_buyer_who_is_too_fast_is_refused_alone_and_by_kind_of_call() {
    let (app, _stores) = limited([0, 3, 0]).await;
    let buy = |buyer| app.buy("sale", buyer, json!({"sku_id": "none", "quantity": 1}));
    let refusal = refusal(async || buy(1).await, 404, (3, Duration::from_secs(20))).await;
    refused_by(refusal, "buyer-minute;q=3;w=60").await;
    problem(buy(2).await, 404, "unknown-sku").await;
    app.request_id("sale", 1).await;
    let metrics = app.client.get(format!("http://{}/metrics", app.internal)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for line in [
        "floodgate_rate_limited_total{reason=\"buyer-minute\"} 1",
        "floodgate_buy_total{outcome=\"rate-limited\"} 1",
        "floodgate_limits_forgotten_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn every_kind_of_call_has_the_limits() {
    let (app, _stores) = limited([1, 0, 0]).await;
    for path in
        ["buy/sale", "sales/sale/request-ids", "sales/sale/challenges", "sales/sale/tickets"]
    {
        let send = || {
            let call = app.client.post(app.url(&format!("/v1/{path}")));
            call.header("x-buyer-id", "1").json(&json!({"a": 1})).send()
        };
        problem(send().await.unwrap(), 400, "invalid-request").await;
        let mut answers = 1;
        let refused = loop {
            let answer = send().await.unwrap();
            if answer.status() == 429 {
                break answer;
            }
            answers += 1;
            assert!(answers < 50, "{path} has no limit");
        };
        refused_by(refused, "buyer-second;q=1;w=1").await;
    }
}

#[tokio::test]
async fn calls_that_ask_a_store_have_the_limits() {
    let (app, _stores) = limited([0, 2, 0]).await;
    let calls: [(Method, &str, u16); 5] = [
        (Method::GET, "/v1/orders", 200),
        (Method::GET, "/v1/sales/none/mine", 404),
        (Method::POST, "/v1/orders/none/payment", 404),
        (Method::DELETE, "/v1/orders/none", 404),
        (Method::DELETE, "/v1/requests/none", 404),
    ];
    for (buyer, (method, path, status)) in (1..).zip(calls) {
        let send = async || call(&app, method.clone(), path, buyer).await;
        let refusal = refusal(send, status, (2, Duration::from_secs(30))).await;
        refused_by(refusal, "buyer-minute;q=2;w=60").await;
    }
    // A list counts apart from the changes, so that a page may read it after each.
    assert_eq!(call(&app, Method::GET, "/v1/orders", 2).await.status(), 200);
}

#[tokio::test]
async fn addresses_are_counted_before_credentials_and_behind_a_proxy() {
    let (app, _stores) = limited([0, 0, 2]).await;
    let send = |address: &'static str| {
        let call = app.client.post(app.url("/v1/buy/sale")).header("x-forwarded-for", address);
        async move { call.json(&json!({})).send().await.unwrap() }
    };
    // Mode `header` believes no forwarded request.
    problem(send("2001:db8::1").await, 403, "forbidden").await;
    let mut refused = None;
    for _ in 0..50 {
        let answer = send("2001:db8::2").await;
        if answer.status() == 429 {
            refused = Some(answer);
            break;
        }
    }
    refused_by(refused.unwrap(), "address-second;q=2;w=1").await;
    problem(send("198.51.100.1").await, 403, "forbidden").await;
}

#[tokio::test]
async fn zero_is_no_limit() {
    let (app, _stores) = limited([0; 3]).await;
    let id: Json = json!(app.request_id("sale", 1).await);
    app.bought("sale", 1, json!({"sku_id": "sku", "quantity": 1, "request_id": id})).await;
    for _ in 0..150 {
        let again = app.buy("sale", 1, json!({"sku_id": "sku", "quantity": 1, "request_id": id}));
        assert_eq!(again.await.status(), 200);
    }
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    a_buyer_who_is_too_fast_is_refused_alone_and_by_kind_of_call,
    every_kind_of_call_has_the_limits,
    calls_that_ask_a_store_have_the_limits,
    addresses_are_counted_before_credentials_and_behind_a_proxy,
    zero_is_no_limit,
];
