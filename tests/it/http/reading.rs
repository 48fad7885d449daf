//! The read endpoints of buyers: sales, requests, orders.

use serde_json::{Value as Json, json};

use super::{Case, cases, fresh, one_per_buyer, problem, selling, unlimited};
use crate::support::app::sale_body;
use crate::support::wait::until;

#[tokio::test]
async fn sales_are_listed_with_server_time_and_stock() {
    let app = selling(unlimited(), 5).await;
    app.open_sale("second", one_per_buyer(), 7, 1).await;
    let (status, all) = app.get("/v1/sales", 1).await;
    assert_eq!(status, 200);
    assert!(all["server_time"].is_string());
    let ids: Vec<_> = all["sales"].as_array().unwrap().iter().map(|s| &s["sale_id"]).collect();
    assert_eq!(ids, ["sale", "second"]);

    let one = until("the stock count", async || {
        let (_, one) = app.get("/v1/sales/second", 1).await;
        (one["skus"][0]["stock_left"] == 7).then_some(one)
    })
    .await;
    assert!(one["server_time"].is_string());
    assert_eq!(one["phase"], "open");
    assert_eq!(one["ticket_required"], false);
    assert_eq!(one["currency"], "CNY");
    assert_eq!(one["poll_after_ms"], 1_000);
    let sku = &one["skus"][0];
    assert_eq!(sku["policy"], json!({"kind": "one_per_buyer", "max_quantity": 2}));
    assert_eq!((&sku["price"], &sku["stock_left"]), (&json!(100), &json!(7)));
    assert_eq!(sku["initial_stock"], 7);
    let call = app.client.get(app.url("/v1/sales/third")).send().await.unwrap();
    problem(call, 404, "unknown-sku").await;
}

#[tokio::test]
async fn drafts_and_long_ended_sales_are_not_shown_and_the_list_has_pages() {
    let app = selling(unlimited(), 5).await;
    app.admin("/sales", Some(sale_body("draft", unlimited(), 5, 1))).await;
    let mut over = sale_body("over", unlimited(), 5, 1);
    over["starts_at"] = json!("2020-01-01T00:00:00Z");
    over["ends_at"] = json!("2020-01-02T00:00:00Z");
    app.admin("/sales", Some(over)).await;
    app.admin("/sales/over/open", Some(json!({}))).await;
    app.admin("/sales", Some(sale_body("dropped", unlimited(), 5, 1))).await;
    app.admin("/sales/dropped/close", Some(json!({}))).await;
    let hidden = ["draft", "draft/mine", "over", "dropped", "dropped/mine"];
    for hidden in hidden.map(|sale| format!("/v1/sales/{sale}")) {
        let call = app.client.get(app.url(&hidden)).header("x-buyer-id", "1");
        problem(call.send().await.unwrap(), 404, "unknown-sku").await;
    }
    app.open_sale("second", one_per_buyer(), 7, 1).await;
    app.open_sale("third", one_per_buyer(), 7, 1).await;
    let (mut read, mut path) = (Vec::new(), "/v1/sales?limit=2".to_owned());
    loop {
        let (status, page) = app.get(&path, 1).await;
        assert_eq!(status, 200, "{page}");
        let ids = page["sales"].as_array().unwrap().iter();
        let ids = ids.map(|sale| sale["sale_id"].as_str().unwrap().to_owned());
        read.push(ids.collect::<Vec<_>>());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/sales?limit=2&cursor={cursor}");
    }
    assert_eq!(read, [vec!["sale", "second"], vec!["third"]]);
    for query in ["limit=0", "limit=201", "cursor=x", "page=2"] {
        let answer = app.client.get(app.url(&format!("/v1/sales?{query}"))).send().await.unwrap();
        problem(answer, 400, "invalid-request").await;
    }
}

