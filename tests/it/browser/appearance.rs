//! The appearance of the storefront: languages, widths, dark mode, motion, keyboard and screen
//! readers. The checks are geometric and those of axe; pictures are for a person.

use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Value as Json, json};

use super::{WIDE, assert_quiet, of, open, sale, shop};
use crate::support::TestApp;
use crate::support::browser::Browser;

/// Views, each with a text that shows that it is drawn.
const VIEWS: [(&str, &str, &str); 3] =
    [("", ".sales", "sale"), ("sale=spring", ".skus", "Phone"), ("orders", ".order", "Phone")];

/// axe-core, see `axe/README.md`.
fn axe() -> String {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("axe/axe.min.js.gz")[..]).read_to_string(&mut text).unwrap();
    text
}

/// The faults of accessibility that axe finds on the page.
pub(super) async fn faults(browser: &Browser) -> Vec<String> {
    // A colour on its way to another one has the contrast of neither.
    let settled = "return Promise.all(document.getAnimations().map((one) => one.finished)) \
        .then(() => true)";
    assert_eq!(browser.run(settled).await, true);
    browser.run(&axe()).await;
    let run = "return axe.run({resultTypes: ['violations']}).then((found) => found.violations)";
    let violations = browser.run(run).await;
    let violations = violations.as_array().unwrap().iter();
    violations.map(|found| format!("{}: {}", found["id"], found["nodes"][0]["html"])).collect()
}

/// What of the page is outside of the window, or cut off.
pub(super) async fn clipped(browser: &Browser) -> Json {
    browser
        .run(
            "const wide = document.documentElement.scrollWidth > innerWidth ? ['page'] : []; \
             const texts = [...document.querySelectorAll('h1, h2, p, button, a, output, span')]; \
             const shown = texts.filter((one) => one.checkVisibility() && one.innerText && \
               !one.matches('.visually-hidden, .skip')); \
             const cut = shown.filter((one) => { const box = one.getBoundingClientRect(); \
               return box.left < -1 || box.right > innerWidth + 1 || \
                 one.scrollWidth > Math.ceil(box.width) + 1 && \
                 getComputedStyle(one).display !== 'inline'; }); \
             return [...wide, ...cut.map((one) => one.outerHTML.slice(0, 120))]",
        )
        .await
}

/// Targets of a finger or mouse that are smaller than 44 pixels.
async fn small_targets(browser: &Browser) -> Json {
    browser
        .run(
            "return [...document.querySelectorAll('main button, main a, .bar button, .bar a')] \
             .filter((one) => one.checkVisibility() && \
               Math.round(one.getBoundingClientRect().height) < 44) \
             .map((one) => one.outerHTML.slice(0, 120))",
        )
        .await
}

/// A shop with a sale, in which the browser's buyer has an order.
async fn shop_with_order(browser: &Browser) -> TestApp {
    let app = shop();
    open(&app, sale(-1_000)).await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy .label"), "").await;
    browser.expect(&of("phone", ".notes"), "").await;
    browser.click(&of("phone", ".note-link")).await;
    browser.expect(".order", "Phone").await;
    app
}

