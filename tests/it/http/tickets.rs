//! Tickets: what a sale that requires them lets through, in every tier.

use floodgate::config::Settings;
use reqwest::Method;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::payments::call;
use super::{Case, cases, one_per_buyer, problem, settings, unlimited};
use crate::support::TestApp;
use crate::support::app::{Stores, sale_body};

/// A server with an open sale, `sale`, that requires tickets.
async fn ticketed(policy: Json, num_skus: usize) -> (TestApp, Stores) {
    let (mut settings, stores) = settings();
    settings.tickets.work_bits = 8;
    (ticketed_on(settings, policy, num_skus).await, stores)
}

pub(super) async fn ticketed_on(settings: Settings, policy: Json, num_skus: usize) -> TestApp {
    let app = TestApp::start(settings);
    let mut body = sale_body("sale", policy, 20, 2);
    body["ticket_required"] = json!(true);
    for number in 1..num_skus {
        let mut sku = body["skus"][0].clone();
        sku["sku_id"] = json!(format!("sku{number}"));
        body["skus"].as_array_mut().unwrap().push(sku);
    }
    app.admin("/sales", Some(body)).await;
    app.admin("/sales/sale/open", Some(json!({}))).await;
    app
}

async fn post(app: &TestApp, path: &str, buyer: u64, body: &Json) -> reqwest::Response {
    let call = app.client.post(app.url(&format!("/v1/sales/sale/{path}")));
    call.header("x-buyer-id", buyer.to_string()).json(body).send().await.unwrap()
}

async fn challenge(app: &TestApp, buyer: u64) -> Json {
    let answer = post(app, "challenges", buyer, &json!({"kind": "work"})).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    answer.json().await.unwrap()
}

/// The first number that solves the challenge, as a buyer's device finds it.
fn solve(challenge: &Json) -> String {
    let (work, prefix) = (&challenge["work"], challenge["work"]["prefix"].as_str().unwrap());
    assert_eq!(work["algorithm"], "SHA-256");
    let bits = u32::try_from(work["bits"].as_u64().unwrap()).unwrap();
    let is_solved = |n: &u64| {
        let digest = Sha256::digest(format!("{prefix}{n}"));
        u32::from_be_bytes(digest[..4].try_into().unwrap()).leading_zeros() >= bits
    };
    (0..u64::MAX).find(is_solved).unwrap().to_string()
}

pub(super) async fn ticket(app: &TestApp, buyer: u64) -> String {
    let challenge = challenge(app, buyer).await;
    let answer = json!({"challenge_id": challenge["challenge_id"], "answer": solve(&challenge)});
    let issued: Json = post(app, "tickets", buyer, &answer).await.json().await.unwrap();
    assert!(issued["expires_at"].as_str().unwrap() > challenge["expires_at"].as_str().unwrap());
    issued["path_id"].as_str().unwrap().to_owned()
}

pub(super) fn purchase(sku: &str, request_id: Option<&str>) -> Json {
    match request_id {
        Some(id) => json!({"sku_id": sku, "quantity": 1, "request_id": id}),
        None => json!({"sku_id": sku, "quantity": 1}),
    }
}

#[tokio::test]
async fn a_sale_with_tickets_sells_by_ticket_only() {
    let (app, _stores) = ticketed(one_per_buyer(), 1).await;
    assert_eq!(app.get("/v1/sales/sale", 1).await.1["ticket_required"], true);
    problem(app.buy("sale", 1, purchase("sku", None)).await, 403, "ticket-invalid").await;
    let own = ticket(&app, 1).await;
    problem(app.buy(&own, 2, purchase("sku", None)).await, 403, "ticket-invalid").await;
    let forged = [
        "~".to_owned(),
        "~AAAA".to_owned(),
        own[..own.len() - 1].to_owned(),
        format!("{own}A"),
        format!("~B{}", &own[2..]),
        own.replacen('~', "~~", 1),
    ];
    for path in &forged {
        problem(app.buy(path, 1, purchase("sku", None)).await, 403, "ticket-invalid").await;
    }
    let first = app.bought(&own, 1, purchase("sku", None)).await;
    let again = app.buy(&own, 1, purchase("sku", None)).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.json::<Json>().await.unwrap()["request_id"], first["request_id"]);
}

#[tokio::test]
async fn a_ticket_stands_for_one_request_and_its_repeats() {
    let (app, _stores) = ticketed(unlimited(), 1).await;
    let own = ticket(&app, 1).await;
    let (first, second) = (app.request_id("sale", 1).await, app.request_id("sale", 1).await);
    app.bought(&own, 1, purchase("sku", Some(&first))).await;
    problem(app.buy(&own, 1, purchase("sku", Some(&second))).await, 403, "ticket-invalid").await;
    let again = app.buy(&own, 1, purchase("sku", Some(&first))).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let other = ticket(&app, 1).await;
    app.bought(&other, 1, purchase("sku", Some(&second))).await;
}

