//! Runbooks fit one screen, have the same sections, and are listed in the index and in the alerts;
//! the log lines that operators search exist.

use super::alerts::{self, Alert};
use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, keep_each};

/// The index: the runbook of each alert, and whether it is safe to wait.
const INDEX: &str = "docs/runbooks/README.md";

/// Lines of one screen.
const LINES_MAX: usize = 60;

/// The sections of a runbook, in order.
const SECTIONS: [&str; 5] = ["Symptom", "Is it safe to wait?", "Look", "Act", "Check"];

fn shape(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        let what = format!("{lines} lines, at most {LINES_MAX}");
        findings.push(Finding::new(path, lines, what));
    }
    let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    if sections != SECTIONS {
        findings.push(Finding::new(path, 1, format!("sections {sections:?}, not {SECTIONS:?}")));
    }
    findings
}

/// Runbooks that the index does not link to.
fn unlisted(index: &str, runbooks: &[File]) -> Vec<Finding> {
    let link = |file: &File| format!("]({})", name(&file.path));
    let unlisted = runbooks.iter().filter(|file| !index.contains(&link(file)));
    let finding = |file: &File| Finding::new(&file.path, 1, format!("is not in {INDEX}"));
    unlisted.map(finding).collect()
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// One row of the index: its line, the alerts of its first cell, the first link of its second cell,
/// and its third cell.
struct Row<'a> {
    line: usize,
    alerts: Vec<&'a str>,
    runbook: &'a str,
    wait: &'a str,
}

fn rows(index: &str) -> Vec<Row<'_>> {
    let lines = index.lines().enumerate();
    lines.filter_map(|(number, text)| row(number + 1, text)).collect()
}

fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let cells: Vec<&str> = text.split('|').map(str::trim).collect();
    let alerts: Vec<&str> = cells.get(1)?.split('`').skip(1).step_by(2).collect();
    let link = cells.get(2)?.split("](").nth(1).unwrap_or_default();
    let runbook = link.split(')').next().unwrap_or_default();
    (!alerts.is_empty()).then_some(Row { line, alerts, runbook, wait: cells.get(3)? })
}

/// Alerts without exactly one row, rows with another runbook than the alert's, and rows of unknown
/// alerts.
fn other_rows(index: &str, alerts: &[Alert]) -> Vec<Finding> {
    let rows = rows(index);
    let mut findings = Vec::new();
    for alert in alerts {
        let rows: Vec<&Row<'_>> =
            rows.iter().filter(|row| row.alerts.contains(&alert.name.as_str())).collect();
        if rows.len() != 1 {
            let what = format!("{} has {} rows in {INDEX}", alert.name, rows.len());
            findings.push(Finding::new(alerts::ALERTS, alert.line, what));
        }
        let runbook = name(alert.field("runbook"));
        for row in rows.iter().filter(|row| row.runbook != runbook) {
            let what = format!("{} names {runbook}, not {}", alert.name, row.runbook);
            findings.push(Finding::new(INDEX, row.line, what));
        }
    }
    for row in &rows {
        let is_known = |name: &&str| alerts.iter().any(|alert| alert.name == **name);
        for name in row.alerts.iter().filter(|name| !is_known(name)) {
            findings.push(Finding::new(INDEX, row.line, format!("`{name}` is no alert")));
        }
        if row.wait.is_empty() {
            findings.push(Finding::new(INDEX, row.line, "does not say whether it is safe to wait"));
        }
    }
    findings
}

/// What stands before a quoted log line.
const LOG: [&str; 5] = ["log `", "log says `", "log has `", "log repeats `", "log line `"];

/// What stands between quoted log lines.
const MORE: [&str; 3] = ["`, `", "` or `", "`, or `"];

/// The log lines that a line of a document quotes.
fn quoted_logs(line: &str) -> Vec<&str> {
    let mut quoted = Vec::new();
    for before in LOG {
        for found in line.match_indices(before) {
            let mut rest = line.get(found.0 + before.len()..).unwrap_or_default();
            while let Some((log, after)) = rest.split_once('`') {
                quoted.push(log);
                let from = rest.get(log.len()..).unwrap_or(after);
                let Some(next) = MORE.iter().find_map(|more| from.strip_prefix(more)) else {
                    break;
                };
                rest = next;
            }
        }
    }
    quoted
}

/// Quoted log lines that are not in `sources`; `..` stands for any text.
fn lost_logs(document: &File, sources: &str) -> Vec<Finding> {
    let lines = document.text.lines().enumerate();
    let quoted = lines
        .flat_map(|(index, line)| quoted_logs(line).into_iter().map(move |log| (index + 1, log)));
    let is_lost = |log: &str| log.split("..").any(|part| !sources.contains(part.trim()));
    let lost = quoted.filter(|(_, log)| is_lost(log));
    lost.map(|(line, log)| Finding::new(&document.path, line, format!("`{log}` is logged nowhere")))
        .collect()
}

/// The runbooks, without their index.
fn runbooks() -> Vec<File> {
    let mut files = tree::files(&["docs/runbooks"], &["md"]);
    files.retain(|file| file.path != INDEX);
    assert!(!files.is_empty(), "no runbooks were found");
    files
}

