//! Imports go down: a folder names only folders of lower floors, so that no two import each other.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::tree::File;
use super::{keep_each, rust, tree};

/// The folders of `src/`, from the ground up. Folders of one floor do not name each other.
const FLOORS: &[&[&str]] = &[
    &["domain"],
    &["runtime"],
    &["net"],
    &["redis"],
    &["config"],
    &["broker", "db", "lease", "limits", "payment", "stock", "tickets", "watermark"],
    &["messages"],
    &["outbox"],
    &["observe"],
    &["tier"],
    &["services"],
    &["actors"],
    &["http"],
    &["app"],
    &["cli"],
];

fn floor_of(folder: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&folder))
}

/// The folder directly below `src/`, or the file's stem; `None` for the crate's root.
fn folder_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("src/")?.split('/').next()?;
    let name = name.strip_suffix(".rs").unwrap_or(name);
    (name != "lib" && name != "main").then_some(name)
}

fn upward(path: &str, text: &str) -> Vec<Finding> {
    let Some(folder) = folder_of(path) else { return Vec::new() };
    let Some(floor) = floor_of(folder) else {
        return vec![Finding::new(path, 1, format!("`{folder}` has no floor"))];
    };
    let code = rust::production(path, text);
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let name: String =
            code[at + "crate::".len()..].chars().take_while(|&c| rust::is_word(c)).collect();
        let is_upward = floor_of(&name).is_some_and(|other| other >= floor && name != folder);
        if is_upward {
            let what = format!("`{folder}` is below `{name}` or beside it");
            findings.push(Finding::at(path, &code, at, &what));
        }
    }
    findings
}

#[test]
fn imports_go_down() {
    keep_each(Rule::Floors, &tree::server(), upward);
}

#[test]
fn every_floor_exists() {
    let sources = tree::server();
    let folders: BTreeSet<&str> = sources.iter().filter_map(|file| folder_of(&file.path)).collect();
    let floors: BTreeSet<&str> = FLOORS.concat().into_iter().collect();
    assert_eq!(folders, floors);
}

#[test]
fn a_planted_upward_import_is_found() {
    let up = File::planted("src/stock/mod.rs", "use crate::actors::StockGate;\n");
    let expected = Finding::new("src/stock/mod.rs", 1, "`stock` is below `actors` or beside it");
    assert_eq!(upward(&up.path, &up.text), [expected]);
    for text in ["use crate::db::Ledger;", "fn f() { crate::db::open() }"] {
        assert_eq!(upward("src/stock/redis/mod.rs", text).len(), 1, "{text}");
    }
    for text in ["use crate::domain::Sku;", "use crate::stock::Stock;", "// crate::actors"] {
        assert_eq!(upward("src/stock/redis/mod.rs", text), [], "{text}");
    }
    assert_eq!(upward("src/lib.rs", "use crate::actors::StockGate;"), []);
    assert_eq!(upward("src/other/mod.rs", "").len(), 1, "a folder without a floor");
}