#[tokio::test]
async fn a_ticket_does_not_buy_a_second_sku() {
    let (app, _stores) = ticketed(one_per_buyer(), 2).await;
    let own = ticket(&app, 1).await;
    app.bought(&own, 1, purchase("sku", None)).await;
    problem(app.buy(&own, 1, purchase("sku1", None)).await, 403, "ticket-invalid").await;
    let other = ticket(&app, 1).await;
    app.bought(&other, 1, purchase("sku1", None)).await;
}

/// Buys one unit, and cancels the order. Returns the id that buys again.
pub(super) async fn bought_and_cancelled(
    app: &TestApp,
    path_id: &str,
    request_id: Option<&str>,
) -> String {
    let order = app.bought(path_id, 1, purchase("sku", request_id)).await;
    let path = format!("/v1/orders/{}", order["request_id"].as_str().unwrap());
    let cancelled: Json = call(app, Method::DELETE, &path, 1).await.json().await.unwrap();
    cancelled["again"].as_str().unwrap_or_else(|| panic!("{cancelled}")).to_owned()
}

#[tokio::test]
async fn a_ticket_does_not_buy_again_after_each_cancellation() {
    let (app, _stores) = ticketed(one_per_buyer(), 1).await;
    let own = ticket(&app, 1).await;
    let second = bought_and_cancelled(&app, &own, None).await;
    let third = bought_and_cancelled(&app, &own, Some(&second)).await;
    problem(app.buy(&own, 1, purchase("sku", Some(&third))).await, 403, "ticket-invalid").await;
    let other = ticket(&app, 1).await;
    app.bought(&other, 1, purchase("sku", Some(&third))).await;
}

#[tokio::test]
async fn a_challenge_yields_its_one_ticket_to_its_buyer_for_three_answers() {
    let (app, _stores) = ticketed(one_per_buyer(), 1).await;
    let challenge = challenge(&app, 1).await;
    let (id, right) = (&challenge["challenge_id"], solve(&challenge));
    let send = |buyer, answer: Json| {
        let body = json!({"challenge_id": id, "answer": answer});
        let app = &app;
        async move { post(app, "tickets", buyer, &body).await }
    };
    problem(send(2, json!(right)).await, 403, "challenge-failed").await;
    problem(send(1, json!("x")).await, 403, "challenge-failed").await;
    let first: Json = send(1, json!(right)).await.json().await.unwrap();
    let number: u64 = right.parse().unwrap();
    assert_eq!(send(1, json!(number)).await.json::<Json>().await.unwrap(), first, "a repeat");
    problem(send(1, json!(right)).await, 403, "challenge-failed").await;

    let picture = post(&app, "challenges", 1, &json!({})).await.json::<Json>().await.unwrap();
    assert_eq!((&picture["kind"], picture.get("work")), (&json!("arithmetic"), None));
    assert_eq!(picture["kinds"], json!(["arithmetic", "work"]));
    assert!(picture["svg"].as_str().unwrap().starts_with("<svg xmlns="), "{picture}");
    let call = app.client.post(app.url("/v1/sales/sale/challenges")).header("x-buyer-id", "1");
    assert_eq!(call.send().await.unwrap().status(), 200, "no body");
    for body in [json!({"kind": "riddle"}), json!({"sort": "work"}), json!([1])] {
        problem(post(&app, "challenges", 1, &body).await, 400, "invalid-request").await;
    }
    for body in [json!({}), json!({"challenge_id": id}), json!({"challenge_id": 1, "answer": 1})] {
        problem(post(&app, "tickets", 1, &body).await, 400, "invalid-request").await;
    }
}

#[tokio::test]
async fn a_ticket_is_taken_where_none_is_required() {
    let (app, _stores) = ticketed(one_per_buyer(), 1).await;
    app.open_sale("open", one_per_buyer(), 5, 1).await;
    let call = app.client.post(app.url("/v1/sales/open/challenges")).header("x-buyer-id", "1");
    let challenge: Json =
        call.json(&json!({"kind": "work"})).send().await.unwrap().json().await.unwrap();
    let answer = json!({"challenge_id": challenge["challenge_id"], "answer": solve(&challenge)});
    problem(post(&app, "tickets", 1, &answer).await, 403, "challenge-failed").await;
    let call = app.client.post(app.url("/v1/sales/open/tickets")).header("x-buyer-id", "1");
    let issued: Json = call.json(&answer).send().await.unwrap().json().await.unwrap();
    app.bought(issued["path_id"].as_str().unwrap(), 1, purchase("sku", None)).await;
    problem(app.buy("none", 1, purchase("sku", None)).await, 404, "unknown-sku").await;
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    a_sale_with_tickets_sells_by_ticket_only,
    a_ticket_stands_for_one_request_and_its_repeats,
    a_ticket_does_not_buy_a_second_sku,
    a_ticket_does_not_buy_again_after_each_cancellation,
    a_challenge_yields_its_one_ticket_to_its_buyer_for_three_answers,
    a_ticket_is_taken_where_none_is_required,
];
