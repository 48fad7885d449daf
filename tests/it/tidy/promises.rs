//! The tests, crash points and files that `docs/tiers.md` and `docs/testing.md` name exist.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, rust};

/// Documents that promise something and name the test of it.
const PROMISES: &[&str] = &["docs/tiers.md", "docs/testing.md"];

/// Words with fewer underscores are keys and fields, not test names.
const UNDERSCORES_MIN: usize = 3;

/// Backticked test names that are not in `names`, and backticked files that do not exist, neither
/// in the repository nor below `tests/it/`. A pattern such as `*_tests.rs` is no file.
fn promises(
    document: &File,
    names: &BTreeSet<String>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut num_tests = 0;
    for (index, line) in document.text.lines().enumerate() {
        for word in line.split('`').skip(1).step_by(2) {
            let is_test =
                word.chars().all(rust::is_word) && word.matches('_').count() >= UNDERSCORES_MIN;
            let is_file = word.split('.').next_back() == Some("rs") && !word.contains('*');
            num_tests += usize::from(is_test);
            let is_lost = is_test && !names.contains(word)
                || is_file && !exists(word) && !exists(&format!("tests/it/{word}"));
            if is_lost {
                let what = format!("`{word}` is no test");
                findings.push(Finding::new(&document.path, index + 1, what));
            }
        }
    }
    if num_tests == 0 {
        findings.push(Finding::new(&document.path, 1, "no tests were found here"));
    }
    findings
}

/// The functions and crash points of a file.
fn names(text: &str) -> BTreeSet<String> {
    let functions = rust::functions(&rust::code(text)).into_iter().map(|function| function.name);
    let comments = rust::comments(text);
    let marked = comments.split("// Crash here [").skip(1);
    let points = marked.filter_map(|rest| Some(rest.split_once("]: ")?.0.to_owned()));
    functions.chain(points).collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let names = tree::rust().iter().flat_map(|file| names(&file.text)).collect();
    let found = PROMISES.iter().flat_map(|path| {
        let text = tree::read(path).unwrap_or_default();
        promises(&File { path: (*path).to_owned(), text }, &names, tree::exists)
    });
    keep(Rule::Promises, found.collect());
}

#[test]
fn a_planted_test_that_is_gone_is_found() {
    let names = names(
        "fn nothing_is_lost_at_all() {} // nothing_is_lost_here\n\
         // Crash here [lost_but_not_found]: the next start finds it.\n",
    );
    let exists = |path: &str| ["tests/it/faults/kill.rs", "src/kill.rs"].contains(&path);
    let found = |text: &str| {
        let findings = promises(&File::planted("docs/tiers.md", text), &names, exists);
        findings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let kept = "`nothing_is_lost_at_all`, `faults/kill.rs`, `maintenance.every_ms`, `src/kill.rs`, \
                `lost_but_not_found`, `*_tests.rs`";
    assert_eq!(found(kept), [""; 0]);
    assert_eq!(
        found("`nothing_is_lost_at_all`\n`nothing_is_lost_here` and `faults/gone.rs`\n"),
        [
            "docs/tiers.md:2: `nothing_is_lost_here` is no test",
            "docs/tiers.md:2: `faults/gone.rs` is no test"
        ]
    );
    assert_eq!(found("`tiers`"), ["docs/tiers.md:1: no tests were found here"]);
}
