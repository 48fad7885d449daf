//! The goals over HTTP: what a crowd costs server and Redis, and how fast it is served.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use loadgen::{Load, Until, run};

use crate::lab::{ENDLESS, LANDING_PATIENCE, Lab, Measured, Product};
use crate::private::{MariaServer, RedisServer};
use crate::stats::{self, Round, Spread, grouped, medians, shown};
use crate::table::Row;

/// Share of the maximum at which latency without contention is measured.
const LIGHT_LOAD: f64 = 0.05;
/// Share of the maximum at which queues are expected, but no overload.
const HEAVY_LOAD: f64 = 0.70;
/// Offered load as a multiple of the maximum.
const OVERLOAD: f64 = 3.0;
/// Sold-out answers that are counted together in S2.
const ANSWERS: u64 = 100_000;

/// Product and yardstick, measured one after the other.
type Pair = [Measured; 2];

/// What one side of a pair is asked.
enum Side<'a> {
    /// A bare handler, which answers so many bytes.
    Yardstick(usize),
    /// A server, which sells: a new sale each round.
    Selling(&'a Product),
    /// A server, at a sale whose one unit is sold.
    SoldOut(&'a Product, &'a str),
}

/// Whom to ask, and how many requests a second; `None`: a closed loop.
struct Asked<'a>(Side<'a>, Option<f64>);

impl<'a> Asked<'a> {
    fn product(&self) -> Option<&'a Product> {
        match self.0 {
            Side::Yardstick(_) => None,
            Side::Selling(product) | Side::SoldOut(product, _) => Some(product),
        }
    }

    /// The load of one round, and the sale that was opened for it.
    async fn load(&self, lab: &Lab<'_>) -> anyhow::Result<(Load, Option<String>)> {
        let (load, sale) = match self.0 {
            Side::Yardstick(bytes) => (lab.load(&lab.yardstick, &bytes.to_string()), None),
            Side::SoldOut(product, sale) => (lab.load(&product.server, sale), None),
            Side::Selling(product) => {
                let sale = lab.sale(product, ENDLESS).await?;
                (lab.load(&product.server, &sale), Some(sale))
            }
        };
        let load = match self.1 {
            Some(rate) => Lab::open(load, rate),
            None => load,
        };
        Ok((load, sale))
    }

    /// What it sold in a round must be in the ledger, and nothing else.
    async fn check(
        &self,
        lab: &mut Lab<'_>,
        sale: Option<String>,
        measured: &Measured,
    ) -> anyhow::Result<()> {
        match (&self.0, sale) {
            (Side::SoldOut(product, sale), _) => {
                lab.check(&product.admin, sale, 1, LANDING_PATIENCE).await
            }
            (Side::Selling(product), Some(sale)) => {
                lab.check(&product.admin, &sale, measured.accepted(), LANDING_PATIENCE).await?;
                product.admin.close_sale(&sale).await
            }
            _ => Ok(()),
        }
    }
}

/// Runs `load` for a second without counting it.
async fn warm_up(load: Load) -> anyhow::Result<()> {
    run(Load { until: Until::Elapsed(Duration::from_secs(1)), ..load }).await?;
    Ok(())
}

/// Warms both sides up, and lets them take turns.
async fn pairs(lab: &mut Lab<'_>, sides: [Asked<'_>; 2]) -> anyhow::Result<Vec<Pair>> {
    let [product, yardstick] = &sides;
    for side in &sides {
        let (load, sale) = side.load(lab).await?;
        warm_up(load).await?;
        if let (Some(product), Some(sale)) = (side.product(), sale) {
            product.admin.close_sale(&sale).await?;
        }
    }
    let mut pairs = Vec::new();
    for number in 1..=lab.args.rounds {
        let (load, sale) = product.load(lab).await?;
        let (bare_load, bare_sale) = yardstick.load(lab).await?;
        let measured = lab.measure(product.product(), load).await?;
        let bare = lab.measure(yardstick.product(), bare_load).await?;
        product.check(lab, sale, &measured).await?;
        yardstick.check(lab, bare_sale, &bare).await?;
        tell(lab, number, "product", &measured);
        tell(lab, number, "yardstick", &bare);
        pairs.push([measured, bare]);
    }
    Ok(pairs)
}

