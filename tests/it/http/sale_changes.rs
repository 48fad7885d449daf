//! Operators change a sale while it runs: title, end, terms, stock.

use std::time::Duration;

use diesel::{Connection, SqliteConnection};
use floodgate::config::Tier;
use floodgate::runtime::clock::wall_ms;
use reqwest::{Method, Response};
use serde_json::{Value as Json, json};
use tokio::time::sleep;

use super::{Case, cases, fresh, one_per_buyer, problem, selling, unlimited};
use crate::support::TestApp;
use crate::support::app::{fresh_settings, sale_body};
use crate::support::wait::until;

async fn call(app: &TestApp, method: Method, path: &str, body: &Json) -> Response {
    let url = format!("http://{}/admin/v1/sales{path}", app.internal);
    app.client.request(method, url).json(body).send().await.unwrap()
}

async fn change(app: &TestApp, body: Json) -> Json {
    let answer = call(app, Method::PATCH, "/sale", &body).await;
    assert_eq!(answer.status(), 200, "{body}");
    answer.json().await.unwrap()
}

async fn restock(app: &TestApp, id: &str, delta: i32) -> Json {
    let body = json!({"delta": delta, "change_id": id, "reason": "a delivery"});
    until("a change of stock", async || {
        let answer = call(app, Method::POST, "/sale/skus/sku/stock", &body).await;
        if answer.status() == 503 {
            return None;
        }
        assert_eq!(answer.status(), 200, "{id}");
        Some(answer.json::<Json>().await.unwrap())
    })
    .await
}

/// Buys one unit, and repeats while the gates read the new terms. Returns the order or the code.
async fn buy(app: &TestApp, buyer: u64) -> Json {
    let id = app.request_id("sale", buyer).await;
    let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    until("an answer", async || {
        let (status, answer) = app.buy_json("sale", buyer, body.clone()).await;
        match status.as_u16() {
            503 => None,
            200 => Some(answer["order"].clone()),
            202 => {
                let path = format!("/v1/requests/{}", answer["request_id"].as_str().unwrap());
                let (_, view) = app.get(&path, buyer).await;
                (view["state"] == "success").then(|| view["order"].clone())
            }
            _ => Some(answer["code"].clone()),
        }
    })
    .await
}