#[tokio::test]
async fn a_buyer_sees_what_is_his_under_each_policy() {
    let app = fresh();
    let quota = json!({"kind": "quota", "limit": 5, "max_quantity": 2});
    let policies = [("one", one_per_buyer()), ("quota", quota), ("many", unlimited())];
    for (sale, policy) in &policies {
        app.open_sale(sale, policy.clone(), 50, 2).await;
    }
    let mine = async |sale: &str, buyer: u64| {
        let path = format!("/v1/sales/{sale}/mine");
        until(&path, async || {
            let (status, body) = app.get(&path, buyer).await;
            (status == 200).then(|| body["skus"][0].clone())
        })
        .await
    };
    let first = mine("one", 1).await;
    assert_eq!((&first["owned"], &first["state"]), (&json!(0), &Json::Null));
    assert_eq!(mine("quota", 1).await, json!({"sku_id": "sku", "owned": 0, "limit": 5}));
    assert_eq!(mine("many", 1).await, json!({"sku_id": "sku"}), "the policy counts no units");

    let bought = app.bought("one", 1, json!({"sku_id": "sku", "quantity": 2})).await;
    assert_eq!(bought["request_id"], first["request_id"], "the id of the next purchase");
    let expected = json!({
        "sku_id": "sku", "owned": 2, "request_id": bought["request_id"], "state": "success",
    });
    assert_eq!(mine("one", 1).await, expected);
    assert_eq!(mine("one", 2).await["owned"], 0, "of this buyer alone");
    for owned in [2, 4] {
        let id = app.request_id("quota", 1).await;
        let body = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
        let bought = app.bought("quota", 1, body).await;
        assert_eq!(bought["quota"], json!({"owned": owned, "limit": 5}), "{bought}");
        assert_eq!(mine("quota", 1).await["owned"], owned);
    }
    assert_eq!(mine("quota", 2).await["owned"], 0);

    // The limit of a cancelled order returns, and the next purchase has another id.
    let path = format!("/v1/orders/{}", bought["request_id"].as_str().unwrap());
    let cancelled = app.client.delete(app.url(&path)).header("x-buyer-id", "1");
    let cancelled: Json = cancelled.send().await.unwrap().json().await.unwrap();
    let next = until("the limit", async || {
        let mine = mine("one", 1).await;
        (mine["owned"] == 0).then_some(mine)
    })
    .await;
    let expected = json!({"sku_id": "sku", "owned": 0, "request_id": cancelled["again"]});
    assert_eq!(next, expected, "{cancelled}");
    // A repeat of the purchase and the status of its request name it, too.
    let repeat = app.buy("one", 1, json!({"sku_id": "sku", "quantity": 2})).await;
    assert_eq!(repeat.headers()["idempotent-replayed"], "true");
    let repeat: Json = repeat.json().await.unwrap();
    assert_eq!(repeat["again"], cancelled["again"], "{repeat}");
    let path = format!("/v1/requests/{}", bought["request_id"].as_str().unwrap());
    assert_eq!(app.get(&path, 1).await.1, repeat);
    let answer = app.client.get(app.url("/v1/sales/one/mine")).send().await.unwrap();
    problem(answer, 401, "unauthenticated").await;
}

/// Tiers `gate` and `pipeline` load buckets `maintenance.preload_ms` before the start of a sale.
#[tokio::test]
async fn long_before_the_start_nothing_is_owned_and_nothing_was_accepted() {
    let app = fresh();
    let quota = json!({"kind": "quota", "limit": 5, "max_quantity": 2});
    for (sale, policy) in [("one", one_per_buyer()), ("quota", quota)] {
        let mut body = sale_body(sale, policy, 50, 2);
        body["starts_at"] = json!("2098-01-01T00:00:00Z");
        body["ends_at"] = json!("2099-01-01T00:00:00Z");
        app.admin("/sales", Some(body)).await;
        app.admin(&format!("/sales/{sale}/open"), Some(json!({}))).await;
    }
    let (status, quota) = app.get("/v1/sales/quota/mine", 1).await;
    assert_eq!(status, 200, "{quota}");
    assert_eq!(quota["skus"][0], json!({"sku_id": "sku", "owned": 0, "limit": 5}));
    let (status, one) = app.get("/v1/sales/one/mine", 1).await;
    assert_eq!(status, 200, "{one}");
    let one = &one["skus"][0];
    assert_eq!((&one["owned"], &one["state"]), (&json!(0), &Json::Null));

    let id = one["request_id"].as_str().unwrap();
    for path in [format!("/v1/requests/{id}"), format!("/v1/requests/{id}/events")] {
        let call = app.client.get(app.url(&path)).header("x-buyer-id", "1");
        let unknown = problem(call.send().await.unwrap(), 404, "not-found").await;
        assert_eq!(unknown["state"], "not_found", "{path}");
    }
    for (quantity, status, code) in [(1, 403, "not-started"), (3, 400, "invalid-request")] {
        for sale in ["one", "quota"] {
            let id = app.request_id(sale, 1).await;
            let body = json!({"sku_id": "sku", "quantity": quantity, "request_id": id});
            problem(app.buy(sale, 1, body).await, status, code).await;
        }
    }
}

