//! One side of one round, whatever was measured, and how rounds become a row of the table.

use anyhow::bail;

use super::stats::{Goal, Spread};
use super::table::Row;

/// What one side of one round came to.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// What is compared.
    pub(super) value: f64,
    /// Core-microseconds of the server for each operation.
    pub(super) server_us: f64,
    /// Core-microseconds of this process for each operation.
    pub(super) own_us: f64,
    /// Cores that this process kept busy.
    pub(super) own_cores: f64,
    /// Operations without an answer.
    pub(super) incomplete: u64,
    /// Mean sizes of batches, by who made them.
    pub(super) batches: Vec<(&'static str, f64)>,
}

/// One round: both sides, one after the other. Without a yardstick the goal is a number.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) product: Sample,
    pub(super) yardstick: Option<Sample>,
}

/// Condenses the rounds of one goal.
pub(super) fn row(
    id: &'static str,
    what: &'static str,
    goal: Goal,
    rounds: &[Round],
    unit: &'static str,
) -> anyhow::Result<Row> {
    let product = |value: fn(&Sample) -> f64| Spread::of(rounds.iter().map(|r| value(&r.product)));
    let yardstick = |value: fn(&Sample) -> f64| {
        Spread::of(rounds.iter().filter_map(|round| round.yardstick.as_ref().map(value)))
    };
    let ratio = |round: &Round| {
        let bare = round.yardstick.as_ref()?.value;
        Some(if bare > 0.0 { round.product.value / bare } else { f64::INFINITY })
    };
    let Some(values) = product(|side| side.value) else { bail!("{id} has no rounds") };
    let median = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.median);
    Ok(Row {
        id,
        what,
        product: values,
        yardstick: yardstick(|side| side.value),
        unit,
        ratio: Spread::of(rounds.iter().filter_map(ratio)),
        goal,
        batches: batches(rounds),
        product_us: median(product(|side| side.server_us)),
        yardstick_us: yardstick(|side| side.server_us).map(|spread| spread.median),
        generator_cores: median(product(|side| side.own_cores)),
        generator_us: median(product(|side| side.own_us)),
        incomplete: (
            rounds.iter().map(|round| round.product.incomplete).sum(),
            rounds.iter().filter_map(|round| Some(round.yardstick.as_ref()?.incomplete)).sum(),
        ),
        remark: None,
    })
}

/// Mean batches of the product, by who made them.
fn batches(rounds: &[Round]) -> Vec<(&'static str, f64)> {
    let names = rounds.first().map(|round| round.product.batches.iter().map(|(name, _)| *name));
    let sizes = |wanted: &str| {
        let all = rounds.iter().flat_map(|round| &round.product.batches);
        Spread::of(all.filter(|(name, _)| *name == wanted).map(|(_, size)| *size))
    };
    let of = |name| Some((name, sizes(name)?.median));
    names.into_iter().flatten().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(value: f64, batch: f64) -> Sample {
        Sample { value, batches: vec![("gate", batch)], incomplete: 1, ..Sample::default() }
    }

    #[test]
    fn ratios_are_of_pairs_and_batches_are_medians() {
        let round = |a, b, batch| Round { product: side(a, batch), yardstick: Some(side(b, 1.0)) };
        let rounds = [round(4.0, 2.0, 10.0), round(9.0, 3.0, 30.0), round(4.0, 4.0, 20.0)];
        let goal = Goal::AtLeast { floor: 1.0, aim: 2.0 };
        let row = row("S", "x", goal, &rounds, "/s").unwrap();
        let ratio = row.ratio.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
        assert_eq!(row.batches, [("gate", 20.0)]);
        assert_eq!(row.incomplete, (3, 3));
    }

    #[test]
    fn a_number_needs_no_yardstick() {
        let rounds = [Round { product: side(3.0, 1.0), yardstick: None }];
        let row = row("S", "x", Goal::Count { floor: 10.0, aim: 0.0 }, &rounds, "").unwrap();
        assert_eq!((row.ratio, row.yardstick), (None, None));
        let none = super::row("S", "x", Goal::Count { floor: 1.0, aim: 0.0 }, &[], "");
        assert!(none.is_err());
    }
}
