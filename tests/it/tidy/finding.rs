//! The findings of a rule, and the exceptions that excuse some of them.

use std::collections::BTreeMap;
use std::fmt;

/// The rules by their names in `docs/style.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Alerts,
    Allow,
    Backends,
    ConfigKeys,
    CrashPoints,
    Deploy,
    Environment,
    FileLength,
    Floors,
    Flow,
    FolderDocs,
    FunctionLength,
    Imports,
    LineLength,
    Links,
    LuaWrites,
    Mailboxes,
    Messages,
    Metrics,
    Migrations,
    Panics,
    Printing,
    ProblemCodes,
    Promises,
    Runbooks,
    StyleGuide,
    Tasks,
    Time,
    Unfinished,
    Unwinding,
    Vocabulary,
}

/// One offence against a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    /// A finding in line `line` (from 1) of `path`.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }

    /// A finding at a byte offset of the text of `path`.
    pub fn at(path: &str, text: &str, offset: usize, what: impl Into<String>) -> Self {
        Self::new(path, line_of(text, offset), what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The line (from 1) of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// Findings that are excused for a reason.
pub struct Exception {
    pub rule: Rule,
    pub path: &'static str,
    pub findings: usize,
    pub reason: &'static str,
}

/// The findings that are not excused, and the exceptions whose count does not match.
pub fn complaints(rule: Rule, findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<String> {
    let mut by_path: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        by_path.entry(finding.path.clone()).or_default().push(finding);
    }
    let mut complaints = Vec::new();
    for exception in exceptions.iter().filter(|exception| exception.rule == rule) {
        let Exception { path, findings: excused, reason, .. } = exception;
        let found = by_path.get(*path).map_or(0, Vec::len);
        if found == *excused {
            by_path.remove(*path);
        } else {
            complaints.push(format!("{path}: {excused} excused ({reason}), {found} found"));
        }
    }
    complaints.extend(by_path.values().flatten().map(Finding::to_string));
    complaints
}

const EXCUSED: &[Exception] = &[Exception {
    rule: Rule::Time,
    path: "src/a.rs",
    findings: 1,
    reason: "it is a test of the rule",
}];

fn finding(path: &str) -> Finding {
    Finding::new(path, 7, "reads the time")
}

#[test]
fn an_excused_finding_is_no_complaint() {
    assert!(complaints(Rule::Time, vec![finding("src/a.rs")], EXCUSED).is_empty());
}

#[test]
fn another_path_or_another_rule_is_not_excused() {
    let elsewhere = vec![finding("src/a.rs"), finding("src/b.rs")];
    assert_eq!(complaints(Rule::Time, elsewhere, EXCUSED), ["src/b.rs:7: reads the time"]);
    assert_eq!(complaints(Rule::Tasks, vec![finding("src/a.rs")], EXCUSED).len(), 1);
}

#[test]
fn one_finding_more_than_excused_is_a_complaint() {
    let twice = vec![finding("src/a.rs"), finding("src/a.rs")];
    let complaints = complaints(Rule::Time, twice, EXCUSED);
    assert_eq!(complaints[0], "src/a.rs: 1 excused (it is a test of the rule), 2 found");
    assert_eq!(complaints.len(), 3);
}

#[test]
fn an_exception_that_excuses_nothing_is_a_complaint() {
    let complaints = complaints(Rule::Time, Vec::new(), EXCUSED);
    assert_eq!(complaints, ["src/a.rs: 1 excused (it is a test of the rule), 0 found"]);
}
