//! What a buyer sees when answers are cut, the server restarts, the page is reloaded or shown in a
//! second tab: one purchase stays one order.

use std::net::SocketAddr;

use serde_json::{Value as Json, json};

use super::{WIDE, assert_quiet, of, open, sale, shop, shop_with};
use crate::support::TestApp;
use crate::support::browser::Browser;
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::wait::until;

/// Messages of the browser about calls that the test cut.
const CUT: &[&str] = &["net::ERR_", "404", "503"];

fn page(address: SocketAddr) -> String {
    format!("http://{address}/?sale=spring")
}

/// An id for a purchase of tea.
async fn issued(app: &TestApp, buyer: &str) -> Json {
    let call = app.client.post(app.url("/v1/sales/spring/request-ids"));
    let call = call.header("x-buyer-id", buyer).json(&json!({"sku_id": "tea"}));
    call.send().await.unwrap().json().await.unwrap()
}

async fn num_orders(browser: &Browser) -> Json {
    browser.run("return document.querySelectorAll('.order').length").await
}

#[tokio::test]
async fn a_lost_answer_is_looked_up_and_bought_once() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let proxy = FaultProxy::start(app.public);
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(proxy.addr())).await;
    browser.expect(&of("tea", ".buy"), "Buy").await;
    proxy.cut_reply("POST /v1/buy/spring");
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    assert_eq!(proxy.cuts(), 1);
    browser.expect(&of("tea", ".left"), "399 of 400 left").await;
    browser.open(&format!("http://{}/?orders", proxy.addr())).await;
    browser.expect(".orders", "First flush tea").await;
    assert_eq!(num_orders(&browser).await, 1);
    assert_quiet(&browser, CUT).await;
}

#[tokio::test]
async fn a_request_that_never_arrived_turns_orange_and_goes_out_again() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    // As a page leaves it that was closed between the click and the request.
    let stored = browser.run("return JSON.parse(localStorage.getItem('fg1:buyer'))").await;
    let buyer = stored.as_str().unwrap().to_owned();
    let issued = issued(&app, &buyer).await;
    let record = json!({
        "request_id": issued["request_id"], "quantity": 2, "path_id": null, "sent_at": 1,
        "queued_at": null,
    });
    let store =
        format!("localStorage.setItem('fg1:{buyer}:spring:tea', {})", json!(record.to_string()));
    browser.run(&store).await;
    browser.click(".sales a").await;
    browser.expect(&of("tea", ".buy"), "Ask again").await;
    browser.expect(&of("tea", ".note"), "Trying again cannot order twice.").await;
    assert_eq!(browser.text(&of("tea", "output")).await.unwrap(), "2", "its quantity");
    browser.expect(&of("tea", ".number"), issued["request_id"].as_str().unwrap()).await;
    browser.picture("unknown").await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    let (_, orders) = app.get("/v1/orders", buyer.parse().unwrap()).await;
    assert_eq!(orders["orders"].as_array().unwrap().len(), 1, "{orders}");
    assert_eq!(orders["orders"][0]["request_id"], issued["request_id"]);
    browser.open(&app.url("/?orders")).await;
    browser.expect(".order .number", issued["request_id"].as_str().unwrap()).await;
    assert_quiet(&browser, CUT).await;
}

#[tokio::test]
async fn a_second_tab_and_a_reload_show_the_purchase_that_is_under_way() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(app.public)).await;
    // The purchase is held back in the page that sends it, without the page's time limit.
    browser.expect(&of("tea", ".buy"), "Buy").await;
    browser
        .run(
            "window.held = []; window.pass = window.fetch; window.fetch = (url, init) => \
        String(url).includes('/buy/') ? new Promise((done) => window.held.push(() => \
        done(window.pass(url, { ...init, signal: undefined })))) : window.pass(url, init);",
        )
        .await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "In the queue").await;
    let first = browser.new_tab().await;
    browser.open(&page(app.public)).await;
    until("the purchase of the other tab", async || {
        let label = browser.text(&of("tea", ".buy")).await?;
        (label.contains("In the queue") || label.contains("Ask again")).then_some(())
    })
    .await;
    browser.reload().await;
    browser.expect(&of("tea", ".buy"), "Ask again").await;
    browser.to_tab(&first).await;
    browser.run("window.held.forEach((send) => send())").await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    browser.open(&app.url("/?orders")).await;
    browser.expect(".orders", "First flush tea").await;
    assert_eq!(num_orders(&browser).await, 1);
    assert_quiet(&browser, CUT).await;
}

