//! `floodgate doctor`: checks everything that a sale depends on; every problem has a remedy.
//!
//! One file per backend: it reads the facts, then states them as a table of `Check`s.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::admin::{AdminClient, CALL_TIMEOUT};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use crate::config::{ConfigFault, ExposedSecret, LoadedSettings, Settings};

mod ledger;
pub(super) mod machine;
mod mysql;
mod rabbit;
mod redis;
mod safety;
pub mod sqlite;

pub(super) const EXAMPLES: &str = "\
Examples:
  floodgate doctor --config floodgate.toml     exit 1 if anything fails; warnings do not count
  floodgate doctor --json | jq '.findings[] | select(.status != \"ok\")'
";

/// Above this the network noticeably delays each batch of orders.
const ROUND_TRIP_COMFORTABLE: Duration = Duration::from_millis(5);

/// `Warn`: works, but is slow or unsafe. `Fail`: does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// The result of one check; `remedy` is empty when the status is [`Status::Ok`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    status: Status,
    detail: String,
    remedy: String,
}

/// One check: the first of its rows that applies is its finding; without one it has none.
#[derive(Debug)]
struct Check {
    name: &'static str,
    finding: Option<Finding>,
}

/// A problem that applies or not, before its remedy is stated.
struct Row {
    check: Check,
    applies: bool,
    status: Status,
    detail: String,
}

fn check(name: &'static str) -> Check {
    Check { name, finding: None }
}

impl Check {
    fn when(self, applies: bool) -> Row {
        Row { check: self, applies, status: Status::Ok, detail: String::new() }
    }

    fn fail(self, detail: impl Into<String>) -> Row {
        self.when(true).fail(detail)
    }

    fn warn(self, detail: impl Into<String>) -> Row {
        self.when(true).warn(detail)
    }

    /// Fails with an error's message, whose last part may be the remedy.
    fn fail_as(self, message: &str, remedy: &str) -> Self {
        let (detail, remedy) = message.rsplit_once("; ").unwrap_or((message, remedy));
        self.fail(detail).remedy(remedy)
    }

    fn is_failed(&self) -> bool {
        self.finding.as_ref().is_some_and(|finding| finding.status == Status::Fail)
    }

    fn ok(self, detail: impl Into<String>) -> Self {
        Row { detail: detail.into(), ..self.when(true) }.remedy("")
    }
}

impl Row {
    fn fail(self, detail: impl Into<String>) -> Self {
        Self { status: Status::Fail, detail: detail.into(), ..self }
    }

    fn warn(self, detail: impl Into<String>) -> Self {
        Self { status: Status::Warn, detail: detail.into(), ..self }
    }

