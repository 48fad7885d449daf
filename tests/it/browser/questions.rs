//! The three questions of an operator, each answered within two clicks, with a planted fault: where
//! is this order, why do no orders arrive, who closed the sale?

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::config::{AdminScope, NamedToken};
use serde_json::{Value as Json, json};

use super::appearance::faults;
use super::{WIDE, assert_quiet, open, sale, shop, shop_with};
use crate::support::TestApp;
use crate::support::browser::Browser;
use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;

/// Types into a field and presses no key more.
async fn fill(browser: &Browser, selector: &str, text: &str) {
    browser.focus(selector).await;
    browser.press(text).await;
}

/// Buys a cup, and stores its request as a dead letter, as the collector of another process does.
async fn shop_with_dead_letter() -> (TestApp, String) {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let body = json!({"sku_id": "phone", "quantity": 1});
    let bought: Json = app.buy("spring", 7, body).await.json().await.unwrap();
    let request = bought["request_id"].as_str().unwrap().to_owned();
    let number = request.split('-').next().unwrap();
    let file = app.settings.ledger.url.strip_prefix("sqlite://").unwrap();
    let mut conn = SqliteConnection::establish(file).unwrap();
    conn.batch_execute(&format!(
        "PRAGMA busy_timeout = 5000; \
         INSERT INTO dead_letters VALUES (17, x'{:064x}', 'consumer', 'no sale has sku 9', 3, \
         'm-17', '{{}}', x'00', 1, 1800000000000, 1, 0, 1800000000500, NULL); \
         INSERT INTO dead_requests SELECT {number}, 17, sku_no, 7 FROM skus LIMIT 1",
        17
    ))
    .unwrap();
    (app, request)
}

#[tokio::test]
async fn where_is_this_order() {
    let (app, request) = shop_with_dead_letter().await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&format!("http://{}/ops/", app.internal)).await;
    browser.expect(".attention", "1 dead letter waits for an operator").await;
    fill(&browser, ".find input", &request).await;
    browser.click(".find button").await;
    browser.expect(".steps", "dead letter 17").await;
    browser.expect(".card", "done: it is an order; the same purchase sent again reads it").await;
    browser.picture("ops_trace").await;
    browser.click(".steps a").await;
    browser.expect(".card", "no sale has sku 9").await;
    browser.expect(".card", "No operator has changed it.").await;
    browser.back().await;
    browser.expect(".steps", "dead letter 17").await;
    assert_quiet(&browser, &[]).await;
}

/// Parks all, of which the first step reports one as parked, and the second is lost: the answer
/// counts the first one, and the list is read again.
async fn a_step_fails(browser: &Browser) {
    browser
        .run(
            "window.pass = window.fetch; window.steps = 0; window.reads = 0; \
             const step = { num_left: 1, next_cursor: '1', dead_letters: [{ done: 'parked' }] }; \
             window.fetch = async (url, init) => { \
               if (init.method !== 'POST') { window.reads += 1; return window.pass(url, init); } \
               window.steps += 1; \
               if (window.steps === 1) return Response.json(step); \
               throw new TypeError('lost'); };",
        )
        .await;
    browser.click(".verbs button").await;
    fill(browser, "dialog label:nth-of-type(1) input", "park 1").await;
    fill(browser, "dialog label:nth-of-type(2) input", "not ours").await;
    browser.click("dialog .primary").await;
    browser.expect(".said", "stopped after 1 done: The server does not answer.").await;
    browser.becomes("return document.querySelector('dialog')", Json::Null).await;
    browser.becomes("return window.reads > 0", true).await;
    browser.run("window.fetch = window.pass").await;
}