#[tokio::test]
async fn a_reader_who_has_the_page_gets_no_second_copy() {
    let app = selling(unlimited(), 5).await;
    for path in ["/v1/sales", "/v1/sales/sale"] {
        let first = app.client.get(app.url(path)).send().await.unwrap();
        assert_eq!(first.headers()["cache-control"], "no-cache");
        let tag = first.headers()["etag"].clone();
        let again = app.client.get(app.url(path)).header("if-none-match", &tag);
        let again = again.send().await.unwrap();
        assert_eq!(again.status(), 304, "{path}");
        assert_eq!(again.headers()["etag"], tag);
        assert_eq!(again.bytes().await.unwrap().len(), 0);
        let other = app.client.get(app.url(path)).header("if-none-match", "W/\"other\"");
        assert_eq!(other.send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_phase_is_shown_as_soon_as_it_is_set() {
    let app = selling(unlimited(), 5).await;
    for (verb, phase) in [("pause", "paused"), ("open", "open"), ("close", "closed")] {
        app.admin(&format!("/sales/sale/{verb}"), Some(json!({}))).await;
        assert_eq!(app.get("/v1/sales/sale", 1).await.1["phase"], phase);
    }
}

#[tokio::test]
async fn a_request_is_shown_to_its_owner_only() {
    let app = selling(unlimited(), 5).await;
    let id = app.request_id("sale", 1).await;
    let path = format!("/v1/requests/{id}");
    let as_buyer = |buyer: &'static str, path: String| {
        app.client.get(app.url(&path)).header("x-buyer-id", buyer).send()
    };
    let early = problem(as_buyer("1", path.clone()).await.unwrap(), 404, "not-found").await;
    assert_eq!((&early["state"], &early["request_id"]), (&json!("not_found"), &json!(id)));

    let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    let bought = app.bought("sale", 1, purchase).await;
    let shown = as_buyer("1", path.clone()).await.unwrap();
    assert_eq!(shown.headers()["cache-control"], "no-store");
    assert!(shown.headers().get("retry-after").is_none(), "the state is final");
    let shown: Json = shown.json().await.unwrap();
    assert_eq!(shown["state"], "success");
    assert_eq!(shown["order"], bought["order"]);
    assert_eq!(shown["poll_after_ms"], 0);

    let other = problem(as_buyer("2", path.clone()).await.unwrap(), 404, "not-found").await;
    assert_eq!(other["state"], "not_found");
    let anonymous = app.client.get(app.url(&path)).send().await.unwrap();
    problem(anonymous, 401, "unauthenticated").await;
    for junk in ["x", "1-1-AAAAAAAAAAAAAAAA", "%20"] {
        let junk = as_buyer("1", format!("/v1/requests/{junk}")).await.unwrap();
        problem(junk, 404, "not-found").await;
    }
}

#[tokio::test]
async fn my_orders_come_page_by_page_newest_first() {
    let app = selling(unlimited(), 50).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let id = app.request_id("sale", 1).await;
        let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        app.bought("sale", 1, purchase).await;
        ids.insert(0, id);
    }
    let mut read = Vec::new();
    let mut path = "/v1/orders?limit=2".to_owned();
    loop {
        let (_, page) = app.get(&path, 1).await;
        let orders = page["orders"].as_array().unwrap().clone();
        assert!(orders.len() <= 2);
        read.extend(orders.iter().map(|o| o["request_id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/orders?limit=2&cursor={cursor}");
    }
    read.sort();
    ids.sort();
    assert_eq!(read, ids, "each order is listed once");
    assert_eq!(app.get("/v1/orders", 2).await.1, json!({"orders": []}));
    let cursors = ["", "x", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAE", "%C3%A9"];
    let cursors = cursors.map(|cursor| format!("cursor={cursor}"));
    let others = ["limit=0", "limit=101", "limit=x", "limit=-1", "page=2"].map(str::to_owned);
    for query in others.into_iter().chain(cursors) {
        let call = app.client.get(app.url(&format!("/v1/orders?{query}")));
        let answer = call.header("x-buyer-id", "1").send().await.unwrap();
        problem(answer, 400, "invalid-request").await;
    }
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    sales_are_listed_with_server_time_and_stock,
    drafts_and_long_ended_sales_are_not_shown_and_the_list_has_pages,
    a_buyer_sees_what_is_his_under_each_policy,
    long_before_the_start_nothing_is_owned_and_nothing_was_accepted,
    a_phase_is_shown_as_soon_as_it_is_set,
    a_request_is_shown_to_its_owner_only,
    my_orders_come_page_by_page_newest_first,
];
