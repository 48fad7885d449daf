//! The tests that `docs/tiers.md` names exist.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::{keep, rust, tree};

const PROMISES: &str = "docs/tiers.md";

/// Words with fewer underscores are keys and fields, not test names.
const UNDERSCORES_MIN: usize = 3;

/// Backticked test names that are not in `functions`, and backticked files that do not exist.
fn promises(
    document: &str,
    functions: &BTreeSet<String>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut num_tests = 0;
    for (index, line) in document.lines().enumerate() {
        for word in line.split('`').skip(1).step_by(2) {
            let is_test =
                word.chars().all(rust::is_word) && word.matches('_').count() >= UNDERSCORES_MIN;
            let is_file = word.split('.').next_back() == Some("rs");
            num_tests += usize::from(is_test);
            let is_lost = is_test && !functions.contains(word)
                || is_file && !exists(&format!("tests/it/{word}"));
            if is_lost {
                let what = format!("`{word}` is no test");
                findings.push(Finding::new(PROMISES, index + 1, what));
            }
        }
    }
    if num_tests == 0 {
        findings.push(Finding::new(PROMISES, 1, "no tests were found here"));
    }
    findings
}

fn functions(text: &str) -> BTreeSet<String> {
    rust::functions(&rust::code(text)).into_iter().map(|function| function.name).collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let document = tree::read(PROMISES).unwrap_or_default();
    let functions = tree::rust().iter().flat_map(|file| functions(&file.text)).collect();
    keep(Rule::Promises, promises(&document, &functions, tree::exists));
}

#[test]
fn a_planted_test_that_is_gone_is_found() {
    let functions = functions("fn nothing_is_lost_at_all() {} // nothing_is_lost_here\n");
    let exists = |path: &str| path == "tests/it/faults/kill.rs";
    let found = |document: &str| {
        let findings = promises(document, &functions, exists);
        findings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        found("`nothing_is_lost_at_all`, `faults/kill.rs`, `maintenance.every_ms`"),
        [""; 0]
    );
    assert_eq!(
        found("`nothing_is_lost_at_all`\n`nothing_is_lost_here` and `faults/gone.rs`\n"),
        [
            "docs/tiers.md:2: `nothing_is_lost_here` is no test",
            "docs/tiers.md:2: `faults/gone.rs` is no test"
        ]
    );
    assert_eq!(found("`tiers`"), ["docs/tiers.md:1: no tests were found here"]);
}
