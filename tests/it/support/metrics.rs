//! Metrics of actors in this process.

use floodgate::observe::metrics::Metrics;

/// The value of a counter or gauge, by name and labels. One that had no event yet is not exposed
/// and reads as 0 if the operators' page names it with its labels; others fail the test.
pub fn metric(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.exposition();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let Some(value) = value else {
        assert_is_documented(name);
        return 0;
    };
    value.parse().unwrap()
}

fn assert_is_documented(metric: &str) {
    let (name, labels) = metric.split_once('{').unwrap_or((metric, ""));
    let documented = include_str!("../../../docs/operate/metrics.md");
    let row = documented.lines().find(|line| line.starts_with(&format!("| `{name}`")));
    let row = row.unwrap_or_else(|| panic!("no metric {name}"));
    for word in labels.split(['=', '"', ',', '}']).filter(|word| !word.is_empty()) {
        assert!(row.contains(&format!("`{word}`")), "no label {word} of {name}");
    }
}

#[test]
fn a_failure_that_did_not_happen_is_zero() {
    assert_eq!(metric(&Metrics::default(), "floodgate_relay_failures_total{kind=\"dead\"}"), 0);
}

#[test]
#[should_panic(expected = "no label deaf of floodgate_relay_failures_total")]
fn a_label_that_does_not_exist_is_not_zero() {
    metric(&Metrics::default(), "floodgate_relay_failures_total{kind=\"deaf\"}");
}

#[test]
#[should_panic(expected = "no metric floodgate_relay_failure_total")]
fn a_metric_that_does_not_exist_is_not_zero() {
    metric(&Metrics::default(), "floodgate_relay_failure_total{kind=\"dead\"}");
}
