//! S10, S20, the sustained rate, and the cost of malformed messages: from HTTP to the row in the
//! ledger, through the whole pipeline.

use std::time::Duration;

use anyhow::{Context, bail};
use floodgate::broker::{Route, Topology};
use floodgate::runtime::clock::now_monotonic;
use loadgen::{Load, Until};
use testkit::{Server, rabbitmq};
use tokio::sync::oneshot;

use crate::crowd::CALIBRATION_ORDERS;
use crate::harness::{Batches, ENDLESS, Harness, Product, newly_accepted, number};
use crate::meter::{Meter, Metered};
use crate::process::poll;
use crate::raw::{self, MALFORMED_EVERY};
use crate::servers::{APPEND_ONLY, RedisServer, maria, new_database, rabbit};
use crate::stats::{Round, Sample, for_seconds, grouped, row, shown, whole};
use crate::table::Row;

/// Every batch and window is 1; twenty relay workers compensate.
const ONE_BY_ONE: [&str; 7] = [
    "gate.batch_max=1",
    "outbox.envelope_max=1",
    "relay.claim_max=1",
    "relay.confirm_window=1",
    "relay.workers=20",
    "consumer.batch_max=1",
    "consumer.prefetch=1",
];
/// Purchases that calibrate the rate without batches.
const SINGLE_CALIBRATION_ORDERS: u64 = 500;
/// Limit of purchases per round.
const REQUESTS_MAX: u64 = 5_000_000;
/// Length of the sustained load in rounds: a minute by default.
const SUSTAINED_ROUNDS: u32 = 15;
/// Limit of the time without a committed order.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Empty Redis, RabbitMQ and MariaDB servers; several installations can share them.
pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    pub(crate) rabbit: Server,
    pub(crate) maria: Server,
}

/// The result of one round.
struct Flow {
    accepted: u64,
    rejected: u64,
    committed: u64,
    /// Duration of the load.
    accepting: Duration,
    /// Costs until all orders were committed.
    metered: Metered,
    batches: Vec<(&'static str, f64)>,
}

impl Servers {
    pub(crate) fn start(harness: &Harness<'_>) -> anyhow::Result<Self> {
        let redis = RedisServer::start(harness, APPEND_ONLY)?;
        Ok(Self { redis, maria: maria(harness)?, rabbit: rabbit(harness)? })
    }

    /// The settings of an installation with a ledger of its own.
    pub(crate) async fn settings(&self, namespace: &str) -> anyhow::Result<Vec<String>> {
        Ok(vec![
            "tier=pipeline".to_owned(),
            format!("namespace={namespace}"),
            "redis.durability=aof".to_owned(),
            format!("redis.url={}", self.redis.url()),
            format!("amqp.url={}", rabbitmq::url(self.rabbit.addr())),
            format!("ledger.url={}", new_database(&self.maria).await?),
        ])
    }

    /// One process with every role, in its own installation.
    async fn product(
        &self,
        harness: &Harness<'_>,
        namespace: &str,
        more: &[&str],
    ) -> anyhow::Result<Product> {
        let mut settings = self.settings(namespace).await?;
        settings.extend(more.iter().map(|&setting| setting.to_owned()));
        let mut product = harness.product(&settings).await?;
        let Self { redis, rabbit, maria } = self;
        product.backends =
            vec![("redis", redis.id()), ("rabbitmq", rabbit.id()), ("mariadb", maria.id())];
        Ok(product)
    }
}

/// The number of purchases that are committed in the time of a round.
async fn for_round(
    harness: &mut Harness<'_>,
    product: &Product,
    calibration: u64,
) -> anyhow::Result<Until> {
    let rate = flow(harness, product, Until::Requests(calibration)).await?.rate();
    Ok(Until::Requests(for_seconds(rate, harness.args.seconds, (calibration, REQUESTS_MAX))))
}

/// Runs one load on a new sale and waits until all accepted orders are committed.
async fn flow(harness: &mut Harness<'_>, product: &Product, until: Until) -> anyhow::Result<Flow> {
    let sale = harness.sale(product, ENDLESS).await?;
    let load = Load { until, ..harness.load(&product.server, &sale) };
    let before = Batches::of(Some(&product.admin)).await?;
    let placed = placed(product).await?;
    let meter = Meter::start(&product.all())?;
    let report = loadgen::run(load).await?;
    let accepted = newly_accepted(&report);
    if accepted == 0 {
        bail!("no purchase was accepted: {} answers", report.answered);
    }
    let committed = await_placed(product, placed, accepted).await?;
    let metered = harness.stop(meter)?;
    let batches = Batches::of(Some(&product.admin)).await?.since(&before);
    harness.check(&product.admin, &sale, accepted).await?;
    product.admin.close_sale(&sale).await?;
    let rejected = report.answered.saturating_sub(report.succeeded());
    Ok(Flow { accepted, rejected, committed, accepting: report.elapsed, metered, batches })
}

async fn placed(product: &Product) -> anyhow::Result<u64> {
    let metrics = product.admin.metrics().await?;
    Ok(whole(number(&metrics, "floodgate_orders_placed_total")))
}

/// Waits until `wanted` more orders are committed or the count stalls; returns how many are.
async fn await_placed(product: &Product, before: u64, wanted: u64) -> anyhow::Result<u64> {
    let (mut committed, mut since) = (0, now_monotonic());
    let check = async || {
        let now = placed(product).await?.saturating_sub(before);
        if now > committed {
            (committed, since) = (now, now_monotonic());
        }
        Ok((now, now >= wanted || now_monotonic().duration_since(since) > STALL_TIMEOUT))
    };
    Ok(poll(Duration::MAX, check).await?.0)
}

impl Flow {
    /// Orders per second, from the first purchase until all are committed.
    fn rate(&self) -> f64 {
        self.metered.rate(self.committed)
    }

