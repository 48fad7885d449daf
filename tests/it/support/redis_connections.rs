//! Connections to Redis for tests, and a capture of their log.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use floodgate::redis::transport::{ConnectionOptions, ConnectionPool, Durability, ScriptSource};
use parking_lot::Mutex;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Time-out that no test reaches; tests of time-outs set a shorter one.
const LONG_TIMEOUT: Duration = Duration::from_secs(10);

/// The script `add`, available on every connection of [`options`].
const ADD: &str = "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])";

/// Runs a test with timers and sockets, without actors.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub fn options(url: &str) -> ConnectionOptions {
    ConnectionOptions {
        url: url.parse().unwrap(),
        trust: None,
        connect_timeout: LONG_TIMEOUT,
        command_timeout: LONG_TIMEOUT,
        user_timeout: LONG_TIMEOUT,
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        durability: Durability::Plain,
        replicas_min: 1,
        replicas_wait_ms: 1,
        scripts: Arc::new([ScriptSource { name: "add", text: ADD.to_owned() }]),
    }
}

/// [`options`] with a command time-out of 100 ms.
pub fn short_timeout_options(url: &str) -> ConnectionOptions {
    ConnectionOptions { command_timeout: Duration::from_millis(100), ..options(url) }
}

pub fn connection_pool(url: &str) -> ConnectionPool {
    ConnectionPool::new(options(url)).unwrap()
}

/// The captured log lines about the connections to servers on some ports.
pub struct CapturedLog(Vec<String>);

impl CapturedLog {
    pub fn of(ports: impl IntoIterator<Item = u16>) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::registry().with(CaptureLayer).init());
        Self(ports.into_iter().map(|port| port.to_string()).collect())
    }

    /// Number of lines with this prefix.
    pub fn count(&self, prefix: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(prefix)).count()
    }

    pub fn all(&self) -> String {
        self.lines().join("\n")
    }

    fn lines(&self) -> Vec<String> {
        let names_port = |line: &&String| {
            let mut numbers = line.split(|c: char| !c.is_ascii_digit());
            numbers.any(|number| self.0.iter().any(|port| port == number))
        };
        LOG.lock().iter().filter(names_port).cloned().collect()
    }
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Captures the log of Redis connections; shared by all tests of a process.
struct CaptureLayer;

impl<S: Subscriber> Layer<S> for CaptureLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("floodgate::redis::transport") {
            let mut line = String::new();
            event.record(&mut |field: &Field, value: &dyn Debug| match field.name() {
                "message" => line.insert_str(0, &format!("{value:?}")),
                name => line.push_str(&format!(" {name}={value:?}")),
            });
            LOG.lock().push(line);
        }
    }
}
