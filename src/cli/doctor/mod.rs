//! `floodgate doctor`: checks everything that a sale depends on; every problem has a remedy.
//!
//! One file per backend: it reads the facts, then states them as tables of rows.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::admin::{AdminClient, CALL_TIMEOUT, Error};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use crate::config::{ConfigFault, ExposedSecret, LoadedSettings, Settings};

/// The finding of a check, by its rows: `condition => Status "what is found" -> "its remedy";`. The
/// first row whose condition holds is the finding; `else` is the last row and always holds. Both
/// texts are formats.
macro_rules! check {
    ($name:expr;) => { None };
    ($name:expr; $status:ident $(($running:expr))? $detail:literal $(-> $remedy:literal)?) => {
        Some($crate::cli::doctor::Finding {
            check: $name,
            status: $crate::cli::doctor::Status::$status $(($running))?,
            detail: format!($detail),
            remedy: String::new() $(+ &format!($remedy))?,
        })
    };
    ($name:expr;
     $($(let $some:pat =)? $when:expr =>
       $status:ident $(($running:expr))? $detail:literal $(-> $remedy:literal)?;)*
     $(else => $($last:tt)+)?) => {
        $(if $(let $some =)? $when {
            check!($name; $status $(($running))? $detail $(-> $remedy)?)
        } else)* {
            check!($name; $($($last)+)?)
        }
    };
}

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

/// What a check found; `None` where nothing is wrong and there is nothing to tell.
type Check = Option<Finding>;

impl Status {
    /// That no process has a role is a failure, where a server runs.
    fn fail_if(running: bool) -> Self {
        if running { Self::Fail } else { Self::Warn }
    }
}

impl Finding {
    fn is_failed(&self) -> bool {
        self.status == Status::Fail
    }
}

/// Fails with an error's message, whose last part may be the remedy.
fn fail_as(name: &'static str, message: &str, remedy: &str) -> Check {
    let (detail, remedy) = message.rsplit_once("; ").unwrap_or((message, remedy));
    check! { name; Fail "{detail}" -> "{remedy}" }
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
    let findings = safety::examine(settings, exposed).into_iter().flatten();
    for Finding { check, status, detail, remedy } in findings {
        match status {
            Status::Ok => {}
            Status::Warn => tracing::warn!(check, detail, remedy, "settings: not safe"),
            Status::Fail => tracing::error!(check, detail, remedy, "settings: not safe"),
        }
    }
}

async fn examine(common: &Common) -> Vec<Finding> {
    let checks: Vec<Check> = match LoadedSettings::read(&common.sources()) {
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
        Err(error) => vec![check! { "configuration";
            Fail "{error}" -> "correct it first: the other checks need the settings"
        }],
    };
    checks.into_iter().flatten().collect()
}

/// Of the server at `internal.bind`: whether its ledger answers, and whether it accepts our token.
/// `None`: none answers there; with port 0 that is not known.
async fn server(settings: &Settings) -> Option<(bool, Check)> {
    let client = AdminClient::new(None, settings).ok()?;
    let ledger_answers = client.ledger_answers().await?;
    let failure = client.get(&["stats"], CALL_TIMEOUT).await.err().map(Error::into_failure);
    let access = check! { "admin token";
        let Some(CommandFailure { problem, remedy, .. }) = failure =>
            Fail "{problem}" -> "{remedy}";
        else => Ok "the server at internal.bind accepts our calls"
    };
    Some((ledger_answers, access))
}

/// `is_given`: a file, a variable or a flag names the installation.
fn configuration(faults: &[ConfigFault], is_given: bool) -> Vec<Check> {
    let source = check! { "configuration";
        !is_given =>
            Warn "no file is given: these are the defaults, tier memory with ./floodgate.db"
            -> "give the server's own --config FILE, or its FLOODGATE__ variables";
        faults.is_empty() => Ok "valid";
    };
    let fault = |ConfigFault { key, problem, remedy }: &ConfigFault| {
        check! { "configuration"; Fail "{key}: {problem}" -> "{remedy}" }
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
        let findings = checks.into_iter().flatten();
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
            check! { "clock"; false => Warn "slow" -> "set it"; else => Ok "fine" },
            check! { "free space"; true => Fail "none" -> "make some"; else => Ok "enough" },
        ];
        let findings = checks.map(Option::unwrap);
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
