//! The storefront in a real browser: every test drives Chromium against a complete server.

mod appearance;
mod buying;
mod challenges;
mod changes;
mod export;
mod faults;
mod money;
mod operator_verbs;
mod operators;
mod questions;

use floodgate::config::{PaymentBackend, Settings, Tier};
use floodgate::runtime::clock::wall_ms;
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::browser::Browser;

/// Width of a desktop window.
const WIDE: u32 = 1_100;

/// A server with the demo provider, whose payments are reported at once.
fn shop_with(change: impl FnOnce(&mut Settings)) -> TestApp {
    let (mut settings, stores) = fresh_settings(Tier::Memory);
    settings.payment.provider = PaymentBackend::Demo;
    change(&mut settings);
    TestApp::on((settings, stores))
}

fn shop() -> TestApp {
    shop_with(|_| ())
}

/// A sale with one SKU for each of the policies, open for an hour from `starts_in_ms` on.
fn sale(starts_in_ms: i64) -> Json {
    let at =
        |ms: i64| chrono::DateTime::from_timestamp_millis(wall_ms() + ms).unwrap().to_rfc3339();
    let sku = |id: &str, title: &str, price: i64, stock: u32, policy: Json| {
        json!({
            "sku_id": id, "title": title, "price": price, "initial_stock": stock,
            "policy": policy, "buckets": 2, "payment_window_s": 900, "bar_lapsed": false,
        })
    };
    json!({
        "sale_id": "spring", "title": "Spring sale", "ticket_required": false,
        "starts_at": at(starts_in_ms), "ends_at": at(starts_in_ms + 3_600_000),
        "skus": [
            sku("phone", "Phone, 256 GB", 499_900, 1_000, json!({"kind": "one_per_buyer"})),
            sku("tea", "First flush tea", 6_800, 400,
                json!({"kind": "unlimited", "max_quantity": 3})),
            sku("cup", "Porcelain cup", 12_050, 60,
                json!({"kind": "quota", "limit": 3, "max_quantity": 2})),
        ],
    })
}

/// Creates and opens a sale.
async fn open(app: &TestApp, sale: Json) {
    let path = format!("/sales/{}/open", sale["sale_id"].as_str().unwrap());
    app.admin("/sales", Some(sale)).await;
    app.admin(&path, Some(json!({}))).await;
}

/// Holds each read of the sale by the page until `window.go()`, without the page's time limit; its
/// own `fetch` is `window.pass`.
async fn hold_reads_of_the_sale(browser: &Browser) {
    let held = "window.pass = window.fetch; window.fetch = (url, init) => \
        String(url).endsWith('sales/spring') ? new Promise((done) => { window.go = () => \
        done(window.pass(url, { ...init, signal: undefined })); }) : window.pass(url, init);";
    browser.run(held).await;
}

/// Selects within the card of a SKU.
fn of(sku: &str, selector: &str) -> String {
    format!("[aria-labelledby=\"sku-{sku}\"] {selector}")
}

/// Requires that the browser had nothing to report: no error, no violation of the page's policy.
/// Failed calls that the test caused have `expected` in their message.
async fn assert_quiet(browser: &Browser, expected: &[&str]) {
    let log = browser.log().await;
    let unexpected: Vec<_> =
        log.iter().filter(|line| !expected.iter().any(|part| line.contains(part))).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}
