//! Request ids: issued, derived, forged and expired.

use serde_json::{Value as Json, json};

use super::{Case, cases, one_per_buyer, problem, selling, settings, unlimited};
use crate::support::TestApp;
use crate::support::app::sale_body;

fn purchase(request_id: &str) -> Json {
    json!({"sku_id": "sku", "quantity": 1, "request_id": request_id})
}

#[tokio::test]
async fn issued_ids_differ_and_derived_ids_do_not() {
    let app = selling(unlimited(), 5).await;
    app.open_sale("one", one_per_buyer(), 5, 2).await;
    assert_ne!(app.request_id("sale", 1).await, app.request_id("sale", 1).await);
    assert_eq!(app.request_id("one", 1).await, app.request_id("one", 1).await);
    assert_ne!(app.request_id("one", 1).await, app.request_id("one", 2).await);

    let derived = app.request_id("one", 1).await;
    let bought = app.bought("one", 1, json!({"sku_id": "sku", "quantity": 1})).await;
    assert_eq!(bought["request_id"], json!(derived), "a missing request id is derived");
}

#[tokio::test]
async fn an_id_carries_its_expiry() {
    let app = selling(unlimited(), 5).await;
    let call = app.client.post(app.url("/v1/sales/sale/request-ids"));
    let call = call.header("x-buyer-id", "1").json(&json!({"sku_id": "sku"}));
    let answer = call.send().await.unwrap();
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let body: Json = answer.json().await.unwrap();
    let expires =
        chrono::DateTime::parse_from_rfc3339(body["expires_at"].as_str().unwrap()).unwrap();
    let left_s = (expires.timestamp_millis() - floodgate::runtime::clock::wall_ms()) / 1000;
    assert!((3_500..=3_600).contains(&left_s), "{left_s}");
}

#[tokio::test]
async fn ids_of_other_buyers_and_sales_are_refused() {
    let app = selling(unlimited(), 5).await;
    let mut other = sale_body("other", unlimited(), 5, 2);
    let mut second = other["skus"][0].clone();
    second["sku_id"] = json!("second");
    other["skus"].as_array_mut().unwrap().push(second);
    app.admin("/sales", Some(other)).await;
    app.admin("/sales/other/open", Some(json!({}))).await;
    let mut of_second = purchase(&app.request_id("other", 1).await);
    of_second["sku_id"] = json!("second");
    problem(app.buy("other", 1, of_second).await, 403, "request-id-invalid").await;
    let own = app.request_id("sale", 1).await;
    problem(app.buy("sale", 2, purchase(&own)).await, 403, "request-id-invalid").await;
    problem(app.buy("other", 1, purchase(&own)).await, 403, "request-id-invalid").await;

    let (number, rest) = own.split_once('-').unwrap();
    let next = number.parse::<u64>().unwrap() + 1;
    // The signature is the last part, and may contain a `-`.
    let (sku, mac) = rest.split_once('-').unwrap();
    let mut forged = vec![
        String::new(),
        "1".to_owned(),
        number.to_owned(),
        format!("{next}-{rest}"),
        format!("{number}-{sku}-{}", "A".repeat(mac.len())),
        own[..own.len() - 1].to_owned(),
        format!("{own}A"),
        format!("0{own}"),
        format!("+{own}"),
        format!(" {own}"),
        format!("{number}-0{rest}"),
        format!("{number}--{rest}"),
        format!("{number}-0-{mac}"),
        format!("{number}-2147483648-{mac}"),
        format!("{own}="),
        format!("{own} "),
        format!("{number}-{sku}-{}+", &mac[..15]),
        format!("{number}-{sku}-{}é", &mac[..14]),
        "9223372036854775808-1-AAAAAAAAAAAAAAAA".to_owned(),
        "é".to_owned(),
    ];
    // Each character of the signature counts.
    forged.extend((0..mac.len()).map(|at| {
        let other = if mac[at..].starts_with('x') { 'y' } else { 'x' };
        format!("{number}-{sku}-{}{other}{}", &mac[..at], &mac[at + 1..])
    }));
    for id in &forged {
        problem(app.buy("sale", 1, purchase(id)).await, 403, "request-id-invalid").await;
    }
    // The forged ids did not use up the real one.
    app.bought("sale", 1, purchase(&own)).await;
}

#[tokio::test]
async fn a_derived_id_cannot_be_replaced_by_another_signed_one() {
    let app = selling(one_per_buyer(), 5).await;
    let own = app.request_id("sale", 1).await;
    let others = app.request_id("sale", 2).await;
    problem(app.buy("sale", 1, purchase(&others)).await, 403, "request-id-invalid").await;
    app.bought("sale", 1, purchase(&own)).await;
}

#[tokio::test]
async fn an_expired_id_buys_nothing_new_but_reads_its_first_answer() {
    let (settings, _stores) = settings();
    let app = TestApp::start(settings.clone());
    app.open_sale("sale", unlimited(), 5, 2).await;
    let (used, unused) = (app.request_id("sale", 1).await, app.request_id("sale", 1).await);
    let first = app.bought("sale", 1, purchase(&used)).await;
    assert_eq!(first["state"], "success");
    app.stop();

    let mut later = settings;
    later.auth.request_id_ttl_s = 0;
    let app = TestApp::start(later);
    problem(app.buy("sale", 1, purchase(&unused)).await, 403, "request-id-invalid").await;
    let again = app.buy("sale", 1, purchase(&used)).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.json::<Json>().await.unwrap(), first);
}

#[tokio::test]
async fn ids_are_for_known_skus() {
    let app = selling(unlimited(), 5).await;
    for (sale, sku) in [("sale", "other"), ("other", "sku")] {
        let call = app.client.post(app.url(&format!("/v1/sales/{sale}/request-ids")));
        let call = call.header("x-buyer-id", "1").json(&json!({"sku_id": sku}));
        problem(call.send().await.unwrap(), 404, "unknown-sku").await;
    }
    let call = app.client.post(app.url("/v1/sales/sale/request-ids")).header("x-buyer-id", "1");
    problem(call.json(&json!({"sku": "sku"})).send().await.unwrap(), 400, "invalid-request").await;
}

/// Such an id could not buy anything.
#[tokio::test]
async fn no_ids_are_issued_for_a_sale_that_is_over() {
    let app = selling(unlimited(), 5).await;
    let mut past = sale_body("past", one_per_buyer(), 5, 1);
    past["starts_at"] = json!("2020-01-01T00:00:00Z");
    past["ends_at"] = json!("2020-01-02T00:00:00Z");
    app.admin("/sales", Some(past)).await;
    app.admin("/sales/past/open", Some(json!({}))).await;
    app.admin("/sales/sale/close", Some(json!({}))).await;
    for sale in ["sale", "past"] {
        let call = app.client.post(app.url(&format!("/v1/sales/{sale}/request-ids")));
        let call = call.header("x-buyer-id", "1").json(&json!({"sku_id": "sku"}));
        problem(call.send().await.unwrap(), 410, "ended").await;
    }
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    issued_ids_differ_and_derived_ids_do_not,
    an_id_carries_its_expiry,
    ids_of_other_buyers_and_sales_are_refused,
    a_derived_id_cannot_be_replaced_by_another_signed_one,
    an_expired_id_buys_nothing_new_but_reads_its_first_answer,
    ids_are_for_known_skus,
    no_ids_are_issued_for_a_sale_that_is_over,
];
