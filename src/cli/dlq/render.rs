//! Letters, and what was done with them, for people.
//!
//! Other parties write reasons, ids and headers: nothing of theirs is shown as it came.

use serde_json::Value as Json;

use super::letters;
use crate::cli::output::{field, list, on_one_line, table};

/// Characters of a text in a table.
const CELL_CHARS: usize = 60;

/// Characters of a text on a line of its own.
const LINE_CHARS: usize = 2000;

pub(super) fn render_list(page: &Json) -> String {
    let counts = page.get("counts").cloned().unwrap_or_default();
    let count = |state: &str| field(&counts, state);
    let total = format!(
        "{} open, {} replayed, {} parked, {} discarded",
        count("open"),
        count("replayed"),
        count("parked"),
        count("discarded")
    );
    let rows: Vec<Vec<String>> = letters(page)
        .iter()
        .map(|letter| {
            ["id", "state", "origin", "attempts", "dead_at", "message_id", "reason"]
                .iter()
                .map(|name| on_one_line(&field(letter, name), CELL_CHARS))
                .collect()
        })
        .collect();
    if rows.is_empty() {
        return format!("none of these ({total})");
    }
    let heading = ["ID", "STATE", "ORIGIN", "ATTEMPTS", "DEAD AT", "MESSAGE", "REASON"];
    format!("{}\n{total}\n", table(&heading, &rows))
}

pub(super) fn render_letter(letter: &Json) -> String {
    let line = |name: &str| on_one_line(&field(letter, name), LINE_CHARS);
    let mut shown = format!("dead letter {} ({})\n\n", line("id"), line("state"));
    for (title, name) in [
        ("given up by", "origin"),
        ("reason", "reason"),
        ("at", "dead_at"),
        ("attempts", "attempts"),
        ("arrivals", "arrivals"),
        ("message", "message_id"),
        ("headers", "headers"),
        ("bytes", "body_bytes"),
        ("begins with", "preview"),
        ("note", "note"),
    ] {
        shown.push_str(&format!("{title:<12} {}\n", line(name)));
    }
    let intents = list(letter, "intents");
    if !intents.is_empty() {
        let names = ["request", "sale_id", "sku_id", "buyer_id", "quantity", "amount", "asked_at"];
        let row = |intent| names.iter().map(|name| field(intent, name)).collect();
        let rows: Vec<Vec<String>> = intents.iter().map(row).collect();
        let heading = ["REQUEST", "SALE", "SKU", "BUYER", "UNITS", "AMOUNT", "ACCEPTED"];
        shown.push_str(&format!("\n{}", table(&heading, &rows)));
    }
    let next = match letter.get("why_not").and_then(Json::as_str) {
        None => format!("next: floodgate dlq replay {}", line("id")),
        Some(why) => format!("it cannot be replayed: {}", on_one_line(why, LINE_CHARS)),
    };
    format!("{shown}\n{next}\n")
}

pub(super) fn render_results(summary: &Json) -> String {
    let mut shown = String::new();
    for one in letters(summary) {
        let told = |name: &str| on_one_line(&field(one, name), LINE_CHARS);
        let has = |name: &str| one.get(name).is_some();
        let became = if has("refused") {
            format!("refused: {}", told("refused"))
        } else if has("unknown") {
            format!("may have been done: {}", told("unknown"))
        } else if told("done") == "published" && told("state") != "replayed" {
            format!("published, and it is {} again", told("state"))
        } else {
            told("done")
        };
        shown.push_str(&format!("letter {}: {became}\n", told("id")));
    }
    let counted: Vec<String> = [
        ("num_published", "published"),
        ("num_resolved", "resolved (their requests had ended)"),
        ("num_parked", "parked"),
        ("num_discarded", "discarded"),
        ("num_already", "were so already"),
        ("num_refused", "refused"),
        ("num_unknown", "may have been done"),
        ("num_not_tried", "not tried"),
    ]
    .into_iter()
    .filter(|(name, _)| field(summary, name) != "0")
    .map(|(name, what)| format!("{} {what}", field(summary, name)))
    .collect();
    if counted.is_empty() {
        return "nothing to do: no open letter".to_owned();
    }
    format!("{shown}{}\n", counted.join(", "))
}
