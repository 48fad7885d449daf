//! What is counted and measured: one registry, handed in, so that two systems in one process do not
//! share a counter.
//!
//! The table of all names with meaning and alarm is in `docs/operations.md`. Labels never hold ids
//! of buyers or requests: their number must not grow with the crowd.

use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::actors::supervisor::ChildReport;
use crate::db::Class;
use crate::domain::Refusal;
use crate::stock;

/// The content type of [`Metrics::exposition`].
pub const EXPOSITION_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A route of the interface and the status of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteStatus {
    /// The route as the interface writes it, such as `/v1/sales/{sale_id}`.
    pub route: &'static str,
    /// HTTP status.
    pub status: u16,
}

/// A route of the interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Route {
    /// The route as the interface writes it.
    pub route: &'static str,
}

/// What a purchase came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// `placed`, `queued`, `unknown`, `replayed`, or the code of the refusal.
    pub outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SaleSku {
    sale: String,
    sku: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorClass {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestartCause {
    kind: &'static str,
    reason: &'static str,
}

/// Histograms of durations, one for each route.
pub type RouteDurations = Family<Route, Histogram, fn() -> Histogram>;

/// All metrics of one system.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Answers by route and status.
    pub http_requests: Family<RouteStatus, Counter>,
    /// Seconds from the request's head to the answer's head.
    pub http_request_duration: RouteDurations,
    /// Purchases by outcome.
    pub buy: Family<Outcome, Counter>,
    stock_left: Family<SaleSku, Gauge>,
    gate_batch_size: Histogram,
    gate_unsettled: Gauge,
    consumer_batch_size: Histogram,
    consumer_queue: Gauge,
    ledger_commit: Histogram,
    orders_placed: Counter,
    ledger_refused: Family<Reason, Counter>,
    ledger_errors: Family<ErrorClass, Counter>,
    ledger_breaker: Gauge,
    stock_errors: Family<ErrorClass, Counter>,
    actor_restarts: Family<RestartCause, Counter>,
    transfers: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Enters a metric under its full name, so that a search for an alarm's metric finds this file. The
/// exposition format adds `_total` to counters and `_info` to infos.
fn enter<M: Metric + Clone>(to: &mut Registry, name: &str, help: &str, metric: M) -> M {
    to.register(name, help, metric.clone());
    metric
}

/// A metric that starts at nothing.
fn fresh<M: Metric + Clone + Default>(to: &mut Registry, name: &str, help: &str) -> M {
    enter(to, name, help, M::default())
}

impl Metrics {
    /// Every metric at zero.
    #[must_use]
    pub fn new() -> Self {
        let to = &mut Registry::default();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        to.register("floodgate_build", "The running version", build);
        let duration = "floodgate_http_request_duration_seconds";
        let durations = RouteDurations::new_with_constructor(request_durations);
        let (gate_batch, consumer_batch) =
            ("floodgate_gate_batch_size", "floodgate_consumer_batch_size");
        let commit = "floodgate_ledger_commit_seconds";
        Self {
            http_requests: fresh(to, "floodgate_http_requests", "Answers"),
            http_request_duration: enter(to, duration, "From head to head", durations),
            buy: fresh(to, "floodgate_buy", "Purchases by outcome"),
            stock_left: fresh(to, "floodgate_stock_left", "Units left"),
            gate_batch_size: enter(to, gate_batch, "Reservations per step", batch_sizes()),
            gate_unsettled: fresh(to, "floodgate_gate_unsettled", "Requests inside gates"),
            consumer_batch_size: enter(to, consumer_batch, "Intents per step", batch_sizes()),
            consumer_queue: fresh(to, "floodgate_consumer_queue", "Intents inside the consumer"),
            ledger_commit: enter(to, commit, "From batch to outcomes", commit_durations()),
            orders_placed: fresh(to, "floodgate_orders_placed", "Orders that became rows"),
            ledger_refused: fresh(to, "floodgate_ledger_refused", "Intents refused"),
            ledger_errors: fresh(to, "floodgate_ledger_errors", "Failed calls"),
            ledger_breaker: fresh(to, "floodgate_ledger_breaker_open", "1 while it is open"),
            stock_errors: fresh(to, "floodgate_stock_errors", "Failed calls"),
            actor_restarts: fresh(to, "floodgate_actor_restarts", "Actors replaced"),
            transfers: fresh(to, "floodgate_transfers", "Transfers between buckets"),
            registry: std::mem::take(to),
        }
    }

    /// One step of a gate decided `size` reservations.
    pub fn gate_batch(&self, size: usize) {
        self.gate_batch_size.observe(size as f64);
    }

    /// The order consumer wrote a batch of `size` intents; the ledger took `seconds`.
    pub fn consumer_batch(&self, size: usize, seconds: f64) {
        self.consumer_batch_size.observe(size as f64);
        self.ledger_commit.observe(seconds);
    }

    /// `count` orders became rows.
    pub fn orders_placed(&self, count: usize) {
        self.orders_placed.inc_by(count as u64);
    }

    /// Orders that became rows since the process started.
    #[must_use]
    pub fn num_orders_placed(&self) -> u64 {
        self.orders_placed.get()
    }

    /// One stock transfer between two buckets.
    pub fn transfer(&self) {
        self.transfers.inc();
    }

    /// The ledger refused one intent.
    pub fn ledger_refused(&self, refusal: &Refusal) {
        self.ledger_refused.get_or_create(&Reason { reason: refusal.code() }).inc();
    }

    /// One call to the ledger failed.
    pub fn ledger_error(&self, class: Class) {
        let class = match class {
            Class::Retry => "retry",
            Class::Down => "down",
            Class::Unknown => "unknown",
            Class::Bug => "bug",
        };
        self.ledger_errors.get_or_create(&ErrorClass { class }).inc();
    }

    /// The stock did not do what it was asked to.
    pub fn stock_error(&self, error: &stock::Error) {
        let class = match error {
            stock::Error::NotLoaded(_) => "not_loaded",
            stock::Error::HalfWritten { .. } | stock::Error::Damaged { .. } => "damaged",
            stock::Error::Fenced { .. } => "fenced",
            stock::Error::Unavailable { .. } => "unavailable",
            stock::Error::Unknown { .. } => "unknown",
        };
        self.stock_errors.get_or_create(&ErrorClass { class }).inc();
    }

    /// Whether new requests hear `busy` because the ledger fails; told when metrics are read.
    pub fn breaker(&self, is_open: bool) {
        self.ledger_breaker.set(i64::from(is_open));
    }

    /// Units left of one SKU; told when metrics are read.
    pub fn stock_left(&self, sale: String, sku: String, left: u32) {
        self.stock_left.get_or_create(&SaleSku { sale, sku }).set(i64::from(left));
    }

    /// Requests inside gates and intents inside the consumer; told when metrics are read.
    pub fn inside(&self, gates: usize, consumer: usize) {
        self.gate_unsettled.set(i64::try_from(gates).unwrap_or(i64::MAX));
        self.consumer_queue.set(i64::try_from(consumer).unwrap_or(i64::MAX));
    }

    /// What the supervisor has counted; told when metrics are read.
    pub fn actors(&self, reports: &[ChildReport]) {
        for kind in reports.iter().map(|report| report.kind) {
            let sum = |count: fn(&ChildReport) -> u64| -> u64 {
                reports.iter().filter(|report| report.kind == kind).map(count).sum()
            };
            let (panicked, stalled) = (sum(|of| of.panics), sum(|of| of.stalls));
            let stopped = sum(|of| of.restarts).saturating_sub(panicked + stalled);
            let totals = [("panicked", panicked), ("stalled", stalled), ("stopped", stopped)];
            for (reason, total) in totals {
                let counter = self.actor_restarts.get_or_create(&RestartCause { kind, reason });
                counter.inner().store(total, Ordering::Relaxed);
            }
        }
    }

    /// Everything in the `OpenMetrics` text format, of type [`EXPOSITION_TYPE`].
    #[must_use]
    pub fn exposition(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        // Writing into a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn request_durations() -> Histogram {
    Histogram::new([
        0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
        2.5, 5.0, 10.0,
    ])
}

fn commit_durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 16))
}

