//! Logging: lines on stderr, as text or JSON, and one line per panic.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use super::log_writer::{self, LogWriter};
use super::repeats::{Limited, RepeatLimit};
use crate::config::{LogFormat, LogSettings};

/// The system refuses the thread that writes the log, or logging was set up before.
#[derive(Debug, thiserror::Error)]
#[error("the log cannot be written: {0}")]
pub struct Error(String);

/// Logs to stderr, panics too. Call once, at the start of a process that runs the engine, and drop
/// what it returns at the end.
pub fn init(settings: &LogSettings) -> Result<LogWriter, Error> {
    let stderr = std::io::stderr();
    let colours = stderr.is_terminal();
    // Not that of the standard library, whose lock its last writer keeps while it waits.
    let target = stderr.as_fd().try_clone_to_owned().map(File::from);
    let started = target.and_then(log_writer::start);
    let (lines, writer) = started.map_err(|error| Error(error.to_string()))?;
    let repeats = RepeatLimit::default();
    repeats.start_reporting(lines.clone());
    let lines = move || lines.clone();
    let subscriber = subscriber(settings, repeats, lines, colours);
    subscriber.try_init().map_err(|error| Error(error.to_string()))?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(writer)
}

fn subscriber<W>(
    settings: &LogSettings,
    repeats: RepeatLimit,
    writer: W,
    colours: bool,
) -> impl Subscriber + Send + Sync + 'static
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The rules of the configuration refuse a filter that does not parse.
    let filter = EnvFilter::new(&settings.filter);
    let lines = fmt::layer().with_writer(writer).log_internal_errors(false);
    let lines = match settings.format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        // On a terminal the layer decides, and honours NO_COLOR.
        LogFormat::Text if colours => lines.boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    tracing_subscriber::registry().with(Limited { lines, limit: repeats }.with_filter(filter))
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let location = panic.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("a panic without a message");
    // Captured only if RUST_BACKTRACE is set.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread, location, message = format!("panic: {message}"), backtrace);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(filter: &str, format: LogFormat, work: impl FnOnce()) -> String {
        let lines = tempfile::NamedTempFile::new().unwrap();
        let settings = LogSettings { filter: filter.to_owned(), format };
        let subscriber =
            subscriber(&settings, RepeatLimit::default(), lines.reopen().unwrap(), false);
        tracing::subscriber::with_default(subscriber, work);
        std::fs::read_to_string(lines.path()).unwrap()
    }

    #[test]
    fn json_lines_have_the_fields_and_the_filter_applies() {
        let text = logged("info", LogFormat::Json, || {
            tracing::info!(sale = "s1", "opened");
            tracing::debug!("unseen");
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "opened");
        assert_eq!(line["sale"], "s1");
    }

    #[test]
    fn text_outside_a_terminal_has_no_colours() {
        let text = logged("info", LogFormat::Text, || tracing::warn!("low stock"));
        assert!(text.contains("WARN") && text.contains("low stock"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_panic_is_one_line_with_thread_location_and_message() {
        let text = logged("info", LogFormat::Json, || {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(log_panic));
            let caught = std::panic::catch_unwind(|| panic!("out of luck"));
            std::panic::set_hook(before);
            assert!(caught.is_err());
        });
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(line["message"], "panic: out of luck");
        assert!(
            line["location"].as_str().unwrap().starts_with("src/observe/telemetry.rs:"),
            "{text}"
        );
        assert!(line["thread"].is_string());
    }
}
