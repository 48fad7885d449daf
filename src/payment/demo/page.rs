//! The page of a demo payment: plain HTML with one form per button, without scripts and without
//! requests to other hosts.

use std::fmt::Write;

use chrono::DateTime;

use super::payments::DemoPayment;
use super::{DemoAction, PAGE};

/// The buttons, with their labels.
const BUTTONS: [(DemoAction, &str); DemoAction::ALL.len()] = [
    (DemoAction::Pay, "Pay"),
    (DemoAction::Fail, "Let the payment fail"),
    (DemoAction::PayLate, "Pay late, also after the end"),
    (DemoAction::PayTwice, "Pay twice: the earlier payment, too"),
    (DemoAction::WrongAmount, "Pay a wrong amount"),
    (DemoAction::Refund, "Refund"),
    (DemoAction::OutOfOrder, "Fail, then pay; report in reverse"),
];

/// The page, in this style sheet. A button that is not allowed is disabled.
pub(super) fn html(
    payment: &DemoPayment,
    style: &str,
    now_ms: i64,
    allows: impl Fn(DemoAction) -> bool,
) -> String {
    let start = payment.start;
    let mut html = String::with_capacity(2_048);
    html.push_str("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width\">");
    html.push_str("<meta name=\"color-scheme\" content=\"light dark\"><title>Demo payment</title>");
    let _ = write!(html, "<link rel=\"stylesheet\" href=\"{style}\">");
    html.push_str("<main class=\"page prose\"><h1>Demo payment</h1>");
    html.push_str("<p>No money moves: every button tells the shop what it says.</p><dl>");
    let expires_at = start.expires_at_ms.and_then(DateTime::from_timestamp_millis);
    let expires_at = expires_at.map_or("never".to_owned(), |time| time.to_rfc3339());
    for (name, value) in [
        ("Payment", payment.id.clone()),
        ("Order", start.attempt.order.request.to_string()),
        ("Amount in smallest units", format!("{} {}", start.price.amount, start.price.currency)),
        ("Expires", expires_at),
        ("State", payment.status(now_ms).to_owned()),
    ] {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
    html.push_str("</dl>");
    for (action, label) in BUTTONS {
        let disabled = if allows(action) { "" } else { " disabled" };
        let _ = write!(
            html,
            "<form method=\"post\" action=\"{PAGE}{}\">\
             <button class=\"plain\" name=\"action\" value=\"{}\"{disabled}>{}</button></form>",
            escaped(&payment.id),
            action.name(),
            label,
        );
    }
    html.push_str("<p><a href=\"../?orders\">My orders</a></p></main>");
    html
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payment::demo::payments::DemoPayments;
    use crate::payment::demo::payments::tests::start;

    #[test]
    fn the_page_has_a_form_for_each_button_and_loads_its_style_sheet_only() {
        let mut payments = DemoPayments::default();
        let id = payments.start(start(1)).payment_id;
        let payment = payments.get(&id).unwrap();
        let at = |now_ms| {
            html(payment, "s.css", now_ms, |action| payments.allows(payment, action, now_ms))
        };
        let page = at(0);
        assert_eq!(page.matches("<form").count(), DemoAction::ALL.len());
        assert!(page.contains("<dd>100 CNY</dd>") && page.contains("<dd>open</dd>"), "{page}");
        for absent in ["<script", "http://", "https://", "src=", "style="] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert!(page.contains("<link rel=\"stylesheet\" href=\"s.css\">"), "{page}");
        assert_eq!(page.matches("<link").count(), 1);
        let what = "nothing to refund, and no earlier payment";
        assert_eq!(page.matches(" disabled").count(), 2, "{what}");
        assert_eq!(at(1_000).matches(" disabled").count(), DemoAction::ALL.len() - 1, "expired");
    }

    #[test]
    fn text_cannot_be_markup() {
        assert_eq!(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
