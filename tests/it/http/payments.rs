//! Payment and cancellation of orders over HTTP, with the demo provider and its page.

use floodgate::config::{PaymentBackend, Settings, Tier, WebhookProfile};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value as Json, json};

use super::{one_per_buyer, problem, unlimited};
use crate::support::TestApp;
use crate::support::app::{fresh_settings, sale_body};
use crate::support::wait::until;

/// A buyer of the tests.
const BUYER: u64 = 1;

/// A server with the demo provider, and an open sale of one SKU.
async fn paying_with(policy: Json, stock: u32, change: impl FnOnce(&mut Settings)) -> TestApp {
    let (mut settings, stores) = fresh_settings(Tier::Memory);
    settings.payment.provider = PaymentBackend::Demo;
    // Longer than a test: money that is due back stays so.
    settings.payment.every_ms = 3_600_000;
    change(&mut settings);
    let app = TestApp::on((settings, stores));
    app.open_sale("sale", policy, stock, 2).await;
    app
}

pub async fn paying(policy: Json, stock: u32) -> TestApp {
    paying_with(policy, stock, |_| ()).await
}

/// Buys one unit and returns the request id.
pub async fn order(app: &TestApp, buyer: u64) -> String {
    let id = app.request_id("sale", buyer).await;
    let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    let bought = app.bought("sale", buyer, body).await;
    assert_eq!(bought["order"]["state"], "pending_payment", "{bought}");
    id
}

pub async fn call(app: &TestApp, method: Method, path: &str, buyer: u64) -> Response {
    let call = app.client.request(method, app.url(path));
    call.header("x-buyer-id", buyer.to_string()).send().await.unwrap()
}

async fn start(app: &TestApp, id: &str, buyer: u64) -> Response {
    call(app, Method::POST, &format!("/v1/orders/{id}/payment"), buyer).await
}

pub async fn cancel(app: &TestApp, id: &str, buyer: u64) -> Response {
    call(app, Method::DELETE, &format!("/v1/orders/{id}"), buyer).await
}

/// Begins a payment.
pub async fn started(app: &TestApp, id: &str) -> Json {
    let answer = start(app, id, BUYER).await;
    assert_eq!(answer.status(), StatusCode::OK, "{answer:?}");
    answer.json().await.unwrap()
}

/// Presses a button of the provider's page.
async fn press(app: &TestApp, payment: &Json, action: &str) -> Response {
    let call = app.client.post(payment["url"].as_str().unwrap());
    let call = call.header("content-type", "application/x-www-form-urlencoded");
    call.body(format!("action={action}")).send().await.unwrap()
}

/// Presses a button that must work.
pub async fn pressed(app: &TestApp, payment: &Json, action: &str) {
    let page = press(app, payment, action).await;
    assert_eq!(page.status(), StatusCode::OK, "redirected to the page");
    assert!(page.text().await.unwrap().contains("Demo payment"));
}

/// The order in the buyer's list.
async fn listed(app: &TestApp, id: &str) -> Json {
    let (status, page) = app.get("/v1/orders", BUYER).await;
    assert_eq!(status, StatusCode::OK);
    let orders = page["orders"].as_array().unwrap();
    orders.iter().find(|order| order["request_id"] == id).unwrap().clone()
}

/// Waits until the order and its payment are in these states, and returns the order. The list reads
/// them one after the other.
pub async fn reaches(app: &TestApp, id: &str, state: &str, payment_state: &str) -> Json {
    until(payment_state, async || {
        let order = listed(app, id).await;
        let is_reached = order["state"] == state && order["payment"]["state"] == payment_state;
        is_reached.then_some(order)
    })
    .await
}

