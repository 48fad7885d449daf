//! The rules of `docs/style.md` that a program can check.
//!
//! A rule is a function from a path and its text to findings. Each rule has two kinds of tests: one
//! checks that the repository keeps the rule, and at least one plants an offence that the rule must
//! find, because a check that cannot fail is a defect. All files are read as text, so the rules
//! also apply to files that do not compile.

mod alerts;
mod backends;
mod bans;
mod config_keys;
mod crash_points;
mod deploy;
mod finding;
mod floors;
mod flow;
mod flow_tests;
mod headers;
mod imports;
mod links;
mod lua_writes;
mod messages;
mod migrations;
mod promises;
mod purchase;
mod release;
mod runbooks;
mod rust;
mod sizes;
mod tree;
mod twins;
mod vocabulary;

use finding::{Exception, Finding, Rule};
use tree::File;

/// Excused findings, with the reason. One finding more or less than stated fails the rule, so an
/// entry must be removed with its cause.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        rule: Rule::Panics,
        path: "src/runtime/fault_injection.rs",
        findings: 1,
        reason: "fault injection panics on purpose",
    },
    Exception {
        rule: Rule::Panics,
        path: "src/config/load.rs",
        findings: 1,
        reason: "the defaults are compiled in, and a unit test loads them",
    },
];

/// Fails unless the findings of `rule` are exactly the excused ones.
fn keep(rule: Rule, findings: Vec<Finding>) {
    let complaints = finding::complaints(rule, findings, EXCEPTIONS);
    assert!(complaints.is_empty(), "docs/style.md, {rule:?}:\n  {}", complaints.join("\n  "));
}

/// [`keep`] for a rule that checks one file at a time.
fn keep_each(rule: Rule, files: &[File], check: impl Fn(&str, &str) -> Vec<Finding>) {
    keep(rule, files.iter().flat_map(|file| check(&file.path, &file.text)).collect());
}
