//! The list of what one purchase passes names files and types that exist, each once.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::{keep, tree};

const LIST: &str = "docs/one-purchase.txt";

/// `text_of` reads a file; `None` if it does not exist.
fn purchase(list: &str, text_of: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let mut file: Option<(&str, String)> = None;
    for (index, line) in list.lines().enumerate() {
        let mut find = |what: String| findings.push(Finding::new(LIST, index + 1, what));
        let mut words = line.split_whitespace();
        let (kind, name) = match (words.next(), words.next()) {
            (None | Some("#"), _) => continue,
            (Some(kind), Some(name)) => (kind, name),
            (Some(kind), None) => {
                find(format!("{kind} names nothing"));
                continue;
            }
        };
        if !seen.insert(name) {
            find(format!("{name} stands here twice"));
        }
        if words.next().is_none() {
            find(format!("{name} has no description"));
        }
        match kind {
            "file" | "serves" => {
                file = text_of(name).map(|text| (name, text));
                if file.is_none() {
                    find(format!("{name} does not exist"));
                }
            }
            "type" => {
                let Some((path, text)) = &file else { continue };
                let is_defined = ["struct", "enum"].iter().any(|keyword| {
                    let definition = format!("{keyword} {name}");
                    text.match_indices(&definition).any(|(at, _)| {
                        let next = text[at + definition.len()..].chars().next();
                        next.is_some_and(|next| !next.is_alphanumeric() && next != '_')
                    })
                });
                if !is_defined {
                    find(format!("{path} does not define {name}"));
                }
            }
            other => find(format!("{other} is neither file, serves nor type")),
        }
    }
    findings
}

#[test]
fn what_a_purchase_passes_exists() {
    keep(Rule::Flow, purchase(&tree::read(LIST).unwrap(), tree::read));
}

#[test]
fn planted_lines_of_the_list_are_found() {
    let text_of = |path: &str| (path == "src/a.rs").then(|| "pub struct Order {}".to_owned());
    let sound = "# Words\n\nfile src/a.rs does it\ntype   Order  the order\n";
    assert_eq!(purchase(sound, text_of), []);
    for (line, what) in [
        ("file src/b.rs does it", "src/b.rs does not exist"),
        ("type Ord a part of the name", "does not define Ord"),
        ("type Order again", "Order stands here twice"),
        ("serves src/a.rs again", "src/a.rs stands here twice"),
        ("type", "type names nothing"),
        ("folder src it is one", "folder is neither"),
    ] {
        let found = purchase(&format!("{sound}{line}\n"), text_of);
        assert!(found.len() == 1 && found[0].to_string().contains(what), "{line}: {found:?}");
    }
    assert!(purchase("file src/a.rs\n", text_of)[0].to_string().contains("no description"));
}
