//! `floodgate audit`: checks every invariant.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, Error, SECTIONS, ServerArgs};
use super::answers;
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, field, list, number};
use crate::config::Settings;
use crate::domain::SaleId;
use crate::runtime::clock;
use crate::services::audit;
use crate::tier;

const EXAMPLES: &str = "\
Examples:
  floodgate audit                              every sale; exit 0 = all invariants hold
  floodgate audit --sale spring --json
  floodgate audit --sale spring --dry-run      what a repair would do
  floodgate audit --sale spring --repair       repairs while the sale goes on
  floodgate audit --answers answers.ndjson     does the ledger keep what buyers were told?
";

/// Check every invariant: 0 = all hold, 1 = violations (listed), 2 = could not tell
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct AuditArgs {
    /// Only this sale [default: all]
    #[arg(long, value_name = "ID", conflicts_with = "answers")]
    sale: Option<String>,
    /// Compare the answers in this file, one JSON object per line, with the ledger
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair", "dry_run", "internal_url"])]
    answers: Option<PathBuf>,
    /// Let the server repair what it can, while the sale goes on
    #[arg(long)]
    repair: bool,
    /// Report what a repair would do, and repair nothing; overrides --repair
    #[arg(long)]
    dry_run: bool,
    /// Why it repairs; recorded with who did it
    #[arg(long, requires = "repair")]
    reason: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Audits through the running server, or reads the ledger directly when no server runs.
pub async fn run(args: &AuditArgs, common: &Common) -> anyhow::Result<Exit> {
    let output = common.output();
    if let Some(file) = &args.answers {
        let settings = common.settings_for(&["tier", "ledger.", "auth."])?;
        let report = answers::check(file, &settings).await?;
        output.data(&report, || render_answers(&report))?;
        return Ok(if holds(&report) { Exit::Done } else { Exit::Negative });
    }
    let settings = common.settings_for(&SECTIONS)?;
    let url = args.server.internal_url.as_deref();
    let repair = args.repair && !args.dry_run;
    let AuditArgs { sale, dry_run, reason, .. } = args;
    let body = json!({ "sale_id": sale, "repair": repair, "dry_run": dry_run, "reason": reason });
    let answer = async { AdminClient::new(url, &settings)?.post(&["audit"], &body, None).await };
    let report = match answer.await {
        // Not with --internal-url: that server's ledger may be a different one.
        Err(error @ (Error::NoServer { .. } | Error::Address(_))) if url.is_none() => {
            if args.repair || args.dry_run {
                let problem = format!("a repair needs the running server, and {error}");
                let remedy =
                    "start it, or audit without --repair and --dry-run to read the ledger itself";
                return Err(CommandFailure::unclear(problem, remedy).into());
            }
            output.note(&format!(
                "{error}: reading the ledger itself; invariants that need the buckets are skipped"
            ));
            audit_ledger(&common.settings_for(&["tier", "ledger."])?, args.sale.as_deref()).await?
        }
        // A refused audit checked nothing: it must not exit with the code of a violation.
        Err(error @ Error::Refused { .. }) => {
            let failure = error.into_failure();
            let is_violation = failure.exit == Exit::Negative;
            let exit = if is_violation { Exit::Unclear } else { failure.exit };
            return Err(CommandFailure { exit, ..failure }.into());
        }
        other => other?,
    };
    output.data(&report, || render(&output, &report))?;
    Ok(verdict(&report))
}

/// Why the ledger tells nothing.
pub(super) fn could_not_tell(error: &dyn std::error::Error) -> CommandFailure {
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    let problem = format!("could not tell: {error}{cause}");
    CommandFailure::unclear(problem, "`floodgate doctor` examines it")
}

/// Audits the ledger without a server; the report has the format of the admin API.
async fn audit_ledger(settings: &Settings, sale: Option<&str>) -> Result<Json, CommandFailure> {
    let sale: Option<SaleId> =
        sale.map(str::parse).transpose().map_err(|error| could_not_tell(&error))?;
    let ledger = tier::open_ledger_for_reading(settings).map_err(|error| could_not_tell(&error))?;
    let report = audit::audit(None, ledger.as_ref(), sale.as_ref(), clock::wall_ms()).await;
    ledger.close().await;
    let report = report.map_err(|error| could_not_tell(&error))?;
    serde_json::to_value(report).map_err(|error| could_not_tell(&error))
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

fn holds(report: &Json) -> bool {
    field(report, "holds") == "true"
}

fn render_answers(report: &Json) -> String {
    let (answers, findings) = (field(report, "num_answers"), field(report, "num_findings"));
    let mut shown = if holds(report) {
        format!("the ledger keeps what {answers} answers say\n")
    } else {
        format!("CONTRADICTED: {findings} requests ({answers} answers)\n")
    };
    if let Some(purged) = number(report, "num_purged").filter(|purged| *purged > 0) {
        shown.push_str(&format!("  {purged} answers of purged sales were not compared\n"));
    }
    for one in list(report, "findings") {
        let [rule, sale, buyer, ids, ledger] =
            ["rule", "sale_id", "buyer_id", "request_ids", "ledger"].map(|name| field(one, name));
        let line = format!("sale {sale} buyer {buyer} requests {ids}; the ledger has {ledger}");
        shown.push_str(&format!("  {}  {line}\n", rule.to_uppercase()));
    }
    shown
}

fn render(output: &Output, report: &Json) -> String {
    let count = |name: &str| field(report, name);
    let mut shown = match verdict(report) {
        Exit::Done => "every invariant holds".to_owned(),
        Exit::Negative => format!("VIOLATED: {} found", count("num_violations")),
        _ if holds(report) => {
            "could not tell: what was judged holds, but not everything could be judged".to_owned()
        }
        _ => "could not tell".to_owned(),
    };
    let (orders, dead_letters) = (count("num_orders"), count("num_dead_letters"));
    shown.push_str(&format!(" ({orders} orders read, {dead_letters} dead letters)\n"));
    let [unmatched, resolved] = ["num_unmatched_reports", "num_resolved_reports"]
        .map(|name| number(report, name).unwrap_or(0));
    if unmatched + resolved > 0 {
        shown.push_str(&format!(
            "  payments  {unmatched} reports of unknown payments wait, {resolved} are resolved\n"
        ));
    }
    for one in list(report, "violations") {
        let (invariant, text) = (field(one, "invariant"), field(one, "detail"));
        let verdict = field(one, "verdict").to_uppercase();
        shown.push_str(&format!("  violated  {invariant}: {verdict}: {text}\n"));
    }
    for one in list(report, "repairs") {
        let (action, detail) = (field(one, "action"), field(one, "detail"));
        let outcome = match one.get("outcome").and_then(Json::as_str) {
            Some(outcome) => outcome.to_uppercase(),
            None => "planned".to_owned(),
        };
        shown.push_str(&format!("  repair    {action}: {outcome}: {detail}\n"));
    }
    for one in list(report, "judged") {
        let (invariant, text) = (field(one, "invariant"), field(one, "evidence"));
        shown.push_str(&format!("  judged    {invariant}: {text}\n"));
    }
    for note in list(report, "notes").iter().filter_map(Json::as_str) {
        shown.push_str(&format!("  note      {}\n", output.with_flags(note)));
    }
    shown
}
