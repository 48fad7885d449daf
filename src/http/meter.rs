//! The counters of the buy route, looked up once: a refusal costs three increments and no lookup.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::problem::Code;
use super::routes::BUY;
use crate::metrics::{Metrics, Outcome, Route, RouteStatus};

/// What a purchase came to, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bought {
    /// The ledger has the order.
    Placed,
    /// Accepted, on its way.
    Queued,
    /// Nobody knows yet.
    Unknown,
    /// Any answer that was given before.
    Replayed,
    /// Refused or failed.
    Problem(Code),
}

/// Counts purchases.
#[derive(Debug)]
pub struct BuyMeter {
    placed: Counter,
    queued: Counter,
    unknown: Counter,
    replayed: Counter,
    problems: Vec<(Code, Counter)>,
    statuses: Vec<(u16, Counter)>,
    duration: Histogram,
}

impl BuyMeter {
    /// The counters of these metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let outcome = |outcome| metrics.buy.get_or_create_owned(&Outcome { outcome });
        let with_status = |status| {
            let label = RouteStatus { route: BUY, status };
            (status, metrics.http_requests.get_or_create_owned(&label))
        };
        let mut statuses: Vec<u16> = Code::ALL.iter().map(|code| code.status()).collect();
        statuses.extend([200, 202]);
        statuses.sort_unstable();
        statuses.dedup();
        Self {
            placed: outcome("placed"),
            queued: outcome("queued"),
            unknown: outcome("unknown"),
            replayed: outcome("replayed"),
            problems: Code::ALL.iter().map(|code| (*code, outcome(code.as_str()))).collect(),
            statuses: statuses.into_iter().map(with_status).collect(),
            duration: metrics.http_request_duration.get_or_create_owned(&Route { route: BUY }),
        }
    }

    /// Counts one answer.
    pub fn note(&self, bought: Bought, status: u16, took: Duration) {
        let outcome = match bought {
            Bought::Placed => Some(&self.placed),
            Bought::Queued => Some(&self.queued),
            Bought::Unknown => Some(&self.unknown),
            Bought::Replayed => Some(&self.replayed),
            Bought::Problem(code) => of(&self.problems, code),
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