fn batch_sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 12))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::actors::supervisor::ChildState;

    /// The names in the first column of the table in `docs/operations.md`.
    fn documented() -> BTreeSet<&'static str> {
        include_str!("../docs/operations.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `floodgate_"))
            .filter_map(|rest| rest.split_once('`'))
            .map(|(name, _)| name)
            .collect()
    }

    fn report(kind: &'static str, restarts: u64, panics: u64, stalls: u64) -> ChildReport {
        ChildReport {
            name: kind.to_owned(),
            kind,
            state: ChildState::Up,
            restarts,
            panics,
            stalls,
            steps: 0,
            last_exit: None,
        }
    }

    #[test]
    fn the_operations_manual_lists_every_metric_and_no_other() {
        let metrics = Metrics::new();
        metrics.http_requests.get_or_create(&RouteStatus { route: "/", status: 200 }).inc();
        metrics.http_request_duration.get_or_create(&Route { route: "/" }).observe(1.0);
        metrics.buy.get_or_create(&Outcome { outcome: "placed" }).inc();
        metrics.stock_left("s".to_owned(), "k".to_owned(), 1);
        metrics.ledger_refused(&Refusal::SoldOut);
        metrics.ledger_error(Class::Retry);
        metrics.stock_error(&stock::Error::NotLoaded(crate::domain::SkuNo(1)));
        metrics.actors(&[report("stock_gate", 0, 0, 0)]);

        let text = metrics.exposition();
        let exposed: BTreeSet<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE floodgate_"))
            .filter_map(|rest| rest.split_once(' '))
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            })
            .collect();
        assert_eq!(exposed.iter().map(String::as_str).collect::<BTreeSet<_>>(), documented());
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn restarts_are_told_by_kind_and_reason() {
        let metrics = Metrics::new();
        metrics.actors(&[report("stock_gate", 3, 1, 1), report("stock_gate", 2, 2, 0)]);
        let text = metrics.exposition();
        for (reason, total) in [("panicked", 3), ("stalled", 1), ("stopped", 1)] {
            let labels = format!("{{kind=\"stock_gate\",reason=\"{reason}\"}}");
            let line = format!("floodgate_actor_restarts_total{labels} {total}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn two_systems_count_apart() {
        let (one, other) = (Metrics::new(), Metrics::new());
        one.orders_placed(1);
        assert!(one.exposition().contains("floodgate_orders_placed_total 1\n"));
        assert!(other.exposition().contains("floodgate_orders_placed_total 0\n"));
    }
}
