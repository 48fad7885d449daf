//! Money that arrives after its order has timed out.

use floodgate::config::{PaymentBackend, Tier};
use reqwest::StatusCode;
use serde_json::{Value as Json, json};

use super::payments::{order, pressed, started};
use super::{one_per_buyer, unlimited};
use crate::support::TestApp;
use crate::support::app::{fresh_settings, sale_body};
use crate::support::wait::until;

/// A buyer of the tests.
const BUYER: u64 = 1;

/// An open sale whose orders time out after 3 s; `changes` are members of its SKU.
async fn selling(tier: Tier, policy: Json, stock: u32, changes: Json) -> TestApp {
    let (mut settings, stores) = fresh_settings(tier);
    settings.payment.provider = PaymentBackend::Demo;
    settings.payment.every_ms = 50;
    (settings.payment.paying_window_s, settings.payment.extension_max_s) = (1, 2);
    let app = TestApp::on((settings, stores));
    let mut body = sale_body("sale", policy, stock, 1);
    body["skus"][0]["payment_window_s"] = json!(3);
    for (name, value) in changes.as_object().unwrap() {
        body["skus"][0][name] = value.clone();
    }
    app.admin("/sales", Some(body)).await;
    app.admin("/sales/sale/open", Some(json!({}))).await;
    app
}

/// The buyer's orders by request id.
async fn listed(app: &TestApp, id: &str) -> Option<Json> {
    let (status, page) = app.get("/v1/orders", BUYER).await;
    assert_eq!(status, StatusCode::OK);
    let orders = page["orders"].as_array().unwrap();
    orders.iter().find(|order| order["request_id"] == id).cloned()
}

/// Waits until the order says so.
async fn reaches(app: &TestApp, id: &str, holds: impl Fn(&Json) -> bool) -> Json {
    until("the order's state", async || {
        let order = listed(app, id).await?;
        holds(&order).then_some(order)
    })
    .await
}

/// An order that timed out with a stopped payment, and the payment.
async fn lapsed(app: &TestApp) -> (String, Json) {
    let id = order(app, BUYER).await;
    let payment = started(app, &id).await;
    reaches(app, &id, is_stopped).await;
    (id, payment)
}

fn is_stopped(order: &Json) -> bool {
    order["state"] == "timed_out" && order["payment"]["state"] == "closed"
}

/// Sends the late money, and returns the order that it has paid.
async fn bought_again(app: &TestApp, id: &str, payment: &Json) -> Json {
    pressed(app, payment, "pay_late").await;
    let ended = reaches(app, id, |order| order["replaced_by"].is_string()).await;
    assert_eq!((&ended["state"], ended.get("again")), (&json!("timed_out"), None), "{ended}");
    assert!(ended.get("paid_unfulfilled").is_none(), "{ended}");
    let successor = ended["replaced_by"].as_str().unwrap();
    let paid = reaches(app, successor, |order| order["state"] == "paid").await;
    assert_eq!(paid["payment"]["payment_id"], payment["payment_id"]);
    assert_eq!((&paid["payment"]["state"], &paid["quantity"]), (&json!("applied"), &json!(1)));
    paid
}

#[tokio::test]
async fn late_money_buys_the_unit_again() {
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate, Tier::Pipeline] {
        let app = selling(tier, one_per_buyer(), 1, json!({})).await;
        let (id, payment) = lapsed(&app).await;
        let paid = bought_again(&app, &id, &payment).await;
        let (_, status) =
            app.get(&format!("/v1/requests/{}", paid["request_id"].as_str().unwrap()), BUYER).await;
        assert_eq!(status["state"], "success", "{tier:?}: {status}");
        app.assert_audit_holds().await;
    }
}

#[tokio::test]
async fn late_money_of_more_units_than_are_sold_at_once_now_is_paid_back() {
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate, Tier::Pipeline] {
        let app =
            selling(tier, json!({"kind": "unlimited", "max_quantity": 2}), 5, json!({})).await;
        let id = app.request_id("sale", BUYER).await;
        let body = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
        app.bought("sale", BUYER, body).await;
        let payment = started(&app, &id).await;
        reaches(&app, &id, is_stopped).await;
        let fewer = json!({"skus": [{"sku_id": "sku", "max_quantity": 1}]});
        let url = format!("http://{}/admin/v1/sales/sale", app.internal);
        assert_eq!(app.client.patch(url).json(&fewer).send().await.unwrap().status(), 200);
        pressed(&app, &payment, "pay_late").await;
        let ended = reaches(&app, &id, |order| order["payment"]["state"] == "refunded").await;
        assert!(ended.get("replaced_by").is_none(), "{tier:?}: {ended}");
        app.assert_audit_holds().await;
    }
}

