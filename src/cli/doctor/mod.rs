//! `floodgate doctor`: what would go wrong tonight, and what to do about it now.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::admin::{AdminClient, ServerArgs};
use super::common::Common;
use super::exit::Exit;
use crate::config::{Loaded, Settings};

mod disk;
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

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, and may hurt.
    Warn,
    /// Does not work.
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it went.
    pub status: Status,
    /// What was seen.
    pub detail: String,
    /// What to do; empty when it is as it should be.
    pub remedy: String,
}

impl Finding {
    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, detail: detail.into(), remedy: String::new() }
    }

    fn warn(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, detail: detail.into(), remedy: remedy.into() }
    }

    fn fail(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, detail: detail.into(), remedy: remedy.into() }
    }
}

/// Looks at everything that can be looked at and reports all of it.
///
/// # Errors
/// The findings cannot be printed.
pub async fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let findings = examine(&args.common).await;
    let output = args.common.output();
    output.data(&json!({ "findings": findings }), || render(&findings))?;
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    output.note(&format!("{failed} failed, {warned} warnings, {} checks", findings.len()));
    Ok(if failed == 0 { Exit::Done } else { Exit::Negative })
}

async fn examine(common: &Common) -> Vec<Finding> {
    let loaded = match Loaded::read(&common.sources()) {
        Ok(loaded) => loaded,
        Err(error) => {
            let remedy = "mend it first: the other checks need the settings";
            return vec![Finding::fail("configuration", error.to_string(), remedy)];
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

fn configuration(loaded: &Loaded) -> Vec<Finding> {
    if loaded.faults.is_empty() {
        return vec![Finding::ok("configuration", "valid")];
    }
    let finding = |fault: &crate::config::Fault| {
        Finding::fail("configuration", format!("{}: {}", fault.key, fault.problem), &fault.remedy)
    };
    loaded.faults.iter().map(finding).collect()
}

/// Whether the server of these settings answers.
async fn is_running(settings: &Settings) -> bool {
    match AdminClient::new(&ServerArgs::default(), settings) {
        Ok(client) => client.is_alive().await,
        Err(_no_fixed_port) => false,
    }
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

    #[test]
    fn each_finding_that_is_not_ok_carries_its_remedy() {
        let findings =
            [Finding::ok("clock", "fine"), Finding::fail("free space", "none", "make some")];
        let expected = "ok    clock       fine\nFAIL  free space  none\n      -> make some\n";
        assert_eq!(render(&findings), expected);
    }

    #[tokio::test]
    async fn unreadable_settings_are_one_finding() {
        let common = Common { set: vec!["http.wings=2".into()], ..Common::default() };
        let findings = examine(&common).await;
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].status, Status::Fail);
        assert!(findings[0].detail.contains("http.wings"), "{findings:?}");
    }

    #[tokio::test]
    async fn a_fresh_installation_passes() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("ledger.url=sqlite://{}/new.db", directory.path().display());
        let set = vec![url, "http.bind=127.0.0.1:0".into(), "internal.bind=127.0.0.1:0".into()];
        let findings = examine(&Common { set, ..Common::default() }).await;
        for finding in &findings {
            assert_ne!(finding.status, Status::Fail, "{finding:?}");
            assert_eq!(finding.remedy.is_empty(), finding.status == Status::Ok, "{finding:?}");
        }
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "the doctor leaves nothing behind: {left:?}");
    }
}
