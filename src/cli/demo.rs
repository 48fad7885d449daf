//! `floodgate demo`: a whole flash sale in a minute, over real HTTP, on a ledger of its own.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::admin::{self, AdminClient, ServerArgs};
use super::common::Common;
use super::exit::Exit;
use super::open_files;
use super::output::grouped;
use crate::app::AppThread;
use crate::clock;
use crate::config::Settings;
use crate::load::terminal_progress;
use crate::load::{Crowd, CrowdAnswer, CrowdRun};
use crate::telemetry;

const EXAMPLES: &str = "\
Examples:
  floodgate demo                               20,000 buyers rush 1,000 units, then it stays up
  floodgate demo --exit                        the same, then it ends; exit 1 if the audit fails
  floodgate demo --buyers 200000 --stock 50 --exit
";

const SALE: &str = "demo";
const SKU: &str = "phone";

/// Sell a limited stock to a crowd, over real HTTP, on a fresh temporary ledger
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct DemoArgs {
    /// How many buyers come
    #[arg(long, default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    buyers: u64,
    /// How many units there are
    #[arg(long, default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    stock: u32,
    /// End after the verdict instead of staying up
    #[arg(long)]
    exit: bool,
    #[command(flatten)]
    common: Common,
}

/// What the demo found.
#[derive(Debug, Serialize)]
struct Verdict {
    buyers: u64,
    stock: u32,
    clicks: u64,
    sold: u64,
    sold_out_answers: u64,
    repeats_answered: u64,
    other_answers: u64,
    unknown: u64,
    seconds: f64,
    clicks_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    oversold: u64,
    doubled: u64,
    lost: u64,
    audit_holds: bool,
    funnel: Json,
    audit: Json,
}

impl Verdict {
    fn holds(&self) -> bool {
        self.audit_holds && self.oversold + self.doubled + self.lost == 0
    }
}

/// Runs the demo.
///
/// # Errors
/// The server could not start, or the crowd could not be sent.
pub fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let output = args.common.output();
    let mut settings = args.common.settings()?;
    // The crowd is the spectacle; the server's log would only hide it.
    "error".clone_into(&mut settings.log.filter);
    // What a crowd over a few hundred connections needs, and any machine allows.
    settings.http.connections_max = settings.http.connections_max.min(2_000);
    telemetry::init(&settings.log)?;
    open_files::raise(settings.http.connections_max);
    let ledger = TemporaryLedger::new()?;
    settings.ledger.url = format!("sqlite://{}", ledger.file().display());
    free_port_if_taken(&mut settings.http.bind);
    free_port_if_taken(&mut settings.internal.bind);
    let server = AppThread::start(settings.clone())?;
    settings.internal.bind = server.listening().internal;
    let public = server.listening().public.context("the demo serves buyers: role must be `all`")?;

    let runtime = super::runtime()?;
    let verdict = runtime.block_on(rush(args, &settings, public))?;
    output.data(&verdict, || show(&verdict))?;
    if !args.exit {
        output.note(&calls_to_try(public, server.listening().internal));
        runtime.block_on(tokio::signal::ctrl_c()).context("cannot wait for Ctrl-C")?;
    }
    server.stop()?;
    Ok(if verdict.holds() { Exit::Done } else { Exit::Negative })
}

async fn rush(args: &DemoArgs, settings: &Settings, public: SocketAddr) -> anyhow::Result<Verdict> {
    let server = ServerArgs::default();
    let admin = AdminClient::new(&server, settings).map_err(admin::Error::into_failure)?;
    open_sale(&admin, args.stock).await?;
    let output = args.common.output();
    output.note(&format!(
        "floodgate demo: {} buyers, {} units, http://{public}",
        grouped(args.buyers),
        grouped(u64::from(args.stock))
    ));
    let mut crowd = Crowd::new(public, SALE, SKU, args.buyers);
    crowd.progress = terminal_progress("buying");
    let run = crowd.run().await.context("the crowd could not be sent")?;
    let call = |path: &'static [&'static str]| admin.get(path, None);
    let funnel = call(&["sales", SALE, "funnel"]).await.map_err(admin::Error::into_failure)?;
    let audit = admin
        .post(&["audit"], &json!({"sale_id": SALE, "repair": false}), None)
        .await
        .map_err(admin::Error::into_failure)?;
    Ok(judge(args, &run, funnel, audit))
}

async fn open_sale(admin: &AdminClient, stock: u32) -> anyhow::Result<()> {
    let now_ms = clock::wall_ms();
    let sale = json!({
        "sale_id": SALE,
        "title": "Demo sale",
        "starts_at": rfc3339(now_ms - 1_000)?,
        "ends_at": rfc3339(now_ms + 24 * 3_600_000)?,
        "ticket_required": false,
        "skus": [{
            "sku_id": SKU, "title": "A phone", "price": 99_900, "initial_stock": stock,
            "policy": {"kind": "one_per_buyer"}, "buckets": 4,
            "payment_window_s": 900, "bar_lapsed": false,
        }],
    });
    admin.post(&["sales"], &sale, None).await.map_err(admin::Error::into_failure)?;
    let open = admin.post(&["sales", SALE, "open"], &json!({}), None).await;
    open.map_err(admin::Error::into_failure)?;
    Ok(())
}

