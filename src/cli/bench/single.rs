use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::json;

use super::admin::{Admin, Audit, BenchSale};
use super::child::ServerChild;
use super::machine::us_each;
use super::scratch::Scratch;
use super::stats::grouped;
use super::{BenchArgs, request_ids, resolve};
use crate::cli::output::Output;
use crate::clock;
use crate::load::cpu::Usage;
use crate::load::terminal_progress;
use crate::load::{BuyRequest, Load, Pace, Report, RequestSource, Until, run as run_load};

const READY_PATIENCE: Duration = Duration::from_mins(1);
/// How long accepted purchases may take to reach the ledger after the last answer.
const LANDING_PATIENCE: Duration = Duration::from_secs(30);
/// How long a request of the open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// What one run found, per second where not said otherwise.
#[derive(Debug, Serialize)]
struct Findings {
    sale_id: String,
    accepted: u64,
    accepted_per_second: f64,
    rejected_per_second: f64,
    landed: u64,
    landed_per_second: f64,
    server_us_per_answer: Option<f64>,
    server_resident_bytes: Option<u64>,
    generator_us_per_answer: f64,
    audit: String,
    valid: bool,
    report: Report,
}

/// Runs one load; false when it is void.
pub(super) async fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    // Declared first, so that it is removed after its server has ended.
    let scratch;
    let (server, target, internal) = if let Some((url, internal)) = args.running_server() {
        (None, resolve(url).await?, internal.to_owned())
    } else {
        scratch = Scratch::new(args.directory.as_deref())?;
        let server = ServerChild::serve(scratch.path(), &args.settings())?;
        let internal = server.internal.context("no internal listener")?;
        let target = server.public;
        (Some(server), target, format!("http://{internal}"))
    };
    let admin = Admin::new(&internal, args.admin_token()?)?;
    admin.await_ready(READY_PATIENCE).await?;
    let sale = sale(args);
    admin.open_sale(&sale).await?;
    let load = Load {
        pace: args
            .rate
            .map_or(Pace::Closed, |per_second| Pace::Open { per_second, late_limit: LATE_LIMIT }),
        until: args.requests.map_or(Until::Elapsed(args.duration()), Until::Requests),
        connections: args.connections,
        threads: args.threads,
        progress: terminal_progress("buying"),
        ..Load::new(target, source(args, target, &sale).await?)
    };
    let usage = || server.as_ref().map(ServerChild::usage).transpose();
    let (before, own_before) = (usage()?, Usage::own()?);
    let begin = clock::now_monotonic();
    let report = run_load(load).await?;
    let (after, own_after) = (usage()?, Usage::own()?);
    let accepted = report.succeeded().saturating_sub(report.replayed);
    let landed = admin.await_landed(&sale.sale_id, accepted, LANDING_PATIENCE).await?;
    let until_landed = clock::now_monotonic().duration_since(begin);
    let audit = admin.audit(Some(&sale.sale_id)).await?;
    let findings = Findings {
        accepted,
        accepted_per_second: report.per_second(accepted),
        rejected_per_second: report.per_second(report.answered - report.succeeded()),
        landed,
        landed_per_second: landed as f64 / until_landed.as_secs_f64().max(1e-9),
        server_us_per_answer: before
            .zip(after)
            .map(|(before, after)| us_each(after.cpu_since(&before), report.answered)),
        server_resident_bytes: after.map(|usage| usage.resident),
        generator_us_per_answer: us_each(own_after.cpu_since(&own_before), report.answered),
        audit: audit.line(),
        valid: is_valid(&audit, accepted, landed),
        sale_id: sale.sale_id,
        report,
    };
    print(args, &findings)?;
    Ok(findings.valid)
}

/// Unknown outcomes may land too, so more may have landed than was acknowledged, never less.
fn is_valid(audit: &Audit, accepted: u64, landed: u64) -> bool {
    audit.holds && landed >= accepted
}

fn sale(args: &BenchArgs) -> BenchSale {
    BenchSale {
        sale_id: format!("bench-{}", clock::wall_ms()),
        sku_id: "bench".to_owned(),
        stock: args.stock,
        policy: args.policy.json(),
        buckets: args.buckets,
    }
}

async fn source(
    args: &BenchArgs,
    target: std::net::SocketAddr,
    sale: &BenchSale,
) -> anyhow::Result<RequestSource> {
    let buyers = args.buyers.unwrap_or(u64::MAX).max(1);
    let buyer = move |seq: u64| 1 + seq % buyers;
    let buy = BuyRequest::new(target, &sale.sale_id, &sale.sku_id, 1);
    if !args.policy.needs_request_ids() {
        return Ok(Arc::new(move |seq, buffer| buy.write(buyer(seq), None, buffer)));
    }
    let Some(wanted) = args.requests else {
        bail!("this policy needs issued request ids: say with --requests how many");
    };
    let ids = request_ids::issue(target, &sale.sale_id, &sale.sku_id, wanted, buyer).await?;
    Ok(Arc::new(move |seq, buffer| {
        let id = usize::try_from(seq).ok().and_then(|place| ids.get(place));
        buy.write(buyer(seq), id.map(String::as_str), buffer);
    }))
}

fn print(args: &BenchArgs, findings: &Findings) -> anyhow::Result<()> {
    Ok(Output::new(args.json).data(findings, || show(findings))?)
}

fn show(findings: &Findings) -> String {
    let mut lines = Vec::new();
    let report = &findings.report;
    let latency = &report.latency;
    lines.push(format!("sale        {}", findings.sale_id));
    lines.push(format!("accepted    {}/s", grouped(findings.accepted_per_second)));
    lines.push(format!("rejected    {}/s", grouped(findings.rejected_per_second)));
    lines.push(format!("landed      {}/s", grouped(findings.landed_per_second)));
    lines.push(format!(
        "latency     p50 {} µs, p90 {} µs, p99 {} µs, p99.9 {} µs, max {} µs",
        latency.p50_us(),
        latency.p90_us(),
        latency.p99_us(),
        latency.p999_us(),
        latency.max_us()
    ));
    lines.push(format!(
        "requests    {} attempted, {} answered, {} accepted, {} landed, {} replayed, \
         {} unknown, {} unsent",
        report.attempted,
        report.answered,
        findings.accepted,
        findings.landed,
        report.replayed,
        report.transport_errors,
        report.unsent
    ));
    lines.push(format!("answers     {}", json!(report.by_status)));
    if !report.by_code.is_empty() {
        lines.push(format!("refusals    {}", json!(report.by_code)));
    }
    if let (Some(us), Some(bytes)) = (findings.server_us_per_answer, findings.server_resident_bytes)
    {
        lines.push(format!(
            "server      {us:.1} core-µs per answer, {} MiB resident",
            bytes / (1 << 20)
        ));
    }
    lines.push(format!("generator   {:.1} core-µs per answer", findings.generator_us_per_answer));
    lines.push(format!("audit       {}", findings.audit));
    if !findings.valid {
        lines.push("VOID        the run does not count".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_order_voids_the_run() {
        let audit = |holds| Audit { holds, violations: Vec::new() };
        assert!(is_valid(&audit(true), 10, 10));
        assert!(is_valid(&audit(true), 10, 11));
        assert!(!is_valid(&audit(true), 10, 9));
        assert!(!is_valid(&audit(false), 10, 10));
    }
}
