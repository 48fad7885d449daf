use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::plan::Outcome;
use super::request::json_string_member;

/// Longest recorded latency, in microseconds; longer ones are recorded as this.
const LATENCY_MAX_US: u64 = 10 * 60 * 1_000_000;
/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// The counts and latencies of a load run.
///
/// `attempted = answered + transport_errors + unsent` once the run has ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Planned requests: written by the source, or counted as unsent.
    pub attempted: u64,
    /// Complete answers, of any status.
    pub answered: u64,
    /// Answers by HTTP status.
    pub by_status: BTreeMap<u16, u64>,
    /// Answers with a status of 400 or more, by the problem's `code`.
    pub by_code: BTreeMap<String, u64>,
    /// Requests without a complete answer: their outcome is unknown.
    pub transport_errors: u64,
    /// Requests that were never sent because no connection became free in time.
    pub unsent: u64,
    /// Answers with the header `Idempotent-Replayed: true`.
    pub replayed: u64,
    /// From the first request to the last outcome.
    #[serde(rename = "elapsed_ms", serialize_with = "as_ms")]
    pub elapsed: Duration,
    /// Time from sending (open loop: from the planned time) to the last byte of the answer.
    pub latency: Latency,
}

impl Report {
    /// Answers with a 2xx status.
    pub fn succeeded(&self) -> u64 {
        self.by_status.range(200..300).map(|(_, count)| count).sum()
    }

    pub fn with_status(&self, status: u16) -> u64 {
        self.by_status.get(&status).copied().unwrap_or(0)
    }

    /// Answers with this problem code.
    pub fn with_code(&self, code: &str) -> u64 {
        self.by_code.get(code).copied().unwrap_or(0)
    }

    /// `count` per second of this run; 0 for a run of zero duration.
    pub fn per_second(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }

    /// Counts the end of a request; `latency` is that of an answer.
    pub(super) fn count(&mut self, outcome: &Outcome<'_>, latency: Duration) {
        self.attempted += 1;
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::Unknown(_) => return self.transport_errors += 1,
            Outcome::Unsent => return self.unsent += 1,
        };
        self.answered += 1;
        self.replayed += u64::from(answer.replayed);
        self.latency.record(latency);
        *self.by_status.entry(answer.status).or_default() += 1;
        if answer.status >= 400 {
            let code = json_string_member(answer.body, b"code").unwrap_or("");
            match self.by_code.get_mut(code) {
                Some(count) => *count += 1,
                None if code.is_empty() => {}
                None => _ = self.by_code.insert(code.to_owned(), 1),
            }
        }
    }

    /// Adds the counts of a report about the same period.
    pub(super) fn merge(&mut self, other: &Self) {
        self.attempted += other.attempted;
        self.answered += other.answered;
        self.transport_errors += other.transport_errors;
        self.unsent += other.unsent;
        self.replayed += other.replayed;
        for (status, count) in &other.by_status {
            *self.by_status.entry(*status).or_default() += count;
        }
        for (code, count) in &other.by_code {
            *self.by_code.entry(code.clone()).or_default() += count;
        }
        self.latency.merge(&other.latency);
    }
}

fn as_ms<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(elapsed.as_secs_f64() * 1_000.0)
}

/// Histogram of latencies in microseconds with three significant digits, up to ten minutes.
#[derive(Debug, Clone, Default)]
pub struct Latency(Option<Histogram<u64>>);

impl Latency {
    fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(histogram) = self.histogram() {
            histogram.saturating_record(us.max(1));
        }
    }

    fn merge(&mut self, other: &Self) {
        let (Some(from), Some(into)) = (&other.0, self.histogram()) else { return };
        // Both have the same bounds.
        let _ = into.add(from);
    }

    /// Created at the first use; always `Some`, because the bounds are valid.
    fn histogram(&mut self) -> Option<&mut Histogram<u64>> {
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).ok();
        }
        self.0.as_mut()
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// Microseconds that the given share (0 to 1) of latencies does not exceed; 0 when empty.
    fn quantile_us(&self, share: f64) -> u64 {
        self.0.as_ref().map_or(0, |histogram| histogram.value_at_quantile(share))
    }

    pub fn p50_us(&self) -> u64 {
        self.quantile_us(0.5)
    }

    pub fn p99_us(&self) -> u64 {
        self.quantile_us(0.99)
    }

    pub fn max_us(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::max)
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let latency = json!({
            "count": self.count(),
            "mean_us": self.0.as_ref().map_or(0.0, Histogram::mean),
            "p50_us": self.p50_us(),
            "p90_us": self.quantile_us(0.9),
            "p99_us": self.p99_us(),
            "p999_us": self.quantile_us(0.999),
            "max_us": self.max_us(),
        });
        latency.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_distribution_are_exact() {
        let mut latency = Latency::default();
        assert_eq!((latency.count(), latency.p50_us(), latency.max_us()), (0, 0, 0));
        for us in 1..=1_000 {
            latency.record(Duration::from_micros(us));
        }
        assert_eq!((latency.p50_us(), latency.quantile_us(0.9), latency.p99_us()), (500, 900, 990));
        assert_eq!(
            (latency.quantile_us(0.999), latency.max_us(), latency.count()),
            (999, 1_000, 1_000)
        );
    }

    #[test]
    fn json_has_every_member() {
        let mut report = Report { elapsed: Duration::from_millis(1_500), ..Report::default() };
        report.by_status.insert(409, 5);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["by_status"]["409"], 5);
        assert_eq!(json["elapsed_ms"], 1_500.0);
        assert_eq!(json["latency"]["p999_us"], 0);
    }
}
