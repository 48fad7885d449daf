//! Every key of `config/default.toml` has a comment, above it or at the end of its line.

use super::finding::{Finding, Rule};
use super::{keep_each, tree};

fn config_keys(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut above_is_comment = false;
    let mut open_brackets = 0;
    for (index, line) in text.lines().enumerate() {
        let (value, comment) = split_comment(line.trim());
        let inside = open_brackets > 0;
        open_brackets += balance(value);
        let key = value.split_once('=').map(|(key, _)| key.trim()).filter(|_| !inside);
        if let Some(key) = key
            && comment.is_empty()
            && !above_is_comment
        {
            findings.push(Finding::new(path, index + 1, format!("`{key}` is not documented")));
        }
        above_is_comment = value.is_empty() && !comment.is_empty();
    }
    findings
}

/// The parts of a line before and after the `#` that starts a comment.
fn split_comment(line: &str) -> (&str, &str) {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return (line[..at].trim(), line[at + 1..].trim()),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    (line, "")
}

/// Opening minus closing brackets; 0 for section headers.
fn balance(value: &str) -> i32 {
    if value.starts_with('[') {
        return 0;
    }
    let count = |bracket: char| i32::try_from(value.matches(bracket).count()).unwrap();
    count('[') - count(']')
}

#[test]
fn every_key_is_documented() {
    keep_each(Rule::ConfigKeys, &tree::files(&["config"], &["toml"]), |path, text| {
        if path == "config/default.toml" { config_keys(path, text) } else { Vec::new() }
    });
}

const DOCUMENTED: &str = "\
# Which components a purchase passes.
tier = \"memory\"

[http]
# Address and port.
bind = \"127.0.0.1:8080\"
marks = \"#1\" # what the page shows
# Delays of the retries.
delays_ms = [
  1000,
  5000,
]
";

#[test]
fn documented_keys_are_no_finding() {
    assert!(config_keys("config/default.toml", DOCUMENTED).is_empty());
}

#[test]
fn a_planted_silent_key_is_found() {
    let undocumented =
        DOCUMENTED.replace("# Address and port.\n", "").replace(" # what the page shows", "");
    let found = config_keys("config/default.toml", &undocumented);
    let expected = [(5, "bind"), (6, "marks")].map(|(line, key)| {
        Finding::new("config/default.toml", line, format!("`{key}` is not documented"))
    });
    assert_eq!(found, expected);
}

#[test]
fn a_comment_separated_by_a_blank_line_is_no_documentation() {
    assert_eq!(config_keys("config/default.toml", "# A chapter.\n\nrole = \"all\"\n").len(), 1);
}