#[tokio::test]
async fn every_view_fits_every_width_in_both_languages_and_both_schemes() {
    let browser = Browser::start(WIDE, "en").await;
    let app = shop_with_order(&browser).await;
    for (language, width, scheme) in [
        ("en", 320, "light"),
        ("en", 390, "dark"),
        ("zh", 390, "light"),
        ("zh", 1_100, "dark"),
        ("en", 1_100, "light"),
    ] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.emulate("Emulation.setEmulatedMedia", media).await;
        let size = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": false});
        browser.emulate("Emulation.setDeviceMetricsOverride", size).await;
        for (query, selector, text) in VIEWS {
            let what = format!("{query} {language} {width} {scheme}");
            browser.open(&app.url(&format!("/?lang={language}&{query}"))).await;
            browser.expect(selector, text).await;
            browser.picture(&what.replace(['=', ' '], "_")).await;
            assert_eq!(clipped(&browser).await, json!([]), "{what}");
            assert_eq!(small_targets(&browser).await, json!([]), "{what}");
            assert_eq!(faults(&browser).await, Vec::<String>::new(), "{what}");
        }
        browser.open(&app.url(&format!("/?lang={language}&sale=spring"))).await;
        browser.expect(&of("tea", ".left"), "400").await;
        let inside = "const box = document.querySelector('.buy').getBoundingClientRect(); \
            return box.top > 0 && box.bottom <= innerHeight";
        assert_eq!(browser.run(inside).await, true, "{language} {width}: the button is in sight");
    }
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn a_chinese_buyer_gets_the_page_in_chinese_and_may_change_it() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "zh-CN,zh").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("phone", ".buy"), "立即抢购").await;
    browser.becomes("return document.documentElement.lang", "zh-Hans").await;
    browser.click(&of("phone", ".buy")).await;
    browser.expect(&of("phone", ".buy"), "抢购成功").await;
    browser.expect(&of("phone", ".note"), "下单成功。").await;
    browser.click("button[lang=en]").await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    browser.reload().await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn the_languages_have_the_same_keys_and_placeholders() {
    let app = shop();
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    let script = "const url = document.querySelector('script[type=module]').src; \
        const names = (text) => (text.match(/\\{\\w+\\}/g) ?? []).sort().join(); \
        const rows = (words) => Object.keys(words).sort().map((key) => key + names(words[key])); \
        const load = (name) => import(new URL(name, url)).then((found) => found.default); \
        return Promise.all([load('en.js'), load('zh.js')]).then((all) => all.map(rows))";
    let rows = browser.run(script).await;
    assert!(rows[0].as_array().unwrap().len() > 80);
    assert_eq!(rows[0], rows[1]);
}

#[tokio::test]
async fn nothing_moves_where_motion_is_not_wanted() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("phone", ".buy"), "Buy").await;
    let moves = "document.querySelector('.sku').dataset.state = 'queued'; \
        return getComputedStyle(document.querySelector('.sku .icon')).animationName";
    browser.becomes(moves, "turn").await;
    let media = json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]});
    browser.emulate("Emulation.setEmulatedMedia", media).await;
    browser.becomes(moves, "none").await;
    assert_quiet(&browser, &[]).await;
}

#[tokio::test]
async fn the_keyboard_reaches_everything_and_nothing_shifts() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/")).await;
    browser.expect(".sales", "Spring sale").await;
    let tab = "\u{e004}";
    browser.press(tab).await;
    browser.becomes("return document.activeElement.className", "skip").await;
    // Mark, two views, language, buyer, and the sale.
    browser.press(&tab.repeat(6)).await;
    browser.press("\u{e007}").await;
    browser.expect(&of("phone", ".left"), "1,000").await;
    browser.becomes("return document.activeElement.id", "main").await;
    browser.press(&tab.repeat(2)).await;
    browser.press("\u{e007}").await;
    browser.expect(&of("phone", ".buy"), "Ordered").await;
    let focused = "return document.activeElement.classList.contains('buy')";
    browser.becomes(focused, true).await;
    browser.expect("#status", "Your order is placed.").await;
    browser.back().await;
    browser.expect(".sales", "Spring sale").await;

    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("cup", ".left"), "60").await;
    let shift = "return new Promise((done) => { let sum = 0; \
        new PerformanceObserver((list) => { for (const one of list.getEntries()) \
        if (!one.hadRecentInput) sum += one.value; }) \
        .observe({type: 'layout-shift', buffered: true}); setTimeout(() => done(sum), 1500); })";
    let shift = browser.run(shift).await.as_f64().unwrap();
    assert!(shift < 0.01, "{shift}");
    assert_quiet(&browser, &[]).await;
}
