//! Connections to Redis for tests, and what was heard of them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use floodgate::redis_link::{Durability, Event, LinkOptions, Links, Observer, ScriptSource};
use parking_lot::Mutex;

/// Far more than anything takes; a test that waits for it to pass makes it shorter.
const PATIENT: Duration = Duration::from_secs(10);

/// A script that every link of [`options`] has, by the name `add`.
const ADD: &str = "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])";

/// Runs a test that needs timers and sockets but no actors.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub fn options(url: &str) -> LinkOptions {
    LinkOptions {
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
pub fn impatient(url: &str) -> LinkOptions {
    LinkOptions { command_timeout: Duration::from_millis(100), ..options(url) }
}

pub fn links(url: &str) -> Links {
    Links::new(options(url), None).unwrap()
}

/// What an observer heard.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    pub fn observer(&self) -> Observer {
        let heard = self.0.clone();
        Arc::new(move |event: &Event<'_>| heard.lock().push(format!("{event:?}")))
    }

    /// Events whose text begins like this.
    pub fn count(&self, begin: &str) -> usize {
        self.0.lock().iter().filter(|event| event.starts_with(begin)).count()
    }

    pub fn all(&self) -> String {
        self.0.lock().join("\n")
    }
}
