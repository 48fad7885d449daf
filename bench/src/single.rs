use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use floodgate::cli::output::Output;
use floodgate::runtime::clock;
use loadgen::{
    BuyRequest, Load, Outcome, Pace, Report, RequestSource, Until, json_string_member,
    run as run_load, terminal_progress,
};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::admin::{Admin, SKU};
use crate::args::{BenchArgs, resolve};
use crate::harness::{COMMIT_TIMEOUT, newly_accepted};
use crate::meter::Meter;
use crate::process::{ServerChild, scratch};
use crate::stats::grouped;

/// How long a request of the open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// The result of one run.
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

/// Runs one load; returns false if the run is void.
pub(crate) async fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    // Declared before the server: the directory is removed after the process has ended.
    let folder;
    let (server, target, admin) = if let Some((url, internal)) = args.running_server() {
        (None, resolve(url).await?, Admin::at(internal, args.admin_token()?)?)
    } else {
        folder = scratch(args.directory.as_deref())?;
        let server = ServerChild::serve(folder.path(), &args.settings()).await?;
        let (target, admin) = (server.public, server.admin()?);
        (Some(server), target, admin)
    };
    admin.await_ready().await?;
    let sale_id = format!("bench-{}", clock::wall_ms());
    admin.open_bench_sale(&sale_id, args.stock, &args.policy, args.buckets).await?;
    let load = Load {
        pace: args
            .rate
            .map_or(Pace::Closed, |per_second| Pace::Open { per_second, late_limit: LATE_LIMIT }),
        until: args.requests.map_or(Until::Elapsed(args.duration()), Until::Requests),
        connections: args.connections,
        threads: args.threads,
        progress: terminal_progress("buying"),
        ..Load::new(target, source(args, target, &sale_id).await?)
    };
    let processes: Vec<_> = server.iter().map(|server| ("server", server.id())).collect();
    let (meter, begin) = (Meter::start(&processes)?, clock::now_monotonic());
    let report = run_load(load).await?;
    let metered = meter.stop()?;
    let accepted = newly_accepted(&report);
    let committed = admin.await_committed(&sale_id, accepted, COMMIT_TIMEOUT).await?;
    let until_committed = clock::now_monotonic().duration_since(begin);
    let violations = admin.audit(Some(&sale_id)).await?;
    let findings = Findings {
        accepted,
        accepted_per_second: report.per_second(accepted),
        rejected_per_second: report.per_second(report.answered - report.succeeded()),
        landed: committed,
        landed_per_second: committed as f64 / until_committed.as_secs_f64().max(1e-9),
        server_us_per_answer: metered.each(report.answered).first().map(|(_, us)| *us),
        server_resident_bytes: server.is_some().then_some(metered.resident.1),
        generator_us_per_answer: metered.own_us(report.answered),
        valid: is_valid(&violations, accepted, committed),
        audit: match violations.as_slice() {
            [] => "holds".to_owned(),
            violations => format!("VIOLATED: {}", violations.join("; ")),
        },
        sale_id,
        report,
    };
    Output::new(args.json).data(&findings, || render(&findings))?;
    Ok(findings.valid)
}

/// Purchases with an unknown outcome may be committed too: more orders than acknowledgements are
/// valid, fewer are not.
fn is_valid(violations: &[String], accepted: u64, committed: u64) -> bool {
    violations.is_empty() && committed >= accepted
}

async fn source(
    args: &BenchArgs,
    target: SocketAddr,
    sale_id: &str,
) -> anyhow::Result<RequestSource> {
    let buyers = args.buyers.unwrap_or(u64::MAX).max(1);
    let buyer = move |seq: u64| 1 + seq % buyers;
    let buy = BuyRequest::new(target, sale_id, SKU, 1);
    // The other policies require request ids issued by the server.
    if args.policy.get("kind").is_some_and(|kind| kind == "one_per_buyer") {
        return Ok(Arc::new(move |seq, buffer| buy.write(buyer(seq), None, buffer)));
    }
    let Some(wanted) = args.requests else {
        bail!("this policy needs issued request ids: give their number with --requests");
    };
    let ids = issue(target, sale_id, wanted, buyer).await?;
    Ok(Arc::new(move |seq, buffer| {
        let id = usize::try_from(seq).ok().and_then(|index| ids.get(index));
        buy.write(buyer(seq), id.map(String::as_str), buffer);
    }))
}

/// Fetches `wanted` request ids before the run, number `i` for the buyer `buyer(i)`, as a
/// storefront does before it shows the button.
async fn issue(
    target: SocketAddr,
    sale_id: &str,
    wanted: u64,
    buyer: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> anyhow::Result<Vec<String>> {
    let body = json!({ "sku_id": SKU }).to_string();
    let path = format!("/v1/sales/{sale_id}/request-ids");
    let source = move |seq, buffer: &mut Vec<u8>| {
        let (buyer, length) = (buyer(seq), body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n\
             x-buyer-id: {buyer}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        buffer.extend_from_slice(request.as_bytes());
    };
    let ids = Arc::new(Mutex::new(vec![String::new(); usize::try_from(wanted)?]));
    let observed = ids.clone();
    let observer = move |seq, outcome: &Outcome<'_>| {
        let Outcome::Answered(answer) = outcome else { return };
        let id = json_string_member(answer.body, b"request_id").unwrap_or_default();
        let index = usize::try_from(seq).unwrap_or(usize::MAX);
        if let Some(slot) = observed.lock().get_mut(index) {
            id.clone_into(slot);
        }
    };
    let load = Load {
        until: Until::Requests(wanted),
        observer: Some(Arc::new(observer)),
        ..Load::new(target, Arc::new(source))
    };
    let report = run_load(load).await?;
    let ids = std::mem::take(&mut *ids.lock());
    let missing = ids.iter().filter(|id| id.is_empty()).count();
    if missing > 0 {
        bail!("{missing} of {wanted} request ids were not issued: {:?}", report.by_code);
    }
    Ok(ids)
}

fn render(findings: &Findings) -> String {
    let Findings { sale_id, accepted, landed, report, .. } = findings;
    let latency = &report.latency;
    let mut lines = vec![
        format!("sale        {sale_id}"),
        format!("accepted    {}/s", grouped(findings.accepted_per_second)),
        format!("rejected    {}/s", grouped(findings.rejected_per_second)),
        format!("landed      {}/s", grouped(findings.landed_per_second)),
        format!(
            "latency     p50 {} µs, p90 {} µs, p99 {} µs, p99.9 {} µs, max {} µs",
            latency.p50_us(),
            latency.p90_us(),
            latency.p99_us(),
            latency.p999_us(),
            latency.max_us()
        ),
        format!(
            "requests    {} attempted, {} answered, {accepted} accepted, {landed} landed, \
             {} replayed, {} unknown, {} unsent",
            report.attempted,
            report.answered,
            report.replayed,
            report.transport_errors,
            report.unsent
        ),
        format!("answers     {}", json!(report.by_status)),
    ];
    if !report.by_code.is_empty() {
        lines.push(format!("refusals    {}", json!(report.by_code)));
    }
    if let (Some(us), Some(bytes)) = (findings.server_us_per_answer, findings.server_resident_bytes)
    {
        let mib = bytes / (1 << 20);
        lines.push(format!("server      {us:.1} core-µs per answer, {mib} MiB resident"));
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
        assert!(is_valid(&[], 10, 10));
        assert!(is_valid(&[], 10, 11));
        assert!(!is_valid(&[], 10, 9));
        assert!(!is_valid(&["NoOversell".to_owned()], 10, 10));
    }
}
