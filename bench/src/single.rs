//! One load against one sale.

use std::time::Duration;

use anyhow::Result;
use floodgate::cli::output::Output;
use floodgate::runtime::clock;
use loadgen::{BuyRequest, Load, Pace, Until, run as run_load};
use serde_json::{Value as Json, json};

use crate::admin::{Admin, DAY_S, SKU};
use crate::args::{BenchFlags, resolve};
use crate::harness::{COMMIT_TIMEOUT, faults, newly_accepted};
use crate::meter::metered;
use crate::process::ServerChild;
use crate::stats::per_second;

/// How long a request of the open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(2);
const DEFAULT_SECONDS: u64 = 10;

/// Runs one load; returns false if the run is void.
pub async fn run(args: &BenchFlags) -> Result<bool> {
    // Declared before the server: the directory is removed after the process has ended.
    let folder = testkit::folder(&args.parent())?;
    let (server, target, admin) =
        if let (Some(url), Some(internal)) = (&args.url, &args.internal_url) {
            let admin = Admin::at(internal, args.admin_token_file.as_deref())?;
            (None, resolve(url).await?, admin)
        } else {
            let server = ServerChild::serve(folder.path(), &[]).await?;
            let (target, admin) = (server.public, server.admin()?);
            (Some(server), target, admin)
        };
    admin.await_ready().await?;
    let sale_id = format!("bench-{}", clock::wall_ms());
    admin.open_sale(&sale_id, args.stock, DAY_S).await?;
    let open = |per_second| Pace::Open { per_second, late_limit: LATE_LIMIT };
    let duration = Duration::from_secs(args.duration.unwrap_or(DEFAULT_SECONDS));
    let source = BuyRequest::new(target, &sale_id, SKU, 1).by_unique_buyers(1);
    let load = Load {
        pace: args.rate.map_or(Pace::Closed, open),
        until: args.requests.map_or(Until::Elapsed(duration), Until::Requests),
        connections: args.connections,
        progress: Some("buying"),
        ..Load::new(target, source)
    };
    let processes: Vec<_> = server.iter().map(|server| ("server", server.id())).collect();
    let begin = clock::now_monotonic();
    let (report, metered) = metered(&processes, async { Ok(run_load(load).await?) }).await?;
    let accepted = newly_accepted(&report);
    let committed = admin.await_committed(&sale_id, accepted, COMMIT_TIMEOUT).await?;
    let until_committed = clock::now_monotonic().duration_since(begin);
    let violations = admin.audit(Some(&sale_id)).await?;
    let valid = faults(&sale_id, accepted, committed, &violations).is_empty();
    let findings = json!({
        "sale_id": sale_id,
        "accepted": accepted,
        "accepted_per_second": report.per_second(accepted),
        "rejected_per_second": report.per_second(report.refused()),
        "landed": committed,
        "landed_per_second": per_second(committed, until_committed),
        "server_us_per_answer": server.as_ref().map(|_| metered.server_us(report.answered)),
        "server_resident_bytes": server.as_ref().map(|_| metered.resident.1),
        "generator_us_per_answer": metered.own_us(report.answered),
        "valid": valid,
        "audit": match violations.as_slice() {
            [] => "holds".to_owned(),
            violations => format!("VIOLATED: {}", violations.join("; ")),
        },
        "report": report,
    });
    Output::new(args.json).data(&findings, || render(&findings))?;
    Ok(valid)
}

/// One line for each finding.
fn render(findings: &Json) -> String {
    let members = findings.as_object().into_iter().flatten();
    members.map(|(name, value)| format!("{name:<26}{value}")).collect::<Vec<_>>().join("\n")
}
