//! The goals that compare pairs of rounds: product and yardstick take turns.

use anyhow::bail;

use super::admin::BenchSale;
use super::lab::{Lab, Product, newly_accepted};
use super::probe::{Measured, measure};
use super::sample::{self, Round};
use super::stats::{Goal, Spread, grouped};
use super::table::Row;
use crate::load::Load;

/// Stock that no round can sell.
pub(super) const ENDLESS: u32 = 1_000_000_000;
/// Share of the maximum at which latency without contention is measured.
const LIGHT_LOAD: f64 = 0.05;
/// Share of the maximum at which queues are expected, but no overload.
const HEAVY_LOAD: f64 = 0.70;

/// One round of each side, run one after the other.
pub(super) struct Pair {
    pub(super) product: Measured,
    pub(super) yardstick: Measured,
}

/// S1: how many buyers a second can be told "sold out".
pub(super) async fn sold_out(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let product = lab.product(&[]).await?;
    let sale = lab.sale(&product, 1).await?;
    let (status, _) = lab.try_one(&product, &sale).await?;
    let (refusal, bytes) = lab.try_one(&product, &sale).await?;
    if !(200..300).contains(&status) || refusal != 409 {
        bail!("expected one sale and then a sold-out answer, got {status} and {refusal}");
    }
    Lab::warm_up(lab.closed(&product, &sale)).await?;
    Lab::warm_up(lab.closed_yardstick(bytes)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let pair = Pair {
            product: measure(&product.server, lab.closed(&product, &sale)).await?,
            yardstick: measure(&lab.yardstick, lab.closed_yardstick(bytes)).await?,
        };
        lab.check(&product, &sale, 1).await?;
        keep(lab, &mut pairs, pair);
    }
    let rate = Goal::AtLeast { floor: 0.80, aim: 0.92 };
    let cost = Goal::AtMost { floor: 1.3, aim: 1.1 };
    Ok(vec![
        row("S1", "sold-out answers per second", rate, &pairs, Measured::rate, "/s")?,
        row("S1 cpu", "core-µs per sold-out answer", cost, &pairs, Measured::server_us, " µs")?,
    ])
}

/// S11: how many durable purchases a second; also the maximum the next goals are relative to.
pub(super) async fn accepted(lab: &mut Lab<'_>) -> anyhow::Result<(Row, f64)> {
    let product = lab.product(&[]).await?;
    let sale = lab.sale(&product, ENDLESS).await?;
    let (_, bytes) = lab.try_one(&product, &sale).await?;
    Lab::warm_up(lab.closed(&product, &sale)).await?;
    Lab::warm_up(lab.closed_yardstick(bytes)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let sale = lab.sale(&product, ENDLESS).await?;
        let pair = Pair {
            product: measure(&product.server, lab.closed(&product, &sale)).await?,
            yardstick: measure(&lab.yardstick, lab.closed_yardstick(bytes)).await?,
        };
        lab.check(&product, &sale, newly_accepted(&pair.product.report)).await?;
        product.admin.close_sale(&sale).await?;
        keep(lab, &mut pairs, pair);
    }
    let goal = Goal::AtLeast { floor: 0.55, aim: 0.75 };
    let row = row("S11", "durable purchases per second", goal, &pairs, Measured::goodput, "/s")?;
    let maximum = Spread::of(pairs.iter().map(|pair| pair.product.goodput()));
    match maximum {
        Some(maximum) if maximum.median > 0.0 => Ok((row, maximum.median)),
        _ => bail!("no purchase was accepted"),
    }
}

/// S12: whether batching makes a lone buyer wait.
pub(super) async fn light_load(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let batching = lab.product(&[]).await?;
    let one_by_one = lab
        .product(&[("FLOODGATE__GATE__BATCH_MAX", "1"), ("FLOODGATE__CONSUMER__BATCH_MAX", "1")])
        .await?;
    let sales = (lab.sale(&batching, ENDLESS).await?, lab.sale(&one_by_one, ENDLESS).await?);
    let rate = maximum * LIGHT_LOAD;
    let round = |lab: &Lab<'_>, product: &Product, sale: &BenchSale| -> Load {
        Lab::open(lab.closed(product, sale), rate)
    };
    Lab::warm_up(round(lab, &batching, &sales.0)).await?;
    Lab::warm_up(round(lab, &one_by_one, &sales.1)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let pair = Pair {
            product: measure(&batching.server, round(lab, &batching, &sales.0)).await?,
            yardstick: measure(&one_by_one.server, round(lab, &one_by_one, &sales.1)).await?,
        };
        keep(lab, &mut pairs, pair);
        let total = |side: fn(&Pair) -> &Measured| -> u64 {
            pairs.iter().map(|pair| newly_accepted(&side(pair).report)).sum()
        };
        lab.check(&batching, &sales.0, total(|pair| &pair.product)).await?;
        lab.check(&one_by_one, &sales.1, total(|pair| &pair.yardstick)).await?;
    }
    let goal = Goal::AtMost { floor: 1.1, aim: 1.0 };
    let what = "p50 at 5 % load, batching against batch = 1";
    row("S12", what, goal, &pairs, |side| side.report.latency.p50_us() as f64, " µs")
}

/// S13: latency when the server is busy but not overloaded.
pub(super) async fn heavy_load(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let product = lab.product(&[]).await?;
    let sale = lab.sale(&product, ENDLESS).await?;
    let (_, bytes) = lab.try_one(&product, &sale).await?;
    let rate = maximum * HEAVY_LOAD;
    Lab::warm_up(Lab::open(lab.closed(&product, &sale), rate)).await?;
    Lab::warm_up(Lab::open(lab.closed_yardstick(bytes), rate)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let sale = lab.sale(&product, ENDLESS).await?;
        let (load, bare) = (lab.closed(&product, &sale), lab.closed_yardstick(bytes));
        let pair = Pair {
            product: measure(&product.server, Lab::open(load, rate)).await?,
            yardstick: measure(&lab.yardstick, Lab::open(bare, rate)).await?,
        };
        lab.check(&product, &sale, newly_accepted(&pair.product.report)).await?;
        product.admin.close_sale(&sale).await?;
        keep(lab, &mut pairs, pair);
    }
    let goal = Goal::AtMost { floor: 5.0, aim: 2.0 };
    let what = "p99 at 70 % of the maximum, open loop";
    row("S13", what, goal, &pairs, |side| side.report.latency.p99_us() as f64, " µs")
}

/// Notes a pair and tells on standard error how it went.
pub(super) fn keep(lab: &mut Lab<'_>, pairs: &mut Vec<Pair>, pair: Pair) {
    for (name, side) in [("product", &pair.product), ("yardstick", &pair.yardstick)] {
        let (report, round) = (&side.report, pairs.len() + 1);
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
        lab.note(side);
    }
    pairs.push(pair);
}

/// Condenses the pairs of one goal, comparing what `value` finds in each side.
pub(super) fn row(
    id: &'static str,
    what: &'static str,
    goal: Goal,
    pairs: &[Pair],
    value: impl Fn(&Measured) -> f64,
    unit: &'static str,
) -> anyhow::Result<Row> {
    let side = |measured: &Measured| measured.sample(value(measured));
    let rounds: Vec<Round> = pairs
        .iter()
        .map(|pair| Round { product: side(&pair.product), yardstick: Some(side(&pair.yardstick)) })
        .collect();
    sample::row(id, what, goal, &rounds, unit)
}
