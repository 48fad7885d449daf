//! The goals over HTTP: throughput, latency, and costs for server and Redis.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use loadgen::{Load, Until, run};

use crate::harness::{ENDLESS, Harness, Measured, Product};
use crate::meter::mib;
use crate::servers::{Servers, connect, redis, redis_url};
use crate::stats::{Spread, medians, shown};

/// Load as a share of the maximum, for latency without contention.
const LIGHT_LOAD: f64 = 0.05;
/// Load as a share of the maximum, for latency with queues but without overload.
const HEAVY_LOAD: f64 = 0.70;
/// Offered load as a multiple of the maximum.
const OVERLOAD: f64 = 3.0;
/// Sold-out answers per round of S2.
const ANSWERS: u64 = 100_000;

/// Product and baseline, measured one after the other.
type Pair = [Measured; 2];

/// A row, and the value of a round that it compares.
type Compared = (&'static str, fn(&Measured) -> f64);

/// One side of a pair.
#[derive(Default)]
struct Side<'a> {
    /// `None`: the baseline, a minimal handler.
    product: Option<&'a Product>,
    /// A sale whose only unit is sold, or the size of the baseline's answers; `None`: a new sale
    /// for each round.
    path_id: Option<String>,
    /// Requests per second; `None`: a closed loop.
    rate: Option<f64>,
}

impl<'a> Side<'a> {
    fn selling(product: &'a Product, rate: Option<f64>) -> Self {
        Self { product: Some(product), path_id: None, rate }
    }

    fn baseline(bytes: usize, rate: Option<f64>) -> Self {
        Self { product: None, path_id: Some(bytes.to_string()), rate }
    }

    /// The load of one round, and its sale.
    async fn load(&self, harness: &Harness) -> Result<(Load, String)> {
        let path_id = match (&self.path_id, self.product) {
            (None, Some(product)) => harness.sale(product, ENDLESS).await?,
            (path_id, _) => path_id.clone().unwrap_or_default(),
        };
        let server = self.product.map_or(&harness.baseline, |product| &product.server);
        let load = harness.load(server, &path_id);
        let load = self.rate.map_or(load.clone(), |rate| Harness::open(load, rate));
        Ok((load, path_id))
    }

    /// Checks ledger and audit after a round, and closes the sale of the round.
    async fn check(&self, harness: &mut Harness, sale: &str, accepted: u64) -> Result<()> {
        let Some(product) = self.product else { return Ok(()) };
        let accepted = if self.path_id.is_some() { 1 } else { accepted };
        harness.check(&product.admin, sale, accepted).await?;
        self.close(sale).await
    }

    async fn close(&self, sale: &str) -> Result<()> {
        match (self.product, &self.path_id) {
            (Some(product), None) => product.admin.close_sale(sale).await,
            _ => Ok(()),
        }
    }
}

/// Runs `load` for one second, unmeasured.
pub async fn warm_up(load: Load) -> Result<()> {
    run(Load { until: Until::Elapsed(Duration::from_secs(1)), ..load }).await?;
    Ok(())
}

/// Warms up product and baseline, measures them alternately, and adds the pairs to the rows.
async fn pairs(
    harness: &mut Harness,
    sides: [Side<'_>; 2],
    rows: &[Compared],
) -> Result<Vec<Pair>> {
    for side in &sides {
        let (load, sale) = side.load(harness).await?;
        warm_up(load).await?;
        side.close(&sale).await?;
    }
    let [product, baseline] = &sides;
    let mut pairs = Vec::new();
    for number in 1..=harness.args.rounds {
        let (load, sale) = product.load(harness).await?;
        let (baseline_load, baseline_sale) = baseline.load(harness).await?;
        let measured = harness.measure(product.product, load).await?;
        let reference = harness.measure(baseline.product, baseline_load).await?;
        product.check(harness, &sale, measured.accepted()).await?;
        baseline.check(harness, &baseline_sale, reference.accepted()).await?;
        for (name, side) in [("product", &measured), ("yardstick", &reference)] {
            harness.note(&format!("round {number} {name:>9}: {}", side.summary()));
        }
        pairs.push([measured, reference]);
    }
    for (id, value) in rows {
        for [product, baseline] in &pairs {
            harness.pair(id, product.sample(value(product)), baseline.sample(value(baseline)));
        }
    }
    Ok(pairs)
}

/// Sells the only unit of a new sale. Returns the sale and the size of a sold-out answer.
pub async fn sold_out_sale(harness: &Harness, product: &Product) -> Result<(String, usize)> {
    let sale = harness.sale(product, 1).await?;
    let bought = harness.try_one(&product.server, &sale).await;
    match (bought, harness.try_one(&product.server, &sale).await) {
        (Some((200..300, _)), Some((409, bytes))) => Ok((sale, bytes)),
        (sold, refusal) => {
            bail!("expected one sale and then a sold-out answer, got {sold:?} and {refusal:?}")
        }
    }
}

/// A baseline whose answers are as large as those of the product's purchases.
async fn baseline<'a>(harness: &Harness, product: &Product, rate: Option<f64>) -> Result<Side<'a>> {
    let sale = harness.sale(product, ENDLESS).await?;
    let answer = harness.try_one(&product.server, &sale).await;
    let (_, bytes) = answer.context("the server does not answer a purchase")?;
    product.admin.close_sale(&sale).await?;
    Ok(Side::baseline(bytes, rate))
}

/// S1: sold-out answers per second.
pub async fn sold_out(harness: &mut Harness) -> Result<()> {
    let product = harness.product(&[]).await?;
    let (sale, bytes) = sold_out_sale(harness, &product).await?;
    let product = Side { path_id: Some(sale), ..Side::selling(&product, None) };
    let rows: [Compared; 2] = [("S1", Measured::rate), ("S1 cpu", Measured::server_us)];
    pairs(harness, [product, Side::baseline(bytes, None)], &rows).await?;
    Ok(())
}

/// S2: Redis commands during sold-out answers, including those of scripts and background work.
pub async fn commands(harness: &mut Harness) -> Result<()> {
    let redis = redis(harness, &[])?;
    let settings = ["tier=gate".to_owned(), format!("redis.url={}", redis_url(&redis))];
    let product = harness.product(&settings).await?;
    let (sale, _) = sold_out_sale(harness, &product).await?;
    warm_up(harness.load(&product.server, &sale)).await?;
    let mut connection = connect(&redis)?;
    for _ in 0..harness.args.rounds {
        let load = harness.load(&product.server, &sale);
        let load = Load { until: Until::Requests(ANSWERS), ..load };
        let before = num_commands(&mut connection)?;
        let measured = harness.measure(Some(&product), load).await?;
        // The second reading includes the INFO of the first.
        let commands = num_commands(&mut connection)?.saturating_sub(before + 1);
        harness.check(&product.admin, &sale, 1).await?;
        let answered = measured.report.answered.max(1);
        let scaled = commands as f64 * ANSWERS as f64 / answered as f64;
        harness
            .note(&format!("{commands} commands for {answered} answers, {:.0}/s", measured.rate()));
        harness.number("S2", measured.sample(scaled));
    }
    Ok(())
}

/// Calls of all commands since the server started.
fn num_commands(connection: &mut redis::Connection) -> Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    Ok(sum_of_calls(&stats))
}

