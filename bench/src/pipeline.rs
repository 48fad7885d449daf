//! S10, S20, the sustained rate, and the cost of messages that nobody can read: from HTTP to the
//! row of the ledger, through everything between.

use std::time::Duration;

use anyhow::{Context, bail};
use floodgate::broker::{Route, Topology};
use floodgate::runtime::clock::now_monotonic;
use loadgen::{Load, Until};
use tokio::sync::oneshot;

use crate::crowd::GUESSED_BY;
use crate::lab::{Batches, ENDLESS, LANDING_PATIENCE, Lab, Product, newly_accepted, number};
use crate::meter::{Meter, Metered};
use crate::private::{MariaServer, RedisServer};
use crate::process::poll;
use crate::rabbit::RabbitServer;
use crate::raw::{self, STRANGE_EVERY};
use crate::stats::{Round, Sample, for_seconds, grouped, row, shown, whole};
use crate::table::Row;

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
/// Purchases by which the rate of one by one is guessed.
const SINGLE_GUESSED_BY: u64 = 500;
/// No round is larger.
const REQUESTS_MAX: u64 = 5_000_000;
/// Sustained means so many rounds without a break: a minute by default.
const SUSTAINED_ROUNDS: u32 = 15;
/// How long nothing may land.
const PATIENCE: Duration = Duration::from_secs(30);

/// The three servers behind a pipeline, with nothing on them; several installations can share them.
pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    pub(crate) rabbit: RabbitServer,
    pub(crate) maria: MariaServer,
}

/// What one round came to.
struct Flow {
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
    pub(crate) async fn start(lab: &Lab<'_>) -> anyhow::Result<Self> {
        let parent = lab.args.directory.as_deref();
        let redis = RedisServer::start(parent, &["--appendonly", "yes"]).await?;
        let maria = MariaServer::start(parent).await?;
        let rabbit = RabbitServer::start(parent).await?;
        Ok(Self { redis, rabbit, maria })
    }

    /// One process that is everything, in an installation of its own.
    async fn product(
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
        let mut product = lab.product(&settings).await?;
        let (redis, rabbit) = (self.redis.pid(), self.rabbit.pid());
        product.behind =
            vec![("redis", redis), ("rabbitmq", rabbit), ("mariadb", self.maria.pid())];
        Ok(product)
    }
}

/// How many purchases land in a round.
async fn for_round(lab: &mut Lab<'_>, product: &Product, guess: u64) -> anyhow::Result<Until> {
    let rate = flow(lab, product, Until::Requests(guess)).await?.rate();
    Ok(Until::Requests(for_seconds(rate, lab.args.seconds, (guess, REQUESTS_MAX))))
}

/// Buyers come until the load ends; then everything lands.
async fn flow(lab: &mut Lab<'_>, product: &Product, until: Until) -> anyhow::Result<Flow> {
    let sale = lab.sale(product, ENDLESS).await?;
    let load = Load { until, ..lab.load(&product.server, &sale) };
    let before = Batches::of(Some(&product.admin)).await?;
    let placed = placed(product).await?;
    let meter = Meter::start(&product.all())?;
    let report = loadgen::run(load).await?;
    let accepted = newly_accepted(&report);
    if accepted == 0 {
        bail!("nobody was sold anything: {} answers", report.answered);
    }
    let landed = await_placed(product, placed, accepted).await?;
    let metered = lab.stop(meter)?;
    let batches = Batches::of(Some(&product.admin)).await?.since(&before);
    lab.check(&product.admin, &sale, accepted, LANDING_PATIENCE).await?;
    product.admin.close_sale(&sale).await?;
    let rejected = report.answered.saturating_sub(report.succeeded());
    Ok(Flow { accepted, rejected, landed, accepting: report.elapsed, metered, batches })
}

async fn placed(product: &Product) -> anyhow::Result<u64> {
    let metrics = product.admin.metrics().await?;
    Ok(whole(number(&metrics, "floodgate_orders_placed_total")))
}

