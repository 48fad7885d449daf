//! A line of the log that repeats is written ten times a second; the others are counted.
//!
//! Without it, an outage writes a line for each request that it fails, and strangers decide how
//! fast the disk fills. Only WARN and ERROR are limited: INFO has the verbs of operators.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::log_writer::LogLines;
use crate::runtime::clock::now_monotonic;

const SECOND: Duration = Duration::from_secs(1);

/// Lines of one place in the code per second.
const WRITTEN_MAX: u32 = 10;

/// Lets ten lines a second of each place in the code pass.
#[derive(Debug, Clone, Default)]
pub struct RepeatLimit(Arc<Mutex<HashMap<Place, Lines>>>);

/// File and line.
type Place = (Option<&'static str>, Option<u32>);

/// The lines of one place in the code.
#[derive(Debug)]
struct Lines {
    second_began: Instant,
    num_written: u32,
    /// Not yet reported.
    num_left_out: u64,
    /// The first of them.
    like: String,
}

impl RepeatLimit {
    /// Starts the thread that reports each second how many lines were left out, or lost because
    /// stderr took none. It ends with the limit.
    pub fn start_reporting(&self, lines: LogLines) {
        let places = Arc::downgrade(&self.0);
        #[expect(
            clippy::disallowed_methods,
            reason = "the lines of a second are reported together"
        )]
        let report = move || {
            let mut num_reported = 0;
            while let Some(limit) = places.upgrade().map(Self) {
                for (count, like) in limit.take_left_out() {
                    tracing::warn!(count, like, "log: repeated lines were left out");
                }
                drop(limit);
                let total = lines.num_lost();
                if total > num_reported {
                    let count = total - num_reported;
                    tracing::warn!(count, "log: lines were lost: the reader of stderr is too slow");
                }
                // Unless that line was lost, too.
                if lines.num_lost() == total {
                    num_reported = total;
                }
                thread::sleep(SECOND);
            }
        };
        // Without a thread from the system lines are left out without a report.
        drop(thread::Builder::new().name("log-repeats".to_owned()).spawn(report));
    }

    /// Whether a line of this place is written at this time; counts it if not. `like` shows it.
    fn admit(&self, place: Place, now: Instant, like: impl FnOnce() -> String) -> bool {
        let mut places = self.0.lock();
        let lines = places.entry(place).or_insert_with(|| Lines {
            second_began: now,
            num_written: 0,
            num_left_out: 0,
            like: String::new(),
        });
        if now.duration_since(lines.second_began) >= SECOND {
            (lines.second_began, lines.num_written) = (now, 0);
        }
        if lines.num_written < WRITTEN_MAX {
            lines.num_written += 1;
            return true;
        }
        if lines.num_left_out == 0 {
            lines.like = like();
        }
        lines.num_left_out += 1;
        false
    }

    /// The lines that were left out since the last call: how many, and the first of them.
    fn take_left_out(&self) -> Vec<(u64, String)> {
        let mut places = self.0.lock();
        let left_out = places.values_mut().filter(|lines| lines.num_left_out > 0);
        left_out
            .map(|lines| (std::mem::take(&mut lines.num_left_out), std::mem::take(&mut lines.like)))
            .collect()
    }
}

/// The text of an event: its message and fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        let _written = match field.name() {
            "message" => write!(self.0, "{space}{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

/// A layer that writes lines, without those beyond the limit.
///
/// Not a filter of that layer: a filter that refuses single events spoils the state in which
/// `tracing-subscriber` 0.3 keeps the decisions of filters, which panics in debug builds.
#[derive(Debug)]
pub struct Limited<L> {
    pub lines: L,
    pub limit: RepeatLimit,
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for Limited<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let text = || {
            let mut text = Text::default();
            event.record(&mut text);
            text.0
        };
        let place = (metadata.file(), metadata.line());
        if *metadata.level() > Level::WARN || self.limit.admit(place, now_monotonic(), text) {
            self.lines.on_event(event, context);
        }
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.lines.on_new_span(attributes, id, context);
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.lines.on_record(span, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.lines.on_close(id, context);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn warn(number: u32) {
        tracing::warn!(number, "ledger: no answer");
    }

    #[test]
    fn repeats_are_counted_and_other_lines_are_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let limit = RepeatLimit::default();
        let lines = tracing_subscriber::fmt::layer().with_writer(file.reopen().unwrap());
        let limited = Limited { lines, limit: limit.clone() };
        let filter = tracing_subscriber::EnvFilter::new("info");
        let subscriber = tracing_subscriber::registry().with(limited.with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            (0..1000).for_each(warn);
            tracing::warn!("another place");
            (0..20).for_each(|_| tracing::info!("a verb"));
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        let count = |what: &str| text.matches(what).count();
        let written = (count("ledger: no answer"), count("another place"), count("a verb"));
        assert_eq!(written.1, 1);
        assert_eq!(written.2, 20);
        let left_out = limit.take_left_out();
        // A slow machine may need more than a second for the lines.
        let [(num_left_out, like)] = left_out.as_slice() else { panic!("{left_out:?}") };
        assert_eq!(*num_left_out, 1000 - written.0 as u64);
        assert!(written.0 >= 10 && *num_left_out > 0, "{written:?}");
        assert!(like.starts_with("ledger: no answer number="), "{like}");
        assert!(limit.take_left_out().is_empty());
    }

    #[test]
    fn each_second_begins_anew() {
        let (limit, begin) = (RepeatLimit::default(), now_monotonic());
        let admitted = |after: Duration| {
            let admit = || limit.admit((Some("a.rs"), Some(1)), begin + after, String::new);
            (0..30).filter(|_| admit()).count()
        };
        assert_eq!(admitted(Duration::ZERO), 10);
        assert_eq!(admitted(SECOND / 2), 0);
        assert_eq!(admitted(SECOND), 10);
    }
}
