//! The question before a purchase: a picture for the buyer, or work for the device.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use floodgate::config::ChallengeKind;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value as Json, json};
use sha2::Sha256;

use super::appearance::{clipped, faults};
use super::buying::buyer;
use super::{WIDE, assert_quiet, of, open, sale, shop_with};
use crate::http::auth::SECRET;
use crate::support::TestApp;
use crate::support::browser::Browser;

const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";
const ESCAPE: &str = "\u{e00c}";

/// A shop with an open sale that requires tickets, for these kinds of challenge.
async fn ticketed(kinds: &[ChallengeKind], ttl_s: u32) -> TestApp {
    let app = shop_with(|settings| {
        settings.auth.signing_key = Some(SECRET.into());
        settings.tickets.challenges = kinds.to_vec();
        settings.tickets.work_bits = 10;
        settings.tickets.challenge_ttl_s = ttl_s;
    });
    let mut sale = sale(-1_000);
    sale["ticket_required"] = json!(true);
    open(&app, sale).await;
    app
}

async fn both() -> TestApp {
    ticketed(&[ChallengeKind::Arithmetic, ChallengeKind::Work], 120).await
}

/// The page of the sale, whose calls are kept in `calls`.
async fn page(app: &TestApp, language: &str) -> Browser {
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url(&format!("/?sale=spring&lang={language}"))).await;
    let keep = "window.calls = []; const real = window.fetch; \
        window.fetch = async (path, init) => { const answer = await real(path, init); \
        window.calls.push({path, sent: init.body && JSON.parse(init.body), \
        body: await answer.clone().json().catch(() => null), status: answer.status}); \
        return answer; };";
    browser.run(keep).await;
    browser.expect(&of("tea", ".left"), "400").await;
    browser
}

/// Calls whose path ends like this.
async fn calls(browser: &Browser, end: &str) -> Vec<Json> {
    let script = format!("return window.calls.filter(({{path}}) => path.endsWith('{end}'))");
    browser.run(&script).await.as_array().unwrap().clone()
}

/// The answer to the last challenge, as only who has the key can compute it.
async fn answer(browser: &Browser) -> u64 {
    let asked = calls(browser, "/challenges").await.pop().unwrap();
    let id = asked["body"]["challenge_id"].as_str().unwrap();
    let nonce = &URL_SAFE_NO_PAD.decode(id).unwrap()[6..14];
    let buyer = buyer(browser).await;
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    for text in ["challenge-task", "spring"] {
        mac.update(&[u8::try_from(text.len()).unwrap()]);
        mac.update(text.as_bytes());
    }
    let mac = mac.chain_update(buyer.to_be_bytes()).chain_update(nonce).finalize().into_bytes();
    let seed = u64::from_be_bytes(mac[..8].try_into().unwrap());
    let (a, b) = (10 + seed % 90, 10 + seed / 90 % 90);
    match seed / 8100 % 3 {
        0 => a + b,
        1 => a.abs_diff(b),
        _ => a * (2 + b % 8),
    }
}

/// Waits until a picture is asked that was not there before.
async fn until_picture(browser: &Browser, before: &Json) -> Json {
    crate::support::wait::until("a picture", async || {
        let source = browser.run("return document.querySelector('.challenge')?.src").await;
        let is_new = source.as_str().is_some_and(|text| text.starts_with("data:image/svg"));
        (is_new && source != *before).then_some(source)
    })
    .await
}

