//! What an open page shows after an operator has changed its sale, and what a shop without payments
//! offers.

use floodgate::config::PaymentBackend;
use reqwest::StatusCode;
use serde_json::json;

use super::{WIDE, assert_quiet, hold_reads_of_the_sale, of, open, sale, shop, shop_with};
use crate::support::browser::Browser;

#[tokio::test]
async fn the_open_page_shows_a_changed_price() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sale-stock", "1,460 of 1,460 left").await;
    browser.run("window.row = document.querySelector('.sales a')").await;
    app.bought("spring", 1, json!({"sku_id": "phone", "quantity": 1})).await;
    browser.expect(".sale-stock", "1,459 of 1,460 left").await;
    let same = "return document.querySelector('.sales a') === window.row";
    assert_eq!(browser.run(same).await, true, "a click on the row is not lost");

    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("tea", ".price"), "68.00").await;
    browser.becomes("return document.querySelectorAll('.news[hidden]').length", 3).await;

    let url = format!("http://{}/admin/v1/sales/spring", app.internal);
    let change = json!({"skus": [{"sku_id": "tea", "title": "Second flush tea", "price": 9_900}]});
    let changed = app.client.patch(url).json(&change).send().await.unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
    browser.expect(&of("tea", ".price"), "99.00").await;
    browser.expect(&of("tea", "h2"), "Second flush tea").await;
    let news = browser.expect(&of("tea", ".news"), "The price has changed from").await;
    assert!(news.contains("68.00") && news.contains("99.00"), "{news}");
    browser.picture("price-changed").await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    browser.becomes("return document.querySelectorAll('.news[hidden]').length", 3).await;

    app.admin("/sales/spring/close", Some(json!({}))).await;
    browser.expect(".when", "Ended early").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_shop_without_payments_offers_none() {
    let app = shop_with(|settings| settings.payment.provider = PaymentBackend::None);
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".note-link"), "See it in My orders").await;
    browser.click(&of("phone", ".note-link")).await;
    browser.expect(".order-state", "Waiting for payment").await;
    let shown = "return [...document.querySelectorAll('.order button')].map((one) => one.hidden)";
    assert_eq!(browser.run(shown).await, json!([false, true]), "cancel, pay");
    assert_eq!(browser.run("return document.title").await, "My orders · Floodgate");
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_view_that_was_left_shows_nothing_any_more() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    // The sale is read slowly; its page is left before.
    hold_reads_of_the_sale(&browser).await;
    browser.click(".sales a").await;
    browser.becomes("return typeof window.go", "function").await;
    browser.expect("h1", "Loading").await;
    browser.click("nav a:last-child").await;
    browser.expect("h1", "My orders").await;
    browser.run("window.go()").await;
    browser.expect(".quiet", "You have no orders yet.").await;
    assert_eq!(browser.run("return document.title").await, "My orders · Floodgate");
    assert_eq!(browser.run("return document.querySelector('main').dataset.phase ?? ''").await, "");
    assert_quiet(&browser, &[]).await;
}
