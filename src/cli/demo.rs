//! `floodgate demo`: a complete flash sale in a minute, over real HTTP, on a temporary ledger.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::admin::AdminClient;
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, field, grouped, list, number};
use super::serve::raise_open_files;
use crate::app::{self, AppThread};
use crate::config::{PaymentBackend, Settings};
use crate::observe::telemetry;
use loadgen::{CrowdRun, run_crowd};

const EXAMPLES: &str = "\
Examples:
  floodgate demo                               20,000 buyers rush 1,000 units, then it stays up
  floodgate demo --exit                        it ends: exit 1 if nothing is sold or the audit fails
  floodgate demo --buyers 200000 --stock 50 --exit
";

const SALE: &str = "demo";
const SKU: &str = "phone";

/// The keys that the demo uses.
const KEYS: [&str; 3] = ["http.bind", "internal.bind", "log.format"];

/// The sale that is left for the visitor.
const SHOP: &str = "your-turn";

/// Sell a limited stock to a crowd, over real HTTP, on a fresh temporary ledger
///
/// Of the configuration it uses the addresses of both listeners, on loopback, and the format of the
/// log. If a default address is taken, it uses a free port.
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
}

/// The result of one demo sale.
#[derive(Debug, Default, Serialize)]
struct DemoVerdict {
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

impl DemoVerdict {
    fn is_clean(&self) -> bool {
        self.audit_holds && self.sold > 0 && self.oversold + self.doubled + self.lost == 0
    }
}

/// Runs the demo; exits with 1 unless units are sold and the audit finds that all invariants hold.
pub fn run(args: &DemoArgs, common: &Common) -> anyhow::Result<Exit> {
    let output = common.output();
    let given = common.loaded_for(&KEYS)?;
    let ignored = given.effective.given_keys().filter(|key| !KEYS.contains(key));
    let ignored: Vec<&str> = ignored.collect();
    if !ignored.is_empty() {
        output.note(&format!("the demo ignores {}", ignored.join(", ")));
    }
    let folder = tempfile::Builder::new()
        .prefix("floodgate-demo-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir();
    let folder = folder.map_err(|error| {
        let problem = format!("cannot create a temporary folder for the ledger: {error}");
        CommandFailure::new(Exit::Ledger, problem, "set TMPDIR to a writable folder")
    })?;
    let ledger = format!("sqlite://{}", folder.path().join("floodgate.db").display());
    // The defaults, because the configuration may be a shop's: the demo must not use its servers,
    // and its access rules and limits would refuse the crowd.
    let mut settings = Settings::with_ledger(&ledger);
    settings.payment.provider = PaymentBackend::Demo;
    let bind = |key, bind| on_loopback(bind, given.effective.has_source(key));
    settings.http.bind = bind("http.bind", given.settings.http.bind);
    settings.internal.bind = bind("internal.bind", given.settings.internal.bind);
    settings.log.format = given.settings.log.format;
    // Log lines would bury the demo's own output.
    "error".clone_into(&mut settings.log.filter);
    // The crowd uses a few hundred connections; this limit fits every machine's open-file limit.
    settings.http.connections_max = 2_000;
    let _log = telemetry::init(&settings.log)?;
    settings.http.connections_max = raise_open_files(settings.http.connections_max);
    let server = AppThread::start(settings.clone())?;
    settings.internal.bind = server.listening().internal;
    let public = server.listening().public.context("the demo has no public listener")?;

    let exit = super::runtime()?.block_on(async {
        let mut stop = pin!(app::terminated()?);
        let verdict = tokio::select! {
            verdict = rush(args, &output, &settings, public) => verdict?,
            () = &mut stop => return Ok(Exit::Unclear),
        };
        output.data(&verdict, || show(&verdict))?;
        let exit = if verdict.is_clean() { Exit::Done } else { Exit::Negative };
        if !args.exit {
            tokio::select! {
                opened = open_shop(&settings) => opened?,
                () = &mut stop => return Ok(exit),
            }
            output.note(&calls_to_try(public, settings.internal.bind));
            stop.await;
        }
        anyhow::Ok(exit)
    })?;
    server.stop()?;
    Ok(exit)
}

/// Sends the crowd, and compares its answers with the ledger.
async fn rush(
    args: &DemoArgs,
    output: &Output,
    settings: &Settings,
    public: SocketAddr,
) -> anyhow::Result<DemoVerdict> {
    let admin = AdminClient::new(None, settings)?;
    let sku = sku(SKU, "A phone", (99_900, args.stock), 4, json!({"kind": "one_per_buyer"}));
    admin.open_sale(SALE, "Demo sale", &[sku]).await?;
    output.note(&format!(
        "floodgate demo: {} buyers, {} units, http://{public}",
        grouped(args.buyers),
        grouped(u64::from(args.stock))
    ));
    let run = run_crowd(public, SALE, SKU, args.buyers, Some("buying")).await;
    let run = run.context("the crowd could not be sent")?;
    let funnel = admin.get(&["sales", SALE, "funnel"], None).await?;
    let body = json!({"sale_id": SALE, "repair": false});
    let audit = admin.post(&["audit"], &body, None).await?;
    Ok(compare(args, &run, funnel, audit))
}

/// Opens a sale for the person who has started the demo: one SKU for each of the policies.
async fn open_shop(settings: &Settings) -> anyhow::Result<()> {
    let unlimited = json!({"kind": "unlimited", "max_quantity": 3});
    let quota = json!({"kind": "quota", "limit": 3, "max_quantity": 2});
    let skus = [
        sku("phone", "The last phones", (99_900, 20), 2, json!({"kind": "one_per_buyer"})),
        sku("tea", "First flush tea", (6_800, 400), 2, unlimited),
        sku("cup", "Porcelain cup", (12_000, 60), 2, quota),
    ];
    let admin = AdminClient::new(None, settings)?;
    admin.open_sale(SHOP, "Your turn", &skus).await.map_err(Into::into)
}

/// The description of a SKU with its price and stock.
fn sku(id: &str, title: &str, (price, stock): (u32, u32), buckets: u16, policy: Json) -> Json {
    json!({
        "sku_id": id, "title": title, "price": price, "initial_stock": stock, "policy": policy,
        "buckets": buckets, "payment_window_s": 900, "bar_lapsed": false,
    })
}

/// Compares the answers to the crowd with the ledger's counts.
fn compare(args: &DemoArgs, run: &CrowdRun, funnel: Json, audit: Json) -> DemoVerdict {
    let mut stages = list(&funnel, "stages").iter();
    let committed = stages.find(|stage| field(stage, "stage") == "committed");
    let committed = committed.map_or(0, |stage| count(stage, "count"));
    let sold = run.accepted.len() as u64;
    let first_buyers: BTreeSet<&u64> = run.accepted.values().collect();
    let report = &run.report;
    let sold_out_answers = report.with_code("sold-out");
    DemoVerdict {
        buyers: args.buyers,
        stock: args.stock,
        clicks: report.attempted,
        sold,
        sold_out_answers,
        repeats_answered: report.replayed,
        other_answers: report.refused() - sold_out_answers,
        unknown: run.unknown,
        seconds: report.elapsed.as_secs_f64(),
        clicks_per_second: report.per_second(report.answered),
        p50_ms: report.p50_us() / 1000.0,
        p99_ms: report.p99_us() / 1000.0,
        oversold: committed.saturating_sub(u64::from(args.stock)),
        doubled: sold.saturating_sub(first_buyers.len() as u64),
        lost: sold.saturating_sub(committed),
        audit_holds: ["holds", "could_tell"].iter().all(|name| field(&audit, name) == "true"),
        funnel,
        audit,
    }
}

fn count(of: &Json, name: &str) -> u64 {
    number(of, name).unwrap_or(0)
}

/// A quantile; infinite if too many clicks had no answer.
fn latency(ms: f64) -> String {
    if ms.is_finite() { format!("{ms:.1} ms") } else { "unanswered".to_owned() }
}

fn show(verdict: &DemoVerdict) -> String {
    let mut text = format!(
        "\n{} clicks by {} buyers in {:.2} s: {} per second, p50 {}, p99 {}\n\n",
        grouped(verdict.clicks),
        grouped(verdict.buyers),
        verdict.seconds,
        grouped(verdict.clicks_per_second),
        latency(verdict.p50_ms),
        latency(verdict.p99_ms),
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
    for stage in list(&verdict.funnel, "stages") {
        let (count, name) = (grouped(count(stage, "count")), field(stage, "stage"));
        text.push_str(&format!("  {count:>9}  {name}\n"));
    }
    text.push_str(&format!(
        "\naudit: {} orders read, {} invariants judged, {}\n",
        grouped(count(&verdict.audit, "num_orders")),
        list(&verdict.audit, "judged").len(),
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
The sale \"Your turn\" is yours, until Ctrl-C:

  1. Buy      http://{public}/?sale={SHOP}
  2. Pay      in \"My orders\"; a page plays the payment provider
  3. Watch    http://{internal}/ops/?view=overview&sale={SHOP}
              the operators' page: how far the orders are; its search finds one by its request id

  The shop gives you a buyer number; click it to be another buyer.

Or without the pages:

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

/// `bind`; a free port on loopback if another server uses this default, or if other machines reach
/// it: the demo does not verify buyer ids.
fn on_loopback(bind: SocketAddr, is_given: bool) -> SocketAddr {
    let is_usable = bind.ip().is_loopback() && (is_given || TcpListener::bind(bind).is_ok());
    if is_usable { bind } else { (Ipv4Addr::LOCALHOST, 0).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_that_sold_nothing_has_failed() {
        let sold = |sold| DemoVerdict { sold, audit_holds: true, ..DemoVerdict::default() };
        assert!(sold(1).is_clean() && !sold(0).is_clean());
    }
}
