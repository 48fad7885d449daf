//! The operators' page against a complete server: where is this order, who may do what, and what is
//! the answer of a verb.

use floodgate::config::{AdminScope, NamedToken};
use serde_json::json;

use super::appearance::{clipped, faults};
use super::{WIDE, assert_quiet, open, sale, shop, shop_with};
use crate::support::TestApp;
use crate::support::browser::Browser;

/// Views, each with a text that shows that it is drawn.
const VIEWS: [(&str, &str, &str); 8] = [
    ("view=overview", ".chain", "Orders"),
    ("view=sales", ".card", "spring"),
    ("view=sales&sale=spring", ".card", "ready"),
    ("view=dead-letters", "main", "No dead letter"),
    ("view=payments&state=unmatched", "main", "No payment here."),
    ("view=log", "tbody", "sale:spring"),
    ("view=actors", "tbody", "ledger_writer"),
    ("view=audit", "main", "changes nothing"),
];

fn page(app: &TestApp, query: &str) -> String {
    format!("http://{}/ops/?{query}", app.internal)
}

/// A shop with an open sale and one order; its request id.
async fn shop_with_order() -> (TestApp, String) {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let body = json!({"sku_id": "phone", "quantity": 1});
    let bought: serde_json::Value = app.buy("spring", 7, body).await.json().await.unwrap();
    (app, bought["request_id"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_order_is_found_and_a_sale_is_paused_with_a_reason() {
    let (app, request) = shop_with_order().await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(&app, "")).await;
    browser.expect(".place", "fg").await;
    browser.expect(".chain", "Orders").await;
    browser.expect("main", "every actor of this process runs").await;
    browser.expect(".legend", "accepted").await;

    browser.open(&page(&app, &format!("view=trace&id={request}"))).await;
    browser.expect(".steps", "pending_payment").await;
    browser.expect(".card", "sale spring").await;

    browser.open(&page(&app, "view=sales")).await;
    browser.click(".verbs button").await;
    browser.expect("dialog", "Pause spring?").await;
    let focused = "return document.activeElement.textContent";
    browser.becomes(focused, "Cancel").await;
    // Without a reason nothing is sent.
    browser.click("dialog .primary").await;
    browser.expect("dialog", "Pause spring?").await;
    browser.focus("dialog input").await;
    browser.press("too fast").await;
    browser.click("dialog .primary").await;
    browser.expect(".said", "the sale is paused").await;
    browser.expect(".card .state", "paused").await;

    browser.open(&page(&app, "view=audit")).await;
    browser.click(".search .primary").await;
    browser.expect(".card", "MoneyAccounted").await;
    browser.expect(".card .state", "holds").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_purged_sale_is_marked_and_each_verb_names_its_sale() {
    let (app, _) = shop_with_order().await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(&app, "view=sales")).await;
    browser.expect(".card", "epoch 1").await;
    let name = "return document.querySelector('.verbs button').getAttribute('aria-label')";
    browser.becomes(name, "Pause spring").await;
    let purged = "const pass = window.fetch; window.fetch = async (path, init) => { \
        const answer = await pass(path, init); \
        if (!/sales([?]|$)/.test(path)) return answer; \
        const body = await answer.json(); \
        const retention = { state: 'purged', since: '2030-03-20T20:00:00.000Z' }; \
        const sales = body.sales.map((sale) => ({ ...sale, phase: 'closed', retention })); \
        return new Response(JSON.stringify({ ...body, sales }), answer); };";
    browser.emulate("Page.addScriptToEvaluateOnNewDocument", json!({ "source": purged })).await;
    browser.reload().await;
    browser.expect(".card header", "purged since 2030-03-20 20:00:00 UTC").await;
    browser.expect(".card h2", "purged").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn every_view_fits_and_is_accessible() {
    let (app, _) = shop_with_order().await;
    let browser = Browser::start(WIDE, "en").await;
    for (width, scheme) in [(390, "dark"), (1_000, "light")] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.emulate("Emulation.setEmulatedMedia", media).await;
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": false});
        browser.emulate("Emulation.setDeviceMetricsOverride", size).await;
        for (query, selector, text) in VIEWS {
            let what = format!("ops {query} {width} {scheme}");
            browser.open(&page(&app, query)).await;
            browser.expect(selector, text).await;
            browser.picture(&what.replace(['=', '&', ' '], "_")).await;
            let wide = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(browser.run(wide).await, false, "{what}: {}", clipped(&browser).await);
            if width == 1_000 {
                let cut = "const nav = document.querySelector('.bar nav'); \
                           return nav.scrollWidth > nav.clientWidth";
                assert_eq!(browser.run(cut).await, false, "{what}: a tab is out of sight");
            }
            assert_eq!(faults(&browser).await, Vec::<String>::new(), "{what}");
        }
    }
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_token_for_reading_shows_everything_and_offers_no_verb() {
    let app = shop_with(|settings| {
        let token = |name: &str, scope, token: &str| NamedToken {
            name: name.into(),
            scope,
            token: token.into(),
        };
        settings.admin.token = "the token of the test itself".into();
        settings.admin.tokens = vec![token("wall", AdminScope::Read, "a-token-for-a-screen")];
    });
    let client = reqwest::Client::new();
    let create = client.post(format!("http://{}/admin/v1/sales", app.internal));
    let create = create.bearer_auth("the token of the test itself").json(&sale(-1_000));
    assert_eq!(create.send().await.unwrap().status(), 201);
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(&app, "view=sales")).await;
    browser.expect(".login", "Operators only").await;
    browser.focus(".login [type=password]").await;
    browser.press("a-token-for-a-screen").await;
    browser.click(".login .primary").await;
    browser.expect(".card", "spring").await;
    browser.expect(".where", "wall, read only").await;
    let verbs = "return document.querySelectorAll('.verbs button').length";
    assert_eq!(browser.run(verbs).await, 0);
    browser.open(&page(&app, "view=audit")).await;
    browser.click(".search .primary").await;
    browser.expect(".card", "The audit").await;
    assert_eq!(browser.run(verbs).await, 0);
    let url = format!("http://{}/admin/v1/sales/spring/open", app.internal);
    let refused = client.post(url).bearer_auth("a-token-for-a-screen").send().await.unwrap();
    assert_eq!(refused.status(), 403, "the server refuses what the page does not offer");
    assert_quiet(&browser, &["401"]).await;
}

#[tokio::test]
async fn an_address_that_names_nothing_is_answered_so() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    for view in ["nope", "toString", "__proto__"] {
        browser.open(&page(&app, &format!("view={view}"))).await;
        browser.expect("main", "There is no such view.").await;
    }
    browser.open(&page(&app, "view=overview&sale=nosuch")).await;
    browser.expect("main", "There is no sale nosuch.").await;
    // The trace is another one at each read: the alert without it is spoken once.
    browser.open(&page(&app, "view=dead-letters&id=404")).await;
    let trace = "return document.querySelector('.fault code')?.textContent.length";
    browser.becomes(trace, 32).await;
    let spoken = "return document.querySelectorAll('[role=alert] code').length";
    assert_eq!(browser.run(spoken).await, 0);
    browser.open(&page(&app, "view=sales")).await;
    browser.expect(".card", "CN¥4,999.00").await;
    // The clock of the operator's machine is five hours ahead.
    let ahead = "const now = Date.now; Date.now = () => now.call(Date) + 5 * 3600 * 1000;";
    browser.emulate("Page.addScriptToEvaluateOnNewDocument", json!({ "source": ahead })).await;
    browser.open(&page(&app, "view=overview&sale=spring")).await;
    browser.expect(".chain", "Orders").await;
    let text = browser.text("main").await.unwrap();
    assert!(!text.contains("has ended"), "{text}");
    assert_quiet(&browser, &["404"]).await;
}
