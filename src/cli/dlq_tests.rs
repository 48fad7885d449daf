//! What `floodgate dlq` shows.

use super::*;

#[test]
fn a_list_is_a_table_with_its_counts() {
    let page = json!({
        "counts": { "open": 1, "replayed": 2, "parked": 0 },
        "dead_letters": [{
            "id": "17", "state": "open", "origin": "consumer", "attempts": 4,
            "dead_at": "2030-01-01T00:00:00.000Z", "message_id": "9-1",
            "reason": format!("no such SKU\u{1b}[2J{}", "x".repeat(99)),
        }],
    });
    let text = render_list(&page);
    assert!(text.contains("17  open   consumer  4"), "{text}");
    assert!(text.contains("no such SKU.[2Jxx") && text.contains("xx..\n"), "{text}");
    assert!(text.ends_with("\n1 open, 2 replayed, 0 parked\n"), "{text}");
    let none = json!({ "counts": { "open": 0, "replayed": 2, "parked": 0 } });
    assert_eq!(render_list(&none), "none of these (0 open, 2 replayed, 0 parked)");
}

#[test]
fn a_letter_says_what_can_be_done_with_it() {
    let mut letter = json!({
        "id": "17", "state": "open", "reason": "no such SKU",
        "intents": [{ "request": "9", "quantity": 2 }],
    });
    let text = render_letter(&letter);
    assert!(text.starts_with("dead letter 17 (open)\n"), "{text}");
    assert!(text.contains("\nreason       no such SKU\n"), "{text}");
    assert!(text.contains("\n9        -     -    -      2"), "{text}");
    assert!(text.ends_with("next: floodgate dlq replay 17\n"), "{text}");
    letter["why_not"] = json!("no content type");
    assert!(render_letter(&letter).ends_with("it cannot be replayed: no content type\n"));
}

#[test]
fn results_are_told_one_by_one_and_in_sum() {
    let results = [
        json!({ "id": "1", "done": "published", "state": "replayed" }),
        json!({ "id": "2", "done": "published", "state": "open" }),
        json!({ "id": "3", "done": "resolved", "state": "replayed" }),
        json!({ "id": "4", "refused": "Not replayable: it is cut" }),
    ];
    let told = summary(&results, 5);
    let expected = [
        "letter 1: published",
        "letter 2: published, and it is open again",
        "letter 3: resolved",
        "letter 4: refused: Not replayable: it is cut",
        "2 published, 1 resolved (their requests had ended), 1 refused, 1 not tried",
    ];
    assert_eq!(render_results(&told).lines().collect::<Vec<_>>(), expected);
    assert_eq!(render_results(&summary(&[], 0)), "nothing to do: no open letter");
}

#[test]
fn the_words_are_those_of_the_interface() {
    use crate::domain::{LetterOrigin, LetterState};
    let origins: Vec<String> = OriginArg::value_variants().iter().copied().map(word).collect();
    assert_eq!(origins, LetterOrigin::ALL.map(LetterOrigin::name));
    let states: Vec<String> = StateArg::value_variants().iter().copied().map(word).collect();
    assert_eq!(states[..3], LetterState::ALL.map(LetterState::name));
}
