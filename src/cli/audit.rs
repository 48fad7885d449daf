//! `floodgate audit`: checks every invariant.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, Error, SECTIONS, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, list};
use crate::config::Settings;
use crate::domain::SaleId;
use crate::runtime::clock;
use crate::services::audit;
use crate::tier;

const EXAMPLES: &str = "\
Examples:
  floodgate audit                              every sale; exit 0 = all invariants hold
  floodgate audit --sale spring --json
";

/// Check every invariant: 0 = all hold, 1 = violations (listed), 2 = could not tell
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct AuditArgs {
    /// Only this sale [default: all]
    #[arg(long, value_name = "ID")]
    sale: Option<String>,
    /// Let the server repair what it can (not in this version: the server refuses)
    #[arg(long)]
    repair: bool,
    /// Report only; overrides --repair
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    common: Common,
}

/// Audits through the running server, or reads the ledger directly when no server runs.
pub async fn run(args: &AuditArgs) -> anyhow::Result<Exit> {
    let settings = args.common.settings_for(&SECTIONS)?;
    let output = args.common.output();
    let report = report(args, &settings, output).await?;
    output.data(&report, || render(&report))?;
    Ok(verdict(&report))
}

async fn report(args: &AuditArgs, settings: &Settings, output: Output) -> anyhow::Result<Json> {
    let body = json!({ "sale_id": args.sale, "repair": args.repair && !args.dry_run });
    let answer = match AdminClient::new(&args.server, settings) {
        Ok(client) => client.post(&["audit"], &body, None).await,
        Err(error) => Err(error),
    };
    match answer {
        // Not with --internal-url: that server's ledger may be a different one.
        Err(error @ (Error::NoServer { .. } | Error::Address(_)))
            if args.server.internal_url.is_none() =>
        {
            if args.repair && !args.dry_run {
                let problem = format!("--repair needs the running server, and {error}");
                return Err(CommandFailure::new(
                    Exit::Unclear,
                    problem,
                    "start it, or audit without --repair to read the ledger itself",
                )
                .into());
            }
            output.note(&format!(
                "{error}: reading the ledger itself; invariants that need the gates are skipped"
            ));
            let settings = args.common.settings_for(&["tier", "ledger."])?;
            Ok(audit_ledger(&settings, args.sale.as_deref()).await?)
        }
        // A refused audit checked nothing: it must not exit with the code of a violation.
        Err(error @ Error::Refused { .. }) => {
            Err(CommandFailure { exit: Exit::Unclear, ..error.into_failure() }.into())
        }
        other => Ok(other.map_err(Error::into_failure)?),
    }
}

/// Audits the ledger without a server; the report has the format of the admin API.
async fn audit_ledger(settings: &Settings, sale: Option<&str>) -> Result<Json, CommandFailure> {
    let could_not_tell = |problem: String| {
        let remedy = "run `floodgate doctor` with the same --config and --set";
        CommandFailure::new(Exit::Unclear, format!("could not tell: {problem}"), remedy)
    };
    let sale: Option<SaleId> = match sale.map(str::parse).transpose() {
        Ok(sale) => sale,
        Err(error) => return Err(could_not_tell(format!("--sale: {error}"))),
    };
    let ledger = tier::open_ledger_for_reading(settings)
        .map_err(|error| could_not_tell(error.to_string()))?;
    let report = audit::audit(None, ledger.as_ref(), sale.as_ref(), clock::wall_ms()).await;
    ledger.close().await;
    let report = report.map_err(|error| could_not_tell(format!("{error}{}", cause_of(&error))))?;
    serde_json::to_value(report).map_err(|error| could_not_tell(error.to_string()))
}

