//! Every folder opens with its documentation, and no file is marked as unfinished.

use super::finding::{Finding, Rule};
use super::{keep_each, tree};

/// Split, so that this file does not contain the words itself.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

fn folder_docs(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with("/mod.rs") || text.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "does not open with `//!`: what is in this folder, and why")]
}

fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in UNFINISHED {
        let what = format!("`{word}`: finish it, or write down what is missing where users look");
        findings.extend(
            super::rust::words(text, word).map(|at| Finding::at(path, text, at, what.clone())),
        );
    }
    findings
}

#[test]
fn every_folder_says_what_it_is() {
    keep_each(Rule::FolderDocs, &tree::rust(), folder_docs);
}

#[test]
fn a_planted_silent_folder_is_found() {
    assert_eq!(folder_docs("src/stock/mod.rs", "pub mod memory;\n").len(), 1);
    assert_eq!(folder_docs("src/stock/mod.rs", "// Stock.\n").len(), 1);
    assert!(folder_docs("src/stock/mod.rs", "//! Where units are counted.\n").is_empty());
    assert!(folder_docs("src/stock/memory.rs", "struct MemoryStock;\n").is_empty());
}

#[test]
fn nothing_is_left_unfinished() {
    let folders =
        ["src", "crates", "bench", "tests", "lua", "migrations", "scripts", "web", "config"];
    let extensions = ["rs", "lua", "sql", "sh", "js", "css", "html", "toml"];
    keep_each(Rule::Unfinished, &tree::files(&folders, &extensions), unfinished);
}

#[test]
fn a_planted_unfinished_line_is_found() {
    for word in UNFINISHED {
        let text = format!("// fine\n// {word}: later\n");
        assert_eq!(unfinished("src/a.rs", &text).len(), 1);
    }
    assert!(unfinished("src/a.rs", "// a todo list is a feature\n").is_empty());
}
