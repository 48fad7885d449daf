//! Connections to Redis for tests, and what was heard of them.

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

/// Far more than anything takes; a test that waits for it to pass makes it shorter.
const PATIENT: Duration = Duration::from_secs(10);

/// A script that every link of [`options`] has, by the name `add`.
const ADD: &str = "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])";

/// Runs a test that needs timers and sockets but no actors.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub fn options(url: &str) -> ConnectionOptions {
    ConnectionOptions {
        url: url.parse().unwrap(),
        connect_timeout: PATIENT,
        command_timeout: PATIENT,
        user_timeout: PATIENT,
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        durability: Durability::Plain,
        scripts: Arc::new([ScriptSource { name: "add", text: ADD.to_owned() }]),
    }
}

/// For links that must notice soon that nobody answers.
pub fn impatient(url: &str) -> ConnectionOptions {
    ConnectionOptions { command_timeout: Duration::from_millis(100), ..options(url) }
}

pub fn links(url: &str) -> ConnectionPool {
    ConnectionPool::new(options(url)).unwrap()
}

/// What the log says of the connections to some servers.
pub struct Heard(Vec<String>);

impl Heard {
    pub fn of(ports: impl IntoIterator<Item = u16>) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::registry().with(Ear).init());
        Self(ports.into_iter().map(|port| port.to_string()).collect())
    }

    /// Lines that begin like this.
    pub fn count(&self, begin: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(begin)).count()
    }

    pub fn all(&self) -> String {
        self.lines().join("\n")
    }

    fn lines(&self) -> Vec<String> {
        let numbers = |line: &&String| {
            let mut numbers = line.split(|c: char| !c.is_ascii_digit());
            numbers.any(|number| self.0.iter().any(|port| port == number))
        };
        LOG.lock().iter().filter(|line| numbers(line)).cloned().collect()
    }
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Writes down what connections log: several tests may do so in one process.
struct Ear;

impl<S: Subscriber> Layer<S> for Ear {
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
