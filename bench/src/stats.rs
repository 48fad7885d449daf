//! Measurements of rounds, condensed into the rows of the table.

use std::time::Duration;

use serde::Serialize;

pub use floodgate::cli::output::grouped;

/// Median and range of a few measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without measurements.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// Width of the range as a share of the median.
    pub fn width(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// A goal's limits.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Goal {
    pub kind: GoalKind,
    pub floor: f64,
    pub aim: f64,
}

/// What the limits of a goal are for.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalKind {
    /// The ratio of product to baseline should be at least this.
    AtLeast,
    /// The ratio should be at most this.
    AtMost,
    /// The product's own number should be at most this; there is no baseline.
    Count,
    /// The number should be at least this; there is no baseline.
    Number,
}

impl Goal {
    /// The verdict on a measured ratio or number.
    pub fn verdict(self, measured: f64) -> &'static str {
        let is_met = |limit| match self.kind {
            GoalKind::AtLeast | GoalKind::Number => measured >= limit,
            GoalKind::AtMost | GoalKind::Count => measured <= limit,
        };
        match [self.floor, self.aim].map(is_met) {
            [_, true] => "aim met",
            [true, false] => "floor met",
            [false, false] => "below floor",
        }
    }

    /// Floor and aim as shown in the table.
    pub fn columns(self) -> [String; 2] {
        [self.floor, self.aim].map(|limit| match self.kind {
            GoalKind::AtLeast => format!("≥ {limit:.2}x"),
            GoalKind::AtMost => format!("≤ {limit:.2}x"),
            GoalKind::Count => format!("≤ {limit:.0}"),
            GoalKind::Number => format!("≥ {}", grouped(limit)),
        })
    }
}

/// Numbers by process or component.
pub type Figures = Vec<(&'static str, f64)>;

/// The result of one side of one round.
#[derive(Debug, Clone, Default)]
pub struct RoundSample {
    /// The compared value; infinite if it is the latency of requests without an answer.
    pub value: f64,
    /// Core-microseconds per operation, by process; the first process is the server under test.
    pub costs: Figures,
    /// Core-microseconds per operation of the bench process.
    pub own_us: f64,
    /// CPU cores that the bench process used.
    pub own_cores: f64,
    /// Operations without an answer, or of an unknown outcome.
    pub incomplete: u64,
    /// Mean batch sizes, by component.
    pub batches: Figures,
}

/// A value without costs.
impl From<f64> for RoundSample {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

impl RoundSample {
    /// Of the server under test.
    pub fn server_us(&self) -> f64 {
        self.costs.first().map_or(0.0, |(_, us)| *us)
    }
}

/// One round: product and baseline, one after the other. Without a baseline the goal is a number.
#[derive(Debug, Clone)]
pub struct Round {
    pub product: RoundSample,
    pub baseline: Option<RoundSample>,
}

impl Round {
    /// The ratio of product to baseline, or the product's own number; `None` if the baseline
    /// measured nothing that could be compared.
    pub fn compared(&self) -> Option<f64> {
        let Some(baseline) = &self.baseline else { return Some(self.product.value) };
        let is_comparable = baseline.value > 0.0 && baseline.value.is_finite();
        is_comparable.then(|| self.product.value / baseline.value)
    }

    /// Its values, and costs and batches of the product.
    pub fn summary(&self) -> String {
        let RoundSample { value, costs, batches, .. } = &self.product;
        let baseline = self.baseline.as_ref();
        let baseline = baseline.map(|side| format!(" against {}", amount(side.value, "")));
        let details = shown(&[costs.as_slice(), batches].concat());
        format!("{}{} {details}", amount(*value, ""), baseline.unwrap_or_default())
    }
}

/// The rounds of one row.
#[derive(Debug, Default)]
pub struct Results {
    pub rounds: Vec<Round>,
    pub remark: Option<String>,
}

/// The median of each named number over the rounds.
pub fn medians(rounds: impl Iterator<Item = Figures>) -> Figures {
    let rounds: Vec<Figures> = rounds.collect();
    let all = || rounds.iter().flatten();
    let median_of = |&(wanted, _): &(&'static str, f64)| {
        let same = all().filter(|(name, _)| *name == wanted).map(|(_, number)| *number);
        Some((wanted, Spread::of(same)?.median))
    };
    rounds.first().into_iter().flatten().filter_map(median_of).collect()
}

/// A number with its unit; below 100 with one decimal.
pub fn amount(number: f64, unit: &str) -> String {
    match number {
        f64::INFINITY => "unanswered".to_owned(),
        ..100.0 => format!("{number:.1}{unit}"),
        _ => format!("{}{unit}", grouped(number)),
    }
}

/// `relay 12.0, redis 7.5`.
pub fn shown(named: &[(&'static str, f64)]) -> String {
    let parts: Vec<_> = named.iter().map(|(name, number)| format!("{name} {number:.1}")).collect();
    parts.join(", ")
}

pub fn per_second(operations: u64, elapsed: Duration) -> f64 {
    operations as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// The number of operations that take `seconds` at `rate` per second, clamped to `limits`.
pub fn for_seconds(rate: f64, seconds: u64, limits: (u64, u64)) -> u64 {
    whole(rate).saturating_mul(seconds).clamp(limits.0, limits.1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and rates are not negative, and far below 2^53"
)]
pub fn whole(number: f64) -> u64 {
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
        let goal = |kind, floor, aim| Goal { kind, floor, aim };
        let rising = ["below floor", "floor met", "aim met"];
        assert_eq!(verdicts(goal(GoalKind::AtLeast, 0.8, 0.92), [0.5, 0.85, 1.2]), rising);
        assert_eq!(verdicts(goal(GoalKind::AtMost, 5.0, 2.0), [9.0, 3.0, 1.2]), rising);
        let least = goal(GoalKind::Number, 10_000.0, 20_000.0);
        assert_eq!(verdicts(least, [9e3, 12e3, 3e4]), rising);
        assert_eq!(least.columns(), ["≥ 10,000", "≥ 20,000"]);
    }

    #[test]
    fn rounds_are_as_long_as_asked_within_limits() {
        assert_eq!(for_seconds(1_000.9, 3, (10, 5_000)), 3_000);
        assert_eq!(for_seconds(0.0, 3, (10, 5_000)), 10);
        assert_eq!(for_seconds(1e9, 3, (10, 5_000)), 5_000);
        assert_eq!(shown(&[("relay", 12.04), ("redis", 7.5)]), "relay 12.0, redis 7.5");
    }
}
