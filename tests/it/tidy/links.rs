//! The targets of relative links in documents exist.

use super::finding::{Finding, Rule};
use super::{keep_each, tree};

fn links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for target in targets(line) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || target.starts_with("mailto:");
            if !file.is_empty() && !outside && !exists(&resolved(path, file)) {
                let what = format!("links to {target}, which does not exist");
                findings.push(Finding::new(path, index + 1, what));
            }
        }
    }
    findings
}

/// Targets of `[text](target)` and `[label]: target`, outside inline code.
fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let mut targets: Vec<String> = inline.map(str::to_owned).collect();
    if let Some((_, target)) = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        targets.push(target.trim().to_owned());
    }
    targets
}

/// `target` relative to the folder of `path`, as a path from the root.
fn resolved(path: &str, target: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn links_lead_somewhere() {
    let mut files = tree::files(&["docs", "lua", "migrations", "deploy"], &["md"]);
    for path in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        files.extend(tree::read(path).map(|text| tree::File::planted(path, &text)));
    }
    keep_each(Rule::Links, &files, |path, text| links(path, text, tree::exists));
}

#[test]
fn a_planted_dead_link_is_found() {
    let exists = |path: &str| path == "docs/api.md";
    let text =
        "[api](api.md) and [style](./style.md#rules)\n[up](../README.md)\n\n[ref]: adr/1.md\n";
    let found = links("docs/testing.md", text, exists);
    let expected = [(1, "./style.md#rules"), (2, "../README.md"), (4, "adr/1.md")]
        .map(|(line, to)| format!("docs/testing.md:{line}: links to {to}, which does not exist"));
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[test]
fn links_that_are_not_relative_are_not_found() {
    let text = "[web](https://example.org) [here](#rules) `[a](b.md)`\n```\n[c](d.md)\n```\n";
    assert!(links("README.md", text, |_| false).is_empty());
    assert!(links("docs/adr/0001.md", "[up](../api.md)", |path| path == "docs/api.md").is_empty());
}
