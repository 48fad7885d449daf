//! One registry, handed in: two systems in one process share no counter.
//!
//! The table of all names with meaning and alarm is in `docs/operations.md`. Labels never hold ids
//! of buyers or requests: their number must not grow with the crowd.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::actors::supervisor::ChildReport;
use crate::db::ErrorClass;
use crate::domain::{DeadLetterCounts, DeadLetterOrigin, DeadLetterState, Refusal};
use crate::messages::envelope::EnvelopeFlaw;
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
pub struct RouteLabel {
    /// The route as the interface writes it.
    pub route: &'static str,
}

/// What a purchase came to.
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

/// Histograms of durations, one for each route.
pub type RouteDurations = Family<RouteLabel, Histogram, fn() -> Histogram>;

/// All metrics of one system.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Answers by route and status.
    pub http_requests: Family<RouteStatus, Counter>,
    /// Seconds from the request's head to the answer's head.
    pub http_request_duration: RouteDurations,
    /// Purchases by outcome.
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
    pub(crate) relay_hand: Gauge,
    pub(crate) outbox_waiting: Gauge,
    pub(crate) outbox_oldest: Gauge<f64, AtomicU64>,
    pub(crate) rescued_entries: Counter,
    pub(crate) reconcile_matched: Counter,
    pub(crate) reconcile_republished: Counter,
    pub(crate) reconcile_blocked: Family<ReasonLabel, Gauge>,
    intake_deliveries: Counter,
    intake_redelivered: Counter,
    intake_poison: Family<ReasonLabel, Counter>,
    intake_retries: Counter,
    intake_dead: Counter,
    results_left: Counter,
    intake_in_hand: Family<OrderQueue, Gauge>,
    landing: Histogram,
    dead_letters: Family<StateLabel, Gauge>,
    dead_letters_kept: Family<OriginLabel, Counter>,
    dead_letters_refused: Counter,
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
            ("floodgate_gate_batch_size", "floodgate_writer_batch_size");
        let commit = "floodgate_ledger_commit_seconds";
        let confirm = "floodgate_relay_confirm_seconds";
        Self {
            http_requests: fresh(to, "floodgate_http_requests", "Answers"),
            http_request_duration: enter(to, duration, "From head to head", durations),
            buy: fresh(to, "floodgate_buy", "Purchases by outcome"),
            stock_left: fresh(to, "floodgate_stock_left", "Units left"),
            gate_batch_size: enter(to, gate_batch, "Reservations per step", batch_sizes()),
            gate_unsettled: fresh(to, "floodgate_gate_unsettled", "Requests inside gates"),
            consumer_batch_size: enter(to, consumer_batch, "Intents per step", batch_sizes()),
            consumer_queue: fresh(to, "floodgate_writer_queue", "Intents inside the consumer"),
            ledger_commit: enter(to, commit, "From batch to outcomes", commit_durations()),
            orders_placed: fresh(to, "floodgate_orders_placed", "Orders that became rows"),
            ledger_refused: fresh(to, "floodgate_ledger_refused", "Intents refused"),
            ledger_errors: fresh(to, "floodgate_ledger_errors", "Failed calls"),
            ledger_breaker: fresh(to, "floodgate_ledger_breaker_open", "1 while it is open"),
            stock_errors: fresh(to, "floodgate_stock_errors", "Failed calls"),
            actor_restarts: fresh(to, "floodgate_actor_restarts", "Actors replaced"),
            transfers: fresh(to, "floodgate_transfers", "Transfers between buckets"),
            relay_published: fresh(to, "floodgate_relay_published", "Confirmed messages"),
            relay_confirm: enter(to, confirm, "From batch to confirmations", commit_durations()),
            relay_failures: fresh(to, "floodgate_relay_failures", "What went wrong"),
            relay_hand: fresh(to, "floodgate_relay_in_flight", "Entries claimed"),
            outbox_waiting: fresh(to, "floodgate_outbox_waiting", "Entries not published"),
            outbox_oldest: fresh(to, "floodgate_outbox_oldest_seconds", "Age of the oldest"),
            rescued_entries: fresh(to, "floodgate_rescued_entries", "Entries reclaimed"),
            reconcile_matched: fresh(to, "floodgate_reconcile_matched", "Results written"),
            reconcile_republished: fresh(to, "floodgate_reconcile_republished", "Lost requests"),
            reconcile_blocked: fresh(to, "floodgate_reconcile_blocked", "Buckets left out"),
            intake_deliveries: fresh(to, "floodgate_consumer_deliveries", "Messages delivered"),
            intake_redelivered: fresh(to, "floodgate_consumer_redelivered", "Not the first time"),
            intake_poison: fresh(to, "floodgate_consumer_poison", "What cannot be used"),
            intake_retries: fresh(to, "floodgate_consumer_retries", "Failures of single orders"),
            intake_dead: fresh(to, "floodgate_consumer_dead_letters", "Dead letters made"),
            results_left: fresh(to, "floodgate_results_not_written", "Results not written in time"),
            intake_in_hand: fresh(to, "floodgate_consumer_in_flight", "Not acknowledged"),
            landing: enter(
                to,
                "floodgate_placement_seconds",
                "Click to order",
                landing_durations(),
            ),
            dead_letters: fresh(to, "floodgate_dead_letters", "Letters in the ledger"),
            dead_letters_kept: fresh(to, "floodgate_dead_letters_stored", "Letters that arrived"),
            dead_letters_refused: fresh(to, "floodgate_dead_letters_refused", "Not taken"),
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

    /// One message was delivered to an intake; `again`: not for the first time.
    pub fn intake_delivery(&self, again: bool) {
        self.intake_deliveries.inc();
        self.intake_redelivered.inc_by(u64::from(again));
    }

    /// A message, or one intent of it, cannot be used.
    pub fn intake_poison(&self, flaw: EnvelopeFlaw) {
        self.intake_poison.get_or_create(&ReasonLabel { reason: flaw.as_str() }).inc();
    }

    /// An order failed while the ledger commits others, and is tried again.
    pub fn intake_retry(&self) {
        self.intake_retries.inc();
    }

    /// A dead letter of an intake is in its queue.
    pub fn intake_dead_letter(&self) {
        self.intake_dead.inc();
    }

    /// The results of so many intents were left out, because the stock is slower than the ledger.
    pub fn results_left(&self, count: usize) {
        self.results_left.inc_by(count as u64);
    }

    /// Deliveries of one order queue that are not acknowledged.
    pub fn intake_in_hand(&self, queue: u16, count: usize) {
        let in_hand = self.intake_in_hand.get_or_create(&OrderQueue { queue });
        in_hand.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// An order became a row, so long after its units were taken.
    pub fn landing(&self, took_ms: i64) {
        self.landing.observe(took_ms.max(0) as f64 / 1000.0);
    }

    /// A dead letter arrived in the ledger, or was opened again.
    pub fn dead_letter(&self, origin: DeadLetterOrigin) {
        self.dead_letters_kept.get_or_create(&OriginLabel { origin: origin.name() }).inc();
    }

    /// The ledger did not take a dead letter, although it answers.
    pub fn dead_letter_refused(&self) {
        self.dead_letters_refused.inc();
    }

    /// How many dead letters the ledger has; told by whoever keeps them.
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

    /// The ledger refused one intent.
    pub fn ledger_refused(&self, refusal: &Refusal) {
        self.ledger_refused.get_or_create(&ReasonLabel { reason: refusal.code() }).inc();
    }

    /// One call to the ledger failed.
    pub fn ledger_error(&self, class: ErrorClass) {
        let class = match class {
            ErrorClass::Retry => "retry",
            ErrorClass::Down => "down",
            ErrorClass::Unknown => "unknown",
            ErrorClass::Bug => "bug",
        };
        self.ledger_errors.get_or_create(&ErrorClassLabel { class }).inc();
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
        self.stock_errors.get_or_create(&ErrorClassLabel { class }).inc();
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

fn landing_durations() -> Histogram {
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