#[test]
fn runbooks_are_one_screen_of_one_shape() {
    keep_each(Rule::Runbooks, &runbooks(), shape);
}

#[test]
fn every_runbook_and_every_alert_is_in_the_index() {
    let index = tree::read(INDEX).unwrap_or_default();
    let alerts = alerts::alerts(&tree::read(alerts::ALERTS).unwrap_or_default());
    let mut findings = unlisted(&index, &runbooks());
    findings.extend(other_rows(&index, &alerts));
    keep(Rule::Runbooks, findings);
}

#[test]
fn every_log_line_that_operators_search_is_written() {
    let sources: String = tree::server().into_iter().map(|file| file.text).collect();
    // A long text goes on in the next line.
    let parts = sources.split("\\\n").map(str::trim_start);
    let sources = parts.collect::<String>();
    let documents = tree::files(&["docs/runbooks", "docs/operate"], &["md"]);
    let num_quoted = documents.iter().flat_map(|it| it.text.lines()).flat_map(quoted_logs).count();
    assert!(num_quoted >= 10, "the rule reads few of them: {num_quoted}");
    keep(Rule::Runbooks, documents.iter().flat_map(|it| lost_logs(it, &sources)).collect());
}

fn messages(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_planted_runbook_of_another_shape_is_found() {
    let sections = SECTIONS.map(|section| format!("## {section}\n")).concat();
    let runbook = |lines: usize| format!("# Title\n{sections}{}", "\n".repeat(lines));
    assert!(shape("docs/runbooks/a.md", &runbook(54)).is_empty());
    let long = ["docs/runbooks/a.md:61: 61 lines, at most 60"];
    assert_eq!(messages(&shape("docs/runbooks/a.md", &runbook(55))), long);
    for (section, instead) in
        [("## Act\n", ""), ("## Act\n", "## Do\n"), ("# Title\n", "# Title\n## More\n")]
    {
        let planted = runbook(0).replace(section, instead);
        assert_eq!(shape("docs/runbooks/a.md", &planted).len(), 1, "{section}");
    }
}

const PLANTED_INDEX: &str = "
| alert | runbook | is it safe to wait? |
|---|---|---|
| `One`, `Two` | [slow](slow.md), or [gone](gone.md) | yes |
";

const PLANTED_ALERTS: &str = "
- alert: One
  runbook: docs/runbooks/slow.md
- alert: Two
  runbook: docs/runbooks/slow.md
";

#[test]
fn a_planted_unlisted_runbook_is_found() {
    let file = |name: &str| File::planted(&format!("docs/runbooks/{name}.md"), "");
    assert!(unlisted(PLANTED_INDEX, &[file("slow"), file("gone")]).is_empty());
    let found = messages(&unlisted(PLANTED_INDEX, &[file("slow"), file("low")]));
    assert_eq!(found, ["docs/runbooks/low.md:1: is not in docs/runbooks/README.md"]);
}

#[test]
fn a_planted_difference_between_index_and_alerts_is_found() {
    let found = |index: &str, rules: &str| messages(&other_rows(index, &alerts::alerts(rules)));
    assert_eq!(found(PLANTED_INDEX, PLANTED_ALERTS), [""; 0]);
    let more = format!("{PLANTED_ALERTS}- alert: Three\n  runbook: docs/runbooks/slow.md\n");
    let missing = ["deploy/alerts.yml:6: Three has 0 rows in docs/runbooks/README.md"];
    assert_eq!(found(PLANTED_INDEX, &more), missing);
    let twice = format!("{PLANTED_INDEX}| `Two` | [slow](slow.md) | no |\n");
    let two = ["deploy/alerts.yml:4: Two has 2 rows in docs/runbooks/README.md"];
    assert_eq!(found(&twice, PLANTED_ALERTS), two);
    let other = PLANTED_ALERTS.replacen("slow", "fast", 1);
    let named = ["docs/runbooks/README.md:4: One names fast.md, not slow.md"];
    assert_eq!(found(PLANTED_INDEX, &other), named);
    let unknown = PLANTED_INDEX.replace("`Two`", "`Two`, `Four`");
    let four = ["docs/runbooks/README.md:4: `Four` is no alert"];
    assert_eq!(found(&unknown, PLANTED_ALERTS), four);
    let unanswered = PLANTED_INDEX.replace("| yes |", "| |");
    let wait = ["docs/runbooks/README.md:4: does not say whether it is safe to wait"];
    assert_eq!(found(&unanswered, PLANTED_ALERTS), wait);
}

#[test]
fn a_planted_log_line_that_nothing_writes_is_found() {
    let sources = "info!(\"buckets loaded\"); warn!(\"sku {sku}: not loaded yet\");";
    let found = |line: &str| {
        let document = File::planted("docs/runbooks/a.md", line);
        messages(&lost_logs(&document, sources))
    };
    assert_eq!(found("the log says `buckets loaded`, or `not loaded`; `other`"), [""; 0]);
    assert_eq!(found("| log `sku ..: not loaded yet` | `doctor` |"), [""; 0]);
    let lost = ["docs/runbooks/a.md:1: `buckets lost` is logged nowhere"];
    assert_eq!(found("log `buckets loaded`, `buckets lost`"), lost);
    assert_eq!(found("log has `buckets lost`"), lost);
}
