//! `floodgate doctor`: checks everything that a sale depends on; every problem has a remedy.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::admin::{AdminClient, ServerArgs};
use super::common::Common;
use super::exit::Exit;
use crate::config::{LoadedSettings, Settings};

pub mod disk;
mod ledger;
mod machine;
mod mysql;
mod network;
mod rabbit;
mod redis;

const EXAMPLES: &str = "\
Examples:
  floodgate doctor --config floodgate.toml     exit 1 if anything fails; warnings do not count
  floodgate doctor --json | jq '.findings[] | select(.status != \"ok\")'
";

/// Check configuration, ledger, disk, limits and ports; every finding comes with its remedy
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct DoctorArgs {
    #[command(flatten)]
    common: Common,
}

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
struct CheckOutcome {
    status: Status,
    detail: String,
    remedy: String,
}

/// A [`CheckOutcome`] with the name of its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    #[serde(flatten)]
    verdict: CheckOutcome,
}

fn ok(detail: impl Into<String>) -> CheckOutcome {
    CheckOutcome { status: Status::Ok, detail: detail.into(), remedy: String::new() }
}

fn warn(detail: impl Into<String>, remedy: impl Into<String>) -> CheckOutcome {
    CheckOutcome { status: Status::Warn, detail: detail.into(), remedy: remedy.into() }
}

fn fail(detail: impl Into<String>, remedy: impl Into<String>) -> CheckOutcome {
    CheckOutcome { status: Status::Fail, detail: detail.into(), remedy: remedy.into() }
}

impl CheckOutcome {
    fn on(self, check: &'static str) -> Finding {
        Finding { check, verdict: self }
    }
}

impl Finding {
    fn is(&self, status: Status) -> bool {
        self.verdict.status == status
    }
}

/// Runs every check and reports all findings; exits with 1 if any failed.
pub async fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let findings = examine(&args.common).await;
    let output = args.common.output();
    output.data(&json!({ "findings": findings }), || render(&findings))?;
    let count = |status| findings.iter().filter(|finding| finding.is(status)).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    output.note(&format!("{failed} failed, {warned} warnings, {} checks", findings.len()));
    Ok(if failed == 0 { Exit::Done } else { Exit::Negative })
}

async fn examine(common: &Common) -> Vec<Finding> {
    let loaded = match LoadedSettings::read(&common.sources()) {
        Ok(loaded) => loaded,
        Err(error) => {
            let remedy = "correct it first: the other checks need the settings";
            return vec![fail(error.to_string(), remedy).on("configuration")];
        }
    };
    let mut findings = configuration(&loaded);
    let settings = &loaded.settings;
    let running = is_running(settings).await;
    findings.extend(ledger::examine(settings, running));
    findings.extend(mysql::examine(settings));
    findings.extend(redis::examine(settings).await);
    findings.extend(rabbit::examine(settings).await);
    findings.extend(machine::examine(settings));
    findings.extend(network::examine(settings, running));
    findings
}

fn configuration(loaded: &LoadedSettings) -> Vec<Finding> {
    if loaded.faults.is_empty() {
        return vec![ok("valid").on("configuration")];
    }
    let finding = |fault: &crate::config::ConfigFault| {
        fail(format!("{}: {}", fault.key, fault.problem), &fault.remedy).on("configuration")
    };
    loaded.faults.iter().map(finding).collect()
}

/// Whether a server answers at `internal.bind`.
async fn is_running(settings: &Settings) -> bool {
    match AdminClient::new(&ServerArgs::default(), settings) {
        Ok(client) => client.is_alive().await,
        Err(_no_fixed_port) => false,
    }
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { check, verdict: CheckOutcome { status, detail, remedy } } in findings {
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

    #[test]
    fn each_finding_that_is_not_ok_has_a_remedy() {
        let findings = [ok("fine").on("clock"), fail("none", "make some").on("free space")];
        let expected = "ok    clock       fine\nFAIL  free space  none\n      -> make some\n";
        assert_eq!(render(&findings), expected);
    }

    #[tokio::test]
    async fn unreadable_settings_are_one_finding() {
        let common = Common { set: vec!["http.wings=2".into()], ..Common::default() };
        let findings = examine(&common).await;
        assert_eq!(findings.len(), 1);
        assert!(findings[0].is(Status::Fail));
        assert!(findings[0].verdict.detail.contains("http.wings"), "{findings:?}");
    }

    #[tokio::test]
    async fn a_fresh_installation_passes() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("ledger.url=sqlite://{}/new.db", directory.path().display());
        let set = vec![url, "http.bind=127.0.0.1:0".into(), "internal.bind=127.0.0.1:0".into()];
        let findings = examine(&Common { set, ..Common::default() }).await;
        for finding in &findings {
            assert!(!finding.is(Status::Fail), "{finding:?}");
            assert_eq!(finding.verdict.remedy.is_empty(), finding.is(Status::Ok), "{finding:?}");
        }
        let files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(files.is_empty(), "the doctor leaves no files behind: {files:?}");
    }
}
