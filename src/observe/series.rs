//! The last hour of this process, one sample a second, for the charts of the operators' page.
//!
//! A table of series; the values of a sample stand in its order. Counters are sampled as they are:
//! the reader derives rates, so that a missed second bends no line.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;

use crate::observe::metrics::{Metrics, OutcomeLabel, StateLabel};

/// One hour.
const SAMPLES_MAX: usize = 3_600;

/// Milliseconds between two samples.
pub const EVERY_MS: u64 = 1_000;

/// What the values of a series are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeriesKind {
    /// Grows; its differences are rates. Starts at zero with the process.
    Counter,
    /// A value of the moment.
    Gauge,
}

/// A series.
#[derive(Debug, Serialize)]
pub struct Series {
    pub name: &'static str,
    pub kind: SeriesKind,
    #[serde(skip)]
    read: fn(&Metrics) -> f64,
}

const fn counter(name: &'static str, read: fn(&Metrics) -> f64) -> Series {
    Series { name, kind: SeriesKind::Counter, read }
}

const fn gauge(name: &'static str, read: fn(&Metrics) -> f64) -> Series {
    Series { name, kind: SeriesKind::Gauge, read }
}

/// All series, in the order of the values of a sample.
pub const SERIES: &[Series] = &[
    counter("accepted", |metrics| buys(metrics, &["placed", "queued"])),
    counter("sold_out", |metrics| buys(metrics, &["sold-out"])),
    counter("busy", |metrics| buys(metrics, &["busy", "unknown"])),
    counter("limited", |metrics| {
        buys(metrics, &["already-purchased", "quota-exceeded", "barred", "rate-limited"])
    }),
    counter("published", |metrics| metrics.relay_published.get() as f64),
    counter("delivered", |metrics| metrics.consumer_deliveries.get() as f64),
    counter("ordered", |metrics| metrics.orders_placed.get() as f64),
    counter("timed_out", |metrics| metrics.orders_timed_out.get() as f64),
    counter("refunded", |metrics| metrics.refunds_done.get() as f64),
    counter("changes_settled", |metrics| metrics.order_changes_settled.get() as f64),
    gauge("in_outbox", |metrics| metrics.outbox_waiting.get() as f64),
    gauge("in_outbox_oldest_s", |metrics| metrics.outbox_oldest.get()),
    gauge("in_relay", |metrics| metrics.relay_in_flight.get() as f64),
    gauge("in_gates", |metrics| metrics.gate_unsettled.get() as f64),
    gauge("in_writer", |metrics| metrics.writer_queue.get() as f64),
    gauge("changes_waiting", |metrics| metrics.order_changes_waiting.get() as f64),
    gauge("events_waiting", |metrics| metrics.events_waiting.get() as f64),
    gauge("dead_letters_open", |metrics| {
        let open = metrics.dead_letters.get(&StateLabel { state: "open" });
        open.map_or(0.0, |open| open.get() as f64)
    }),
    gauge("payments_in_doubt", |metrics| metrics.payments_in_doubt.get() as f64),
    gauge("ledger_breaker_open", |metrics| metrics.ledger_breaker.get() as f64),
];

/// Purchases with one of these outcomes.
fn buys(metrics: &Metrics, outcomes: &[&'static str]) -> f64 {
    let count = |outcome: &&'static str| {
        metrics.buy.get(&OutcomeLabel { outcome }).map_or(0, |counter| counter.get())
    };
    outcomes.iter().map(count).sum::<u64>() as f64
}

/// The values of all series at one time, epoch milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub at_ms: i64,
    pub values: Vec<f64>,
}

/// The samples of the last hour; at most 3,600.
#[derive(Debug, Default)]
pub struct SampleHistory(Mutex<VecDeque<Sample>>);

impl SampleHistory {
    /// Takes a sample.
    pub fn sample(&self, metrics: &Metrics, at_ms: i64) {
        let values = SERIES.iter().map(|series| (series.read)(metrics)).collect();
        let mut samples = self.0.lock();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(Sample { at_ms, values });
    }

    /// The samples taken after `since_ms`, oldest first.
    pub fn since(&self, since_ms: i64) -> Vec<Sample> {
        let samples = self.0.lock();
        samples.iter().filter(|sample| sample.at_ms > since_ms).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_value_of_every_series() {
        let (metrics, history) = (Metrics::default(), SampleHistory::default());
        metrics.orders_placed.inc_by(7);
        metrics.buy.get_or_create(&OutcomeLabel { outcome: "queued" }).inc_by(3);
        metrics.outbox_oldest.set(1.5);
        history.sample(&metrics, 1_000);
        let samples = history.since(0);
        let value = |name: &str| {
            let at = SERIES.iter().position(|series| series.name == name).unwrap();
            samples[0].values[at]
        };
        assert_eq!(samples[0].values.len(), SERIES.len());
        let read = ["ordered", "accepted", "in_outbox_oldest_s", "sold_out"].map(value);
        assert_eq!(read.map(|number| format!("{number}")), ["7", "3", "1.5", "0"]);
    }

    #[test]
    fn only_the_last_hour_is_kept_and_only_what_is_newer_is_returned() {
        let (metrics, history) = (Metrics::default(), SampleHistory::default());
        for (second, _) in (0..).zip(0..SAMPLES_MAX + 10) {
            history.sample(&metrics, second * 1_000);
        }
        let all = history.since(-1);
        assert_eq!((all.len(), all[0].at_ms), (SAMPLES_MAX, 10_000));
        let last = all[SAMPLES_MAX - 1].at_ms;
        assert_eq!(history.since(last - 2_000).len(), 2);
        assert!(history.since(last).is_empty());
    }

    #[test]
    fn no_two_series_have_one_name() {
        for (index, series) in SERIES.iter().enumerate() {
            assert!(SERIES.iter().skip(index + 1).all(|other| other.name != series.name));
        }
    }
}