#[tokio::test]
async fn a_server_that_restarts_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = None;
    let app = shop_with(|own| {
        own.ledger.url = crate::support::app::url_of(folder.path().join("kept.db"));
        settings = Some(own.clone());
    });
    open(&app, sale(-1_000)).await;
    let proxy = FaultProxy::start(app.public);
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(proxy.addr())).await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    proxy.set(Mode::Reset);
    app.stop();
    browser.expect("main", "We cannot reach the shop.").await;
    browser.picture("offline").await;
    let again = TestApp::start(settings.unwrap());
    proxy.lead_to(again.public);
    proxy.heal();
    until("the shop", async || {
        let text = browser.text("main").await?;
        (!text.contains("We cannot reach the shop.")).then_some(())
    })
    .await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    assert_quiet(&browser, CUT).await;
    again.assert_audit_holds().await;
    again.stop();
}

/// The calls of the page, with a clock, answers and timers that the test sets.
#[tokio::test]
async fn sleep_broken_answers_and_a_silent_stream_do_not_stop_the_page() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    let script = "
        const url = document.querySelector('script[type=module]').src;
        return import(new URL('api.js', url)).then(async (api) => {
            await api.sales();
            const own = performance.now.bind(performance);
            performance.now = () => own() - 600000;
            const wrongMs = Math.abs(api.serverNow() - Date.now());
            performance.now = own;
            window.fetch = async () => new Response('<html>');
            const { status } = await api.sale('spring');
            const silent = (signal) => new ReadableStream({
                start: (body) => signal.addEventListener('abort', () => body.error('aborted')),
            });
            window.fetch = async (_, { signal }) => new Response(silent(signal));
            const wait = window.setTimeout;
            window.setTimeout = (work, ms) => wait(work, ms / 400);
            const isEnded = await api.events('id', new AbortController().signal, () => {});
            return { isClockRight: wrongMs < 2000, status, isEnded };
        })";
    let found = browser.run(script).await;
    assert_eq!(found, json!({"isClockRight": true, "status": 0, "isEnded": false}));
}

#[tokio::test]
async fn an_older_order_shows_its_cancellation() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    let buyer = super::buying::buyer(&browser).await;
    for _ in 0..21 {
        let id = issued(&app, &buyer.to_string()).await["request_id"].clone();
        let purchase = json!({"sku_id": "tea", "quantity": 1, "request_id": id});
        app.bought("spring", buyer, purchase).await;
    }
    // The list of sales, which lacks those that are over for long, says nothing of the orders.
    let busy = "const pass = window.fetch; window.fetch = async (path, init) => \
        path === 'v1/sales' ? new Response('{}', { status: 503 }) : pass(path, init);";
    browser.emulate("Page.addScriptToEvaluateOnNewDocument", json!({ "source": busy })).await;
    browser.open(&app.url("/?orders")).await;
    for shown in ["First flush tea", "Spring sale", "68.00"] {
        browser.expect(".order", shown).await;
    }
    browser.expect(".orders + .quiet + button", "Older orders").await;
    assert_eq!(num_orders(&browser).await, 20);
    browser.click(".orders + .quiet + button").await;
    let oldest = ".order:nth-child(21)";
    browser.expect(oldest, "Waiting for payment").await;
    browser.click(&format!("{oldest} .order-acts .plain")).await;
    browser.click(".dialog-acts .primary").await;
    browser.expect(oldest, "Cancelled").await;
    browser.expect(oldest, "First flush tea").await;
    assert_quiet(&browser, CUT).await;
}
