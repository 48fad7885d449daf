//! One sale from draft to close: the calls of an operator and three buyers, and their answers.

use floodgate::config::{OutboxKind, Tier};
use serde_json::json;

use crate::support::app::{TestApp, fresh_settings, ledger_on_mariadb, sale_body};

#[test]
fn a_sale_from_draft_to_close() {
    let tiers = [Tier::Memory, Tier::Ledger, Tier::Gate].map(fresh_settings);
    for stores in tiers.into_iter().chain([ledger_on_mariadb()]) {
        let app = TestApp::on(stores);
        tokio::runtime::Runtime::new().unwrap().block_on(story(&app));
    }
}

#[test]
fn the_same_sale_through_the_pipeline() {
    for kind in [OutboxKind::List, OutboxKind::Stream] {
        let (mut settings, fixture) = fresh_settings(Tier::Pipeline);
        settings.outbox.kind = kind;
        let app = TestApp::on((settings, fixture));
        tokio::runtime::Runtime::new().unwrap().block_on(story(&app));
    }
}

async fn story(app: &TestApp) {
    let policy = json!({"kind": "unlimited", "max_quantity": 3});
    app.admin("/sales", Some(sale_body("sale", policy, 4, 2))).await;
    let (status, draft) = app.buy_json("sale", 7, json!({"sku_id": "sku", "quantity": 3})).await;
    assert_eq!((status.as_u16(), &draft["code"]), (404, &json!("unknown-sku")));

    app.admin("/sales/sale/open", Some(json!({}))).await;
    let id = app.request_id("sale", 7).await;
    let purchase = |quantity: u32| json!({"sku_id": "sku", "quantity": quantity, "request_id": id});
    let bought = app.bought("sale", 7, purchase(3)).await;
    assert_eq!(bought["state"], "success");
    let order = &bought["order"];
    assert_eq!((&order["quantity"], &order["amount"]), (&json!(3), &json!(300)));
    assert_eq!(order["request_id"], json!(id));
    assert_eq!(order["buyer_id"], "7");

    let (status, other) = app.buy_json("sale", 7, purchase(2)).await;
    assert_eq!((status.as_u16(), &other["code"]), (422, &json!("request-id-reused")));

    app.admin("/sales/sale/pause", Some(json!({}))).await;
    let second = app.request_id("sale", 8).await;
    let purchase_of_8 = json!({"sku_id": "sku", "quantity": 1, "request_id": second});
    let (status, paused) = app.buy_json("sale", 8, purchase_of_8.clone()).await;
    assert_eq!((status.as_u16(), &paused["code"]), (403, &json!("paused")));
    let (status, _) = app.buy_json("sale", 7, purchase(3)).await;
    assert_eq!(status, 200, "a paused sale still answers accepted requests");

    app.admin("/sales/sale/open", Some(json!({}))).await;
    assert_eq!(app.bought("sale", 8, purchase_of_8).await["state"], "success");
    let third = app.request_id("sale", 9).await;
    let purchase_of_9 = json!({"sku_id": "sku", "quantity": 1, "request_id": third});
    let (status, late) = app.buy_json("sale", 9, purchase_of_9.clone()).await;
    assert_eq!((status.as_u16(), &late["code"]), (409, &json!("sold-out")));

    let (_, orders) = app.get("/v1/orders", 7).await;
    assert_eq!(orders["orders"].as_array().unwrap().len(), 1);
    assert_eq!(orders["orders"][0], bought["order"]);
    let (_, sale) = app.get("/v1/sales/sale", 7).await;
    assert_eq!(sale["sale_id"], "sale");

    app.admin("/sales/sale/close", Some(json!({}))).await;
    let (status, closed) = app.buy_json("sale", 9, purchase_of_9).await;
    assert_eq!((status.as_u16(), &closed["code"]), (410, &json!("ended")));
    let trace = app.admin(&format!("/requests/{id}/trace"), None).await;
    let messages: Vec<_> = trace["stages"].as_array().unwrap().iter().map(|s| &s["says"]).collect();
    let expected: &[&str] = match app.settings.tier {
        Tier::Pipeline => &["has the order", "sent it to the broker", "order"],
        _ => &["has the order", "order"],
    };
    assert_eq!(messages, expected);
    assert!(trace["trace_id"].is_string() && trace["took_ms"].is_u64(), "{trace}");
    app.assert_audit_holds().await;
}
