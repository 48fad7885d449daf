//! What the operators' page shows around a verb: what it does without an answer, what it reads
//! afterwards, and what a token must be.

use serde_json::json;

use super::{WIDE, assert_quiet, open, sale, shop, shop_with};
use crate::support::TestApp;
use crate::support::browser::Browser;

fn page(app: &TestApp, query: &str) -> String {
    format!("http://{}/ops/?{query}", app.internal)
}

/// A page that reads nothing again by itself.
async fn without_refresh(app: &TestApp, query: &str) -> Browser {
    let browser = Browser::start(WIDE, "en").await;
    let off = "sessionStorage.setItem('floodgate-every', '0')";
    browser.emulate("Page.addScriptToEvaluateOnNewDocument", json!({ "source": off })).await;
    browser.open(&page(app, query)).await;
    browser
}

#[tokio::test]
async fn a_verb_is_waited_for_and_every_view_is_read_again() {
    let app = shop();
    app.admin("/sales", Some(sale(-1_000))).await;
    let browser = without_refresh(&app, "").await;
    browser.expect(".attention", "The sale was never opened.").await;
    browser.click("nav a[href*='view=sales']").await;
    browser.click(".card a[href*='view=sales']").await;
    browser.expect("[aria-label^='verbs of operators']", "create").await;

    // The verb is held back, and the time after which it is late is over at once.
    browser
        .run(
            "const wait = window.setTimeout; \
             window.setTimeout = (work, ms) => wait(work, ms === 15000 ? 1 : ms); \
             const pass = window.fetch; window.fetch = (url, init) => init.method === 'POST' \
               ? new Promise((done) => { window.go = () => done(pass(url, init)); }) \
               : pass(url, init);",
        )
        .await;
    browser.click(".verbs button").await;
    browser.focus("dialog input").await;
    browser.press("it is noon").await;
    browser.click("dialog .primary").await;
    browser.expect("dialog [role=alert]", "The outcome is not known yet").await;
    browser.run("window.go()").await;
    browser.expect(".said", "the sale is open").await;
    browser.expect("[aria-label^='verbs of operators']", "it is noon").await;

    browser.click("nav a[href*='view=overview']").await;
    browser.expect(".chain", "Orders").await;
    let opened = "return !document.querySelector('main').innerText.includes('never opened')";
    browser.becomes(opened, true).await;
    // Another operator's verb is seen as soon as another view is.
    app.admin("/sales/spring/pause", Some(json!({}))).await;
    browser.click("nav a[href*='view=actors']").await;
    browser.expect("tbody", "ledger_writer").await;
    browser.click("nav a[href*='view=overview']").await;
    browser.expect(".attention", "The sale is paused").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_read_without_an_answer_is_given_up() {
    let app = shop();
    let browser = without_refresh(&app, "").await;
    browser.expect("main", "No sale yet.").await;
    let script = "
        const url = document.querySelector('script[type=module]').src;
        return import(new URL('api.js', url)).then((api) => {
            const limit = AbortSignal.timeout;
            AbortSignal.timeout = (ms) => limit.call(AbortSignal, ms / 1000);
            window.fetch = (_, { signal }) => new Promise((_, fail) => {
                signal.addEventListener('abort', () => fail(signal.reason));
            });
            const read = api.get('stats', new AbortController().signal);
            return read.catch((error) => error.code);
        })";
    assert_eq!(browser.run(script).await, "unreachable");
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn an_audit_counts_the_violations_that_it_does_not_list() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(&app, "view=audit")).await;
    browser.expect("main", "changes nothing").await;
    // A hundred violations of one invariant leave no place for those of another.
    browser
        .run(
            "const pass = window.fetch; window.fetch = async (url, init) => { \
               const answer = await pass(url, init); \
               if (!String(url).endsWith('/audit')) return answer; \
               const report = await answer.json(); \
               const numbers = { NoOversell: 100, MoneyAccounted: 7 }; \
               const one = { invariant: 'NoOversell', detail: 'a unit is lost' }; \
               report.judged.forEach((basis) => { \
                 basis.num_violations = numbers[basis.invariant] ?? 0; }); \
               Object.assign(report, { holds: false, num_violations: 107, \
                 violations: Array(100).fill(one) }); \
               return Response.json(report); };",
        )
        .await;
    browser.click(".search .primary").await;
    browser.expect(".card", "The first 100 of 107 violations are shown.").await;
    let row = "const rows = [...document.querySelectorAll('.card tbody tr')]; \
        return rows.find((row) => row.innerText.startsWith('MoneyAccounted')).innerText";
    let row = browser.run(row).await;
    let row = row.as_str().unwrap();
    assert!(row.contains("violated") && row.contains('7'), "{row}");
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_token_that_no_header_can_carry_is_refused_or_forgotten() {
    let app = shop_with(|settings| settings.admin.token = "the_token_of_this_test".into());
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&page(&app, "")).await;
    browser.focus(".login [type=password]").await;
    browser.press("令牌\u{e007}").await;
    browser.expect(".login .fault", "A token has only").await;
    let stored = "return sessionStorage.getItem('floodgate-admin-token')";
    assert_eq!(browser.run(stored).await, serde_json::Value::Null);

    // As a page stored it that took every token.
    browser.run("sessionStorage.setItem('floodgate-admin-token', '令牌')").await;
    browser.reload().await;
    browser.expect(".fault", "does not answer").await;
    browser.click(".bar > button").await;
    browser.focus(".login [type=password]").await;
    browser.press("the_token_of_this_test\u{e007}").await;
    browser.expect("main", "No sale yet.").await;
    assert_quiet(&browser, &["401"]).await;
}
