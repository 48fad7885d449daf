//! Metrics of the buy route. The counters are looked up at start: an answer costs three increments
//! and no lookup by label.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::http::middleware::problem::ProblemCode;
use crate::http::routes::BUY;
use crate::observe::metrics::{Metrics, OutcomeLabel, RouteLabel, RouteStatus};

/// Outcome of a purchase, as the metric `floodgate_buy` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyOutcome {
    /// The order is in the ledger.
    Placed,
    /// Accepted, not in the ledger yet.
    Queued,
    /// The answer of the store is missing: accepted or not.
    Unknown,
    /// A repeat of an earlier answer.
    Replayed,
    Problem(ProblemCode),
}

/// Counters and the latency histogram of the buy route.
#[derive(Debug)]
pub struct BuyMeter {
    placed: Counter,
    queued: Counter,
    unknown: Counter,
    replayed: Counter,
    problems: Vec<(ProblemCode, Counter)>,
    statuses: Vec<(u16, Counter)>,
    duration: Histogram,
}

impl BuyMeter {
    /// Looks up the counters of every outcome and status.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let outcome = |outcome| metrics.buy.get_or_create_owned(&OutcomeLabel { outcome });
        let with_status = |status| {
            let label = RouteStatus { route: BUY, status };
            (status, metrics.http_requests.get_or_create_owned(&label))
        };
        let mut statuses: Vec<u16> = ProblemCode::ALL.iter().map(|code| code.status()).collect();
        statuses.extend([200, 202]);
        statuses.sort_unstable();
        statuses.dedup();
        Self {
            placed: outcome("placed"),
            queued: outcome("queued"),
            unknown: outcome("unknown"),
            replayed: outcome("replayed"),
            problems: ProblemCode::ALL.iter().map(|code| (*code, outcome(code.as_str()))).collect(),
            statuses: statuses.into_iter().map(with_status).collect(),
            duration: metrics.http_request_duration.get_or_create_owned(&RouteLabel { route: BUY }),
        }
    }

    /// Counts one answer and observes its latency.
    pub fn record(&self, outcome: BuyOutcome, status: u16, took: Duration) {
        let counter = match outcome {
            BuyOutcome::Placed => Some(&self.placed),
            BuyOutcome::Queued => Some(&self.queued),
            BuyOutcome::Unknown => Some(&self.unknown),
            BuyOutcome::Replayed => Some(&self.replayed),
            BuyOutcome::Problem(code) => counter_of(&self.problems, code),
        };
        if let Some(counter) = counter {
            counter.inc();
        }
        if let Some(counter) = counter_of(&self.statuses, status) {
            counter.inc();
        }
        self.duration.observe(took.as_secs_f64());
    }
}

fn counter_of<K: PartialEq + Copy>(counters: &[(K, Counter)], key: K) -> Option<&Counter> {
    counters.iter().find(|(entry, _)| *entry == key).map(|(_, counter)| counter)
}