    fn sample(&self) -> Sample {
        let sample = self.metered.sample(self.rate(), self.committed);
        Sample { batches: self.batches.clone(), ..sample }
    }

    fn summary(&self) -> String {
        let per_second =
            |count: u64| grouped(count as f64 / self.accepting.as_secs_f64().max(1e-9));
        format!(
            "{}/s accepted and {}/s rejected in {:.1} s, {}/s committed in {:.1} s; core-µs for \
             each order: {}",
            per_second(self.accepted),
            per_second(self.rejected),
            self.accepting.as_secs_f64(),
            grouped(self.rate()),
            self.metered.elapsed.as_secs_f64(),
            shown(&self.metered.each(self.committed))
        )
    }
}

/// S10 and S20: with batches, and without. A round has as many purchases as are committed in its
/// time, so that both sides are measured from the first purchase to the last row.
pub(crate) async fn end_to_end(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(harness)?;
    let batching = servers.product(harness, "batching", &[]).await?;
    let single = servers.product(harness, "single", &ONE_BY_ONE).await?;
    let wanted = for_round(harness, &batching, CALIBRATION_ORDERS).await?;
    let wanted_single = for_round(harness, &single, SINGLE_CALIBRATION_ORDERS).await?;
    let (mut rounds, mut costs) = (Vec::new(), Vec::new());
    let mut remark = String::new();
    for number in 1..=harness.args.rounds {
        let product = flow(harness, &batching, wanted).await?;
        let baseline = flow(harness, &single, wanted_single).await?;
        harness.note(&format!("round {number}: batches: {}", product.summary()));
        harness.note(&format!("round {number}: one by one: {}", baseline.summary()));
        remark = format!("last round: {}; one by one: {}", product.summary(), baseline.summary());
        let product = product.sample();
        let cost = product.costs.iter().map(|(_, each)| each).sum();
        costs.push(Round::number(Sample::of(cost)));
        rounds.push(Round::pair(product, baseline.sample()));
    }
    Ok(vec![row("S10", &rounds, Some(remark))?, row("S20", &costs, None)?])
}

/// The rate of one process from HTTP to the ledger, over a minute.
pub(crate) async fn sustained(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(harness)?;
    let product = servers.product(harness, "sustained", &[]).await?;
    flow(harness, &product, Until::Elapsed(Duration::from_secs(1))).await?;
    let flow =
        flow(harness, &product, Until::Elapsed(harness.args.round() * SUSTAINED_ROUNDS)).await?;
    harness.note(&flow.summary());
    Ok(vec![row("sustained", &[Round::number(flow.sample())], Some(flow.summary()))?])
}

/// The cost of malformed messages: one process, with and without a publisher of malformed messages
/// to its order queue.
pub(crate) async fn poison(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    const NAMESPACE: &str = "poison";
    let servers = Servers::start(harness)?;
    let product = servers.product(harness, NAMESPACE, &[]).await?;
    let wanted = for_round(harness, &product, CALIBRATION_ORDERS).await?;
    let address =
        Topology::new(NAMESPACE, 1, 1).address(Route::Orders(0)).context("no order queue")?;
    let (mut rounds, mut summary, mut num_malformed) = (Vec::new(), String::new(), 0);
    for number in 1..=harness.args.rounds {
        let clean = flow(harness, &product, wanted).await?;
        let (stop, stopped) = oneshot::channel();
        let malformed = raw::publish_malformed(&servers.rabbit, &address, num_malformed, stopped);
        let poisoned = async {
            let flow = flow(harness, &product, wanted).await;
            drop(stop);
            flow
        };
        let (poisoned, malformed) = tokio::join!(poisoned, malformed);
        let poisoned = poisoned?;
        num_malformed += malformed?;
        summary = format!(
            "{}/s committed with a malformed message every {MALFORMED_EVERY:?}, {}/s without",
            grouped(poisoned.rate()),
            grouped(clean.rate())
        );
        harness.note(&format!("round {number}: {summary}"));
        rounds.push(Round::pair(poisoned.sample(), clean.sample()));
    }
    // Each malformed message must be a dead letter.
    let dead_letters = product.admin.await_dead_letters(num_malformed).await?;
    harness.void_unless(dead_letters == num_malformed, || {
        format!("{num_malformed} malformed messages, {dead_letters} dead letters")
    });
    let remark = format!("last round: {summary}; all {num_malformed} are dead letters");
    Ok(vec![row("poison", &rounds, Some(remark))?])
}
