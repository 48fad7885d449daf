use std::time::Duration;

use parking_lot::Mutex;

use super::plan::{Observer, Outcome};
use super::report::Report;
use super::request::json_string_member;

/// The counters of one generator thread. Only the progress display contends for the lock.
pub(super) struct Recorder {
    observer: Option<Observer>,
    report: Mutex<Report>,
}

impl Recorder {
    pub(super) fn new(observer: Option<Observer>) -> Self {
        Self { observer, report: Mutex::default() }
    }

    /// Counts the end of a request; `latency` is that of an answer.
    pub(super) fn record(&self, seq: u64, outcome: &Outcome<'_>, latency: Duration) {
        if let Some(observer) = &self.observer {
            observer(seq, outcome);
        }
        let mut report = self.report.lock();
        report.attempted += 1;
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::Unknown(_) => return report.transport_errors += 1,
            Outcome::Unsent => return report.unsent += 1,
        };
        report.answered += 1;
        report.replayed += u64::from(answer.replayed);
        report.latency.record(latency);
        *report.by_status.entry(answer.status).or_default() += 1;
        if answer.status >= 400 {
            let code = json_string_member(answer.body, b"code").unwrap_or("");
            match report.by_code.get_mut(code) {
                Some(count) => *count += 1,
                None if code.is_empty() => {}
                None => _ = report.by_code.insert(code.to_owned(), 1),
            }
        }
    }

    /// The number of ended requests, and of those without an answer.
    pub(super) fn ended(&self) -> (u64, u64) {
        let report = self.report.lock();
        (report.attempted, report.transport_errors + report.unsent)
    }

    /// Adds these counts to `total`.
    pub(super) fn add_to(&self, total: &mut Report) {
        total.merge(&self.report.lock());
    }
}