fn tell(lab: &Lab<'_>, round: u32, name: &str, side: &Measured) {
    let report = &side.report;
    lab.say(&format!(
        "round {round} {name:>9}: {:>9}/s, p50 {} µs, p99 {} µs, {:.1} core-µs, {} unsent, \
         {} unknown",
        grouped(side.rate()),
        report.latency.p50_us(),
        report.latency.p99_us(),
        side.server_us(),
        report.unsent,
        report.transport_errors
    ));
}

/// Compares what `value` finds in each side.
fn rounds(pairs: &[Pair], value: impl Fn(&Measured) -> f64) -> Vec<Round> {
    let side = |measured: &Measured| measured.sample(value(measured));
    pairs.iter().map(|[product, bare]| Round::pair(side(product), side(bare))).collect()
}

fn row(id: &'static str, pairs: &[Pair], value: impl Fn(&Measured) -> f64) -> anyhow::Result<Row> {
    stats::row(id, &rounds(pairs, value), None)
}

/// Sells the one unit of a new sale; the sale, and the size of a sold-out answer.
async fn sold_out_sale(lab: &Lab<'_>, product: &Product) -> anyhow::Result<(String, usize)> {
    let sale = lab.sale(product, 1).await?;
    let bought = lab.try_one(&product.server, &sale).await?;
    match (bought, lab.try_one(&product.server, &sale).await?) {
        (Some((200..300, _)), Some((409, bytes))) => Ok((sale, bytes)),
        (sold, refusal) => {
            bail!("expected one sale and then a sold-out answer, got {sold:?} and {refusal:?}")
        }
    }
}

/// A yardstick that answers as many bytes as a purchase of the product has.
async fn bare<'a>(
    lab: &Lab<'_>,
    product: &Product,
    rate: Option<f64>,
) -> anyhow::Result<Asked<'a>> {
    let sale = lab.sale(product, ENDLESS).await?;
    let answer = lab.try_one(&product.server, &sale).await?;
    let (_, bytes) = answer.context("the server does not answer a purchase")?;
    product.admin.close_sale(&sale).await?;
    Ok(Asked(Side::Yardstick(bytes), rate))
}

/// S1: how many buyers a second can be told "sold out".
pub(crate) async fn sold_out(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let product = lab.product(&[]).await?;
    let (sale, bytes) = sold_out_sale(lab, &product).await?;
    let sides = [Side::SoldOut(&product, &sale), Side::Yardstick(bytes)];
    let pairs = pairs(lab, sides.map(|side| Asked(side, None))).await?;
    Ok(vec![row("S1", &pairs, Measured::rate)?, row("S1 cpu", &pairs, Measured::server_us)?])
}

/// S2: how many commands Redis hears while buyers are told "sold out". Commands that scripts call
/// and those of background work count.
pub(crate) async fn commands(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(lab.args.directory.as_deref(), &[]).await?;
    let url = redis.url();
    let product =
        lab.product(&[("FLOODGATE__TIER", "gate"), ("FLOODGATE__REDIS__URL", &url)]).await?;
    let (sale, _) = sold_out_sale(lab, &product).await?;
    warm_up(lab.load(&product.server, &sale)).await?;
    let mut asker = redis.connect()?;
    let mut rounds = Vec::new();
    for _ in 0..lab.args.rounds {
        let load = lab.load(&product.server, &sale);
        let load = Load { until: Until::Requests(ANSWERS), ..load };
        let before = num_commands(&mut asker)?;
        let measured = lab.measure(Some(&product), load).await?;
        // The first look counts itself at the second.
        let commands = num_commands(&mut asker)?.saturating_sub(before + 1);
        lab.check(&product.admin, &sale, 1, LANDING_PATIENCE).await?;
        let answered = measured.report.answered.max(1);
        let scaled = commands as f64 * ANSWERS as f64 / answered as f64;
        lab.say(&format!("{commands} commands for {answered} answers, {:.0}/s", measured.rate()));
        rounds.push(Round::number(measured.sample(scaled)));
    }
    Ok(vec![stats::row("S2", &rounds, None)?])
}

