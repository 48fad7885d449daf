//! Metrics. The registry is injected, not global: two systems in one process share no counter.
//!
//! `docs/operate/metrics.md` has the table of all names with meaning and alert. Labels never hold
//! ids of buyers or requests, so that the cardinality stays bounded.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::db::ErrorClass;
use crate::domain::{DeadLetterCounts, DeadLetterOrigin, DeadLetterState, Refusal};
use crate::messages::envelope::EnvelopeFlaw;
use crate::runtime::child_report::ChildReport;
use crate::stock;

/// The content type of [`Metrics::exposition`].
pub const EXPOSITION_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Route and status of an HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteStatus {
    /// Path pattern, such as `/v1/sales/{sale_id}`.
    pub route: &'static str,
    pub status: u16,
}

/// Route of an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabel {
    /// Path pattern.
    pub route: &'static str,
}

/// Outcome of a purchase.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// `placed`, `queued`, `unknown`, `replayed`, or the code of the refusal.
    pub outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SaleSku {
    sale: String,
    sku: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OrderQueue {
    queue: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OriginLabel {
    origin: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorClassLabel {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    pub(crate) kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestartCause {
    kind: &'static str,
    reason: &'static str,
}

/// Request latency by route.
pub type RouteDurations = Family<RouteLabel, Histogram, fn() -> Histogram>;

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub http_requests: Family<RouteStatus, Counter>,
    /// Seconds from the request's head to the answer's head.
    pub http_request_duration: RouteDurations,
    pub buy: Family<OutcomeLabel, Counter>,
    stock_left: Family<SaleSku, Gauge>,
    gate_batch_size: Histogram,
    gate_unsettled: Gauge,
    consumer_batch_size: Histogram,
    consumer_queue: Gauge,
    ledger_commit: Histogram,
    orders_placed: Counter,
    ledger_refused: Family<ReasonLabel, Counter>,
    ledger_errors: Family<ErrorClassLabel, Counter>,
    ledger_breaker: Gauge,
    stock_errors: Family<ErrorClassLabel, Counter>,
    actor_restarts: Family<RestartCause, Counter>,
    transfers: Counter,
    pub(crate) relay_published: Counter,
    pub(crate) relay_confirm: Histogram,
    pub(crate) relay_failures: Family<KindLabel, Counter>,
    pub(crate) relay_in_flight: Gauge,
    pub(crate) outbox_waiting: Gauge,
    pub(crate) outbox_oldest: Gauge<f64, AtomicU64>,
    pub(crate) rescued_entries: Counter,
    pub(crate) reconcile_matched: Counter,
    pub(crate) reconcile_republished: Counter,
    pub(crate) reconcile_blocked: Family<ReasonLabel, Gauge>,
    consumer_deliveries: Counter,
    consumer_redelivered: Counter,
    consumer_poison: Family<ReasonLabel, Counter>,
    consumer_retries: Counter,
    consumer_dead_letters: Counter,
    results_not_written: Counter,
    consumer_in_flight: Family<OrderQueue, Gauge>,
    placement: Histogram,
    dead_letters: Family<StateLabel, Gauge>,
    dead_letters_stored: Family<OriginLabel, Counter>,
    dead_letters_refused: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Registers a metric under its full name, so that a text search for an alert's metric finds this
/// file. The exposition format adds `_total` to counters and `_info` to infos.
fn add_with<M: Metric + Clone>(to: &mut Registry, name: &str, help: &str, metric: M) -> M {
    to.register(name, help, metric.clone());
    metric
}

/// Registers a metric with its default.
fn add<M: Metric + Clone + Default>(to: &mut Registry, name: &str, help: &str) -> M {
    add_with(to, name, help, M::default())
}

impl Metrics {
    /// Registers every metric.
    #[must_use]
    pub fn new() -> Self {
        let to = &mut Registry::default();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        to.register("floodgate_build", "The running version", build);
        let duration = "floodgate_http_request_duration_seconds";
        let durations = RouteDurations::new_with_constructor(request_durations);
        let (gate_batch, consumer_batch) =
            ("floodgate_gate_batch_size", "floodgate_writer_batch_size");
        let commit = "floodgate_ledger_commit_seconds";
        let confirm = "floodgate_relay_confirm_seconds";
        let placement = "floodgate_placement_seconds";
        Self {
            http_requests: add(to, "floodgate_http_requests", "Answers"),
            http_request_duration: add_with(to, duration, "Request to answer", durations),
            buy: add(to, "floodgate_buy", "Purchases by outcome"),
            stock_left: add(to, "floodgate_stock_left", "Units left"),
            gate_batch_size: add_with(to, gate_batch, "Reservations per step", batch_sizes()),
            gate_unsettled: add(to, "floodgate_gate_unsettled", "Requests inside gates"),
            consumer_batch_size: add_with(to, consumer_batch, "Intents per step", batch_sizes()),
            consumer_queue: add(to, "floodgate_writer_queue", "Intents inside the consumer"),
            ledger_commit: add_with(to, commit, "From batch to outcomes", commit_durations()),
            orders_placed: add(to, "floodgate_orders_placed", "Orders committed"),
            ledger_refused: add(to, "floodgate_ledger_refused", "Intents refused"),
            ledger_errors: add(to, "floodgate_ledger_errors", "Failed calls"),
            ledger_breaker: add(to, "floodgate_ledger_breaker_open", "1 while it is open"),
            stock_errors: add(to, "floodgate_stock_errors", "Failed calls"),
            actor_restarts: add(to, "floodgate_actor_restarts", "Actors restarted"),
            transfers: add(to, "floodgate_transfers", "Transfers between buckets"),
            relay_published: add(to, "floodgate_relay_published", "Confirmed messages"),
            relay_confirm: add_with(to, confirm, "From batch to confirmations", commit_durations()),
            relay_failures: add(to, "floodgate_relay_failures", "By kind"),
            relay_in_flight: add(to, "floodgate_relay_in_flight", "Entries claimed"),
            outbox_waiting: add(to, "floodgate_outbox_waiting", "Entries not published"),
            outbox_oldest: add(to, "floodgate_outbox_oldest_seconds", "Age of the oldest"),
            rescued_entries: add(to, "floodgate_rescued_entries", "Entries reclaimed"),
            reconcile_matched: add(to, "floodgate_reconcile_matched", "Results written"),
            reconcile_republished: add(to, "floodgate_reconcile_republished", "Lost requests"),
            reconcile_blocked: add(to, "floodgate_reconcile_blocked", "Buckets skipped"),
            consumer_deliveries: add(to, "floodgate_consumer_deliveries", "Messages delivered"),
            consumer_redelivered: add(to, "floodgate_consumer_redelivered", "Redeliveries"),
            consumer_poison: add(to, "floodgate_consumer_poison", "Poison messages and intents"),
            consumer_retries: add(to, "floodgate_consumer_retries", "Retries of single orders"),
            consumer_dead_letters: add(to, "floodgate_consumer_dead_letters", "Published"),
            results_not_written: add(to, "floodgate_results_not_written", "Not written in time"),
            consumer_in_flight: add(to, "floodgate_consumer_in_flight", "Not acknowledged"),
            placement: add_with(to, placement, "Reservation to commit", placement_durations()),
            dead_letters: add(to, "floodgate_dead_letters", "In the ledger"),
            dead_letters_stored: add(to, "floodgate_dead_letters_stored", "Stored"),
            dead_letters_refused: add(to, "floodgate_dead_letters_refused", "Rejected"),
            registry: std::mem::take(to),
        }
    }

    /// Records a step of a gate that decided `size` reservations.
    pub fn gate_batch(&self, size: usize) {
        self.gate_batch_size.observe(size as f64);
    }

    /// Records a batch of `size` intents, and the seconds that the ledger took to write it.
    pub fn consumer_batch(&self, size: usize, seconds: f64) {
        self.consumer_batch_size.observe(size as f64);
        self.ledger_commit.observe(seconds);
    }

    /// Counts committed orders.
    pub fn orders_placed(&self, count: usize) {
        self.orders_placed.inc_by(count as u64);
    }

    /// Orders committed since the process started.
    #[must_use]
    pub fn num_orders_placed(&self) -> u64 {
        self.orders_placed.get()
    }

    /// Counts a stock transfer between two buckets.
    pub fn transfer(&self) {
        self.transfers.inc();
    }

    /// Counts a delivery to the order consumer.
    pub fn consumer_delivery(&self, is_redelivery: bool) {
        self.consumer_deliveries.inc();
        self.consumer_redelivered.inc_by(u64::from(is_redelivery));
    }

    /// Counts a poison message, or a poison intent of a message.
    pub fn consumer_poison(&self, flaw: EnvelopeFlaw) {
        self.consumer_poison.get_or_create(&ReasonLabel { reason: flaw.as_str() }).inc();
    }

    /// Counts the retry of an order that failed while the ledger committed others.
    pub fn consumer_retry(&self) {
        self.consumer_retries.inc();
    }

    /// Counts a dead letter that the order consumer published and the broker confirmed.
    pub fn consumer_dead_letter(&self) {
        self.consumer_dead_letters.inc();
    }

    /// Counts results that were skipped, because the stock is slower than the ledger.
    pub fn results_not_written(&self, count: usize) {
        self.results_not_written.inc_by(count as u64);
    }

    /// Sets the number of unacknowledged deliveries of an order queue.
    pub fn consumer_in_flight(&self, queue: u16, count: usize) {
        let in_flight = self.consumer_in_flight.get_or_create(&OrderQueue { queue });
        in_flight.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Records the time from the reservation of the units to the commit of the order.
    pub fn placement(&self, took_ms: i64) {
        self.placement.observe(took_ms.max(0) as f64 / 1000.0);
    }

    /// Counts a dead letter that was stored in the ledger, or opened again.
    pub fn dead_letter(&self, origin: DeadLetterOrigin) {
        self.dead_letters_stored.get_or_create(&OriginLabel { origin: origin.name() }).inc();
    }

    /// Counts a dead letter that the ledger rejected.
    pub fn dead_letter_refused(&self) {
        self.dead_letters_refused.inc();
    }

    /// Sets the numbers of dead letters in the ledger. Called by the dead-letter collector.
    pub fn dead_letters(&self, counts: DeadLetterCounts) {
        let DeadLetterCounts { open, replayed, parked, discarded } = counts;
        let by_state = [
            (DeadLetterState::Open, open),
            (DeadLetterState::Replayed, replayed),
            (DeadLetterState::Parked, parked),
            (DeadLetterState::Discarded, discarded),
        ];
        for (state, count) in by_state {
            let gauge = self.dead_letters.get_or_create(&StateLabel { state: state.name() });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts an intent that the ledger refused.
    pub fn ledger_refused(&self, refusal: &Refusal) {
        self.ledger_refused.get_or_create(&ReasonLabel { reason: refusal.code() }).inc();
    }

    /// Counts a failed call to the ledger.
    pub fn ledger_error(&self, class: ErrorClass) {
        let class = match class {
            ErrorClass::Retry => "retry",
            ErrorClass::Down => "down",
            ErrorClass::Unknown => "unknown",
            ErrorClass::Bug => "bug",
        };
        self.ledger_errors.get_or_create(&ErrorClassLabel { class }).inc();
    }

    /// Counts a failed call to the stock.
    pub fn stock_error(&self, error: &stock::Error) {
        let class = match error {
            stock::Error::NotLoaded(_) => "not_loaded",
            stock::Error::HalfWritten { .. } | stock::Error::Damaged { .. } => "damaged",
            stock::Error::Fenced { .. } => "fenced",
            stock::Error::Unavailable { .. } => "unavailable",
            stock::Error::Unknown { .. } => "unknown",
        };
        self.stock_errors.get_or_create(&ErrorClassLabel { class }).inc();
    }

    /// Sets the state of the ledger's circuit breaker: while it is open, new requests are answered
    /// `busy`. Called at each scrape.
    pub fn breaker(&self, is_open: bool) {
        self.ledger_breaker.set(i64::from(is_open));
    }

    /// Sets the units left of a SKU. Called at each scrape.
    pub fn stock_left(&self, sale: String, sku: String, left: u32) {
        self.stock_left.get_or_create(&SaleSku { sale, sku }).set(i64::from(left));
    }

    /// Sets the numbers of requests inside gates and of intents inside the consumer. Called at each
    /// scrape.
    pub fn inside(&self, gates: usize, consumer: usize) {
        self.gate_unsettled.set(i64::try_from(gates).unwrap_or(i64::MAX));
        self.consumer_queue.set(i64::try_from(consumer).unwrap_or(i64::MAX));
    }

    /// Sets the restart counters from the supervisor's reports. Called at each scrape.
    pub fn actors(&self, reports: &[ChildReport]) {
        for kind in reports.iter().map(|report| report.kind) {
            let sum = |count: fn(&ChildReport) -> u64| -> u64 {
                reports.iter().filter(|report| report.kind == kind).map(count).sum()
            };
            let (panicked, stalled) = (sum(|child| child.panics), sum(|child| child.stalls));
            let stopped = sum(|child| child.restarts).saturating_sub(panicked + stalled);
            let totals = [("panicked", panicked), ("stalled", stalled), ("stopped", stopped)];
            for (reason, total) in totals {
                let counter = self.actor_restarts.get_or_create(&RestartCause { kind, reason });
                counter.inner().store(total, Ordering::Relaxed);
            }
        }
    }

    /// All metrics in the `OpenMetrics` text format, of content type [`EXPOSITION_TYPE`].
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

fn placement_durations() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
    ])
}

fn batch_sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 12))
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
