//! Crash points: every `// Crash here [name]: what the next start finds, who repairs it` is named
//! by a fault test that proves the comment.

use std::collections::BTreeMap;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, rust};

const MARK: &str = "Crash here";

fn crash_points(sources: &[File], faults: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut paths: BTreeMap<String, &str> = BTreeMap::new();
    for File { path, text } in sources {
        let comments = rust::comments(text);
        for at in rust::words(&comments, MARK) {
            let what = match name(&comments[at + MARK.len()..]) {
                None => "not `Crash here [name]: what is found, who repairs it`".to_owned(),
                Some(name) if !is_tested(name, faults) => {
                    format!("no fault test names `{name}` (tests/it/faults/)")
                }
                Some(name) => match paths.insert(name.to_owned(), path.as_str()) {
                    Some(other) => format!("`{name}` is a crash point of {other} already"),
                    None => continue,
                },
            };
            findings.push(Finding::at(path, &comments, at, what));
        }
    }
    findings
}

/// The name in ` [name]: text`.
fn name(rest: &str) -> Option<&str> {
    let (name, text) = rest.strip_prefix(" [")?.split_once("]: ")?;
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (is_plain && !name.is_empty() && !text.trim().is_empty()).then_some(name)
}

/// Whether a fault test names the crash point, in its comment or as the prefix of its own name.
fn is_tested(name: &str, faults: &[File]) -> bool {
    let (in_comment, as_prefix) = (format!("`{name}`"), format!("\nfn {name}_"));
    let names = |text: &str| text.contains(&in_comment) || text.contains(&as_prefix);
    faults.iter().any(|file| names(&file.text))
}

#[test]
fn every_crash_point_is_named_by_a_fault_test() {
    let faults = tree::files(&["tests/it/faults"], &["rs"]);
    keep(Rule::CrashPoints, crash_points(&tree::sources(), &faults));
}

fn found(source: &str, fault: &str) -> usize {
    let sources = [File::planted("src/actors/a.rs", source)];
    crash_points(&sources, &[File::planted("tests/it/faults/a.rs", fault)]).len()
}

#[test]
fn a_named_and_tested_crash_point_is_no_finding() {
    let source =
        "fn f() {\n    // Crash here [taken]: units are taken;\n    // the gate gives back.\n}";
    assert_eq!(found(source, "/// Crash point `taken`.\nfn t() {}"), 0);
    assert_eq!(found(source, "#[test]\nfn taken_units_come_back() {}"), 0);
}

#[test]
fn a_planted_crash_point_without_a_test_is_found() {
    assert_eq!(
        found(
            "// Crash here [taken]: units are taken.",
            "fn untaken_units() { let taken = 1; }\n    fn taken_units() {}"
        ),
        1
    );
}

#[test]
fn a_folder_of_fault_tests_that_has_moved_is_found() {
    let taken = [File::planted("src/a.rs", "// Crash here [taken]: one.")];
    assert_eq!(crash_points(&taken, &[]).len(), 1);
}

#[test]
fn a_planted_crash_point_without_a_name_or_a_story_is_found() {
    assert_eq!(found("// Crash here: units are taken.", "taken"), 1);
    assert_eq!(found("// Crash here [taken]: ", "taken"), 1);
    assert_eq!(found("// Crash here [Taken Units]: the gate gives back.", "Taken Units"), 1);
}

#[test]
fn a_name_that_is_planted_twice_is_found() {
    let twice = "// Crash here [taken]: one.\n\n// Crash here [taken]: two.";
    assert_eq!(found(twice, "/// `taken`."), 1);
}
