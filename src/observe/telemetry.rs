//! Logging: lines on stderr, as text or JSON, and one line per panic.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::config::{LogFormat, LogSettings};

/// Why logging was not set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse.
    #[error(
        "log.filter {filter:?} is not a filter: {reason}\n    -> use a level (error, warn, info, \
         debug, trace) or directives such as \"info,floodgate::actors=debug\""
    )]
    Filter {
        filter: String,
        /// Error of the parser.
        reason: String,
    },
    /// A global subscriber is set already.
    #[error("logging was set up twice in one process\n    -> report this; no setting causes it")]
    Twice,
}

/// Writes log lines to stderr and logs panics. Call once, at the start of a process that runs the
/// engine.
///
/// # Errors
/// The filter does not parse, or logging was set up before.
pub fn init(settings: &LogSettings) -> Result<(), Error> {
    let colours = std::io::stderr().is_terminal();
    subscriber(settings, std::io::stderr, colours)?.try_init().map_err(|_twice| Error::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn subscriber<W>(
    settings: &LogSettings,
    writer: W,
    colours: bool,
) -> Result<impl Subscriber + Send + Sync + 'static, Error>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(&settings.filter).map_err(|error| Error::Filter {
        filter: settings.filter.clone(),
        reason: error.to_string(),
    })?;
    // With a closed stderr, lines are dropped; a panic on write errors would end the process.
    let lines = fmt::layer().with_writer(writer).log_internal_errors(false);
    let lines = match settings.format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        // On a terminal the layer decides, and honours NO_COLOR.
        LogFormat::Text if colours => lines.boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines.with_filter(filter)))
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let location = panic.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("a panic without a message");
    // Captured only if RUST_BACKTRACE is set.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread, location, message = format!("panic: {message}"), backtrace);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(filter: &str, format: LogFormat, work: impl FnOnce()) -> String {
        let lines = Lines::default();
        let settings = LogSettings { filter: filter.to_owned(), format };
        let subscriber = subscriber(&settings, lines.clone(), false).unwrap();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).unwrap()
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
    fn an_invalid_filter_is_reported_with_a_remedy() {
        let settings = LogSettings { filter: "info,=,=".into(), format: LogFormat::Text };
        let error = subscriber(&settings, std::io::stderr, false).err().unwrap().to_string();
        assert!(error.contains("\"info,=,=\"") && error.contains("-> use a level"), "{error}");
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