#[tokio::test]
async fn late_money_buys_again_where_request_ids_are_issued() {
    let app = selling(Tier::Memory, unlimited(), 1, json!({})).await;
    let (id, payment) = lapsed(&app).await;
    bought_again(&app, &id, &payment).await;
    app.assert_audit_holds().await;
}

/// Waits until this process refuses the buyer itself: it has read the bar. Until then, requests may
/// be queued, and the ledger refuses them.
async fn refused(app: &TestApp) -> Json {
    until("the bar", async || {
        let id = app.request_id("sale", BUYER).await;
        let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        let (status, answer) = app.buy_json("sale", BUYER, body).await;
        (status == StatusCode::FORBIDDEN).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn a_barred_buyer_whose_money_was_late_has_the_order_and_buys_no_other() {
    let app = selling(Tier::Gate, one_per_buyer(), 5, json!({"bar_lapsed": true})).await;
    let (id, payment) = lapsed(&app).await;
    assert!(listed(&app, &id).await.unwrap().get("again").is_none(), "the buyer is barred");
    let paid = bought_again(&app, &id, &payment).await;
    assert!(paid.get("again").is_none(), "{paid}");
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn late_money_buys_again_for_a_buyer_whom_this_process_refuses() {
    // Where orders are queued, only a process that has read the bar refuses at once.
    let app = selling(Tier::Pipeline, unlimited(), 5, json!({"bar_lapsed": true})).await;
    let (id, payment) = lapsed(&app).await;
    refused(&app).await;
    bought_again(&app, &id, &payment).await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_barred_buyer_is_refused_before_the_gate_and_still_reads_the_order_that_lapsed() {
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate, Tier::Pipeline] {
        let app = selling(tier, unlimited(), 5, json!({"bar_lapsed": true})).await;
        let (lapsed, _) = lapsed(&app).await;
        assert_eq!(refused(&app).await["code"], "barred", "{tier:?}");
        let body = |id: &str| json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        // The bucket learns of it after the ledger.
        until("the order that lapsed", async || {
            let (status, repeat) = app.buy_json("sale", BUYER, body(&lapsed)).await;
            assert_eq!(status, StatusCode::OK, "{tier:?}: {repeat}");
            (repeat["order"]["state"] == "timed_out").then_some(())
        })
        .await;
        let other = app.request_id("sale", 2).await;
        // Requests that were queued before the bar was read hold units until the ledger refuses.
        until("a free unit", async || {
            let (status, sold) = app.buy_json("sale", 2, body(&other)).await;
            assert!(status.is_success() || sold["code"] == "sold-out", "{tier:?}: {sold}");
            status.is_success().then_some(())
        })
        .await;
        app.assert_audit_holds().await;
    }
}

#[tokio::test]
async fn late_money_for_units_that_were_sold_is_paid_back_and_the_feed_says_so() {
    for tier in [Tier::Memory, Tier::Gate] {
        let app = selling(tier, one_per_buyer(), 1, json!({})).await;
        let id = order(&app, BUYER).await;
        let payment = started(&app, &id).await;
        pressed(&app, &payment, "fail").await;
        let is_second = |other: &Json| other["payment_id"] != payment["payment_id"];
        until("a second payment", async || Some(started(&app, &id).await).filter(is_second)).await;
        let is_stopped =
            |order: &Json| order["state"] == "timed_out" && order["payment"]["state"] == "closed";
        reaches(&app, &id, is_stopped).await;
        let other = app.request_id("sale", 2).await;
        let body = json!({"sku_id": "sku", "quantity": 1, "request_id": other});
        until("the unit", async || {
            let (_, answer) = app.buy_json("sale", 2, body.clone()).await;
            (answer["order"]["state"] == "pending_payment").then_some(())
        })
        .await;
        pressed(&app, &payment, "pay_late").await;
        let ended = reaches(&app, &id, |order| order["payment"]["state"] == "refunded").await;
        assert_eq!((&ended["state"], ended.get("replaced_by")), (&json!("timed_out"), None));
        assert_eq!(ended["payment"]["payment_id"], payment["payment_id"], "that with money");

        let url = format!("http://{}/admin/v1/order-events?limit=1000", app.internal);
        let event = until("the event", async || {
            let events: Vec<Json> =
                app.client.get(&url).send().await.unwrap().json().await.unwrap();
            events.into_iter().find(|event| event["type"] == "order.paid_unfulfilled")
        })
        .await;
        let data = &event["data"];
        assert_eq!(data["order"]["state"], "timed_out", "{tier:?}: {event}");
        assert_eq!((&data["reason"], &data["actor"]), (&json!("sold-out"), &json!("provider")));
        assert_eq!(data["payment"]["payment_id"], payment["payment_id"]);
        assert_eq!(event["subject"], id.split('-').next().unwrap());
        app.assert_audit_holds().await;
    }
}