#[tokio::test]
async fn a_picture_is_answered_with_the_keyboard_and_its_ticket_buys() {
    let app = both().await;
    let browser = page(&app, "en").await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect("dialog h2", "A question before you buy").await;
    let first = until_picture(&browser, &Json::Null).await;
    browser.becomes("return document.activeElement.id", "answer").await;
    browser.press(ENTER).await;
    assert_eq!(calls(&browser, "/tickets").await, [Json::Null; 0], "nothing was answered yet");
    browser.picture("challenge").await;

    // A wrong answer, then a right one, and nothing but the keyboard.
    let wrong = answer(&browser).await + 1;
    browser.press(&format!("{wrong}{ENTER}")).await;
    browser.expect("dialog .fault", "That was not it. Here is another one.").await;
    until_picture(&browser, &first).await;
    browser.becomes("return document.activeElement.id", "answer").await;
    assert_eq!(browser.run("return document.querySelector('#answer').value").await, "");
    // In the digits of a Chinese keyboard.
    let wide = |digit: char| char::from_u32(u32::from(digit) + 0xfee0).unwrap();
    let right: String = answer(&browser).await.to_string().chars().map(wide).collect();
    browser.press(&format!("{right}{ENTER}")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    browser.expect(&of("tea", ".left"), "399 of 400 left").await;
    let focused = "return document.activeElement.classList.contains('buy')";
    browser.becomes(focused, true).await;

    let ticket = calls(&browser, "/tickets").await.pop().unwrap();
    let path = ticket["body"]["path_id"].as_str().unwrap().to_owned();
    let bought = browser.run("return window.calls.filter(({path}) => path.includes('v1/buy/'))");
    let bought = bought.await;
    assert_eq!(bought[0]["path"], format!("v1/buy/{path}"), "bought with the ticket's path");
    assert_eq!(bought.as_array().unwrap().len(), 1);
    assert_quiet(&browser, &["403"]).await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn the_device_works_instead_of_the_buyer() {
    let app = both().await;
    let browser = page(&app, "en").await;
    browser.click(&of("phone", ".buy")).await;
    until_picture(&browser, &Json::Null).await;
    browser.expect("dialog .choices", "Let my device work instead").await;
    browser.click("dialog .choices button").await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    let asked = calls(&browser, "/challenges").await;
    assert_eq!(asked.last().unwrap()["body"]["kind"], "work");
    let workers = "return performance.getEntriesByType('resource') \
        .filter(({name}) => name.endsWith('/work.js')).map(({name}) => new URL(name).origin)";
    let origin = browser.run("return location.origin").await;
    assert_eq!(browser.run(workers).await, json!([origin]), "a worker of our own origin");
    assert_quiet(&browser, &[]).await;
    app.assert_audit_holds().await;
}

#[tokio::test]
async fn work_alone_begins_by_itself_in_either_language() {
    let app = ticketed(&[ChallengeKind::Work], 120).await;
    for (language, ordered) in [("en", "Buy again"), ("zh", "再来一单")] {
        let browser = page(&app, language).await;
        browser.click(&of("tea", ".buy")).await;
        let label = browser.expect(&of("tea", ".buy"), ordered).await;
        assert!(label.contains(ordered));
        assert_eq!(calls(&browser, "/tickets").await.len(), 1);
        assert_quiet(&browser, &[]).await;
    }
}

#[tokio::test]
async fn a_question_whose_time_is_over_is_replaced_and_escape_buys_nothing() {
    let app = ticketed(&[ChallengeKind::Arithmetic], 10).await;
    let browser = page(&app, "en").await;
    browser.click(&of("tea", ".buy")).await;
    let first = until_picture(&browser, &Json::Null).await;
    browser.expect("dialog .fault", "The time for that one is over.").await;
    until_picture(&browser, &first).await;
    assert_eq!(browser.text("dialog .choices").await.unwrap(), "Another question");
    browser.press(ESCAPE).await;
    browser.expect(&of("tea", ".buy"), "Buy").await;
    assert_eq!(browser.text("dialog").await, None);
    let (_, orders) = app.get("/v1/orders", buyer(&browser).await).await;
    assert_eq!(orders["orders"], json!([]));
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn an_answer_that_was_lost_is_sent_again_for_the_same_ticket() {
    let app = ticketed(&[ChallengeKind::Work], 120).await;
    let browser = page(&app, "en").await;
    let lose = "const real = window.fetch; let lost = 0; \
        window.fetch = async (path, init) => { const answer = await real(path, init); \
        if (path.endsWith('/tickets') && lost++ === 0) throw new TypeError('lost'); \
        return answer; };";
    browser.run(lose).await;
    browser.click(&of("tea", ".buy")).await;
    browser.expect(&of("tea", ".buy"), "Buy again").await;
    let sent = calls(&browser, "/tickets").await;
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0]["body"], sent[1]["body"], "the same ticket");
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn the_dialog_fits_narrow_windows_and_has_no_faults() {
    let app = both().await;
    for (language, width, scheme) in [("en", 320, "light"), ("zh", 390, "dark")] {
        let browser = page(&app, language).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.emulate("Emulation.setEmulatedMedia", media).await;
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": false});
        browser.emulate("Emulation.setDeviceMetricsOverride", size).await;
        browser.click(&of("tea", ".buy")).await;
        until_picture(&browser, &Json::Null).await;
        browser.picture(&format!("challenge_{language}_{width}")).await;
        assert_eq!(clipped(&browser).await, json!([]), "{language}");
        assert_eq!(faults(&browser).await, Vec::<String>::new(), "{language}");
        // Continue is the fourth button after the field: work, another, close.
        browser.press(&TAB.repeat(4)).await;
        let reached = "return document.activeElement.classList.contains('primary')";
        browser.becomes(reached, true).await;
        let alt = browser.run("return document.querySelector('.challenge').alt.length > 0").await;
        assert_eq!(alt, true);
        assert_quiet(&browser, &[]).await;
    }
}
