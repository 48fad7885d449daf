//! A buyer in the storefront: from the click to the paid order, for each policy.

use floodgate::config::{AuthMode, JwtKeys};
use serde_json::json;

use super::{WIDE, assert_quiet, hold_reads_of_the_sale, of, open, sale, shop, shop_with};
use crate::http::auth::{SECRET, token};
use crate::support::TestApp;
use crate::support::browser::Browser;
use crate::support::wait::until;

#[tokio::test]
async fn the_button_follows_its_table() {
    let app = shop();
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    let table = include_str!("button_table.js");
    let script = format!(
        "const url = document.querySelector('script[type=module]').src; \
         return import(new URL('button.js', url)).then((mod) => {{ {table} }})"
    );
    let result = browser.run(&script).await;
    assert_eq!(result["faults"], json!([]), "{result:#}");
    assert!(result["rows"].as_u64().unwrap() > 70, "{result}");
}

#[tokio::test]
async fn one_per_buyer_buys_once_pays_and_is_shown_again() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    browser.click(".sales a").await;
    browser.expect(&of("phone", ".left"), "1,000 of 1,000 left").await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    browser.expect(&of("phone", ".note"), "Your order is placed.").await;
    browser.expect(&of("phone", ".left"), "999 of 1,000 left").await;
    let stored = "return Object.keys(localStorage).filter((key) => key.includes('spring'))";
    assert_eq!(browser.run(stored).await, json!([]), "the record ends with the purchase");

    browser.reload().await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    browser.click(&of("phone", ".buy")).await;
    browser.click(&of("phone", ".note-link")).await;
    browser.expect(".order", "Phone, 256 GB").await;
    browser.expect(".order .price", "4,999.00").await;
    browser.expect(".order .due", "Pay within 1").await;
    browser.picture("orders").await;
    for (choice, outcome, shown) in
        [("fail", "failed", "The last payment was not completed."), ("pay", "paid", "Paid")]
    {
        browser.click(".order .primary").await;
        browser.expect("h1", "Demo payment").await;
        browser.click(&format!("button[value={choice}]")).await;
        browser.expect("dl", outcome).await;
        browser.click("a").await;
        browser.expect(".order-state", shown).await;
    }
    assert_eq!(browser.run("return document.querySelectorAll('.order').length").await, 1);
    assert_quiet(&browser, &[]).await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn unlimited_buys_again_with_a_new_request() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("tea", ".buy"), "Buy").await;
    for _ in 0..4 {
        browser.click(&of("tea", ".stepper button:last-child")).await;
    }
    assert_eq!(browser.text(&of("tea", "output")).await.unwrap(), "3", "at most three at once");
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".left"), "397 of 400 left").await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    // A double click is one purchase.
    let twice = format!(
        "const button = document.querySelector('{}'); button.click(); button.click();",
        of("tea", ".buy").replace('\'', "\\'")
    );
    browser.run(&twice).await;
    browser.expect(&of("tea", ".left"), "394 of 400 left").await;
    browser.open(&app.url("/?orders")).await;
    browser.expect(".orders", "Quantity 3").await;
    assert_eq!(browser.run("return document.querySelectorAll('.order').length").await, 2);
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_quota_is_counted_to_its_limit_and_returns_after_a_cancellation() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("cup", ".owned"), "0 of 3").await;
    browser.click(&of("cup", ".stepper button:last-child")).await;
    browser.click(&of("cup", ".buy")).await;
    browser.expect(&of("cup", ".owned"), "2 of 3").await;
    browser.expect(&of("cup", ".buy"), "Buy again").await;
    assert_eq!(browser.text(&of("cup", "output")).await.unwrap(), "1", "one is left to buy");
    browser.click(&of("cup", ".buy")).await;
    browser.expect(&of("cup", ".buy"), "Limit reached 3/3").await;
    browser.picture("limit").await;

    browser.open(&app.url("/?orders")).await;
    browser.expect(".orders", "Porcelain cup").await;
    browser.click(".order .order-acts button").await;
    browser.expect("dialog", "Cancel this order?").await;
    let focused = browser.run("return document.activeElement.innerText").await;
    assert_eq!(focused, "Keep it", "the safe choice has the focus");
    browser.picture("cancel").await;
    browser.click("dialog .primary").await;
    browser.expect(".orders", "Cancelled").await;
    browser.expect("#status", "Porcelain cup: Cancelled").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("cup", ".owned"), "2 of 3").await;
    browser.expect(&of("cup", ".buy"), "Buy").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn the_button_is_grey_until_the_start_and_opens_by_itself() {
    let app = shop();
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    // Long enough for a crowded machine to draw the page before the start.
    open(&app, sale(40_000)).await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(".countdown", "Starts in").await;
    browser.expect(".timer", "00:").await;
    browser.expect(&of("phone", ".buy"), "Not open yet").await;
    browser.picture("before").await;
    let disabled = "return document.querySelector('.buy').getAttribute('aria-disabled')";
    browser.becomes(disabled, "true").await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(".countdown", "Ends in").await;
    browser.expect(&of("phone", ".buy"), "Buy").await;
    browser.becomes(disabled, serde_json::Value::Null).await;
    browser.expect("#status", "The sale has started.").await;
    let ids = "return performance.getEntriesByType('resource') \
        .filter((call) => call.name.endsWith('/request-ids')).length";
    // Of tea and cup; they are asked for before the start.
    browser.becomes(ids, 2).await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    assert_eq!(browser.run(ids).await, 2, "the click is one call");
    let (_, orders) = app.get("/v1/orders", buyer(&browser).await).await;
    let bought: Vec<_> = orders["orders"].as_array().unwrap().iter().collect();
    assert_eq!(bought.len(), 1, "the early click bought nothing: {orders}");
    assert_quiet(&browser, &[]).await;
}

