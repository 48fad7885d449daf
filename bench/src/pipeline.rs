//! S10, S20, the sustained rate, and the cost of malformed messages: from HTTP to the row in the
//! ledger, through the whole pipeline.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodgate::broker::{Route, Topology};
use floodgate::runtime::clock::now_monotonic;
use loadgen::{Load, Until};
use tokio::sync::oneshot;

use crate::harness::{ENDLESS, Harness, Measured, Product, newly_accepted};
use crate::process::poll;
use crate::raw::{self, MALFORMED_EVERY};
use crate::servers::Servers;
use crate::stats::{RoundSample, for_seconds, grouped, shown};
use crate::stores::CALIBRATION_ORDERS;

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

/// One load until all its orders are committed.
struct Flow {
    measured: Measured,
    committed: u64,
}

/// The number of purchases that are committed in the time of a round.
async fn for_round(harness: &mut Harness, product: &Product, calibration: u64) -> Result<Until> {
    let rate = flow(harness, product, Until::Requests(calibration)).await?.rate();
    Ok(Until::Requests(for_seconds(rate, harness.args.seconds, (calibration, REQUESTS_MAX))))
}

/// Runs one load on a new sale and waits until all accepted orders are committed.
async fn flow(harness: &mut Harness, product: &Product, until: Until) -> Result<Flow> {
    let sale = harness.sale(product, ENDLESS).await?;
    let load = Load { until, ..harness.load(&product.server, &sale) };
    let placed = product.placed().await?;
    let selling = Box::pin(async {
        let report = loadgen::run(load).await?;
        let accepted = newly_accepted(&report);
        ensure!(accepted > 0, "no purchase was accepted: {} answers", report.answered);
        Ok((await_placed(product, placed, accepted).await?, report))
    });
    let ((committed, report), metered) = harness.observe(product, selling).await?;
    harness.check(&product.admin, &sale, newly_accepted(&report)).await?;
    product.admin.close_sale(&sale).await?;
    Ok(Flow { measured: Measured { report, metered }, committed })
}

/// Waits until `wanted` more orders are committed or the count stalls; returns how many are.
async fn await_placed(product: &Product, before: u64, wanted: u64) -> Result<u64> {
    let (mut committed, mut since) = (0, now_monotonic());
    let check = async || {
        let now = product.placed().await?.saturating_sub(before);
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
        self.measured.metered.rate(self.committed)
    }

    fn sample(&self) -> RoundSample {
        self.measured.metered.sample(self.rate(), self.committed)
    }

    fn summary(&self) -> String {
        let Measured { report, metered } = &self.measured;
        let per_second = |count| grouped(report.per_second(count));
        format!(
            "{}/s accepted and {}/s rejected in {:.1} s, {}/s committed in {:.1} s; core-µs for \
             each order: {}",
            per_second(self.measured.accepted()),
            per_second(report.refused()),
            report.elapsed.as_secs_f64(),
            grouped(self.rate()),
            metered.elapsed.as_secs_f64(),
            shown(&metered.each(self.committed))
        )
    }
}

/// S10 and S20: with batches, and without. A round has as many purchases as are committed in its
/// time, so that both sides are measured from the first purchase to the last row.
pub async fn end_to_end(harness: &mut Harness) -> Result<()> {
    let servers = Servers::pipeline(harness)?;
    let batching = servers.product(harness, "batching", &[]).await?;
    let single = servers.product(harness, "single", &ONE_BY_ONE).await?;
    let wanted = for_round(harness, &batching, CALIBRATION_ORDERS).await?;
    let wanted_single = for_round(harness, &single, SINGLE_CALIBRATION_ORDERS).await?;
    for _ in 0..harness.args.rounds {
        let product = flow(harness, &batching, wanted).await?;
        let baseline = flow(harness, &single, wanted_single).await?;
        let summary = format!("{}; one by one: {}", product.summary(), baseline.summary());
        harness.remark("S10", format!("last round: {summary}"));
        let product = product.sample();
        harness.number("S20", product.costs.iter().map(|(_, each)| each).sum::<f64>());
        harness.pair("S10", product, baseline.sample());
    }
    Ok(())
}

/// The rate of one process from HTTP to the ledger, over a minute.
pub async fn sustained(harness: &mut Harness) -> Result<()> {
    let servers = Servers::pipeline(harness)?;
    let product = servers.product(harness, "sustained", &[]).await?;
    flow(harness, &product, Until::Elapsed(Duration::from_secs(1))).await?;
    let flow =
        flow(harness, &product, Until::Elapsed(harness.args.round() * SUSTAINED_ROUNDS)).await?;
    harness.number("sustained", flow.sample());
    harness.remark("sustained", flow.summary());
    Ok(())
}

/// The cost of malformed messages: one process, with and without a publisher of malformed messages
/// to its order queue.
pub async fn poison(harness: &mut Harness) -> Result<()> {
    const NAMESPACE: &str = "poison";
    let servers = Servers::pipeline(harness)?;
    let product = servers.product(harness, NAMESPACE, &[]).await?;
    let wanted = for_round(harness, &product, CALIBRATION_ORDERS).await?;
    let address =
        Topology::new(NAMESPACE, 1, 1).address(Route::Orders(0)).context("no order queue")?;
    let mut num_malformed = 0;
    for _ in 0..harness.args.rounds {
        let clean = flow(harness, &product, wanted).await?;
        let (stop, stopped) = oneshot::channel();
        let malformed = raw::publish_malformed(servers.rabbit()?, &address, num_malformed, stopped);
        let poisoned = async {
            let flow = flow(harness, &product, wanted).await;
            drop(stop);
            flow
        };
        let (poisoned, malformed) = tokio::join!(poisoned, malformed);
        let poisoned = poisoned?;
        num_malformed += malformed?;
        harness.pair("poison", poisoned.sample(), clean.sample());
    }
    // Each malformed message must be a dead letter.
    let dead_letters = product.admin.await_dead_letters(num_malformed).await?;
    harness.void_unless(dead_letters == num_malformed, || {
        format!("{num_malformed} malformed messages, {dead_letters} dead letters")
    });
    let remark = format!(
        "a malformed message every {MALFORMED_EVERY:?}; all {num_malformed} are dead letters"
    );
    harness.remark("poison", remark);
    Ok(())
}
