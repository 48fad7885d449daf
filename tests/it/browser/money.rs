//! Prices in both pages: they are counted in the smallest unit of ISO 4217.

use serde_json::{Value as Json, json};

use super::{WIDE, assert_quiet, of, open, sale, shop};
use crate::support::browser::Browser;

/// What the module of the page makes of 1234567 smallest units, for every currency that the browser
/// lists, and those of four digits.
async fn amounts(browser: &Browser, module: &str) -> Json {
    let script = format!(
        "const url = document.querySelector('script[type=module]').src; \
         const codes = [...Intl.supportedValuesOf('currency'), 'CLF', 'UYW']; \
         return import(new URL('{module}', url)).then(({{ money }}) => Object.fromEntries( \
           codes.map((code) => [code, money(1234567, code)])))"
    );
    browser.run(&script).await
}

#[tokio::test]
async fn prices_have_the_digits_of_their_currency_in_both_pages() {
    let app = shop();
    let mut spring = sale(-1_000);
    spring["currency"] = json!("HUF");
    spring["skus"][0]["price"] = json!(1_500_000);
    open(&app, spring).await;
    let browser = Browser::start(WIDE, "en").await;
    browser.open(&app.url("/?sale=spring")).await;
    browser.expect(&of("phone", ".price"), "15,000.00").await;
    let shown = amounts(&browser, "words.js").await;
    for (currency, expected) in [
        ("EUR", "12,345.67"),
        ("HUF", "12,345.67"),
        ("IDR", "12,345.67"),
        ("JPY", "1,234,567"),
        ("KRW", "1,234,567"),
        ("KWD", "1,234.567"),
        ("IQD", "1,234.567"),
        ("CLF", "123.4567"),
    ] {
        let shown = shown[currency].as_str().unwrap();
        assert_eq!(shown.trim_start_matches(|c: char| !c.is_ascii_digit()), expected, "{currency}");
    }

    browser.open(&format!("http://{}/ops/?view=sales", app.internal)).await;
    browser.expect(".card", "15,000.00").await;
    assert_eq!(amounts(&browser, "parts.js").await, shown, "both pages have one table");
    assert_quiet(&browser, &[]).await;
}