/// A shop with two units of tea, and the page of its sale.
async fn two_cups_of_tea() -> (TestApp, Browser) {
    let app = shop();
    let mut few = sale(-1_000);
    few["skus"][1]["initial_stock"] = json!(2);
    open(&app, few).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("tea", ".left"), "2 of 2 left").await;
    (app, browser)
}

/// Another buyer, who is faster than the page, buys tea.
async fn another_buys(app: &TestApp, quantity: u32) {
    let id = app.client.post(app.url("/v1/sales/spring/request-ids")).header("x-buyer-id", "1");
    let id = id.json(&json!({"sku_id": "tea"})).send().await.unwrap();
    let id: serde_json::Value = id.json().await.unwrap();
    let body = json!({"sku_id": "tea", "quantity": quantity, "request_id": id["request_id"]});
    app.bought("spring", 1, body).await;
}

#[tokio::test]
async fn a_sold_out_sku_says_so_and_a_paused_sale_keeps_the_place() {
    let (app, browser) = two_cups_of_tea().await;
    // This page still shows units.
    another_buys(&app, 2).await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Sold out").await;
    browser.expect(&of("tea", ".left"), "Sold out").await;
    browser.picture("sold_out").await;

    app.admin("/sales/spring/pause", Some(json!({}))).await;
    browser.expect(".countdown", "paused").await;
    browser.expect(&of("phone", ".buy"), "Paused").await;
    app.admin("/sales/spring/open", Some(json!({}))).await;
    browser.expect(&of("phone", ".buy"), "Buy").await;
    app.admin("/sales/spring/close", Some(json!({}))).await;
    browser.expect(".countdown", "This sale has ended.").await;
    assert_quiet(&browser, &["409"]).await;
}

#[tokio::test]
async fn a_buyer_who_wants_more_than_is_left_may_take_the_rest() {
    let (app, browser) = two_cups_of_tea().await;
    for _ in 0..2 {
        browser.click(&of("tea", ".stepper button:last-child")).await;
    }
    assert_eq!(browser.text(&of("tea", "output")).await.unwrap(), "2", "more than is left");
    // The news of another buyer's purchase are held back.
    hold_reads_of_the_sale(&browser).await;
    browser.becomes("return typeof window.go", "function").await;
    another_buys(&app, 1).await;
    browser.click(&of("tea", ".buy")).await;
    let short = "Too few units were left for your request. Nothing was ordered.";
    browser.expect(&of("tea", ".note"), short).await;
    browser.expect("#status", short).await;
    assert_eq!(browser.text(&of("tea", ".buy")).await.unwrap(), "Buy");
    browser.run("window.fetch = window.pass; window.go()").await;
    browser.expect(&of("tea", ".left"), "1 of 2 left").await;
    assert_eq!(browser.text(&of("tea", "output")).await.unwrap(), "1", "what is left");
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Sold out").await;
    browser
        .becomes(&format!("return document.querySelector('{}').innerText", of("tea", ".note")), "")
        .await;
    assert_quiet(&browser, &["409"]).await;
}

