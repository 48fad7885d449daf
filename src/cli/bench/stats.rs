use serde::Serialize;

pub(super) use crate::cli::output::grouped;

/// Median and range of a few measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// `None` without measurements.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// Width of the range as a share of the median.
    pub(super) fn width(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// A goal's limits, for a ratio of product to yardstick or for a number of its own.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    /// The ratio should be at least this.
    AtLeast { floor: f64, aim: f64 },
    /// The ratio should be at most this.
    AtMost { floor: f64, aim: f64 },
    /// The number should be at most this; there is no yardstick.
    Count { floor: f64, aim: f64 },
    /// The number should be at least this; there is no yardstick.
    Number { floor: f64, aim: f64 },
}

impl Goal {
    /// What a measured ratio or number means.
    pub(super) fn verdict(self, ratio: f64) -> &'static str {
        let (floor, aim) = match self {
            Self::AtLeast { floor, aim } | Self::Number { floor, aim } => {
                (ratio >= floor, ratio >= aim)
            }
            Self::AtMost { floor, aim } | Self::Count { floor, aim } => {
                (ratio <= floor, ratio <= aim)
            }
        };
        match (floor, aim) {
            (_, true) => "aim met",
            (true, false) => "floor met",
            (false, false) => "below floor",
        }
    }

    /// Floor and aim as they stand in the table.
    pub(super) fn columns(self) -> (String, String) {
        match self {
            Self::AtLeast { floor, aim } => (format!("≥ {floor:.2}x"), format!("≥ {aim:.2}x")),
            Self::AtMost { floor, aim } => (format!("≤ {floor:.2}x"), format!("≤ {aim:.2}x")),
            Self::Count { floor, aim } => (format!("≤ {floor:.0}"), format!("≤ {aim:.0}")),
            Self::Number { floor, aim } => {
                (format!("≥ {}", grouped(floor)), format!("≥ {}", grouped(aim)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert!((odd.width() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn verdicts_look_in_the_right_direction() {
        let more = Goal::AtLeast { floor: 0.8, aim: 0.92 };
        assert_eq!(
            [0.5, 0.85, 1.2].map(|r| more.verdict(r)),
            ["below floor", "floor met", "aim met"]
        );
        let less = Goal::AtMost { floor: 5.0, aim: 2.0 };
        assert_eq!(
            [9.0, 3.0, 1.2].map(|r| less.verdict(r)),
            ["below floor", "floor met", "aim met"]
        );
    }

    #[test]
    fn a_number_has_its_direction() {
        let least = Goal::Number { floor: 10_000.0, aim: 20_000.0 };
        assert_eq!(
            [9e3, 12e3, 3e4].map(|n| least.verdict(n)),
            ["below floor", "floor met", "aim met"]
        );
        assert_eq!(least.columns(), ("≥ 10,000".to_owned(), "≥ 20,000".to_owned()));
    }
}
