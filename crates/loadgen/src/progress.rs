use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::plan::Until;

/// A progress bar on standard error; `None` if that is not a terminal.
pub fn terminal_progress(title: &'static str) -> Option<ProgressBar> {
    let bar = ProgressBar::new(0);
    if bar.is_hidden() {
        return None;
    }
    let template = "{prefix:>12} [{bar:40}] {percent:>3} % {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(title);
    Some(bar)
}

/// Updates the bar; `ended` includes the requests without an answer.
pub(super) fn show(
    bar: &ProgressBar,
    (ended, answered): (u64, u64),
    elapsed: Duration,
    until: Until,
) {
    let (position, length) = match until {
        Until::Requests(total) => (ended, total),
        Until::Elapsed(total) => (millis(elapsed), millis(total)),
    };
    bar.set_length(length);
    bar.set_position(position.min(length));
    let rate = ended as f64 / elapsed.as_secs_f64().max(0.001);
    bar.set_message(format!("{answered} answers, {rate:.0}/s"));
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
