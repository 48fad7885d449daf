//! The alert rules and the table of metrics agree with each other.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, Rule};
use super::{keep, rust, tree};

/// The rules for Prometheus.
pub const ALERTS: &str = "deploy/alerts.yml";

/// The table of metrics; unit tests compare it with the exposed metrics.
const METRICS: &str = "docs/operate/metrics.md";

/// The mandatory fields of an alert rule.
const FIELDS: &[&str] = &["expr", "for", "severity", "summary", "runbook"];

const SEVERITIES: &[&str] = &["page", "ticket"];

/// One alert rule. The lines of a folded field are joined with spaces.
#[derive(Debug, Default)]
pub struct Alert {
    pub line: usize,
    pub name: String,
    fields: BTreeMap<&'static str, String>,
}

impl Alert {
    /// The value of a field; empty if the field is missing.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// The alert rules of a file, one per `- alert: Name`.
pub fn alerts(text: &str) -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut field = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("- alert:") {
            let name = name.trim().to_owned();
            alerts.push(Alert { line: index + 1, name, ..Alert::default() });
            field = None;
            continue;
        }
        let Some(alert) = alerts.last_mut() else { continue };
        let (key, value) = line.split_once(':').unwrap_or_default();
        if let Some(key) = FIELDS.iter().find(|field| **field == key) {
            let value = value.trim().trim_start_matches(">-");
            alert.fields.insert(key, value.to_owned());
            field = Some(*key);
        } else if line.is_empty() || line.starts_with('-') || line.ends_with(':') {
            field = None;
        } else if let Some(text) = field.and_then(|key| alert.fields.get_mut(key)) {
            *text = format!("{text} {line}").trim().to_owned();
        }
    }
    alerts
}

/// One row of the table of metrics.
struct Row<'a> {
    line: usize,
    metric: &'a str,
    kind: &'a str,
    /// The text of the last cell.
    alert: &'a str,
}

impl Row<'_> {
    /// The names of the exposed series.
    fn exposed(&self) -> Vec<String> {
        let endings: &[&str] =
            if self.kind == "histogram" { &["_bucket", "_count", "_sum"] } else { &[""] };
        endings.iter().map(|ending| format!("{}{ending}", self.metric)).collect()
    }

    fn alerts(&self) -> BTreeSet<&str> {
        self.alert.split('`').skip(1).step_by(2).collect()
    }
}

fn rows(document: &str) -> Vec<Row<'_>> {
    let lines = document.lines().enumerate();
    lines.filter_map(|(index, text)| row(index + 1, text)).collect()
}

fn row(line: usize, text: &str) -> Option<Row<'_>> {
    if !text.starts_with("| `floodgate_") {
        return None;
    }
    let metric = text.split('`').nth(1)?;
    let cells: Vec<&str> = text.split('|').map(str::trim).collect();
    Some(Row { line, metric, kind: cells.get(2)?, alert: cells.iter().rev().nth(1)? })
}

/// The `floodgate_...` words of a query.
fn metrics_in(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !rust::is_word(c));
    words.filter(|word| word.starts_with("floodgate_")).collect()
}

fn incomplete(alerts: &[Alert]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for alert in alerts {
        for field in FIELDS.iter().filter(|field| alert.field(field).is_empty()) {
            let what = format!("{} has no `{field}`", alert.name);
            findings.push(Finding::new(ALERTS, alert.line, what));
        }
        let severity = alert.field("severity");
        if !SEVERITIES.contains(&severity) {
            let what = format!("{}: `{severity}` is no severity", alert.name);
            findings.push(Finding::new(ALERTS, alert.line, what));
        }
        if alerts.iter().any(|other| other.name == alert.name && other.line < alert.line) {
            findings.push(Finding::new(
                ALERTS,
                alert.line,
                format!("{} is there twice", alert.name),
            ));
        }
    }
    if alerts.is_empty() {
        findings.push(Finding::new(ALERTS, 1, "no alerts were found here"));
    }
    findings
}

fn lost_runbooks(alerts: &[Alert], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let is_lost = |path: &str| {
        let file = path.strip_prefix("docs/runbooks/").and_then(|file| file.strip_suffix(".md"));
        file.is_none_or(|name| name == "README") || !exists(path)
    };
    let lost = alerts.iter().filter(|alert| is_lost(alert.field("runbook")));
    let what = |alert: &Alert| format!("{}: {} is no runbook", alert.name, alert.field("runbook"));
    lost.map(|alert| Finding::new(ALERTS, alert.line, what(alert))).collect()
}

