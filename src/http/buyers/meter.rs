//! Metrics of the buy route. The counters are looked up at start: an answer costs three increments
//! and no lookup by label.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::http::middleware::problem::ProblemCode;
use crate::http::routes::BUY;
use crate::observe::metrics::{Metrics, OutcomeLabel, RouteLabel, RouteStatus};

/// Outcomes of `floodgate_buy` besides the problem codes: an order in the ledger; accepted; perhaps
/// accepted; the answer to a repeat.
const OUTCOMES: [&str; 4] = ["placed", "queued", "unknown", "replayed"];

/// Counters and the latency histogram of the buy route.
#[derive(Debug)]
pub struct BuyMeter {
    outcomes: Vec<(&'static str, Counter)>,
    statuses: Vec<(u16, Counter)>,
    duration: Histogram,
}

impl BuyMeter {
    /// Looks up the counters of every outcome and status.
    pub fn new(metrics: &Metrics) -> Self {
        let with_outcome =
            |outcome| (outcome, metrics.buy.get_or_create_owned(&OutcomeLabel { outcome }));
        let with_status = |status| {
            let label = RouteStatus { route: BUY, status };
            (status, metrics.http_requests.get_or_create_owned(&label))
        };
        let codes = ProblemCode::ALL.iter().map(|code| code.as_str());
        let mut statuses: Vec<u16> = ProblemCode::ALL.iter().map(|code| code.status()).collect();
        statuses.extend([200, 202]);
        statuses.sort_unstable();
        statuses.dedup();
        Self {
            outcomes: OUTCOMES.into_iter().chain(codes).map(with_outcome).collect(),
            statuses: statuses.into_iter().map(with_status).collect(),
            duration: metrics.http_request_duration.get_or_create_owned(&RouteLabel { route: BUY }),
        }
    }

    /// Counts one answer and observes its latency.
    pub fn record(&self, outcome: &str, status: u16, took: Duration) {
        let outcome = self.outcomes.iter().find(|(name, _)| *name == outcome);
        let status = self.statuses.iter().find(|(number, _)| *number == status);
        let counters = [outcome.map(|(_, counter)| counter), status.map(|(_, counter)| counter)];
        counters.into_iter().flatten().for_each(|counter| {
            counter.inc();
        });
        self.duration.observe(took.as_secs_f64());
    }
}