fn sum_of_calls(stats: &str) -> u64 {
    let calls = |line: &str| {
        let (_, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        fields.split(',').next()?.parse::<u64>().ok()
    };
    stats.lines().filter_map(calls).sum()
}

/// S5: purchases per second that become orders in MariaDB, with gates in Redis. The answer follows
/// both; Redis keeps an append-only file (everysec), each commit waits for the disk.
pub async fn purchases(harness: &mut Harness) -> Result<()> {
    let servers = Servers::gate(harness)?;
    let product = &servers.product(harness, "purchases", &[]).await?;
    let sides = [Side::selling(product, None), baseline(harness, product, None).await?];
    let pairs = pairs(harness, sides, &[("S5", Measured::goodput)]).await?;
    let sides = pairs.iter().map(|[product, _]| product.metered.each(product.report.answered));
    let costs = medians(sides.map(|costs| costs.into_iter().skip(1).collect()));
    let remark = format!("core-µs per purchase behind the server: {}", shown(&costs));
    harness.remark("S5", remark);
    Ok(())
}

/// S11: durable purchases per second.
pub async fn durable(harness: &mut Harness) -> Result<()> {
    let product = harness.product(&[]).await?;
    let sides = [Side::selling(&product, None), baseline(harness, &product, None).await?];
    pairs(harness, sides, &[("S11", Measured::goodput)]).await?;
    Ok(())
}

/// The rate of S11, which is measured if it was not selected.
async fn maximum(harness: &mut Harness) -> Result<f64> {
    if !harness.results.contains_key("S11") {
        durable(harness).await?;
    }
    let rounds = harness.results.get("S11").into_iter().flat_map(|results| &results.rounds);
    let maximum = Spread::of(rounds.map(|round| round.product.value));
    maximum.map(|all| all.median).filter(|rate| *rate > 0.0).context("no purchase was accepted")
}

/// S12: whether batching delays a purchase at low load.
pub async fn light_load(harness: &mut Harness) -> Result<()> {
    let rate = Some(maximum(harness).await? * LIGHT_LOAD);
    let batching = harness.product(&[]).await?;
    let one_by_one = ["gate.batch_max=1", "consumer.batch_max=1"].map(str::to_owned);
    let one_by_one = harness.product(&one_by_one).await?;
    let sides = [&batching, &one_by_one].map(|product| Side::selling(product, rate));
    pairs(harness, sides, &[("S12", |side| side.report.p50_us())]).await?;
    Ok(())
}

/// S13: latency when the server is busy but not overloaded.
pub async fn heavy_load(harness: &mut Harness) -> Result<()> {
    let rate = Some(maximum(harness).await? * HEAVY_LOAD);
    let product = harness.product(&[]).await?;
    let sides = [Side::selling(&product, rate), baseline(harness, &product, rate).await?];
    pairs(harness, sides, &[("S13", |side| side.report.p99_us())]).await?;
    Ok(())
}

/// S14: throughput at three times the maximum load, alternating with rounds at the closed loop's
/// peak on the same server.
pub async fn overload(harness: &mut Harness) -> Result<()> {
    let rate = Some(maximum(harness).await? * OVERLOAD);
    let product = harness.product(&[]).await?;
    let sides = [rate, None].map(|rate| Side::selling(&product, rate));
    let pairs = pairs(harness, sides, &[("S14", Measured::goodput)]).await?;
    let growths = medians(pairs.iter().map(|[overloaded, peak]| {
        vec![("in overload", overloaded.growth()), ("at the peak", peak.growth())]
    }));
    let resident = pairs.last().map_or(0, |[_, peak]| peak.metered.resident.1);
    let remark = format!(
        "resident {:.0} MiB at the end; bytes that it grows by per order: {}",
        mib(resident),
        shown(&growths)
    );
    harness.remark("S14", remark);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_commands_are_counted() {
        let stats = "# Commandstats\r\ncmdstat_config|get:calls=2,usec=15\r\n\
                     cmdstat_evalsha:calls=1000,usec=990,usec_per_call=0.99\r\n";
        assert_eq!(sum_of_calls(stats), 1_002);
    }
}
