//! Metrics. The registry is injected, not global: two systems in one process share no counter.
//!
//! `docs/operate/metrics.md` has the table of all names with meaning and alert. Labels never hold
//! ids of buyers or requests, so that the cardinality stays bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::broker::PublishOutcome;
use crate::db::ErrorClass;
use crate::domain::{
    AuditVerdict, DeadLetterCounts, DeadLetterOrigin, DeadLetterState, Refusal, RepairOutcome,
};
use crate::messages::envelope::EnvelopeFlaw;
use crate::runtime::progress::ChildReport;
use crate::{outbox, stock};

/// The content type of [`Metrics::exposition`].
pub const EXPOSITION_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Defines the labels of families.
macro_rules! labels {
    ($($(#[$doc:meta])* $labels:ident { $($name:ident: $type:ty),+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $labels {
            $(pub $name: $type,)+
        }
    )+};
}

labels! {
    /// The route is a path pattern, such as `/v1/sales/{sale_id}`.
    RouteStatus { route: &'static str, status: u16 }
    RouteLabel { route: &'static str }
    /// `placed`, `queued`, `unknown`, `replayed`, or the code of the refusal.
    OutcomeLabel { outcome: &'static str }
    SaleSku { sale: String, sku: String }
    ReasonLabel { reason: &'static str }
    OrderQueue { queue: u16 }
    OriginLabel { origin: &'static str }
    RepairLabels { verdict: &'static str, outcome: &'static str }
    StateLabel { state: &'static str }
    ErrorClassLabel { class: &'static str }
    KindLabel { kind: &'static str }
    RestartCause { kind: &'static str, reason: &'static str }
}

/// Defines [`Metrics`] as a table: each metric with its type, full name and help, and a histogram
/// with its constructor. Names are full, so that a text search for an alert's metric finds this
/// file. The exposition format adds `_total` to counters and `_info` to infos.
macro_rules! metrics {
    ($(
        $(#[$doc:meta])* $field:ident: $type:ty = $name:literal, $help:literal $(, $new:expr)?;
    )+) => {
        /// All metrics of a process.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            $($(#[$doc])* pub $field: $type,)+
        }

        impl Default for Metrics {
            /// Registers every metric.
            fn default() -> Self {
                let mut registry = Registry::default();
                let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
                registry.register("floodgate_build", "The running version", build);
                $(
                    let $field: $type = metrics!(@new $($new)?);
                    registry.register($name, $help, $field.clone());
                )+
                Self { registry, $($field,)+ }
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
}

metrics! {
    http_requests: Family<RouteStatus, Counter> = "floodgate_http_requests", "Answers";
    /// Seconds from the request's head to the answer's head.
    http_request_duration: Family<RouteLabel, Histogram, fn() -> Histogram>
        = "floodgate_http_request_duration_seconds", "Request to answer",
        Family::new_with_constructor(request_durations);
    http_malformed: Counter
        = "floodgate_http_malformed", "Connections ended by what is no HTTP or no TLS";
    buy: Family<OutcomeLabel, Counter> = "floodgate_buy", "Purchases by outcome";
    admin_refused: Counter = "floodgate_admin_refused", "Operators' calls refused";
    rate_limited: Family<ReasonLabel, Counter> = "floodgate_rate_limited", "Calls refused";
    /// Keys of limits whose count was lost, because the table was full.
    limits_forgotten: Counter = "floodgate_limits_forgotten", "Counts lost";
    /// Calls that passed because the shared limits did not answer.
    limits_not_shared: Counter = "floodgate_limits_not_shared", "Calls not counted together";
    event_streams: Gauge = "floodgate_event_streams", "Open event streams";
    event_streams_refused: Family<ReasonLabel, Counter>
        = "floodgate_event_streams_refused", "Event streams refused, by limit";
    stock_left: Family<SaleSku, Gauge> = "floodgate_stock_left", "Units left";
    gate_batch_size: Histogram = "floodgate_gate_batch_size", "Reservations per step",
        batch_sizes();
    gate_unsettled: Gauge = "floodgate_gate_unsettled", "Requests inside gates";
    writer_batch_size: Histogram = "floodgate_writer_batch_size", "Intents per step",
        batch_sizes();
    writer_queue: Gauge = "floodgate_writer_queue", "Intents inside the ledger writer";
    ledger_commit: Histogram = "floodgate_ledger_commit_seconds", "From batch to outcomes",
        commit_durations();
    orders_placed: Counter = "floodgate_orders_placed", "Orders committed";
    ledger_refused: Family<ReasonLabel, Counter> = "floodgate_ledger_refused", "Intents refused";
    /// Requests that failed before the ledger decided them; a repeat after an error counts again.
    requests_ended: Family<ReasonLabel, Counter> = "floodgate_requests_ended", "Ended undecided";
    ledger_errors: Family<ErrorClassLabel, Counter> = "floodgate_ledger_errors", "Failed calls";
    ledger_breaker: Gauge = "floodgate_ledger_breaker_open", "1 while it is open";
    stock_errors: Family<ErrorClassLabel, Counter> = "floodgate_stock_errors", "Failed calls";
    actor_restarts: Family<RestartCause, Counter> = "floodgate_actor_restarts", "Actors restarted";
    transfers: Counter = "floodgate_transfers", "Transfers between buckets";
    relay_published: Counter = "floodgate_relay_published", "Confirmed messages";
    relay_confirm: Histogram = "floodgate_relay_confirm_seconds", "From batch to confirmations",
        commit_durations();
    relay_failures: Family<KindLabel, Counter> = "floodgate_relay_failures", "By kind";
    relay_in_flight: Gauge = "floodgate_relay_in_flight", "Entries claimed";
    outbox_waiting: Gauge = "floodgate_outbox_waiting", "Entries waiting or claimed";
    outbox_oldest: Gauge<f64, AtomicU64> = "floodgate_outbox_oldest_seconds", "Age of the oldest";
    rescued_entries: Counter = "floodgate_rescued_entries", "Entries reclaimed";
    reconcile_matched: Counter = "floodgate_reconcile_matched", "Results written";
    reconcile_submitted: Counter = "floodgate_reconcile_submitted", "Lost requests decided";
    repairs: Family<RepairLabels, Counter> = "floodgate_repairs", "Of audits and the reconciler";
    reconcile_blocked: Family<ReasonLabel, Gauge>
        = "floodgate_reconcile_blocked", "Buckets whose old requests cannot be decided";
    order_changes_settled: Counter = "floodgate_order_changes_settled", "Changes of orders";
    order_changes_waiting: Gauge = "floodgate_order_changes_waiting", "Changes not settled";
    order_changes_oldest: Gauge<f64, AtomicU64>
        = "floodgate_order_changes_oldest_seconds", "Age of the oldest";
    events_published: Counter = "floodgate_events_published", "Order events in the broker";
    events_waiting: Gauge = "floodgate_events_waiting", "Order events not published";
    orders_timed_out: Counter = "floodgate_orders_timed_out", "Unpaid orders ended";
    orders_ended_by_hint: Counter
        = "floodgate_orders_ended_by_hint", "Unpaid orders ended, at hints";
    due_hints: Family<OutcomeLabel, Counter>
        = "floodgate_due_hints", "Messages to delay queues, by outcome";
    clock_not_trusted: Gauge = "floodgate_clock_not_trusted", "1 while the clock is not trusted";
    payments_in_doubt: Gauge = "floodgate_payments_in_doubt", "Due, provider does not answer";
    secret_reloads: Family<OutcomeLabel, Counter>
        = "floodgate_secret_reloads", "Secrets read again at SIGHUP, by outcome";
    webhooks_rejected: Family<ReasonLabel, Counter>
        = "floodgate_webhooks_rejected", "By the check that failed";
    refunds_done: Counter = "floodgate_refunds_done", "Refunds that the provider made";
    refunds_failed: Counter = "floodgate_refunds_failed", "Refunds given up";
    payment_messages: Family<OutcomeLabel, Counter>
        = "floodgate_payment_messages", "Payment events from the queue, by outcome";
    late_payments: Family<OutcomeLabel, Counter>
        = "floodgate_late_payments", "Money of timed-out orders, by outcome";
    retakes_waiting: Gauge = "floodgate_retakes_waiting", "Late money without a decision";
    consumer_deliveries: Counter = "floodgate_consumer_deliveries", "Messages delivered";
    consumer_redelivered: Counter = "floodgate_consumer_redelivered", "Redeliveries";
    consumer_poison: Family<ReasonLabel, Counter>
        = "floodgate_consumer_poison", "Poison messages and intents";
    /// Retries of orders that failed while the ledger committed others.
    consumer_retries: Counter = "floodgate_consumer_retries", "Retries of single orders";
    /// Dead letters that the order consumer published and the broker confirmed.
    consumer_dead_letters: Counter = "floodgate_consumer_dead_letters", "Published";
    /// Results that were skipped, because the stock is slower than the ledger.
    results_not_written: Counter = "floodgate_results_not_written", "Not written in time";
    consumer_in_flight: Family<OrderQueue, Gauge>
        = "floodgate_consumer_in_flight", "Not acknowledged";
    placement: Histogram = "floodgate_placement_seconds", "Reservation to commit",
        Histogram::new([
            0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
            1800.0,
        ]);
    dead_letters: Family<StateLabel, Gauge> = "floodgate_dead_letters", "In the ledger";
    dead_letters_stored: Family<OriginLabel, Counter> = "floodgate_dead_letters_stored", "Stored";
    /// Dead letters that the ledger rejected.
    dead_letters_refused: Counter = "floodgate_dead_letters_refused", "Rejected";
}

impl Metrics {
    /// Counts a poison message, or a poison intent of a message.
    pub fn consumer_poison(&self, flaw: EnvelopeFlaw) {
        self.consumer_poison.get_or_create(&ReasonLabel { reason: flaw.name() }).inc();
    }

    /// Sets the number of unacknowledged deliveries of an order queue.
    pub fn consumer_in_flight(&self, queue: u16, count: usize) {
        let in_flight = self.consumer_in_flight.get_or_create(&OrderQueue { queue });
        in_flight.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a repair.
    pub fn repair(&self, verdict: AuditVerdict, outcome: RepairOutcome) {
        let labels = RepairLabels { verdict: verdict.name(), outcome: outcome.name() };
        self.repairs.get_or_create(&labels).inc();
    }

    /// Counts a dead letter that was stored in the ledger, or opened again.
    pub fn dead_letter(&self, origin: DeadLetterOrigin) {
        self.dead_letters_stored.get_or_create(&OriginLabel { origin: origin.name() }).inc();
    }

    /// Sets the numbers of dead letters in the ledger. Called by `DeadLetterCounter`.
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

    /// Counts the entries of a relay's round by outcome; `took` is the time until the confirms.
    pub fn relayed(&self, outcomes: &[PublishOutcome], took: Duration) {
        let mut num_confirmed = 0;
        for outcome in outcomes {
            match outcome {
                PublishOutcome::Confirmed => num_confirmed += 1,
                PublishOutcome::Refused { .. } => self.relay_failed("refused", 1),
                PublishOutcome::Unknown { .. } => self.relay_failed("unknown", 1),
                PublishOutcome::NotSent { .. } => self.relay_failed("not_sent", 1),
            }
        }
        self.relay_published.inc_by(num_confirmed);
        if num_confirmed > 0 {
            self.relay_confirm.observe(took.as_secs_f64());
        }
    }

    /// Counts entries of one kind of failure.
    pub fn relay_failed(&self, kind: &'static str, count: usize) {
        if count > 0 {
            self.relay_failures.get_or_create(&KindLabel { kind }).inc_by(count as u64);
        }
    }

    /// Counts a failed outbox call of a relay.
    pub fn outbox_error(&self, error: &outbox::Error) {
        let kind = match error {
            outbox::Error::Unavailable { .. } => "outbox_unavailable",
            outbox::Error::Unknown { .. } => "outbox_unknown",
            outbox::Error::Damaged { .. } => "outbox_damaged",
        };
        self.relay_failed(kind, 1);
    }

    /// Sets the number of changes that could not be brought to their buckets, and the age of the
    /// oldest.
    pub fn set_order_changes_waiting(&self, count: usize, oldest: Duration) {
        self.order_changes_waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.order_changes_oldest.set(oldest.as_secs_f64());
    }

    /// Sets the numbers of requests inside gates and of intents inside the ledger writer. Called at
    /// each scrape.
    pub fn inside(&self, gates: usize, writer: usize) {
        self.gate_unsettled.set(i64::try_from(gates).unwrap_or(i64::MAX));
        self.writer_queue.set(i64::try_from(writer).unwrap_or(i64::MAX));
    }

    /// Sets the restart counters from the supervisor's reports. Called at each scrape.
    pub fn actors(&self, reports: &[ChildReport]) {
        let mut by_kind: HashMap<&str, [u64; 3]> = HashMap::new();
        for report in reports {
            let sums = by_kind.entry(report.kind).or_default();
            for (sum, count) in sums.iter_mut().zip([report.restarts, report.panics, report.stalls])
            {
                *sum += count;
            }
        }
        for (kind, [restarts, panicked, stalled]) in by_kind {
            let stopped = restarts.saturating_sub(panicked + stalled);
            let totals = [("panicked", panicked), ("stalled", stalled), ("stopped", stopped)];
            for (reason, total) in totals {
                let counter = self.actor_restarts.get_or_create(&RestartCause { kind, reason });
                counter.inner().store(total, Ordering::Relaxed);
            }
        }
    }

    /// All metrics in the `OpenMetrics` text format, of content type [`EXPOSITION_TYPE`].
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
#[path = "metrics_tests.rs"]
mod tests;