/// Calls of all commands since the server was started.
fn num_commands(connection: &mut redis::Connection) -> anyhow::Result<u64> {
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

/// S5: how many purchases a second end as orders in MariaDB, gates in Redis before it. The answer
/// comes after both; Redis keeps an append-only file (everysec), each commit waits for the disk.
pub(crate) async fn purchases(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let parent = lab.args.directory.as_deref();
    let redis = RedisServer::start(parent, &["--appendonly", "yes"]).await?;
    let maria = MariaServer::start(parent).await?;
    let (redis_url, ledger_url) = (redis.url(), maria.url());
    let settings = [
        ("FLOODGATE__TIER", "gate"),
        ("FLOODGATE__REDIS__URL", &redis_url),
        ("FLOODGATE__REDIS__DURABILITY", "aof"),
        ("FLOODGATE__LEDGER__URL", &ledger_url),
    ];
    let mut product = lab.product(&settings).await?;
    product.behind = vec![("redis", redis.pid()), ("mariadb", maria.pid())];
    let sides = [Asked(Side::Selling(&product), None), bare(lab, &product, None).await?];
    let pairs = pairs(lab, sides).await?;
    let rounds = rounds(&pairs, Measured::goodput);
    let costs = medians(&rounds, |side| side.costs.get(1..).unwrap_or_default());
    let remark = format!("core-µs per purchase behind the server: {}", shown(&costs));
    Ok(vec![stats::row("S5", &rounds, Some(remark))?])
}

/// S11: how many durable purchases a second; and the goals that are relative to this maximum.
pub(crate) async fn durable(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let product = lab.product(&[]).await?;
    let sides = [Asked(Side::Selling(&product), None), bare(lab, &product, None).await?];
    let pairs = pairs(lab, sides).await?;
    drop(product);
    let mut rows = vec![row("S11", &pairs, Measured::goodput)?];
    let maximum = Spread::of(pairs.iter().map(|[product, _]| product.goodput()));
    let maximum = maximum.map_or(0.0, |maximum| maximum.median);
    ensure!(maximum > 0.0, "no purchase was accepted");
    if lab.wants(&["S12"]) {
        lab.say("S12 light load");
        let measured = light_load(lab, maximum).await;
        rows.extend(lab.keep_going("S12", measured));
    }
    if lab.wants(&["S13"]) {
        lab.say("S13 heavy load");
        let measured = heavy_load(lab, maximum).await;
        rows.extend(lab.keep_going("S13", measured));
    }
    if lab.wants(&["S14"]) {
        lab.say("S14 overload");
        let measured = overload(lab, maximum).await;
        rows.extend(lab.keep_going("S14", measured));
    }
    Ok(rows)
}

/// S12: whether batching makes a lone buyer wait.
async fn light_load(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let batching = lab.product(&[]).await?;
    let one_by_one = [("FLOODGATE__GATE__BATCH_MAX", "1"), ("FLOODGATE__CONSUMER__BATCH_MAX", "1")];
    let one_by_one = lab.product(&one_by_one).await?;
    let sides = [&batching, &one_by_one];
    let sides = sides.map(|product| Asked(Side::Selling(product), Some(maximum * LIGHT_LOAD)));
    let pairs = pairs(lab, sides).await?;
    row("S12", &pairs, |side| side.report.latency.p50_us() as f64)
}

/// S13: latency when the server is busy but not overloaded.
async fn heavy_load(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let product = lab.product(&[]).await?;
    let rate = Some(maximum * HEAVY_LOAD);
    let sides = [Asked(Side::Selling(&product), rate), bare(lab, &product, rate).await?];
    let pairs = pairs(lab, sides).await?;
    row("S13", &pairs, |side| side.report.latency.p99_us() as f64)
}

/// S14: what is left of the throughput when three times as many come: rounds of overload and rounds
/// at the closed loop's peak take turns on one server.
async fn overload(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let product = lab.product(&[]).await?;
    let crowded = Asked(Side::Selling(&product), Some(maximum * OVERLOAD));
    let pairs = pairs(lab, [crowded, Asked(Side::Selling(&product), None)]).await?;
    // Bytes of resident memory that each accepted order added.
    let growth = |side: fn(&Pair) -> &Measured| {
        let each = pairs.iter().map(side).map(|side| {
            let (before, after) = side.metered.resident;
            (after as f64 - before as f64) / side.accepted().max(1) as f64
        });
        Spread::of(each).map_or(0.0, |all| all.median)
    };
    let resident = pairs.last().map_or(0, |[_, calm]| calm.metered.resident.1);
    let remark = format!(
        "resident {} MiB at the end; grows {:.0} B per order in overload, {:.0} B at the peak",
        resident / (1 << 20),
        growth(|[crowded, _]| crowded),
        growth(|[_, calm]| calm),
    );
    stats::row("S14", &rounds(&pairs, Measured::goodput), Some(remark))
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