#[tokio::test]
async fn another_buyer_is_chosen_on_the_page() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    browser.click(".who").await;
    browser.press("no number\u{e007}").await;
    browser.expect("dialog .fault", "not valid").await;
    browser.run("document.querySelector('dialog input').value = ''").await;
    browser.press("77\u{e007}").await;
    browser.expect(".who", "Buyer 77").await;
    browser.expect(&of("phone", ".buy"), "Buy").await;
    until("buyer 77", async || (buyer(&browser).await == 77).then_some(())).await;
    assert_quiet(&browser, &[]).await;
}

/// A shop whose buyers sign in at a login service.
fn shop_with_tokens() -> TestApp {
    shop_with(|settings| {
        settings.auth.mode = AuthMode::Jwt;
        settings.auth.jwt_keys = JwtKeys::of_secret(SECRET);
    })
}

#[tokio::test]
async fn a_token_of_the_login_service_signs_in() {
    let app = shop_with_tokens();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(".who", "Sign in").await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect("dialog", "Paste the token").await;
    let token = token(SECRET, &json!({"alg": "HS256"}), &json!({"sub": "4711"}));
    browser.open(&app.url("/")).await;
    browser.open(&app.url(&format!("/?sale=spring#token={token}"))).await;
    browser.expect(".who", "Buyer 4711").await;
    // Not left in the address.
    browser.becomes("return location.hash", "").await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    browser.reload().await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;

    // A link of another buyer changes nothing unless the buyer says so.
    let other = crate::http::auth::token(SECRET, &json!({"alg": "HS256"}), &json!({"sub": "666"}));
    for (sent, asks) in [("no.token", false), (other.as_str(), true)] {
        browser.open(&app.url("/")).await;
        browser.open(&app.url(&format!("/?sale=spring#token={sent}"))).await;
        browser.expect(".who", "Buyer 4711").await;
        browser.becomes("return Boolean(document.querySelector('dialog'))", asks).await;
    }
    browser.expect("dialog", "another buyer, 666").await;
    // Without a choice nothing changes.
    browser.press("\u{e007}").await;
    browser.becomes("return Boolean(document.querySelector('dialog'))", false).await;
    browser.expect(".who", "Buyer 4711").await;
    browser.open(&app.url("/")).await;
    browser.open(&app.url(&format!("/?sale=spring#token={other}"))).await;
    browser.click("dialog .primary").await;
    browser.expect(".who", "Buyer 666").await;
    browser.click(".who").await;
    browser.click(".dialog-acts button").await;
    browser.expect(".who", "Sign in").await;
    browser.reload().await;
    browser.expect(".who", "Sign in").await;
    assert_quiet(&browser, &[]).await;
}

const NO_DIALOG: &str = "return document.querySelector('dialog') === null";

#[tokio::test]
async fn a_token_that_has_expired_is_asked_for_once() {
    let app = shop_with_tokens();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    let expired = token(SECRET, &json!({"alg": "HS256"}), &json!({"sub": "4711", "exp": 1}));
    browser.open(&app.url(&format!("/?sale=spring#token={expired}"))).await;
    browser.expect("dialog", "Paste the token").await;
    browser.press("\u{e00c}").await;
    browser.becomes(NO_DIALOG, true).await;
    // Two more polls of the sale.
    let polls = "return performance.getEntriesByType('resource')\
                 .filter((one) => one.name.endsWith('/v1/sales/spring')).length";
    let before = browser.run(polls).await.as_u64().unwrap();
    until("two polls", async || {
        (browser.run(polls).await.as_u64().unwrap() >= before + 2).then_some(())
    })
    .await;
    browser.becomes(NO_DIALOG, true).await;
    browser.becomes("return document.querySelectorAll('.dialog-acts').length", 0).await;
}

#[tokio::test]
async fn the_back_button_leaves_no_dialog_behind() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.click("main a[data-link]").await;
    browser.expect(&of("phone", ".buy"), "Buy").await;
    browser.click(".who").await;
    browser.expect("dialog", "Who is buying?").await;
    browser.run("history.back()").await;
    browser.becomes("return location.search", "").await;
    browser.becomes(NO_DIALOG, true).await;
    assert_quiet(&browser, &[]).await;
}

/// The number that the page has chosen.
pub(super) async fn buyer(browser: &Browser) -> u64 {
    let stored = browser.run("return JSON.parse(localStorage.getItem('fg1:buyer'))").await;
    stored.as_str().unwrap().parse().unwrap()
}
