use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::plan::Until;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests that have ended in any way.
    pub ended: u64,
    /// Those of them without an answer.
    pub failed: u64,
    /// Since the first request.
    pub elapsed: Duration,
    /// When the run will end.
    pub until: Until,
    /// The run has ended; this is the last call.
    pub finished: bool,
}

/// Told about ten times a second how far the run is, and once at its end.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

/// A progress bar on standard error; `None` where that is not a terminal.
pub fn terminal_progress(title: &'static str) -> Option<ProgressFn> {
    let bar = ProgressBar::new(0);
    if bar.is_hidden() {
        return None;
    }
    let template = "{prefix:>12} [{bar:40}] {percent:>3} % {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(title);
    Some(Arc::new(move |progress: &Progress| {
        let (position, length) = match progress.until {
            Until::Requests(total) => (progress.ended, total),
            Until::Elapsed(total) => (millis(progress.elapsed), millis(total)),
        };
        bar.set_length(length);
        bar.set_position(position.min(length));
        let seconds = progress.elapsed.as_secs_f64().max(0.001);
        let rate = progress.ended as f64 / seconds;
        let message = format!("{} answers, {rate:.0}/s", progress.ended - progress.failed);
        bar.set_message(message);
        if progress.finished {
            bar.finish_and_clear();
        }
    }))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
