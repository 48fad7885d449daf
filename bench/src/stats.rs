//! Measurements of rounds, condensed into the rows of the table.

use anyhow::bail;
use serde::Serialize;

use crate::table::{self, Row};
pub(crate) use floodgate::cli::output::grouped;

/// Median and range of a few measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without measurements.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// Width of the range as a share of the median.
    pub(crate) fn width(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// A goal's limits: of the ratio of product to baseline, or of the product's own number.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// The ratio should be at least this.
    AtLeast { floor: f64, aim: f64 },
    /// The ratio should be at most this.
    AtMost { floor: f64, aim: f64 },
    /// The number should be at most this; there is no baseline.
    Count { floor: f64, aim: f64 },
    /// The number should be at least this; there is no baseline.
    Number { floor: f64, aim: f64 },
}

impl Goal {
    fn limits(self) -> [f64; 2] {
        match self {
            Self::AtLeast { floor, aim }
            | Self::AtMost { floor, aim }
            | Self::Count { floor, aim }
            | Self::Number { floor, aim } => [floor, aim],
        }
    }

    /// The verdict on a measured ratio or number.
    pub(crate) fn verdict(self, ratio: f64) -> &'static str {
        let is_met = |limit| match self {
            Self::AtLeast { .. } | Self::Number { .. } => ratio >= limit,
            Self::AtMost { .. } | Self::Count { .. } => ratio <= limit,
        };
        match self.limits().map(is_met) {
            [_, true] => "aim met",
            [true, false] => "floor met",
            [false, false] => "below floor",
        }
    }

    /// Floor and aim as shown in the table.
    pub(crate) fn columns(self) -> [String; 2] {
        self.limits().map(|limit| match self {
            Self::AtLeast { .. } => format!("≥ {limit:.2}x"),
            Self::AtMost { .. } => format!("≤ {limit:.2}x"),
            Self::Count { .. } => format!("≤ {limit:.0}"),
            Self::Number { .. } => format!("≥ {}", grouped(limit)),
        })
    }
}

/// The result of one side of one round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// The compared value.
    pub(crate) value: f64,
    /// Core-microseconds per operation, by process; the first process is the server under test.
    pub(crate) costs: Vec<(&'static str, f64)>,
    /// Core-microseconds per operation of the bench process.
    pub(crate) own_us: f64,
    /// CPU cores that the bench process used.
    pub(crate) own_cores: f64,
    /// Operations without an answer.
    pub(crate) incomplete: u64,
    /// Mean batch sizes, by component.
    pub(crate) batches: Vec<(&'static str, f64)>,
}

impl Sample {
    /// A value without costs.
    pub(crate) fn of(value: f64) -> Self {
        Self { value, ..Self::default() }
    }

    fn server_us(&self) -> f64 {
        self.costs.first().map_or(0.0, |(_, us)| *us)
    }
}

/// One round: product and baseline, one after the other. Without a baseline the goal is a number.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub(crate) product: Sample,
    pub(crate) baseline: Option<Sample>,
}

impl Round {
    pub(crate) fn pair(product: Sample, baseline: Sample) -> Self {
        Self { product, baseline: Some(baseline) }
    }

    pub(crate) fn number(product: Sample) -> Self {
        Self { product, baseline: None }
    }
}

/// Condenses the rounds of the goal `id`.
pub(crate) fn row(
    id: &'static str,
    rounds: &[Round],
    remark: Option<String>,
) -> anyhow::Result<Row> {
    let (what, goal, unit) = table::goal(id)?;
    let product = |value: fn(&Sample) -> f64| Spread::of(rounds.iter().map(|r| value(&r.product)));
    let baseline = |value: fn(&Sample) -> f64| {
        Spread::of(rounds.iter().filter_map(|round| round.baseline.as_ref().map(value)))
    };
    let ratio = |round: &Round| {
        let baseline = round.baseline.as_ref()?.value;
        Some(if baseline > 0.0 { round.product.value / baseline } else { f64::INFINITY })
    };
    let Some(values) = product(|side| side.value) else { bail!("{id} has no rounds") };
    let median = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.median);
    Ok(Row {
        id,
        what,
        product: values,
        yardstick: baseline(|side| side.value),
        unit,
        ratio: Spread::of(rounds.iter().filter_map(ratio)),
        goal,
        batches: medians(rounds, |side| &side.batches),
        product_us: median(product(Sample::server_us)),
        yardstick_us: baseline(Sample::server_us).map(|spread| spread.median),
        generator_cores: median(product(|side| side.own_cores)),
        generator_us: median(product(|side| side.own_us)),
        incomplete: (
            rounds.iter().map(|round| round.product.incomplete).sum(),
            rounds.iter().filter_map(|round| Some(round.baseline.as_ref()?.incomplete)).sum(),
        ),
        remark,
    })
}

