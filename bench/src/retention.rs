//! The purge of a large sale while another one sells.

use std::time::Duration;

use anyhow::{Context, ensure};
use floodgate::runtime::clock::now_monotonic;
use loadgen::{Load, Until, run};
use serde_json::Value as Json;

use crate::harness::{ENDLESS, Harness, newly_accepted, number};
use crate::process::scratch;
use crate::servers::GateTier;
use crate::stats::{Round, Sample, grouped, row};
use crate::table::Row;

/// Orders of a purged sale per second of a round: 1,000,000 in all by default.
const PER_SECOND: u64 = 250_000;
const ORDERS_MAX: u64 = 1_000_000;
/// Sales meanwhile, as a share of the rate before.
const OFFERED: f64 = 0.5;
/// Limit of the time until the last order is in the ledger, and its event is read.
const SETTLED_TIMEOUT: Duration = Duration::from_mins(10);
/// Longer than any purge.
const SALES_LIMIT: Duration = Duration::from_hours(1);

/// The longest transaction of a purge, by the server's own clock; the client is this executable.
pub(crate) async fn purge(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let orders = (PER_SECOND * harness.args.seconds).min(ORDERS_MAX);
    let tier = GateTier::start(harness).await?;
    let mut rounds = Vec::new();
    let mut remark = None;
    for round in 1..=harness.args.rounds {
        let purged = purged(harness, &tier, orders).await?;
        let text = purged.summary();
        harness.note(&format!("round {round}: {text}"));
        rounds.push(Round::number(Sample::of(purged.longest_ms)));
        remark = Some(text);
    }
    Ok(vec![row("purge", &rounds, remark)?])
}

/// The result of one round.
struct Purged {
    orders: u64,
    longest_ms: f64,
    elapsed_s: f64,
    /// Sales per second before and meanwhile.
    before: f64,
    offered: f64,
    during: f64,
}

impl Purged {
    fn summary(&self) -> String {
        format!(
            "{} orders archived, and purged in {:.0} s; {}/s of {}/s sold meanwhile, {}/s at most \
             before",
            grouped(self.orders as f64),
            self.elapsed_s,
            grouped(self.during),
            grouped(self.offered),
            grouped(self.before)
        )
    }
}

async fn purged(harness: &mut Harness<'_>, tier: &GateTier, orders: u64) -> anyhow::Result<Purged> {
    let GateTier { product, .. } = tier;
    let old = harness.unpaid_sale(product).await?;
    let until = Until::Requests(orders);
    let filled = run(Load { until, ..harness.load(&product.server, &old) }).await?;
    let accepted = newly_accepted(&filled);
    harness.check(&product.admin, &old, accepted).await?;
    product.admin.close_sale(&old).await?;
    let is_settled = product.admin.await_archivable(&old, SETTLED_TIMEOUT).await?;
    ensure!(is_settled, "{old}: cannot be archived after {SETTLED_TIMEOUT:?}");
    let folder = scratch(&harness.args.parent())?;
    let archive = folder.path().to_str().context("a path that is not text")?.to_owned();
    product.server.command(&["sale", "archive", &old, "--to", &archive]).await?;

    let sale = harness.sale(product, ENDLESS).await?;
    let load = harness.load(&product.server, &sale);
    let before = harness.measure(Some(product), load.clone()).await?.goodput();
    ensure!(before > 0.0, "no purchase was accepted");
    let offered = before * OFFERED;
    let load = Harness::open(load, offered);
    let selling = run(Load { until: Until::Elapsed(SALES_LIMIT), ..load });
    let purging = async {
        let placed = product.admin.metrics().await?;
        let begun = now_monotonic();
        let purged =
            product.server.command(&["sale", "purge", &old, "--archive", &archive]).await?;
        let elapsed_s = now_monotonic().duration_since(begun).as_secs_f64().max(1e-9);
        let sold = [placed, product.admin.metrics().await?]
            .map(|metrics| number(&metrics, "floodgate_orders_placed_total"));
        anyhow::Ok((purged, elapsed_s, (sold[1] - sold[0]) / elapsed_s))
    };
    let (purged, elapsed_s, during) = tokio::select! {
        sold = selling => return Err(sold.err().map_or_else(
            || anyhow::anyhow!("the sales ended first"), anyhow::Error::from)),
        purged = purging => purged?,
    };
    let count = |name| purged.get(name).and_then(Json::as_u64).context("an answer without counts");
    let (rows, longest_ms) = (count("num_rows")?, count("longest_ms")?);
    harness.void_unless(rows >= accepted, || format!("{old}: {rows} rows of {accepted} orders"));
    product.admin.close_sale(&sale).await?;
    for sale in [&old, &sale] {
        harness.void_on_violations(sale, &product.admin.audit(Some(sale)).await?);
    }
    Ok(Purged {
        orders: accepted,
        longest_ms: longest_ms as f64,
        elapsed_s,
        before,
        offered,
        during,
    })
}