#[tokio::test]
async fn dead_letters_are_searched_and_parked_together() {
    let (app, request) = shop_with_dead_letter().await;
    let browser = Browser::start(WIDE, "en").await;
    let page = format!("http://{}/ops/?view=dead-letters&state=open&sale=spring", app.internal);
    browser.open(&page).await;
    // What is shown after a verb was read because of it.
    browser.run("sessionStorage.setItem('floodgate-every', '0')").await;
    browser.reload().await;
    browser.expect("tbody", "no sale has sku 9").await;
    fill(&browser, "input[name=reason]", "NO SALE").await;
    browser.click(".filters button").await;
    browser.expect("main", "1 match").await;
    let query = "return location.search";
    let query = browser.run(query).await;
    assert!(query.as_str().unwrap().contains("reason=NO+SALE"), "{query}");
    fill(&browser, "input[name=buyer]", "8").await;
    browser.click(".filters button").await;
    browser.expect("main", "No dead letter here.").await;
    browser.back().await;
    browser.expect("main", "1 match").await;
    fill(&browser, "input[name=request]", &request).await;
    // A choice takes what was typed along.
    let choose = "const choice = document.querySelector('.filters select'); \
        choice.value = 'open'; choice.dispatchEvent(new Event('change', { bubbles: true }))";
    browser.run(choose).await;
    let query = format!("return location.search.includes('request={request}')");
    browser.becomes(&query, true).await;
    browser.expect("main", "1 match").await;
    a_step_fails(&browser).await;

    // A tier without broker offers no replay.
    browser.click(".verbs button").await;
    browser.expect("dialog", "Park all 1?").await;
    browser.picture("ops_bulk").await;
    // Neither without the typed phrase nor without a reason is anything sent.
    fill(&browser, "dialog label:nth-of-type(2) input", "not ours").await;
    browser.click("dialog .primary").await;
    browser.expect("dialog", "Park all 1?").await;
    fill(&browser, "dialog label:nth-of-type(1) input", "park 1").await;
    browser.click("dialog .primary").await;
    browser.expect(".said", "1 done").await;
    browser.expect("main", "1 parked").await;
    browser.open(&format!("http://{}/ops/?view=log", app.internal)).await;
    browser.expect("tbody", "dead_letter:17").await;
    browser.expect("tbody", "not ours").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn who_closed_the_sale() {
    let app = shop_with(|settings| {
        let token = |name: &str, scope, token: &str| NamedToken {
            name: name.into(),
            scope,
            token: token.into(),
        };
        settings.admin.tokens = vec![
            token("anna", AdminScope::Operate, "the token of anna in this test"),
            token("wall", AdminScope::Read, "a-token-for-a-screen"),
        ];
    });
    let client = reqwest::Client::new();
    for (path, body) in [
        ("", sale(-1_000)),
        ("/spring/open", json!({"reason": "it is noon"})),
        ("/spring/skus/phone/stock", json!({"delta": 40, "change_id": "truck"})),
        ("/spring/close", json!({"reason": "the courier is on strike"})),
    ] {
        let call = client.post(format!("http://{}/admin/v1/sales{path}", app.internal));
        let call = call.bearer_auth("the token of anna in this test").json(&body);
        assert!(call.send().await.unwrap().status().is_success(), "{path}");
    }
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&format!("http://{}/ops/", app.internal)).await;
    browser.expect(".login", "Operators only").await;
    browser.focus(".login [type=password]").await;
    browser.press("a-token-for-a-screen").await;
    browser.click(".login .primary").await;
    browser.expect(".attention", "The sale is closed").await;
    browser.click("nav a[href*='view=sales']").await;
    browser.expect(".last", "closed by anna").await;
    browser.expect(".last", "the courier is on strike").await;
    browser.click(".card a[href*='view=sales']").await;
    browser.expect("tbody", "phone").await;
    browser.expect(".card", "it is noon").await;
    browser.expect(".card", "+40 units of phone, change truck").await;
    browser.picture("ops_sale").await;
    assert_quiet(&browser, &["401"]).await;
}

#[test]
fn why_is_nothing_landing() {
    let fixture = PipelineFixture::new("list").patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let seller = fixture.server("api", &[]);
        let _relay = fixture.server("relay", &[]);
        let _maintenance = fixture.server("maintenance", &[]);
        let mut buyers = Shop::open(seller.internal, 100).await;
        buyers.sell(seller.public, 12).await;
        let browser = Browser::start(WIDE, "en").await;
        browser.open(&format!("http://{}/ops/", seller.internal)).await;
        browser.expect(".attention [data-tone=bad]", "no consumer").await;
        browser.expect(".chain", "12").await;
        browser.picture("ops_no_consumer").await;
        assert_eq!(faults(&browser).await, Vec::<String>::new());

        let consumer = fixture.server("consumer", &[]);
        browser.expect("main", "no dead letter is open").await;
        fixture.drained(consumer.internal).await;
        assert_quiet(&browser, &[]).await;
        buyers.check(&fixture, seller.internal).await;
    });
}