fn cause_of(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// A violation decides the exit code even when other invariants could not be checked.
fn verdict(report: &Json) -> Exit {
    let flag = |name: &str| report.get(name).and_then(Json::as_bool);
    match (flag("holds"), flag("could_tell")) {
        (Some(false), _) => Exit::Negative,
        (Some(true), Some(true)) => Exit::Done,
        _ => Exit::Unclear,
    }
}

fn render(report: &Json) -> String {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let field = |of: &Json, name: &str| of.get(name).map(text).unwrap_or_default();

    let mut shown = match verdict(report) {
        Exit::Done => "every invariant holds".to_owned(),
        Exit::Negative => format!("VIOLATED: {} found", field(report, "num_violations")),
        _ if report.get("holds").and_then(Json::as_bool) == Some(true) => {
            "could not tell: what was judged holds, but not everything could be judged".to_owned()
        }
        _ => "could not tell".to_owned(),
    };
    let _ = writeln!(
        shown,
        " ({} orders read, {} dead letters)",
        field(report, "num_orders"),
        report.get("num_dead_letters").and_then(Json::as_u64).unwrap_or(0)
    );
    for violation in list(report, "violations") {
        let (invariant, detail) = (field(violation, "invariant"), field(violation, "detail"));
        let _ = writeln!(shown, "  violated  {invariant}: {detail}");
    }
    for judged in list(report, "judged") {
        let (invariant, evidence) = (field(judged, "invariant"), field(judged, "evidence"));
        let _ = writeln!(shown, "  judged    {invariant}: {evidence}");
    }
    for note in list(report, "notes") {
        let _ = writeln!(shown, "  note      {}", text(note));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_never_better_than_the_report() {
        let verdict = |holds: Json, could_tell: Json| {
            verdict(&json!({ "holds": holds, "could_tell": could_tell }))
        };
        assert_eq!(verdict(json!(true), json!(true)), Exit::Done);
        assert_eq!(verdict(json!(true), json!(false)), Exit::Unclear);
        assert_eq!(verdict(json!(false), json!(false)), Exit::Negative);
        assert_eq!(verdict(Json::Null, json!(true)), Exit::Unclear);
        assert_eq!(super::verdict(&Json::Null), Exit::Unclear);
    }

    #[test]
    fn violations_and_notes_are_listed() {
        let text = render(&json!({
            "holds": false, "could_tell": true, "num_orders": 7, "num_violations": 1,
            "num_dead_letters": 2,
            "violations": [{ "invariant": "NoOversell", "detail": "sku 3: 11 of 10" }],
            "judged": [{ "invariant": "LimitHeld", "evidence": "orders per buyer" }],
            "notes": ["gates were busy"],
        }));
        let expected = [
            "VIOLATED: 1 found (7 orders read, 2 dead letters)",
            "  violated  NoOversell: sku 3: 11 of 10",
            "  judged    LimitHeld: orders per buyer",
            "  note      gates were busy",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn an_audit_without_a_server_reads_the_ledger() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::for_test(&format!("sqlite://{}/l.db", directory.path().display()));
        let missing = audit_ledger(&settings, None).await.unwrap_err();
        assert_eq!(missing.exit, Exit::Unclear);

        assert_eq!(tier::pending_migrations(&settings).unwrap(), None);
        assert!(!tier::migrate(&settings).unwrap().is_empty());
        assert_eq!(tier::migrate(&settings).unwrap(), Vec::<String>::new());
        assert_eq!(tier::pending_migrations(&settings).unwrap(), Some(Vec::new()));
        let report = audit_ledger(&settings, None).await.unwrap();
        assert_eq!(report["num_violations"], 0);
        let unknown = audit_ledger(&settings, Some("spring")).await.unwrap_err();
        assert!(unknown.problem.contains("spring"), "{unknown}");
    }

    #[tokio::test]
    async fn a_named_server_that_is_down_is_not_replaced_by_the_local_ledger() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let args = AuditArgs {
            sale: None,
            repair: false,
            dry_run: false,
            server: ServerArgs { internal_url: Some(url.clone()) },
            common: Common::default(),
        };
        let error = report(&args, &Settings::for_test("sqlite://./x.db"), Output::new(false)).await;
        let error = error.unwrap_err();
        assert_eq!(Exit::of(&error), Exit::Unclear);
        assert!(error.to_string().contains(&url), "{error}");
    }
}