fn rfc3339(ms: i64) -> anyhow::Result<String> {
    let instant = chrono::DateTime::from_timestamp_millis(ms).context("the clock is off")?;
    Ok(instant.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

/// Compares what the crowd heard with what the ledger holds.
fn judge(args: &DemoArgs, run: &CrowdRun, funnel: Json, audit: Json) -> Verdict {
    let stages = member(&funnel, "stages").as_array().into_iter().flatten();
    let landed = stages
        .filter(|stage| member(stage, "stage") == "landed")
        .find_map(|stage| member(stage, "count").as_u64())
        .unwrap_or(0);
    let sold = run.accepted_ids().len() as u64;
    let first_buyers: BTreeSet<u64> = run
        .answers
        .iter()
        .filter(|answer| answer.accepted().is_some())
        .map(|answer| answer.buyer_id)
        .collect();
    let unknown =
        run.answers.iter().filter(|answer| CrowdAnswer::is_unknown(answer)).count() as u64;
    let report = &run.report;
    let sold_out_answers = report.with_code("sold-out");
    Verdict {
        buyers: args.buyers,
        stock: args.stock,
        clicks: report.attempted,
        sold,
        sold_out_answers,
        repeats_answered: report.replayed,
        other_answers: report.answered - report.succeeded() - sold_out_answers,
        unknown,
        seconds: report.elapsed.as_secs_f64(),
        clicks_per_second: report.per_second(report.answered),
        p50_ms: report.latency.p50_us() as f64 / 1000.0,
        p99_ms: report.latency.p99_us() as f64 / 1000.0,
        oversold: landed.saturating_sub(u64::from(args.stock)),
        doubled: sold.saturating_sub(first_buyers.len() as u64),
        lost: sold.saturating_sub(landed),
        audit_holds: member(&audit, "holds") == true && member(&audit, "could_tell") == true,
        funnel,
        audit,
    }
}

/// A member of an object, or null.
fn member<'a>(object: &'a Json, name: &str) -> &'a Json {
    object.get(name).unwrap_or(&Json::Null)
}

fn show(verdict: &Verdict) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a shown rate")]
    let clicks_per_second = verdict.clicks_per_second as u64;
    let mut text = format!(
        "\n{} clicks by {} buyers in {:.2} s: {} per second, p50 {:.1} ms, p99 {:.1} ms\n\n",
        grouped(verdict.clicks),
        grouped(verdict.buyers),
        verdict.seconds,
        grouped(clicks_per_second),
        verdict.p50_ms,
        verdict.p99_ms,
    );
    let lines = [
        ("units sold", verdict.sold),
        ("told that it is sold out", verdict.sold_out_answers),
        ("repeats answered like the first", verdict.repeats_answered),
        ("other answers", verdict.other_answers),
        ("without an answer", verdict.unknown),
    ];
    for (what, count) in lines {
        text.push_str(&format!("  {:>9}  {what}\n", grouped(count)));
    }
    text.push_str("\nfunnel (from the server)\n\n");
    for stage in member(&verdict.funnel, "stages").as_array().into_iter().flatten() {
        let count = member(stage, "count").as_u64().unwrap_or(0);
        let name = member(stage, "stage").as_str().unwrap_or("?");
        text.push_str(&format!("  {:>9}  {name}\n", grouped(count)));
    }
    text.push_str(&format!(
        "\naudit: {} orders read, {} invariants judged, {}\n",
        grouped(member(&verdict.audit, "num_orders").as_u64().unwrap_or(0)),
        member(&verdict.audit, "judged").as_array().map_or(0, Vec::len),
        if verdict.audit_holds { "all hold" } else { "NOT all hold, see --json" },
    ));
    text.push_str(&format!(
        "verdict: {} oversold, {} doubled, {} lost\n",
        verdict.oversold, verdict.doubled, verdict.lost
    ));
    text
}

fn calls_to_try(public: SocketAddr, internal: SocketAddr) -> String {
    let buy = format!(r#"'{{"sku_id":"{SKU}","quantity":1}}'"#);
    let again = r#"'{"skus":[{"sku_id":"tea","title":"Tea","price":500,"initial_stock":5,
       "policy":{"kind":"unlimited","max_quantity":2},"buckets":1,"payment_window_s":900,
       "bar_lapsed":false}],"sale_id":"tea","title":"Tea","starts_at":"2026-01-01T00:00:00Z",
       "ends_at":"2036-01-01T00:00:00Z","ticket_required":false}'"#;
    format!(
        "
The server is up until Ctrl-C. Try:

  curl -s http://{public}/v1/sales/{SALE}
  curl -s http://{public}/v1/buy/{SALE} -H 'X-Buyer-Id: 1' \\
       -H 'Content-Type: application/json' -d {buy}
  curl -s http://{public}/v1/orders -H 'X-Buyer-Id: 1'
  curl -s http://{internal}/admin/v1/sales/{SALE}/funnel
  curl -s http://{internal}/admin/v1/actors
  curl -s http://{internal}/metrics | grep floodgate_buy

and a sale of your own:

  curl -s http://{internal}/admin/v1/sales -H 'Content-Type: application/json' -d {again}
  curl -s -X POST http://{internal}/admin/v1/sales/tea/open
  curl -s http://{public}/v1/sales/tea/request-ids -H 'X-Buyer-Id: 7' \\
       -H 'Content-Type: application/json' -d '{{\"sku_id\":\"tea\"}}'

The interface with every call: http://{public}/docs/
"
    )
}

/// Another server on the usual port must not stop a newcomer.
fn free_port_if_taken(bind: &mut SocketAddr) {
    if TcpListener::bind(*bind).is_err() {
        bind.set_port(0);
    }
}

/// A folder for one ledger, removed at the end.
struct TemporaryLedger {
    folder: PathBuf,
}

impl TemporaryLedger {
    fn new() -> anyhow::Result<Self> {
        let name = format!("floodgate-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}; is it writable?", folder.display()))?;
        Ok(Self { folder })
    }

    fn file(&self) -> PathBuf {
        Path::new(&self.folder).join("floodgate.db")
    }
}

impl Drop for TemporaryLedger {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's temporary folder and is removed by it.
        let _left_behind = std::fs::remove_dir_all(&self.folder);
    }
}
