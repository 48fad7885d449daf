//! The counters of the buy route, looked up once: a refusal costs three increments and no lookup.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::http::middleware::problem::ProblemCode;
use crate::http::routes::BUY;
use crate::observe::metrics::{Metrics, OutcomeLabel, RouteLabel, RouteStatus};

/// What a purchase came to, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyOutcome {
    /// The ledger has the order.
    Placed,
    /// Accepted, on its way.
    Queued,
    /// Nobody knows yet.
    Unknown,
    /// Any answer that was given before.
    Replayed,
    /// Refused or failed.
    Problem(ProblemCode),
}

/// Counts purchases.
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
    /// The counters of these metrics.
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

    /// Counts one answer.
    pub fn note(&self, bought: BuyOutcome, status: u16, took: Duration) {
        let outcome = match bought {
            BuyOutcome::Placed => Some(&self.placed),
            BuyOutcome::Queued => Some(&self.queued),
            BuyOutcome::Unknown => Some(&self.unknown),
            BuyOutcome::Replayed => Some(&self.replayed),
            BuyOutcome::Problem(code) => of(&self.problems, code),
        };
        if let Some(counter) = outcome {
            counter.inc();
        }
        if let Some(counter) = of(&self.statuses, status) {
            counter.inc();
        }
        self.duration.observe(took.as_secs_f64());
    }
}

fn of<K: PartialEq + Copy>(counters: &[(K, Counter)], key: K) -> Option<&Counter> {
    counters.iter().find(|(of, _)| *of == key).map(|(_, counter)| counter)
}