#[tokio::test]
async fn new_terms_are_in_force_for_new_orders_only() {
    let app = selling(unlimited(), 50).await;
    let first = buy(&app, 1).await;
    assert_eq!(first["amount"], 100);
    let sku = json!({"sku_id": "sku", "price": 250, "max_quantity": 1, "payment_window_s": 60});
    let sale = change(&app, json!({"skus": [sku], "reason": "sold too cheap"})).await;
    assert_eq!((&sale["epoch"], &sale["skus"][0]["price"]), (&json!(2), &json!(250)));
    assert_eq!(sale["skus"][0]["payment_window_s"], 60);
    let (_, shown) = app.get("/v1/sales/sale", 1).await;
    assert_eq!(shown["skus"][0]["price"], 250, "{shown}");
    let second = buy(&app, 2).await;
    assert_eq!(second["amount"], 250, "{second}");
    let (_, orders) = app.get("/v1/orders", 1).await;
    assert_eq!(orders["orders"][0]["amount"], 100, "an order keeps its price: {orders}");
    let titles = ["sale_title", "sku_title", "currency"].map(|name| &orders["orders"][0][name]);
    assert_eq!(titles, ["A sale", "A SKU", "CNY"], "{orders}");
    let path = format!("/v1/requests/{}", first["request_id"].as_str().unwrap());
    let (_, status) = app.get(&path, 1).await;
    assert_eq!(status["order"]["amount"], 100, "{status}");
    let id = app.request_id("sale", 3).await;
    let two = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
    problem(app.buy("sale", 3, two).await, 400, "invalid-request").await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_lower_limit_denies_no_purchase_that_was_accepted_before() {
    let app = selling(unlimited(), 50).await;
    let id = app.request_id("sale", 1).await;
    let two = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
    let first = app.bought("sale", 1, two.clone()).await;
    change(&app, json!({"skus": [{"sku_id": "sku", "max_quantity": 1}]})).await;
    assert_eq!(app.bought("sale", 1, two).await["order"], first["order"]);
    let id = app.request_id("sale", 2).await;
    let two = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
    problem(app.buy("sale", 2, two).await, 400, "invalid-request").await;
}

#[tokio::test]
async fn title_and_end_change_at_once() {
    let app = selling(unlimited(), 5).await;
    let sale = change(&app, json!({"title": "Encore", "ends_at": "2099-01-01T00:00:00Z"})).await;
    assert_eq!((&sale["title"], &sale["epoch"]), (&json!("Encore"), &json!(1)));
    assert_eq!(sale["ends_at"], "2099-01-01T00:00:00.000Z");
    until("the title on the page, which is at most a second old", async || {
        let (_, shown) = app.get("/v1/sales/sale", 1).await;
        (shown["title"] == "Encore").then_some(())
    })
    .await;
    let end = |ahead_ms: i64| {
        let at = chrono::DateTime::from_timestamp_millis(wall_ms() + ahead_ms);
        at.unwrap().to_rfc3339()
    };
    let body = json!({"ends_at": end(1_000)});
    let refused = problem(call(&app, Method::PATCH, "/sale", &body).await, 400, "invalid-request");
    assert!(refused.await["detail"].as_str().unwrap().contains("2 s ahead"));
    change(&app, json!({"ends_at": end(2_500)})).await;
    let id = app.request_id("sale", 1).await;
    until("the end, after which no id is issued", async || {
        let call = app.client.post(app.url("/v1/sales/sale/request-ids")).header("x-buyer-id", "1");
        let answer = call.json(&json!({"sku_id": "sku"})).send().await.unwrap();
        (answer.status() == 410).then_some(())
    })
    .await;
    let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    problem(app.buy("sale", 1, body).await, 410, "ended").await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn invalid_changes_are_refused() {
    let app = selling(unlimited(), 5).await;
    // An amount of 2^53, the first that a JSON number does not tell from the next one.
    let large = json!({"sku_id": "sku", "price": 17_179_869_184_u64, "max_quantity": 524_288});
    for (body, expected) in [
        (json!({"skus": [{"sku_id": "sku", "price": -1}]}), "price"),
        (json!({"skus": [large]}), "price times max_quantity"),
        (json!({"skus": [{"sku_id": "sku", "limit": 3}]}), "policy.limit"),
        (json!({"skus": [{"sku_id": "other"}]}), "other"),
        (json!({"skus": [{"sku_id": "sku", "buckets": 9}]}), "buckets"),
        (json!({"skus": [{"sku_id": "sku", "policy": {"kind": "quota"}}]}), "policy"),
        (json!({"ends_at": "2001-01-01T00:00:00Z"}), "ends_at"),
        (json!({"reason": "x".repeat(1_001)}), "reason"),
    ] {
        let refused = call(&app, Method::PATCH, "/sale", &body).await;
        let refused = problem(refused, 400, "invalid-request").await;
        assert!(refused["detail"].as_str().unwrap().contains(expected), "{refused}");
    }
    for body in [
        json!({"delta": 0, "change_id": "a"}),
        json!({"delta": 1, "change_id": ""}),
        json!({"delta": 1, "change_id": "a b"}),
        json!({"delta": 1}),
        json!({"delta": 1_000_000_000, "change_id": "a"}),
    ] {
        let refused = call(&app, Method::POST, "/sale/skus/sku/stock", &body).await;
        problem(refused, 400, "invalid-request").await;
    }
    let good = json!({"delta": 1, "change_id": "a"});
    for path in ["/none/skus/sku/stock", "/sale/skus/none/stock"] {
        problem(call(&app, Method::POST, path, &good).await, 404, "unknown-sku").await;
    }
    problem(call(&app, Method::PATCH, "/none", &json!({})).await, 404, "unknown-sku").await;
    app.admin("/sales/sale/close", Some(json!({}))).await;
    problem(call(&app, Method::PATCH, "/sale", &json!({})).await, 409, "sale-closed").await;
    let closed = call(&app, Method::POST, "/sale/skus/sku/stock", &good).await;
    problem(closed, 409, "sale-closed").await;
    assert_eq!(app.admin("/sales/sale", None).await["skus"][0]["initial_stock"], 5);
}

#[tokio::test]
async fn a_sold_out_sku_is_restocked_once_per_change_id() {
    let app = selling(one_per_buyer(), 2).await;
    for buyer in 1..=2 {
        assert_eq!(buy(&app, buyer).await["quantity"], 1);
    }
    until("sold out", async || (buy(&app, 9).await == "sold-out").then_some(())).await;
    for is_repeat in [false, true] {
        let body = json!({"delta": 3, "change_id": "delivery"});
        let answer = call(&app, Method::POST, "/sale/skus/sku/stock", &body).await;
        let replayed = answer.headers().get("idempotent-replayed");
        assert_eq!(replayed.is_some_and(|value| value == "true"), is_repeat);
        let added: Json = answer.json().await.unwrap();
        assert_eq!(added["stock_left"], 3, "{added}");
        assert_eq!((&added["changed"], &added["initial_stock"]), (&json!(3), &json!(5)), "{added}");
    }
    let other = json!({"delta": 4, "change_id": "delivery"});
    let conflict = call(&app, Method::POST, "/sale/skus/sku/stock", &other).await;
    problem(conflict, 409, "change-conflict").await;
    for buyer in 11..=13 {
        assert_eq!(buy(&app, buyer).await["quantity"], 1, "buyer {buyer}");
    }
    until("sold out", async || (buy(&app, 19).await == "sold-out").then_some(())).await;
    app.assert_audit_holds().await;
}

/// Tiers `gate` and `pipeline` load buckets `maintenance.preload_ms` before the start of a sale.
#[tokio::test]
async fn units_that_are_added_long_before_the_start_are_shown() {
    let app = fresh();
    let mut body = sale_body("sale", one_per_buyer(), 5, 2);
    body["starts_at"] = json!("2098-01-01T00:00:00Z");
    body["ends_at"] = json!("2099-01-01T00:00:00Z");
    app.admin("/sales", Some(body)).await;
    app.admin("/sales/sale/open", Some(json!({}))).await;
    assert_eq!(restock(&app, "delivery", 3).await["initial_stock"], 8);
    let shown = app.admin("/sales/sale", None).await;
    assert_eq!(shown["skus"][0]["stock_left"], 8, "{shown}");
    until("the units on the page", async || {
        let (_, sale) = app.get("/v1/sales/sale", 1).await;
        (sale["skus"][0]["stock_left"] == 8).then_some(())
    })
    .await;
}

#[tokio::test]
async fn only_free_units_are_taken_out() {
    let app = selling(one_per_buyer(), 10).await;
    for buyer in 1..=4 {
        buy(&app, buyer).await;
    }
    let taken = restock(&app, "damaged", -3).await;
    assert_eq!((&taken["changed"], &taken["initial_stock"]), (&json!(-3), &json!(7)), "{taken}");
    assert_eq!(restock(&app, "damaged", -3).await, taken, "a repeat");
    app.assert_audit_holds().await;
    let taken = restock(&app, "rest", -99).await;
    assert_eq!((&taken["changed"], &taken["initial_stock"]), (&json!(-3), &json!(4)), "{taken}");
    until("sold out", async || (buy(&app, 9).await == "sold-out").then_some(())).await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_crowd_buys_exactly_the_units_of_every_change() {
    let app = selling(one_per_buyer(), 5).await;
    let crowd = async {
        let buyers = (1..=60).map(|buyer| buy(&app, buyer));
        futures_util::future::join_all(buyers).await
    };
    let changes = async {
        for (id, delta) in [("a", 7), ("b", -2), ("c", 6), ("d", -1), ("e", 9)] {
            restock(&app, id, delta).await;
        }
    };
    let (answers, ()) = tokio::join!(crowd, changes);
    let sold = answers.iter().filter(|answer| answer["quantity"] == 1).count();
    let sale = app.admin("/sales/sale", None).await;
    let stock = usize::try_from(sale["skus"][0]["initial_stock"].as_u64().unwrap()).unwrap();
    assert!(sold <= stock, "{sold} of {stock}");
    // Who came too early for the last units comes again.
    let mut total = sold;
    for buyer in 101..=160 {
        total += usize::from(buy(&app, buyer).await["quantity"] == 1);
        if total == stock {
            break;
        }
    }
    assert_eq!(total, stock, "every unit is sold");
    until("sold out", async || (buy(&app, 199).await == "sold-out").then_some(())).await;
    app.assert_audit_holds().await;
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    new_terms_are_in_force_for_new_orders_only,
    a_lower_limit_denies_no_purchase_that_was_accepted_before,
    title_and_end_change_at_once,
    invalid_changes_are_refused,
    a_sold_out_sku_is_restocked_once_per_change_id,
    units_that_are_added_long_before_the_start_are_shown,
    only_free_units_are_taken_out,
    a_crowd_buys_exactly_the_units_of_every_change,
];

#[tokio::test]
async fn a_verb_whose_caller_hangs_up_is_carried_out() {
    let (settings, stores) = fresh_settings(Tier::Memory);
    let file = settings.ledger.url.trim_start_matches("sqlite://").to_owned();
    let app = TestApp::on((settings, stores));
    app.open_sale("sale", one_per_buyer(), 5, 1).await;
    let mut shell = SqliteConnection::establish(&file).unwrap();
    until("a paused sale", async || {
        app.hang_up(&mut shell, "/sales/sale/pause", "{}").await;
        for _ in 0..20 {
            let (_, sale) = app.get("/v1/sales/sale", 1).await;
            if sale["phase"] == "paused" {
                return Some(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    })
    .await;
}
