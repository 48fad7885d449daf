//! S14: what is left of the throughput when three times as many come.

use super::goals::{ENDLESS, Pair, keep, row};
use super::lab::{Lab, newly_accepted};
use super::probe::{Measured, measure};
use super::stats::{Goal, Spread};
use super::table::Row;

/// Offered load as a multiple of the maximum.
const OVERLOAD: f64 = 3.0;

/// Rounds at the closed loop's peak and rounds of overload take turns on one server.
pub(super) async fn goodput(lab: &mut Lab<'_>, maximum: f64) -> anyhow::Result<Row> {
    let product = lab.product(&[]).await?;
    let sale = lab.sale(&product, ENDLESS).await?;
    Lab::warm_up(lab.closed(&product, &sale)).await?;
    Lab::warm_up(Lab::open(lab.closed(&product, &sale), maximum * OVERLOAD)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let (crowded, calm) =
            (lab.sale(&product, ENDLESS).await?, lab.sale(&product, ENDLESS).await?);
        let overload = Lab::open(lab.closed(&product, &crowded), maximum * OVERLOAD);
        let pair = Pair {
            product: measure(&product.server, overload).await?,
            yardstick: measure(&product.server, lab.closed(&product, &calm)).await?,
        };
        lab.check(&product, &crowded, newly_accepted(&pair.product.report)).await?;
        lab.check(&product, &calm, newly_accepted(&pair.yardstick.report)).await?;
        product.admin.close_sale(&crowded).await?;
        product.admin.close_sale(&calm).await?;
        keep(lab, &mut pairs, pair);
    }
    let goal = Goal::AtLeast { floor: 0.90, aim: 0.98 };
    let what = "purchases per second at 3x overload against the peak";
    let mut row = row("S14", what, goal, &pairs, Measured::goodput, "/s")?;
    let growth = |side: fn(&Pair) -> &Measured| {
        Spread::of(pairs.iter().map(|pair| growth_each(side(pair)))).map_or(0.0, |all| all.median)
    };
    let resident = pairs.last().map_or(0, |pair| pair.yardstick.resident.1);
    row.remark = Some(format!(
        "resident {} MiB at the end; grows {:.0} B per order in overload, {:.0} B at the peak",
        resident / (1 << 20),
        growth(|pair| &pair.product),
        growth(|pair| &pair.yardstick),
    ));
    Ok(row)
}

/// Bytes of resident memory that each accepted order added.
fn growth_each(measured: &Measured) -> f64 {
    let (before, after) = measured.resident;
    let orders = newly_accepted(&measured.report).max(1);
    (after as f64 - before as f64) / orders as f64
}
