//! S10 and the sustained rate: from HTTP to the row of the ledger, through everything between.

use std::time::Duration;

use anyhow::bail;

use super::goals::ENDLESS;
use super::lab::{Lab, Product, newly_accepted};
use super::meter::{Meter, Metered};
use super::probe::{batches, number};
use super::rig::{for_seconds, shown, whole};
use super::sample::{Round, Sample, row};
use super::servers::Servers;
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::clock::now_monotonic;
use crate::load::{Load, Until};

/// Every batch and window is one; twenty workers make up for it.
const ONE_BY_ONE: [(&str, &str); 7] = [
    ("FLOODGATE__GATE__BATCH_MAX", "1"),
    ("FLOODGATE__OUTBOX__ENVELOPE_MAX", "1"),
    ("FLOODGATE__RELAY__CLAIM_MAX", "1"),
    ("FLOODGATE__RELAY__CONFIRM_WINDOW", "1"),
    ("FLOODGATE__RELAY__WORKERS", "20"),
    ("FLOODGATE__CONSUMER__BATCH_MAX", "1"),
    ("FLOODGATE__CONSUMER__PREFETCH", "1"),
];
/// Purchases by which a side's rate is guessed: product, yardstick.
pub(super) const GUESSED_BY: (u64, u64) = (20_000, 500);
/// No round is larger.
pub(super) const REQUESTS_MAX: u64 = 5_000_000;
/// Sustained means so many rounds without a break: a minute by default.
const SUSTAINED_ROUNDS: u32 = 15;
const POLL_PERIOD: Duration = Duration::from_millis(10);
/// How long nothing may land.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one round came to.
pub(super) struct Flow {
    accepted: u64,
    rejected: u64,
    landed: u64,
    /// While the load ran.
    accepting: Duration,
    /// Until everything had landed.
    metered: Metered,
    batches: Vec<(&'static str, f64)>,
}

impl Servers {
    /// One process that is everything, in an installation of its own.
    pub(super) async fn product(
        &self,
        lab: &Lab<'_>,
        namespace: &str,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Product> {
        let (redis, rabbit) = (self.redis.url(), self.rabbit.url());
        let ledger = self.maria.database().await?;
        let mut settings = vec![
            ("FLOODGATE__TIER", "pipeline"),
            ("FLOODGATE__NAMESPACE", namespace),
            ("FLOODGATE__REDIS__URL", redis.as_str()),
            ("FLOODGATE__REDIS__DURABILITY", "aof"),
            ("FLOODGATE__AMQP__URL", rabbit.as_str()),
            ("FLOODGATE__LEDGER__URL", ledger.as_str()),
        ];
        settings.extend(more);
        lab.product(&settings).await
    }

    /// Buyers come until the load ends; then everything lands.
    pub(super) async fn flow(
        &self,
        lab: &mut Lab<'_>,
        product: &Product,
        until: Until,
    ) -> anyhow::Result<Flow> {
        let sale = lab.sale(product, ENDLESS).await?;
        let load = Load { until, ..lab.closed(product, &sale) };
        let before = batches(&product.server).await?;
        let placed = placed(product).await?;
        let meter = Meter::start_all(&[
            ("floodgate", product.server.id()),
            ("redis", self.redis.pid()),
            ("rabbitmq", self.rabbit.pid()),
            ("mariadb", self.maria.pid()),
        ])?;
        let report = crate::load::run(load).await?;
        let accepted = newly_accepted(&report);
        if accepted == 0 {
            bail!("nobody was sold anything: {} answers", report.answered);
        }
        let landed = await_placed(product, placed, accepted).await?;
        let metered = meter.stop(lab)?;
        let batches = batches(&product.server).await?.since(&before);
        lab.check(product, &sale, accepted).await?;
        product.admin.close_sale(&sale).await?;
        let rejected = report.answered.saturating_sub(report.succeeded());
        Ok(Flow { accepted, rejected, landed, accepting: report.elapsed, metered, batches })
    }
}

async fn placed(product: &Product) -> anyhow::Result<u64> {
    let metrics = product.admin.metrics().await?;
    Ok(whole(number(&metrics, "floodgate_orders_placed_total")))
}

/// Waits until so many orders more are rows of the ledger, or nothing comes any more; how many.
async fn await_placed(product: &Product, before: u64, wanted: u64) -> anyhow::Result<u64> {
    let (mut landed, mut since) = (0, now_monotonic());
    loop {
        let now = placed(product).await?.saturating_sub(before);
        if now >= wanted || now_monotonic().duration_since(since) > PATIENCE {
            return Ok(now);
        }
        if now > landed {
            (landed, since) = (now, now_monotonic());
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

impl Flow {
    /// Orders a second from the first click until everything had landed.
    pub(super) fn rate(&self) -> f64 {
        self.metered.rate(self.landed)
    }

    pub(super) fn sample(&self) -> Sample {
        let sample = self.metered.sample(self.rate(), self.landed);
        Sample { batches: self.batches.clone(), ..sample }
    }

    fn line(&self) -> String {
        let each = |count: u64| grouped(count as f64 / self.accepting.as_secs_f64().max(1e-9));
        format!(
            "{}/s accepted and {}/s rejected in {:.1} s, {}/s landed in {:.1} s; core-µs for each \
             order: {}",
            each(self.accepted),
            each(self.rejected),
            self.accepting.as_secs_f64(),
            grouped(self.rate()),
            self.metered.elapsed().as_secs_f64(),
            shown(&self.metered.each(self.landed))
        )
    }
}

/// S10: with batches, and with everything one by one. A round is as many purchases as land in its
/// time, so that both sides are measured from the first click to the last row.
pub(super) async fn end_to_end(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let batching = servers.product(lab, "batching", &[]).await?;
    let single = servers.product(lab, "single", &ONE_BY_ONE).await?;
    let mut wanted = [0; 2];
    for ((product, guess), wanted) in
        [(&batching, GUESSED_BY.0), (&single, GUESSED_BY.1)].into_iter().zip(&mut wanted)
    {
        let rate = servers.flow(lab, product, Until::Requests(guess)).await?.rate();
        *wanted = for_seconds(rate, lab.args.seconds, (guess, REQUESTS_MAX));
    }
    let mut rounds = Vec::new();
    let mut lines = [String::new(), String::new()];
    for number in 1..=lab.args.rounds {
        let product = servers.flow(lab, &batching, Until::Requests(wanted[0])).await?;
        let yardstick = servers.flow(lab, &single, Until::Requests(wanted[1])).await?;
        lines = [product.line(), yardstick.line()];
        lab.say(&format!("round {number}: batches: {}", lines[0]));
        lab.say(&format!("round {number}: one by one: {}", lines[1]));
        rounds.push(Round { product: product.sample(), yardstick: Some(yardstick.sample()) });
    }
    let goal = Goal::AtLeast { floor: 6.0, aim: 12.0 };
    let what = "orders landed per second, tier pipeline, against everything one by one";
    let mut row = row("S10", what, goal, &rounds, "/s")?;
    row.remark = Some(format!("last round: {}; one by one: {}", lines[0], lines[1]));
    Ok(vec![row])
}

/// What one process takes from HTTP to the ledger for a minute.
pub(super) async fn sustained(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let product = servers.product(lab, "sustained", &[]).await?;
    servers.flow(lab, &product, Until::Elapsed(Duration::from_secs(1))).await?;
    let until = Until::Elapsed(lab.args.round() * SUSTAINED_ROUNDS);
    let flow = servers.flow(lab, &product, until).await?;
    lab.say(&flow.line());
    let goal = Goal::Number { floor: 10_000.0, aim: 20_000.0 };
    let what = "orders landed per second, tier pipeline, without a break";
    let round = Round { product: flow.sample(), yardstick: None };
    let mut row = row("sustained", what, goal, &[round], "/s")?;
    row.remark = Some(flow.line());
    Ok(vec![row])
}