/// The median of each named number over the product's rounds.
pub(crate) fn medians(
    rounds: &[Round],
    named: fn(&Sample) -> &[(&'static str, f64)],
) -> Vec<(&'static str, f64)> {
    let all = || rounds.iter().flat_map(|round| named(&round.product));
    let median_of = |&(wanted, _): &(&'static str, f64)| {
        let same = all().filter(|(name, _)| *name == wanted).map(|(_, number)| *number);
        Some((wanted, Spread::of(same)?.median))
    };
    rounds
        .first()
        .map_or(&[][..], |round| named(&round.product))
        .iter()
        .filter_map(median_of)
        .collect()
}

/// `relay 12.0, redis 7.5`.
pub(crate) fn shown(named: &[(&'static str, f64)]) -> String {
    let parts: Vec<_> = named.iter().map(|(name, number)| format!("{name} {number:.1}")).collect();
    parts.join(", ")
}

/// The number of operations that take `seconds` at `rate` per second, clamped to `limits`.
pub(crate) fn for_seconds(rate: f64, seconds: u64, limits: (u64, u64)) -> u64 {
    whole(rate).saturating_mul(seconds).clamp(limits.0, limits.1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and rates are not negative, and far below 2^53"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_few_and_none() {
        assert_eq!(Spread::of([]), None);
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert!((odd.width() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn verdicts_look_in_the_right_direction() {
        let verdicts = |goal: Goal, numbers: [f64; 3]| numbers.map(|number| goal.verdict(number));
        let rising = ["below floor", "floor met", "aim met"];
        assert_eq!(verdicts(Goal::AtLeast { floor: 0.8, aim: 0.92 }, [0.5, 0.85, 1.2]), rising);
        assert_eq!(verdicts(Goal::AtMost { floor: 5.0, aim: 2.0 }, [9.0, 3.0, 1.2]), rising);
        let least = Goal::Number { floor: 10_000.0, aim: 20_000.0 };
        assert_eq!(verdicts(least, [9e3, 12e3, 3e4]), rising);
        assert_eq!(least.columns(), ["≥ 10,000", "≥ 20,000"]);
    }

    fn side(value: f64, batch: f64) -> Sample {
        Sample { value, batches: vec![("gate", batch)], incomplete: 1, ..Sample::default() }
    }

    #[test]
    fn ratios_are_of_pairs_and_batches_are_medians() {
        let round = |a, b, batch| Round::pair(side(a, batch), side(b, 1.0));
        let rounds = [round(4.0, 2.0, 10.0), round(9.0, 3.0, 30.0), round(4.0, 4.0, 20.0)];
        let row = row("S1", &rounds, None).unwrap();
        let ratio = row.ratio.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
        assert_eq!(row.batches, [("gate", 20.0)]);
        assert_eq!(row.incomplete, (3, 3));
    }

    #[test]
    fn a_number_needs_no_yardstick() {
        let row = row("S2", &[Round::number(side(3.0, 1.0))], None).unwrap();
        assert_eq!((row.ratio, row.yardstick), (None, None));
        assert!(super::row("S2", &[], None).is_err());
    }

    #[test]
    fn rounds_are_as_long_as_asked_within_limits() {
        assert_eq!(for_seconds(1_000.9, 3, (10, 5_000)), 3_000);
        assert_eq!(for_seconds(0.0, 3, (10, 5_000)), 10);
        assert_eq!(for_seconds(1e9, 3, (10, 5_000)), 5_000);
        assert_eq!(shown(&[("relay", 12.04), ("redis", 7.5)]), "relay 12.0, redis 7.5");
    }
}
