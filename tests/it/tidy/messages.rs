//! The table in `src/messages/mod.rs` lists exactly the messages of that folder.

use std::collections::BTreeMap;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, rust};

const CATALOGUE: &str = "src/messages/mod.rs";

/// The public message types of a file, with their lines.
fn messages(file: &File) -> BTreeMap<String, usize> {
    let code = rust::production(&file.path, &file.text);
    let mut messages = BTreeMap::new();
    for keyword in ["pub struct ", "pub enum "] {
        for at in rust::words(&code, keyword) {
            let name = name_at(&code, at + keyword.len());
            let implemented = format!("Message for {name}");
            let by_hand = rust::words(&code, &implemented).next().is_some();
            if by_hand || derives_message(attributes(&code, at)) {
                messages.insert(name, 1 + code[..at].matches('\n').count());
            }
        }
    }
    messages
}

fn name_at(code: &str, at: usize) -> String {
    code[at..].chars().take_while(|&c| rust::is_word(c)).collect()
}

/// The text between the end of the preceding item and `at`: the attributes of the item at `at`.
fn attributes(code: &str, at: usize) -> &str {
    let start = code[..at].rfind([';', '}']).map_or(0, |end| end + 1);
    &code[start..at]
}

fn derives_message(attributes: &str) -> bool {
    let derived = attributes.split("derive(").skip(1).filter_map(|rest| rest.split(')').next());
    let derives = derived
        .flat_map(|list| list.split(','))
        .any(|name| name.trim().rsplit("::").next() == Some("Message"));
    derives || attributes.contains("#[rtype")
}

/// The first column of the table, with lines.
fn rows(catalogue: &str) -> BTreeMap<String, usize> {
    let lines = catalogue.lines().enumerate();
    let rows = lines.filter_map(|(index, line)| {
        let cell = line.strip_prefix("//! | ")?.split('|').next()?;
        let name: String = cell.chars().filter(|&c| rust::is_word(c)).collect();
        let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
        is_type.then_some((name, index + 1))
    });
    rows.collect()
}

fn catalogue(files: &[File]) -> Vec<Finding> {
    let Some(table) = files.iter().find(|file| file.path == CATALOGUE) else {
        return Vec::new();
    };
    let mut rows = rows(&table.text);
    let mut findings = Vec::new();
    for file in files {
        for (name, line) in messages(file) {
            if rows.remove(&name).is_none() {
                let what = format!("`{name}` is not in the catalogue of {CATALOGUE}");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    let gone = rows
        .into_iter()
        .map(|(name, line)| Finding::new(CATALOGUE, line, format!("there is no message `{name}`")));
    findings.extend(gone);
    findings
}

#[test]
fn the_catalogue_lists_every_message() {
    keep(Rule::Messages, catalogue(&tree::files(&["src/messages"], &["rs"])));
}

const TABLE: &str = "\
//! Messages.
//!
//! | message | kind |
//! |---|---|
//! | [`Reserve`] | command |
//! | `Stop` | command |
";

const RESERVE: &str = r#"
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Reserve {}

#[derive(Debug)]
pub enum Answer {}
"#;

fn found(table: &str, gate: &str, lifecycle: &str) -> Vec<String> {
    let files = [
        File::planted(CATALOGUE, table),
        File::planted("src/messages/gate.rs", gate),
        File::planted("src/messages/lifecycle.rs", lifecycle),
    ];
    catalogue(&files).iter().map(ToString::to_string).collect()
}

#[test]
fn listed_messages_and_plain_data_are_no_findings() {
    let by_hand = "pub struct Stop;\nimpl actix::Message for Stop { type Result = (); }\n";
    assert_eq!(found(TABLE, RESERVE, by_hand), [""; 0]);
}

#[test]
fn a_planted_message_without_a_row_is_found() {
    let lifecycle = r#"
#[derive(actix::Message)]
#[rtype(result = "()")]
pub enum Quiet {}

#[derive(Message)]
pub struct Stop;
"#;
    assert_eq!(
        found(TABLE, RESERVE, lifecycle),
        ["src/messages/lifecycle.rs:4: `Quiet` is not in the catalogue of src/messages/mod.rs"]
    );
}

#[test]
fn a_planted_row_without_a_message_is_found() {
    let lifecycle = "pub struct Stop;\n";
    assert_eq!(
        found(TABLE, RESERVE, lifecycle),
        ["src/messages/mod.rs:6: there is no message `Stop`"]
    );
}
