//! One word has one meaning: names that the field does not use stay out, and no two public types
//! share a name.

use std::collections::BTreeMap;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, keep_each, rust};

/// Identifiers that need a glossary, and what to write.
const BANNED: &[(&str, &str)] = &[
    ("Caution", "Quarantine"),
    ("Crew", "Pool"),
    ("DeskError", "the service's own error"),
    ("Drill", "FaultInjector"),
    ("Fate", "PublishOutcome"),
    ("Handing", "Dispatch"),
    ("Haul", "TransferOutcome"),
    ("Journey", "OrderTimeline"),
    ("Judgement", "Validation"),
    ("Keeper", "Collector, or the maintenance role"),
    ("Lane", "ConnectionPurpose"),
    ("Life", "Incarnation"),
    ("Listed", "CatalogSale"),
    ("Living", "Supervised"),
    ("OrderDoor", "LedgerWriterHandle"),
    ("OrderIntake", "OrderConsumer"),
    ("Parcel", "PublishBatch"),
    ("Patience", "TimeoutClass"),
    ("Pen", "ConfirmChannel"),
    ("Perishable", "Expirable"),
    ("Plug", "ShutdownGuard"),
    ("RelayDoor", "RelayHandle"),
    ("Rung", "Segment"),
    ("SalesDesk", "SalesService"),
    ("Shelf", "SkuCache"),
    ("Shelves", "SkuCaches"),
    ("Standing", "RequestStatus, or another status"),
    ("StockTeller", "StockRefresher"),
    ("Strike", "FaultPoint"),
    ("Tally", "the counts by their name"),
    ("Vital", "ConnectionHealth"),
    ("Wish", "PurchaseRequest"),
    ("Wire", "the executor or the transport"),
];

/// Type names that many modules may have: `module::Error` is the language's own habit.
const SHARED: &[&str] = &["Error"];

fn banned(path: &str, text: &str) -> Vec<Finding> {
    let code = rust::code(text);
    let found = |(word, instead): &(&str, &str)| {
        let what = format!("`{word}`: write `{instead}`");
        let places = rust::words(&code, word).map(|at| Finding::at(path, &code, at, &what));
        places.collect::<Vec<_>>()
    };
    BANNED.iter().flat_map(found).collect()
}

/// Public types of one name in different files.
fn doubled(files: &[File]) -> Vec<Finding> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in files {
        for (name, line) in public_types(&rust::production(&file.path, &file.text)) {
            if SHARED.contains(&name.as_str()) {
                continue;
            }
            match seen.get(&name) {
                Some(other) if *other != file.path => {
                    let what = format!("`{name}` is a public type of {other}, too");
                    findings.push(Finding::new(&file.path, line, what));
                }
                _ => {
                    seen.insert(name, file.path.clone());
                }
            }
        }
    }
    findings
}

/// The public types of a file, with their lines.
fn public_types(code: &str) -> Vec<(String, usize)> {
    let name_of = |line: &str| {
        let line = line.trim_start().strip_prefix("pub")?;
        let line = match line.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => line,
        };
        let (kind, rest) = line.trim_start().split_once(' ')?;
        let is_type = ["enum", "struct", "trait", "type"].contains(&kind);
        let name: String = rest.chars().take_while(|&c| rust::is_word(c)).collect();
        // A macro's `$name` is no name.
        (is_type && !name.is_empty()).then_some(name)
    };
    let lines = code.lines().enumerate();
    lines.filter_map(|(at, line)| Some((name_of(line)?, at + 1))).collect()
}

#[test]
fn no_name_needs_a_glossary() {
    keep_each(Rule::Vocabulary, &tree::sources(), banned);
}

#[test]
fn a_planted_coined_name_is_found() {
    for (word, _) in BANNED {
        let text = format!("fn f(x: {word}) {{}}\n// {word}\nconst X: &str = \"{word}\";\n");
        assert_eq!(banned("src/other.rs", &text).len(), 1, "{word}");
        assert!(banned("src/other.rs", &format!("struct {word}Other;")).is_empty(), "{word}");
    }
}

#[test]
fn no_two_public_types_share_a_name() {
    keep(Rule::Vocabulary, doubled(&tree::sources()));
}

#[test]
fn a_planted_second_type_of_a_name_is_found() {
    let one = File::planted("src/one.rs", "pub struct Same;\npub enum Error {}\nstruct Own;\n");
    let two = "pub enum Error {}\n/// Too.\npub(crate) type Same = u8;\nstruct Own;\n";
    let findings = doubled(&[one, File::planted("src/two.rs", two)]);
    let expected = "`Same` is a public type of src/one.rs, too";
    assert_eq!(findings, [Finding::new("src/two.rs", 3, expected)]);
}
