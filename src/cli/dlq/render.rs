//! Dead letters and results of operations on them as text.
//!
//! Reasons, ids and headers are untrusted input and are sanitized.

use serde_json::Value as Json;

use super::dead_letters;
use crate::cli::output::{Output, cells, field, list, number, on_one_line, table};

/// Limit of one table cell, in characters.
const CELL_CHARS: usize = 60;

/// Limit of a text on its own line, in characters.
const LINE_CHARS: usize = 2000;

pub(super) fn render_list(page: &Json) -> String {
    let counts = page.get("counts").cloned().unwrap_or_default();
    let states = ["open", "replayed", "parked", "discarded"];
    let total = states.map(|state| format!("{} {state}", field(&counts, state))).join(", ");
    let (dead_letters, unreadable) = (dead_letters(page), list(page, "unreadable"));
    if dead_letters.is_empty() && unreadable.is_empty() {
        return format!("no dead letter matches ({total})");
    }
    let unreadable = unreadable.iter().map(|one| {
        let [id, reason] = ["id", "reason"].map(|name| on_one_line(&field(one, name), LINE_CHARS));
        format!("dead letter {id} cannot be read: {reason}\n")
    });
    let unreadable: String = unreadable.collect();
    let names = ["id", "state", "origin", "attempts", "dead_at", "message_id", "reason"];
    let row = |dead_letter| {
        let cells = cells(dead_letter, &names);
        cells.iter().map(|cell| without_middle(cell)).collect()
    };
    let heading = ["ID", "STATE", "ORIGIN", "ATTEMPTS", "DEAD AT", "MESSAGE", "REASON"];
    let matching = number(page, "num_matching");
    let matching = matching.map_or_else(String::new, |num| format!("{num} match; "));
    let shown = table(&heading, dead_letters.iter().map(row));
    format!("{shown}{unreadable}\n{matching}{total}\n")
}

/// A cell; one that is too long loses its middle, because a reason ends with the cause.
fn without_middle(text: &str) -> String {
    let (num_chars, half) = (text.chars().count(), CELL_CHARS / 2);
    if num_chars <= CELL_CHARS {
        return on_one_line(text, CELL_CHARS);
    }
    let end: String = text.chars().skip(num_chars - half).collect();
    on_one_line(text, half) + &on_one_line(&end, half)
}

pub(super) fn render_dead_letter(output: &Output, dead_letter: &Json) -> String {
    let line = |name: &str| on_one_line(&field(dead_letter, name), LINE_CHARS);
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
    let intents = list(dead_letter, "intents");
    if !intents.is_empty() {
        let names = ["request", "sale_id", "sku_id", "buyer_id", "quantity", "amount", "placed_at"];
        let rows = intents.iter().map(|intent| cells(intent, &names));
        let heading = ["REQUEST", "SALE", "SKU", "BUYER", "UNITS", "AMOUNT", "PLACED"];
        shown.push_str(&format!("\n{}", table(&heading, rows)));
    }
    let next = match dead_letter.get("why_not").and_then(Json::as_str) {
        None => output.with_flags(&format!("next: floodgate dlq replay {}", line("id"))),
        Some(why) => format!("it cannot be replayed: {}", on_one_line(why, LINE_CHARS)),
    };
    format!("{shown}\n{next}\n")
}

pub(super) fn render_results(summary: &Json) -> String {
    let mut shown = String::new();
    for one in dead_letters(summary) {
        let text = |name: &str| on_one_line(&field(one, name), LINE_CHARS);
        let has = |name: &str| one.get(name).is_some();
        let outcome = if has("refused") {
            format!("refused: {}", text("refused"))
        } else if has("unknown") {
            format!("outcome unknown: {}", text("unknown"))
        } else if text("done") == "published" && text("state") != "replayed" {
            format!("published, and it is {} again", text("state"))
        } else {
            text("done")
        };
        shown.push_str(&format!("dead letter {}: {outcome}\n", text("id")));
    }
    let counted: Vec<String> = [
        ("num_published", "published"),
        ("num_resolved", "resolved (their requests had ended)"),
        ("num_parked", "parked"),
        ("num_discarded", "discarded"),
        ("num_already", "done before"),
        ("num_refused", "refused"),
        ("num_unknown", "of unknown outcome"),
        ("num_not_tried", "not tried"),
    ]
    .into_iter()
    .filter(|(name, _)| field(summary, name) != "0")
    .map(|(name, label)| format!("{} {label}", field(summary, name)))
    .collect();
    if shown.is_empty() && field(summary, "num_not_tried") != "0" {
        // The error on stderr says why.
        return String::new();
    }
    if counted.is_empty() {
        return "nothing was done".to_owned();
    }
    format!("{shown}{}\n", counted.join(", "))
}
