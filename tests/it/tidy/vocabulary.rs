//! One word has one meaning: coined names are banned, and no two public types share a name.

use std::collections::BTreeMap;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, keep_each, rust};

/// Banned identifiers with their replacements.
const BANNED: &[(&str, &str)] = &[
    ("BookSnapshot", "BucketSnapshot"),
    ("Caution", "Quarantine"),
    ("Crew", "Pool"),
    ("DeadEntry", "DeadLetter"),
    ("DeskError", "the service's own error"),
    ("Drill", "FaultInjector"),
    ("Fate", "PublishOutcome"),
    ("GivenUpEntry", "InFlight"),
    ("Handing", "Dispatch"),
    ("Haul", "TransferOutcome"),
    ("Journey", "OrderTimeline"),
    ("Judgement", "Validation"),
    ("Keeper", "Collector, or the maintenance role"),
    ("Lane", "ConnectionPurpose"),
    ("Life", "Incarnation"),
    ("Listed", "Sale"),
    ("Living", "Supervised"),
    ("OrderDoor", "LedgerWriterHandle"),
    ("OrderIntake", "OrderConsumer"),
    ("Parcel", "PublishBatch"),
    ("Patience", "TimeoutClass"),
    ("Pen", "ConfirmChannel"),
    ("Perishable", "Expirable"),
    ("Plug", "ShutdownGuard"),
    ("RelayDoor", "RelayHandle"),
    ("RequestTokens", "RequestIds"),
    ("Rung", "Segment"),
    ("SalesDesk", "SalesService"),
    ("Shelf", "SkuBuckets"),
    ("Shelves", "SkuIndex"),
    ("Standing", "RecordState, or another state"),
    ("StockTeller", "StockRefresher"),
    ("StoredRequest", "RequestRecord"),
    ("Strike", "FaultPoint"),
    ("Tally", "the counts by their name"),
    ("Vital", "ConnectionHealth"),
    ("Wish", "PurchaseRequest"),
    ("Wire", "the executor or the transport"),
    ("asked_at_ms", "placed_at_ms"),
];

/// Coined words that no identifier may have, alone or between underscores.
const BANNED_PARTS: &[(&str, &str)] = &[
    ("caution", "quarantine"),
    ("crew", "pool"),
    ("desk", "service"),
    ("dies", "crashes, exits, is dead-lettered"),
    ("door", "handle"),
    ("errand", "task"),
    ("fate", "outcome"),
    ("fates", "outcomes"),
    ("ground", "fixture"),
    ("guilty", "offending"),
    ("haul", "transfer"),
    ("heard", "received"),
    ("hears", "receives"),
    ("heed", "map_error"),
    ("intake", "order_consumer"),
    ("journey", "timeline"),
    ("judge", "checker"),
    ("keeper", "maintenance or collector"),
    ("lane", "purpose or role"),
    ("mishap", "fault"),
    ("nobody", "the subject"),
    ("parcel", "publish_batch"),
    ("patience", "timeout"),
    ("puzzle", "unexplained_conflict"),
    ("rig", "harness"),
    ("rung", "segment"),
    ("shelf", "cache"),
    ("somebody", "the subject"),
    ("standing", "status"),
    ("stray", "lost_request"),
    ("tally", "counts"),
    ("teller", "refresher"),
    ("tells", "reports"),
    ("told", "reported"),
    ("tray", "bucket_state"),
    ("vital", "health"),
    ("whoever", "the subject"),
    ("wish", "purchase"),
];

/// Words of comments that hide the subject of a sentence.
const BANNED_SUBJECTS: &[&str] = &["whoever", "nobody", "somebody"];

/// Type names that many modules may define: `module::Error` is idiomatic Rust.
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

/// Identifiers that are, or contain, a banned part.
fn banned_parts(path: &str, text: &str) -> Vec<Finding> {
    let code = rust::code(text);
    let mut findings = Vec::new();
    let mut start = 0;
    for name in code.split(|c: char| !rust::is_word(c)) {
        for word in name.split('_') {
            let mut parts = BANNED_PARTS.iter();
            if let Some((_, instead)) = parts.find(|(part, _)| word.eq_ignore_ascii_case(part)) {
                let what = format!("`{name}`: write `{instead}`");
                findings.push(Finding::at(path, &code, start, &what));
            }
        }
        start += name.len() + code[start + name.len()..].chars().next().map_or(0, char::len_utf8);
    }
    findings
}

fn banned_subjects(path: &str, text: &str) -> Vec<Finding> {
    let comments = rust::comments(text).to_lowercase();
    let found = |word: &&str| {
        let what = format!("`{word}`: name the subject");
        let places = rust::words(&comments, word);
        places.map(|at| Finding::at(path, &comments, at, &what)).collect::<Vec<_>>()
    };
    BANNED_SUBJECTS.iter().flat_map(found).collect()
}

/// Public types of one name in different files.
fn duplicates(files: &[File]) -> Vec<Finding> {
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
        // `$name` in a macro yields an empty name.
        (is_type && !name.is_empty()).then_some(name)
    };
    let lines = code.lines().enumerate();
    lines.filter_map(|(at, line)| Some((name_of(line)?, at + 1))).collect()
}

#[test]
fn no_name_needs_a_glossary() {
    keep_each(Rule::Vocabulary, &tree::rust(), banned);
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
fn no_name_has_a_coined_part() {
    keep_each(Rule::Vocabulary, &tree::rust(), banned_parts);
}

#[test]
fn a_planted_coined_part_is_found() {
    for (part, _) in BANNED_PARTS {
        for name in [(*part).to_owned(), format!("num_{part}"), part.to_uppercase()] {
            let text = format!("let é = {name};\n// {name}\nconst X: &str = \"{name}\";\n");
            let found = banned_parts("src/other.rs", &text);
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].to_string().starts_with("src/other.rs:1"), "{:?}", found[0]);
        }
        assert!(banned_parts("src/other.rs", &format!("let {part}er = 1;")).is_empty(), "{part}");
    }
}

#[test]
fn every_sentence_names_its_subject() {
    keep_each(Rule::Vocabulary, &tree::rust(), banned_subjects);
}

#[test]
fn a_planted_hidden_subject_is_found() {
    let text = "// Nobody waits.\nlet x = \"nobody\";\n/// For whoever asks.\n";
    assert_eq!(banned_subjects("src/other.rs", text).len(), 2);
}

#[test]
fn no_two_public_types_share_a_name() {
    keep(Rule::Vocabulary, duplicates(&tree::sources()));
}

#[test]
fn a_planted_second_type_of_a_name_is_found() {
    let one = File::planted("src/one.rs", "pub struct Same;\npub enum Error {}\nstruct Own;\n");
    let two = "pub enum Error {}\n/// Too.\npub(crate) type Same = u8;\nstruct Own;\n";
    let findings = duplicates(&[one, File::planted("src/two.rs", two)]);
    let expected = "`Same` is a public type of src/one.rs, too";
    assert_eq!(findings, [Finding::new("src/two.rs", 3, expected)]);
}
