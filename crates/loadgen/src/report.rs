use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::plan::{Answer, Outcome};
use super::request::json_string_member;

/// Longest recorded latency, in microseconds; longer ones are recorded as this.
const LATENCY_MAX_US: u64 = 10 * 60 * 1_000_000;
/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// The counts and latencies of a load run.
///
/// `attempted = answered + transport_errors + unsent` once the run has ended.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Planned requests: written by the source, or counted as unsent.
    pub attempted: u64,
    /// Complete answers, of any status.
    pub answered: u64,
    /// Answers by HTTP status.
    pub by_status: BTreeMap<u16, u64>,
    /// Answers of status 202 whose purchase may have been accepted or not.
    pub unknown: u64,
    /// Answers with a status of 400 or more, by the problem's `code`.
    pub by_code: BTreeMap<String, u64>,
    /// Requests without a complete answer: their outcome is unknown.
    pub transport_errors: u64,
    /// Requests that were never sent because no connection became free in time.
    pub unsent: u64,
    /// Answers with the header `Idempotent-Replayed: true`.
    pub replayed: u64,
    /// From the first request to the last outcome.
    pub elapsed: Duration,
    /// Microseconds from sending (open loop: from the planned time) to the last byte of the answer,
    /// with three significant digits, up to ten minutes.
    pub(super) latencies: Option<Histogram<u64>>,
}

impl Report {
    /// Answers with a 2xx status and a known outcome.
    pub fn succeeded(&self) -> u64 {
        let answers: u64 = self.by_status.range(200..300).map(|(_, count)| count).sum();
        answers - self.unknown
    }

    /// Answers with another status.
    pub fn refused(&self) -> u64 {
        self.answered - self.unknown - self.succeeded()
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
        let missing = match outcome {
            Outcome::Answered(answer) => return self.count_answer(answer, latency),
            Outcome::Unknown(_) => &mut self.transport_errors,
            Outcome::Unsent => &mut self.unsent,
        };
        *missing += 1;
    }

    fn count_answer(&mut self, answer: &Answer<'_>, latency: Duration) {
        self.answered += 1;
        self.replayed += u64::from(answer.replayed);
        self.unknown += u64::from(answer.is_unknown());
        if self.latencies.is_none() {
            // The bounds are valid.
            self.latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).ok();
        }
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(latencies) = &mut self.latencies {
            latencies.saturating_record(us.max(1));
        }
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

    /// The number of recorded latencies, one for each answer.
    pub(super) fn num_latencies(&self) -> u64 {
        self.latencies.as_ref().map_or(0, Histogram::len)
    }

    /// Microseconds that the given share (0 to 1) of all requests does not exceed: infinite if it
    /// includes one without an answer, 0 without requests. Requests without an answer are slower
    /// than all others.
    fn quantile_us(&self, share: f64) -> f64 {
        let (answers, unanswered) = (self.num_latencies(), self.transport_errors + self.unsent);
        let of_answers = share * (answers + unanswered) as f64 / answers as f64;
        match &self.latencies {
            Some(latencies) if of_answers <= 1.0 => latencies.value_at_quantile(of_answers) as f64,
            None if unanswered == 0 => 0.0,
            _ => f64::INFINITY,
        }
    }

    /// Infinite if fewer than half of all requests were answered.
    pub fn p50_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    /// Infinite if more than 1 % of all requests were not answered.
    pub fn p99_us(&self) -> f64 {
        self.quantile_us(0.99)
    }

    /// The longest latency of an answer.
    pub(super) fn max_us(&self) -> u64 {
        self.latencies.as_ref().map_or(0, Histogram::max)
    }
}

/// `count`, `mean_us` and `max_us` are of answers. A quantile is null if it is infinite.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = json!({
            "attempted": self.attempted,
            "answered": self.answered,
            "by_status": self.by_status,
            "unknown": self.unknown,
            "by_code": self.by_code,
            "transport_errors": self.transport_errors,
            "unsent": self.unsent,
            "replayed": self.replayed,
            "elapsed_ms": self.elapsed.as_secs_f64() * 1_000.0,
            "latency": {
                "count": self.num_latencies(),
                "mean_us": self.latencies.as_ref().map_or(0.0, Histogram::mean),
                "p50_us": self.p50_us(),
                "p90_us": self.quantile_us(0.9),
                "p99_us": self.p99_us(),
                "p999_us": self.quantile_us(0.999),
                "max_us": self.max_us(),
            },
        });
        report.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::plan::TransportError;

    /// Answers after 1 to `max` microseconds.
    fn answered(max: u64) -> Report {
        let mut report = Report::default();
        let body = b"".as_slice();
        for us in 1..=max {
            let answer = Answer { status: 200, replayed: false, body };
            report.count(&Outcome::Answered(answer), Duration::from_micros(us));
        }
        report
    }

    #[test]
    fn quantiles_of_a_known_distribution_are_exact() {
        let none = Report::default();
        assert_eq!((none.num_latencies(), none.p50_us(), none.max_us()), (0, 0.0, 0));
        let report = answered(1_000);
        let (p90, p999) = (report.quantile_us(0.9), report.quantile_us(0.999));
        assert_eq!((report.p50_us(), p90, report.p99_us(), p999), (500.0, 900.0, 990.0, 999.0));
        assert_eq!((report.max_us(), report.num_latencies()), (1_000, 1_000));
    }

    #[test]
    fn requests_without_an_answer_are_slower_than_all_others() {
        let mut report = answered(970);
        for outcome in [Outcome::Unsent, Outcome::Unknown(TransportError::Timeout)] {
            for _ in 0..15 {
                report.count(&outcome, Duration::ZERO);
            }
        }
        assert_eq!((report.answered, report.unsent, report.transport_errors), (970, 15, 15));
        assert_eq!((report.p50_us(), report.quantile_us(0.97)), (500.0, 970.0));
        assert!(report.p99_us().is_infinite());
        assert_eq!(serde_json::to_value(&report).unwrap()["latency"]["p99_us"], Json::Null);
        report = Report::default();
        report.count(&Outcome::Unsent, Duration::ZERO);
        assert!(report.p50_us().is_infinite());
    }

    #[test]
    fn an_answer_of_an_unknown_outcome_is_no_success() {
        let mut report = answered(2);
        for (status, body) in [
            (202, r#"{"request_id":"5","state":"queued"}"#),
            (202, r#"{"request_id":"6","state":"unknown"}"#),
            (409, r#"{"code":"sold-out"}"#),
        ] {
            let answer = Answer { status, replayed: false, body: body.as_bytes() };
            report.count(&Outcome::Answered(answer), Duration::ZERO);
        }
        assert_eq!((report.answered, report.succeeded()), (5, 3));
        assert_eq!((report.unknown, report.refused()), (1, 1));
    }

    #[test]
    fn json_has_every_member() {
        let mut report = Report { elapsed: Duration::from_millis(1_500), ..Report::default() };
        report.by_status.insert(409, 5);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["by_status"]["409"], 5);
        assert_eq!(json["elapsed_ms"], 1_500.0);
        assert_eq!(json["latency"]["p999_us"], 0.0);
    }
}
