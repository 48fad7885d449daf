//! `floodgate sale create`, `floodgate sale set` and `floodgate sale restock`, against a server
//! whose answers the test writes.

use serde_json::json;

use super::code;
use super::scripted::{ScriptedApi, stderr};

#[test]
fn a_description_is_sent_as_it_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"sale_id\": \"a\",\n \"sale_id\": \"b\"}\n").unwrap();
    let create = ["sale", "create", file.path().to_str().unwrap()];
    let api = ScriptedApi::always(400, json!({"title": "Invalid", "detail": "named twice"}));
    for (more, end) in [(&["--reason", "rain"][..], ",\"reason\":\"rain\"}"), (&[], "}")] {
        let refused = api.run(&[&create[..], more].concat());
        assert_eq!(code(&refused), 1, "{refused:?}");
        let request = api.requests.lock().unwrap().pop().unwrap();
        let sent = format!("\r\n\r\n{{\"sale_id\": \"a\",\n \"sale_id\": \"b\"{end}");
        assert!(request.ends_with(&sent), "{request}");
    }
}

#[test]
fn set_sends_what_is_given_and_nothing_else() {
    let api = ScriptedApi::start(|line| {
        (line == "PATCH /sales/spring").then(|| (200, json!({"sale_id": "spring"})))
    });
    let of_sale = ["sale", "set", "spring", "--title", "Encore", "--reason", "an hour longer"];
    assert_eq!(api.text(&of_sale, 0), "sale spring is changed\n");
    assert_eq!(api.bodies(), [json!({"title": "Encore", "reason": "an hour longer"})]);
    let of_sku = [
        &["sale", "set", "spring", "--ends-at", "2099-01-01T00:00:00Z", "--sku", "phone"][..],
        &["--title", "Phone", "--price", "7", "--limit", "2", "--max-quantity", "1"],
        &["--payment-window", "0"],
    ];
    api.text(&of_sku.concat(), 0);
    let sku = json!({
        "sku_id": "phone", "title": "Phone", "price": 7, "limit": 2, "max_quantity": 1,
        "payment_window_s": 0,
    });
    assert_eq!(api.bodies(), [json!({"ends_at": "2099-01-01T00:00:00Z", "skus": [sku]})]);
}

#[test]
fn set_without_a_change_asks_for_one() {
    let api = ScriptedApi::start(|_| None);
    for more in [&["--reason", "none"][..], &["--sku", "phone"]] {
        let output = api.run(&[&["sale", "set", "spring"][..], more].concat());
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(stderr(&output).contains("nothing to change"), "{output:?}");
        assert!(stderr(&output).contains("give --title"), "{output:?}");
    }
    let output = api.run(&["sale", "set", "spring", "--price", "7"]);
    assert!(!output.status.success(), "a price without its SKU: {output:?}");
    assert!(api.lines().is_empty());
}

#[test]
fn restock_says_how_many_units_came() {
    let api = ScriptedApi::start(|line| {
        let answer = json!({"changed": -150, "initial_stock": 850, "delta": -200});
        (line == "POST /sales/spring/skus/phone/stock").then_some((200, answer))
    });
    let words = ["sale", "restock", "spring", "phone", "-200", "--change-id", "damaged-4"];
    let text = api.text(&words, 0);
    assert_eq!(text, "stock of phone changed by -150, of -200 wanted; it is 850 now\n");
    assert_eq!(api.bodies(), [json!({"delta": -200, "change_id": "damaged-4"})]);
    let output = api.run(&words[..5]);
    assert!(!output.status.success(), "without a change id: {output:?}");

    let conflict = json!({"title": "Change id used", "detail": "of other units"});
    let refused = ScriptedApi::always(409, conflict).run(&words);
    assert_eq!(code(&refused), 1, "{refused:?}");
}