/// Waits until so many orders more are rows of the ledger, or nothing comes any more; how many.
async fn await_placed(product: &Product, before: u64, wanted: u64) -> anyhow::Result<u64> {
    let (mut landed, mut since) = (0, now_monotonic());
    let look = async || {
        let now = placed(product).await?.saturating_sub(before);
        if now > landed {
            (landed, since) = (now, now_monotonic());
        }
        Ok((now, now >= wanted || now_monotonic().duration_since(since) > PATIENCE))
    };
    Ok(poll(Duration::MAX, look).await?.0)
}

impl Flow {
    /// Orders a second from the first click until everything had landed.
    fn rate(&self) -> f64 {
        self.metered.rate(self.landed)
    }

    fn sample(&self) -> Sample {
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
            self.metered.elapsed.as_secs_f64(),
            shown(&self.metered.each(self.landed))
        )
    }
}

/// S10 and S20: with batches, and with everything one by one. A round is as many purchases as land
/// in its time, so that both sides are measured from the first click to the last row.
pub(crate) async fn end_to_end(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let batching = servers.product(lab, "batching", &[]).await?;
    let single = servers.product(lab, "single", &ONE_BY_ONE).await?;
    let wanted = for_round(lab, &batching, GUESSED_BY).await?;
    let wanted_single = for_round(lab, &single, SINGLE_GUESSED_BY).await?;
    let (mut rounds, mut costs) = (Vec::new(), Vec::new());
    let mut remark = String::new();
    for number in 1..=lab.args.rounds {
        let product = flow(lab, &batching, wanted).await?;
        let yardstick = flow(lab, &single, wanted_single).await?;
        lab.say(&format!("round {number}: batches: {}", product.line()));
        lab.say(&format!("round {number}: one by one: {}", yardstick.line()));
        remark = format!("last round: {}; one by one: {}", product.line(), yardstick.line());
        let product = product.sample();
        let cost = product.costs.iter().map(|(_, each)| each).sum();
        costs.push(Round::number(Sample::of(cost)));
        rounds.push(Round::pair(product, yardstick.sample()));
    }
    Ok(vec![row("S10", &rounds, Some(remark))?, row("S20", &costs, None)?])
}

/// What one process takes from HTTP to the ledger for a minute.
pub(crate) async fn sustained(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let product = servers.product(lab, "sustained", &[]).await?;
    flow(lab, &product, Until::Elapsed(Duration::from_secs(1))).await?;
    let flow = flow(lab, &product, Until::Elapsed(lab.args.round() * SUSTAINED_ROUNDS)).await?;
    lab.say(&flow.line());
    Ok(vec![row("sustained", &[Round::number(flow.sample())], Some(flow.line()))?])
}

/// What messages that nobody can read cost the good ones: the same process with a stranger who
/// writes into its order queue, and without.
pub(crate) async fn poison(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    const NAMESPACE: &str = "poison";
    let servers = Servers::start(lab).await?;
    let product = servers.product(lab, NAMESPACE, &[]).await?;
    let wanted = for_round(lab, &product, GUESSED_BY).await?;
    let to = Topology::new(NAMESPACE, 1, 1).address(Route::Orders(0)).context("no order queue")?;
    let (mut rounds, mut line, mut num_strange) = (Vec::new(), String::new(), 0);
    for number in 1..=lab.args.rounds {
        let clean = flow(lab, &product, wanted).await?;
        let (over, is_over) = oneshot::channel();
        let strange = raw::strange(&servers.rabbit, &to, num_strange, is_over);
        let poisoned = async {
            let flow = flow(lab, &product, wanted).await;
            drop(over);
            flow
        };
        let (poisoned, strange) = tokio::join!(poisoned, strange);
        let poisoned = poisoned?;
        num_strange += strange?;
        line = format!(
            "{}/s landed with a malformed message every {STRANGE_EVERY:?}, {}/s without",
            grouped(poisoned.rate()),
            grouped(clean.rate())
        );
        lab.say(&format!("round {number}: {line}"));
        rounds.push(Round::pair(poisoned.sample(), clean.sample()));
    }
    // Each of them must have ended where people find it.
    let letters = product.admin.await_letters(num_strange).await?;
    lab.require(letters == num_strange, || {
        format!("{num_strange} malformed messages, {letters} dead letters")
    });
    let remark = format!("last round: {line}; all {num_strange} are dead letters");
    Ok(vec![row("poison", &rounds, Some(remark))?])
}
