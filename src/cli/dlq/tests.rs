//! The text output of `floodgate dlq`.

use super::*;

const CONTROL_CHARS: &str = "9-1\u{1b}]0;mine\u{7}\r";

#[test]
fn a_list_is_a_table_with_its_counts() {
    let page = json!({
        "counts": { "open": 1, "replayed": 2, "parked": 0, "discarded": 3 },
        "dead_letters": [{
            "id": "17", "state": "open", "origin": "consumer", "attempts": 4,
            "dead_at": "2030-01-01T00:00:00.000Z", "message_id": CONTROL_CHARS,
            "reason": format!("no such SKU\u{1b}[2J{}", "x".repeat(99)),
        }],
    });
    let text = render_list(&page);
    assert!(text.contains("17  open   consumer  4"), "{text}");
    assert!(text.contains("no such SKU.[2Jxx") && text.contains("xx..\n"), "{text}");
    assert!(text.contains("  9-1.]0;mine..  no such"), "{text}");
    assert!(text.ends_with("\n1 open, 2 replayed, 0 parked, 3 discarded\n"), "{text}");
    let none = json!({ "counts": { "open": 0, "replayed": 2, "parked": 0, "discarded": 0 } });
    assert_eq!(render_list(&none), "none of these (0 open, 2 replayed, 0 parked, 0 discarded)");
}

#[test]
fn a_dead_letter_shows_the_next_step() {
    let mut dead_letter = json!({
        "id": "17", "state": "open", "reason": "no such SKU", "message_id": CONTROL_CHARS,
        "intents": [{ "request": "9", "quantity": 2 }],
    });
    let text = render_dead_letter(&dead_letter);
    assert!(text.starts_with("dead letter 17 (open)\n"), "{text}");
    assert!(text.contains("\nreason       no such SKU\n"), "{text}");
    assert!(text.contains("\nmessage      9-1.]0;mine..\n"), "{text}");
    assert!(text.contains("\n9        -     -    -      2"), "{text}");
    assert!(text.ends_with("next: floodgate dlq replay 17\n"), "{text}");
    dead_letter["why_not"] = json!("no content type");
    assert!(render_dead_letter(&dead_letter).ends_with("it cannot be replayed: no content type\n"));
}