/// Waits until the request's status, which the bucket answers, has this state of its order.
async fn in_bucket(app: &TestApp, id: &str, state: &str) {
    let path = format!("/v1/requests/{id}");
    until(state, async || {
        let (_, view) = app.get(&path, BUYER).await;
        (view["order"]["state"] == state).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_order_is_paid_once_through_one_open_payment() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    assert_eq!(started(&app, &id).await, payment, "one open payment");
    assert!(payment["expires_at"].is_string());
    let paying = listed(&app, &id).await;
    assert_eq!(
        (&paying["state"], &paying["payment"]["state"]),
        (&json!("paying"), &json!("started"))
    );
    assert_eq!(paying["payment"]["payment_id"], payment["payment_id"]);
    in_bucket(&app, &id, "paying").await;

    pressed(&app, &payment, "pay").await;
    let paid = reaches(&app, &id, "paid", "applied").await;
    assert!(paid.get("again").is_none() && paid.get("paid_unfulfilled").is_none(), "{paid}");
    in_bucket(&app, &id, "paid").await;
    let again = problem(start(&app, &id, BUYER).await, 409, "not-payable").await;
    assert_eq!(again["state"], "paid");
    problem(cancel(&app, &id, BUYER).await, 409, "not-payable").await;
    problem(press(&app, &payment, "pay").await, 409, "not-payable").await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn orders_are_paid_and_cancelled_by_their_buyers_only() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    for (id, buyer) in [(id.as_str(), 2), ("nonsense", BUYER)] {
        problem(start(&app, id, buyer).await, 404, "not-found").await;
        problem(cancel(&app, id, buyer).await, 404, "not-found").await;
    }
    // A signed id without an order.
    let unused = app.request_id("sale", 3).await;
    problem(start(&app, &unused, 3).await, 404, "not-found").await;
    problem(cancel(&app, &unused, 3).await, 404, "not-found").await;
    for (method, path) in [(Method::POST, "/v1/orders/1/payment"), (Method::DELETE, "/v1/orders/1")]
    {
        let anonymous = app.client.request(method, app.url(path)).send().await.unwrap();
        problem(anonymous, 401, "unauthenticated").await;
    }
    assert_eq!(listed(&app, &id).await["state"], "pending_payment");
}

#[tokio::test]
async fn a_cancelled_order_frees_its_unit_and_its_buyer_buys_again() {
    let app = paying(one_per_buyer(), 1).await;
    let first = order(&app, BUYER).await;
    let answer = cancel(&app, &first, BUYER).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let cancelled: Json = answer.json().await.unwrap();
    assert_eq!(
        (&cancelled["state"], &cancelled["request_id"]),
        (&json!("cancelled"), &json!(first))
    );
    let repeat: Json = cancel(&app, &first, BUYER).await.json().await.unwrap();
    assert_eq!(repeat, cancelled, "repeat-safe");
    assert_eq!(listed(&app, &first).await["again"], cancelled["again"]);
    in_bucket(&app, &first, "cancelled").await;
    problem(start(&app, &first, BUYER).await, 409, "not-payable").await;

    let old = json!({"sku_id": "sku", "quantity": 1});
    let (_, replayed) = app.buy_json("sale", BUYER, old.clone()).await;
    assert_eq!(replayed["order"]["state"], "cancelled", "the old id stays with its order");
    assert_eq!(replayed["again"], cancelled["again"], "{replayed}");
    let again = cancelled["again"].as_str().unwrap();
    assert_ne!(again, first);
    let anew = json!({"sku_id": "sku", "quantity": 1, "request_id": again});
    let second = app.bought("sale", BUYER, anew.clone()).await;
    assert_eq!(
        (&second["request_id"], &second["order"]["state"]),
        (&json!(again), &json!("pending_payment"))
    );
    let double = app.buy("sale", BUYER, anew).await;
    assert_eq!(double.headers()["idempotent-replayed"], "true", "a double click is one order");
    assert!(listed(&app, &first).await.get("again").is_none(), "the buyer has used it");
    problem(app.buy("sale", 2, old.clone()).await, 409, "sold-out").await;
    let (_, replayed) = app.buy_json("sale", BUYER, old.clone()).await;
    assert!(replayed.get("again").is_none(), "the buyer has an order: {replayed}");
    let third: Json = cancel(&app, again, BUYER).await.json().await.unwrap();
    assert_eq!(third["state"], "cancelled");
    assert!(third["again"].is_string() && third["again"] != again, "{third}");
    in_bucket(&app, again, "cancelled").await;
    let (_, replayed) = app.buy_json("sale", BUYER, old).await;
    assert_eq!(replayed["again"], third["again"], "{replayed}");
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn where_ids_are_issued_a_cancelled_order_has_no_id_for_the_next() {
    let app = paying(unlimited(), 1).await;
    let id = order(&app, BUYER).await;
    let cancelled: Json = cancel(&app, &id, BUYER).await.json().await.unwrap();
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled.get("again").is_none(), "{cancelled}");
    in_bucket(&app, &id, "cancelled").await;
    order(&app, BUYER).await;
}

#[tokio::test]
async fn a_cancellation_stops_the_payment_and_late_money_is_due_back() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    let cancelled: Json = cancel(&app, &id, BUYER).await.json().await.unwrap();
    let states = (&cancelled["state"], &cancelled["payment"]["state"]);
    assert_eq!(states, (&json!("cancelled"), &json!("closed")));
    problem(press(&app, &payment, "pay").await, 409, "not-payable").await;

    pressed(&app, &payment, "pay_late").await;
    let late = reaches(&app, &id, "cancelled", "refund_due").await;
    assert_eq!(late["paid_unfulfilled"], true);
    pressed(&app, &payment, "refund").await;
    // Ended orders never change.
    let refunded = reaches(&app, &id, "cancelled", "refunded").await;
    assert_eq!(refunded["payment"]["refunded_total"], 100);
    assert!(refunded.get("paid_unfulfilled").is_none(), "{refunded}");
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_payment_that_was_made_is_not_cancelled() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    pressed(&app, &payment, "pay").await;
    // Whether its webhook arrived or not: the provider says that it was paid.
    let refused = problem(cancel(&app, &id, BUYER).await, 409, "not-payable").await;
    assert_eq!(refused["state"], "paid");
    let paid = listed(&app, &id).await;
    assert_eq!((&paid["state"], &paid["payment"]["state"]), (&json!("paid"), &json!("applied")));
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_failed_payment_is_followed_by_another_and_the_first_paid_as_well_is_due_back() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let first = started(&app, &id).await;
    problem(press(&app, &first, "pay_twice").await, 409, "not-payable").await;
    pressed(&app, &first, "fail").await;
    reaches(&app, &id, "pending_payment", "closed").await;
    let second = started(&app, &id).await;
    assert_ne!(second["payment_id"], first["payment_id"]);
    pressed(&app, &second, "pay_twice").await;
    let paid = reaches(&app, &id, "paid", "applied").await;
    assert_eq!(paid["payment"]["payment_id"], second["payment_id"]);

    // The first payment's money is paid back: the order, which the second paid, does not change.
    pressed(&app, &first, "refund").await;
    pressed(&app, &second, "refund").await;
    reaches(&app, &id, "refunded", "refunded").await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn another_amount_than_the_price_pays_nothing_and_is_due_back() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    pressed(&app, &payment, "wrong_amount").await;
    let unpaid = until("money due back", async || {
        let order = listed(&app, &id).await;
        (order["payment"]["state"] == "refund_due").then_some(order)
    })
    .await;
    assert_ne!(unpaid["state"], "paid");
    assert!(unpaid.get("paid_unfulfilled").is_none(), "the order has not ended: {unpaid}");
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn webhooks_in_reverse_order_end_alike_and_a_refund_ends_the_order() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    pressed(&app, &payment, "out_of_order").await;
    reaches(&app, &id, "paid", "applied").await;
    pressed(&app, &payment, "refund").await;
    reaches(&app, &id, "refunded", "refunded").await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn the_stripe_profile_signs_the_same_events() {
    let stripe = |settings: &mut Settings| {
        settings.payment.webhook_profile = WebhookProfile::Stripe;
    };
    let app = paying_with(one_per_buyer(), 5, stripe).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    pressed(&app, &payment, "pay").await;
    reaches(&app, &id, "paid", "applied").await;
}

#[tokio::test]
async fn the_page_of_the_demo_provider_loads_only_styles_and_takes_known_buttons() {
    let app = paying(one_per_buyer(), 5).await;
    let id = order(&app, BUYER).await;
    let payment = started(&app, &id).await;
    let page = app.client.get(payment["url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'; style-src 'self';"), "{policy}");
    let text = page.text().await.unwrap();
    let (_, style) = text.split_once("<link rel=\"stylesheet\" href=\"../").unwrap();
    let style = app.url(&format!("/{}", style.split_once('"').unwrap().0));
    assert_eq!(app.client.get(style).send().await.unwrap().status(), 200);
    assert!(text.contains(payment["payment_id"].as_str().unwrap()), "{text}");
    problem(press(&app, &payment, "steal").await, 400, "invalid-request").await;
    let unknown = app.client.get(app.url("/demo-pay/demo_0")).send().await.unwrap();
    problem(unknown, 404, "not-found").await;
    problem(press(&app, &json!({"url": app.url("/demo-pay/x")}), "pay").await, 404, "not-found")
        .await;
}

#[tokio::test]
async fn without_a_provider_orders_are_cancelled_and_not_paid() {
    let none = |settings: &mut Settings| settings.payment.provider = PaymentBackend::None;
    let app = paying_with(one_per_buyer(), 5, none).await;
    let id = order(&app, BUYER).await;
    problem(start(&app, &id, BUYER).await, 409, "not-payable").await;
    let page = app.client.get(app.url("/demo-pay/demo_0")).send().await.unwrap();
    problem(page, 404, "not-found").await;
    let event = app.client.post(app.url("/v1/payments/events")).body("{}").send().await.unwrap();
    problem(event, 401, "unauthenticated").await;
    assert_eq!(cancel(&app, &id, BUYER).await.status(), StatusCode::OK);
}

/// Buys the only unit once it is free, and returns the request id.
async fn next_order(app: &TestApp, buyer: u64) -> String {
    let id = app.request_id("sale", buyer).await;
    let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    until("the unit", async || {
        let (status, answer) = app.buy_json("sale", buyer, body.clone()).await;
        let is_sold = status == StatusCode::OK;
        let may_follow = [StatusCode::CONFLICT, StatusCode::ACCEPTED].contains(&status);
        assert!(is_sold || may_follow, "{answer}");
        is_sold.then_some(())
    })
    .await;
    id
}

/// Of a sale with one unit, in tiers `memory` (SQLite) and `gate` (Redis, MariaDB).
#[tokio::test]
async fn the_unit_of_an_order_that_is_not_paid_in_time_is_sold_to_another_buyer() {
    for tier in [Tier::Memory, Tier::Gate] {
        let (mut settings, stores) = fresh_settings(tier);
        settings.payment.provider = PaymentBackend::Demo;
        settings.payment.every_ms = 50;
        (settings.payment.paying_window_s, settings.payment.extension_max_s) = (1, 2);
        let app = TestApp::on((settings, stores));
        let mut body = sale_body("sale", one_per_buyer(), 1, 1);
        body["skus"][0]["payment_window_s"] = json!(3);
        app.admin("/sales", Some(body)).await;
        app.admin("/sales/sale/open", Some(json!({}))).await;
        let unpaid = order(&app, BUYER).await;
        let mut buyer = BUYER;
        // The second order ends with an open payment.
        for _ in 0..2 {
            // An order may lapse on a slow machine before its payment begins: the next buyer tries.
            until("an open payment", async || {
                buyer += 1;
                let id = next_order(&app, buyer).await;
                let status = start(&app, &id, buyer).await.status();
                let is_open = status == StatusCode::OK;
                assert!(is_open || status == StatusCode::CONFLICT, "{tier:?}: {status}");
                is_open.then_some(())
            })
            .await;
        }
        let ended = listed(&app, &unpaid).await;
        assert_eq!(ended["state"], "timed_out", "{ended}");
        assert!(ended["again"].is_string(), "{ended}");
        in_bucket(&app, &unpaid, "timed_out").await;
        app.assert_audit_holds().await;
    }
}