/// Alerts on metrics that are not exposed: they never fire.
fn unknown_metrics(alerts: &[Alert], rows: &[Row<'_>]) -> Vec<Finding> {
    let exposed: BTreeSet<String> = rows.iter().flat_map(Row::exposed).collect();
    let mut findings = Vec::new();
    for alert in alerts {
        let used = metrics_in(alert.field("expr"));
        for metric in used.iter().filter(|metric| !exposed.contains(**metric)) {
            let what = format!("{}: `{metric}` is not exposed", alert.name);
            findings.push(Finding::new(ALERTS, alert.line, what));
        }
        if used.is_empty() {
            findings.push(Finding::new(ALERTS, alert.line, format!("{}: no metric", alert.name)));
        }
    }
    findings
}

/// Alerts on a value below 0, which no metric has: they never fire.
fn below_zero(alerts: &[Alert]) -> Vec<Finding> {
    let is_below_zero = |alert: &&Alert| {
        let mut limits = alert.field("expr").split("< ").skip(1);
        limits.any(|limit| limit.split_whitespace().next() == Some("0"))
    };
    let what = |alert: &Alert| format!("{}: no metric is below 0", alert.name);
    let found = alerts.iter().filter(is_below_zero);
    found.map(|alert| Finding::new(ALERTS, alert.line, what(alert))).collect()
}

/// Alerts on any growth of chosen series that miss the first event of a series.
fn late_by_one(alerts: &[Alert]) -> Vec<Finding> {
    let is_late = |alert: &&Alert| {
        let query = alert.field("expr");
        let mut grown = query.split("increase(").skip(1).filter_map(|rest| rest.split('[').next());
        let is_chosen = grown.any(|series| series.contains('{'));
        alert.field("for") == "0m" && is_chosen && !query.contains(" unless ")
    };
    let what = |alert: &Alert| format!("{}: misses the first event of a series", alert.name);
    let found = alerts.iter().filter(is_late);
    found.map(|alert| Finding::new(ALERTS, alert.line, what(alert))).collect()
}

/// Rows whose last cell does not list exactly the alerts on the metric, or `no alert`.
fn other_alerts(rows: &[Row<'_>], alerts: &[Alert]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in rows {
        let exposed = row.exposed();
        let uses = |alert: &&Alert| {
            metrics_in(alert.field("expr")).iter().any(|metric| exposed.iter().any(|e| e == metric))
        };
        let used_by: BTreeSet<&str> =
            alerts.iter().filter(uses).map(|alert| alert.name.as_str()).collect();
        let is_correct = if used_by.is_empty() {
            row.alert == "no alert"
        } else {
            row.alerts() == used_by && row.alert != "no alert"
        };
        if !is_correct {
            let what = format!("`{}`: alerts are {used_by:?}, not {}", row.metric, row.alert);
            findings.push(Finding::new(METRICS, row.line, what));
        }
    }
    if rows.is_empty() {
        findings.push(Finding::new(METRICS, 1, "no metrics were found here"));
    }
    findings
}

#[test]
fn alerts_are_complete_and_name_a_runbook() {
    let text = tree::read(ALERTS).unwrap_or_default();
    let alerts = alerts(&text);
    let mut findings = incomplete(&alerts);
    findings.extend(lost_runbooks(&alerts, tree::exists));
    keep(Rule::Alerts, findings);
}

#[test]
fn alerts_and_the_table_of_metrics_agree() {
    let (text, table) = (tree::read(ALERTS).unwrap_or_default(), tree::read(METRICS));
    let (alerts, table) = (alerts(&text), table.unwrap_or_default());
    let rows = rows(&table);
    let mut findings = unknown_metrics(&alerts, &rows);
    findings.extend(other_alerts(&rows, &alerts));
    findings.extend(below_zero(&alerts));
    findings.extend(late_by_one(&alerts));
    keep(Rule::Alerts, findings);
}

const PLANTED: &str = r#"
groups:
  - name: floodgate
    rules:
      - alert: One
        expr: >-
          sum(rate(floodgate_orders_total{state="a:b"}[5m]))
          / floodgate_wait_seconds_bucket > 1
        for: 5m
        labels:
          severity: page
        annotations:
          summary: It is slow.
          runbook: docs/runbooks/slow.md
      - alert: Two
        expr: floodgate_left < 0
        for: 0m
        labels:
          severity: loud
        annotations:
          runbook: docs/runbooks/gone.md
"#;

const TABLE: &str = "
| name | type | labels | meaning | alert |
|---|---|---|---|---|
| `floodgate_orders_total` | counter | - | sold | `One` |
| `floodgate_wait_seconds` | histogram | - | waited | `One` |
| `floodgate_left` | gauge | `sku` | left | `Two` |
| `floodgate_size` | gauge | - | size | no alert |
";

fn messages(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn alerts_are_read_with_fields_of_many_lines() {
    let found = alerts(PLANTED);
    assert_eq!(
        found.iter().map(|a| (a.line, &*a.name)).collect::<Vec<_>>(),
        [(5, "One"), (15, "Two")]
    );
    let query =
        r#"sum(rate(floodgate_orders_total{state="a:b"}[5m])) / floodgate_wait_seconds_bucket > 1"#;
    assert_eq!(found[0].field("expr"), query);
    assert_eq!(found[0].field("severity"), "page");
    assert_eq!(found[0].field("runbook"), "docs/runbooks/slow.md");
}

#[test]
fn a_planted_incomplete_alert_is_found() {
    let twice = format!("{PLANTED}\n      - alert: Two\n");
    assert_eq!(
        messages(&incomplete(&alerts(PLANTED))),
        [
            "deploy/alerts.yml:15: Two has no `summary`",
            "deploy/alerts.yml:15: Two: `loud` is no severity"
        ]
    );
    let found = messages(&incomplete(&alerts(&twice)));
    assert!(found.contains(&"deploy/alerts.yml:23: Two is there twice".to_owned()), "{found:?}");
    assert_eq!(messages(&incomplete(&[])), ["deploy/alerts.yml:1: no alerts were found here"]);
}

#[test]
fn a_planted_lost_runbook_is_found() {
    let exists = |path: &str| path == "docs/runbooks/slow.md";
    let lost = ["deploy/alerts.yml:15: Two: docs/runbooks/gone.md is no runbook"];
    assert_eq!(messages(&lost_runbooks(&alerts(PLANTED), exists)), lost);
    let index = PLANTED.replace("runbooks/slow", "runbooks/README").replace("gone", "slow");
    let lost = ["deploy/alerts.yml:5: One: docs/runbooks/README.md is no runbook"];
    assert_eq!(messages(&lost_runbooks(&alerts(&index), |_| true)), lost);
    let elsewhere = PLANTED.replace("docs/runbooks/slow", "docs/api").replace("gone", "slow");
    assert_eq!(lost_runbooks(&alerts(&elsewhere), |_| true).len(), 1);
}

#[test]
fn a_planted_alert_on_an_unknown_metric_is_found() {
    let rows = rows(TABLE);
    assert!(unknown_metrics(&alerts(PLANTED), &rows).is_empty());
    // Neither a counter nor a histogram is exposed without its suffix.
    for (name, planted) in [
        ("floodgate_orders", PLANTED.replace("orders_total", "orders")),
        ("floodgate_wait_seconds", PLANTED.replace("seconds_bucket", "seconds")),
    ] {
        let found = messages(&unknown_metrics(&alerts(&planted), &rows));
        assert_eq!(found, [format!("deploy/alerts.yml:5: One: `{name}` is not exposed")]);
    }
    let none = PLANTED.replace("floodgate_left", "up");
    assert_eq!(
        messages(&unknown_metrics(&alerts(&none), &rows)),
        ["deploy/alerts.yml:15: Two: no metric"]
    );
}

#[test]
fn a_planted_alert_on_a_value_below_zero_is_found() {
    let never = ["deploy/alerts.yml:15: Two: no metric is below 0"];
    assert_eq!(messages(&below_zero(&alerts(PLANTED))), never);
    let both = PLANTED.replace("left < 0", "left < 0 and up");
    assert_eq!(messages(&below_zero(&alerts(&both))), never);
    assert!(below_zero(&alerts(&PLANTED.replace("left < 0", "left < 0.5"))).is_empty());
}

#[test]
fn a_planted_alert_that_misses_the_first_event_of_a_series_is_found() {
    let grown = r#"sum(increase(floodgate_left{a="b"}[5m])) > 0"#;
    let planted = PLANTED.replace("floodgate_left < 0", grown);
    let late = ["deploy/alerts.yml:15: Two: misses the first event of a series"];
    assert_eq!(messages(&late_by_one(&alerts(&planted))), late);
    let seen = format!("{grown} or sum(floodgate_left unless floodgate_left offset 5m) > 0");
    assert!(late_by_one(&alerts(&PLANTED.replace("floodgate_left < 0", &seen))).is_empty());
}

#[test]
fn a_planted_row_with_other_alerts_is_found() {
    let alerts = alerts(PLANTED);
    assert!(other_alerts(&rows(TABLE), &alerts).is_empty());
    for (right, wrong) in [
        ("left | `Two`", "left | `One`"),
        ("left | `Two`", "left | `Two`, `One`"),
        ("left | `Two`", "left | no alert"),
        ("left | `Two`", "left | "),
        ("size | no alert", "size | "),
        ("size | no alert", "size | `Gone`"),
    ] {
        let table = TABLE.replace(right, wrong);
        assert_eq!(other_alerts(&rows(&table), &alerts).len(), 1, "{wrong}");
    }
    assert_eq!(
        messages(&other_alerts(&[], &alerts)),
        ["docs/operate/metrics.md:1: no metrics were found here"]
    );
}