    /// Turns a warning that no process has a role into a failure, where a server runs.
    fn fails_if(self, running: bool) -> Self {
        Self { status: if running { Status::Fail } else { self.status }, ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Check {
        let Self { mut check, applies, status, detail } = self;
        if applies && check.finding.is_none() {
            let (check_name, remedy) = (check.name, remedy.into());
            check.finding = Some(Finding { check: check_name, status, detail, remedy });
        }
        check
    }
}

/// Runs every check and reports all findings; exits with 1 if any failed.
pub async fn run(common: &Common) -> anyhow::Result<Exit> {
    let (output, mut findings) = (common.output(), examine(common).await);
    for finding in &mut findings {
        finding.detail = output.with_flags(&finding.detail);
        finding.remedy = output.with_flags(&finding.remedy);
    }
    output.data(&json!({ "findings": findings }), || render(&findings))?;
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    output.note(&format!("{failed} failed, {warned} warnings, {} checks", findings.len()));
    Ok(if failed == 0 { Exit::Done } else { Exit::Negative })
}

/// Logs what is allowed and not safe, once at the start of a server.
pub(super) fn log_unsafe(settings: &Settings, exposed: &[ExposedSecret]) {
    let findings = safety::examine(settings, exposed).into_iter().filter_map(|it| it.finding);
    for Finding { check, status, detail, remedy } in findings {
        match status {
            Status::Ok => {}
            Status::Warn => tracing::warn!(check, detail, remedy, "settings: not safe"),
            Status::Fail => tracing::error!(check, detail, remedy, "settings: not safe"),
        }
    }
}

async fn examine(common: &Common) -> Vec<Finding> {
    let checks = match LoadedSettings::read(&common.sources()) {
        Ok(LoadedSettings { settings, faults, exposed, effective }) => {
            let (ledger_answers, access) = server(&settings).await.unzip();
            let running = ledger_answers.is_some();
            let names_ledger =
                ["tier", "ledger.url"].into_iter().any(|key| effective.has_source(key));
            [
                configuration(&faults, names_ledger || common.config.is_some()),
                safety::examine(&settings, &exposed),
                access.into_iter().collect(),
                sqlite::examine(&settings, ledger_answers),
                mysql::examine(&settings),
                redis::examine(&settings, running).await,
                rabbit::examine(&settings, running).await,
                ledger::examine(&settings).await,
                machine::examine(&settings, running),
            ]
            .into_iter()
            .flatten()
            .collect()
        }
        Err(error) => {
            let remedy = "correct it first: the other checks need the settings";
            vec![check("configuration").fail(error.to_string()).remedy(remedy)]
        }
    };
    checks.into_iter().filter_map(|check| check.finding).collect()
}

/// Of the server at `internal.bind`: whether its ledger answers, and whether it accepts our token.
/// `None`: none answers there; with port 0 that is not known.
async fn server(settings: &Settings) -> Option<(bool, Check)> {
    let client = AdminClient::new(None, settings).ok()?;
    let ledger_answers = client.ledger_answers().await?;
    let check = check("admin token");
    let access = match client.get(&["stats"], CALL_TIMEOUT).await {
        Ok(_) => check.ok("the server at internal.bind accepts our calls"),
        Err(error) => {
            let CommandFailure { problem, remedy, .. } = error.into_failure();
            check.fail(problem).remedy(remedy)
        }
    };
    Some((ledger_answers, access))
}

/// `is_given`: a file, a variable or a flag names the installation.
fn configuration(faults: &[ConfigFault], is_given: bool) -> Vec<Check> {
    let source = check("configuration")
        .when(!is_given)
        .warn("no file is given: these are the defaults, tier memory with ./floodgate.db")
        .remedy("give the server's own --config FILE, or its FLOODGATE__ variables");
    let source = if faults.is_empty() { source.ok("valid") } else { source };
    let fault = |fault: &ConfigFault| {
        let detail = format!("{}: {}", fault.key, fault.problem);
        check("configuration").fail(detail).remedy(&fault.remedy)
    };
    std::iter::once(source).chain(faults.iter().map(fault)).collect()
}

/// Compares the first number of a version, such as `RabbitMQ 3.10.8` or `10.11.6-MariaDB`.
fn is_at_least(version: &str, least: &[u32]) -> bool {
    let number = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let number = number.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let seen: Vec<u32> = number.split('.').map(|part| part.parse().unwrap_or(0)).collect();
    seen.as_slice() >= least
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { check, status, detail, remedy } in findings {
        let status = match status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        let _ = writeln!(text, "{status:<4}  {check:<width$}  {detail}");
        if !remedy.is_empty() {
            let _ = writeln!(text, "      -> {remedy}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings that are not ok: check, status, and the text with the remedy.
    pub(super) fn problems(checks: Vec<Check>) -> Vec<(&'static str, Status, String)> {
        let findings = checks.into_iter().filter_map(|check| check.finding);
        findings
            .inspect(|one| assert_eq!(one.remedy.is_empty(), one.status == Status::Ok, "{one:?}"))
            .filter(|one| one.status != Status::Ok)
            .map(|one| (one.check, one.status, format!("{} -> {}", one.detail, one.remedy)))
            .collect()
    }

    /// Requires exactly one finding that is not ok: its check, its status, words of its text.
    #[track_caller]
    pub(super) fn assert_problem(checks: Vec<Check>, name: &str, status: Status, words: &str) {
        let problems = problems(checks);
        let [(seen_name, seen_status, text)] = problems.as_slice() else {
            panic!("{name} expected: {problems:?}")
        };
        assert_eq!((*seen_name, *seen_status), (name, status), "{text}");
        assert!(text.contains(words), "{words:?} expected: {text}");
    }

    #[test]
    fn each_finding_that_is_not_ok_is_printed_with_its_remedy() {
        let checks = [
            check("clock").when(false).warn("slow").remedy("set it").ok("fine"),
            check("free space").fail("none").remedy("make some").ok("enough"),
        ];
        let findings = checks.map(|check| check.finding.unwrap());
        let expected = "ok    clock       fine\nFAIL  free space  none\n      -> make some\n";
        assert_eq!(render(&findings), expected);
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (version, least, expected) in [
            ("7.0.15", &[7, 0][..], true),
            ("6.2.14", &[7, 0], false),
            ("", &[7, 0], false),
            ("RabbitMQ 3.10.8", &[3, 10], true),
            ("RabbitMQ 3.9.29", &[3, 10], false),
            ("10.11.6-MariaDB-0+deb12u1", &[10, 5, 0], true),
            ("8.0.11", &[8, 0, 16], false),
        ] {
            assert_eq!(is_at_least(version, least), expected, "{version}");
        }
    }
}
