//! What happens to connections, for the log and for whoever counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Lane;
use super::url::Node;

/// Which start of which server a connection leads to. Never changes while the connection lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Where it is.
    pub node: Node,
    /// The server's own name for this start of itself: 40 hexadecimal digits.
    pub run_id: String,
    /// The server's version.
    pub version: String,
    /// Whether accepted writes go to a file on its disk.
    pub aof: bool,
}

/// Something that happened to a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A connection is ready; `again` if one to this server was ready before.
    Connected {
        /// What it is for.
        lane: Lane,
        /// Where it leads.
        identity: &'a Identity,
        /// Whether it replaces another.
        again: bool,
    },
    /// No connection could be made; the next attempt comes later.
    NotConnected {
        /// What it was to be for.
        lane: Lane,
        /// Where it was to lead.
        node: &'a Node,
        /// Why.
        reason: &'a str,
        /// Failures in a row before this one.
        before: u32,
    },
    /// A connection is given up.
    Lost {
        /// What it was for.
        lane: Lane,
        /// Where it led.
        identity: &'a Identity,
        /// Why.
        reason: &'a str,
    },
    /// A call got no answer in time.
    TimedOut {
        /// On which connection.
        lane: Lane,
        /// Where it leads.
        identity: &'a Identity,
    },
    /// Fewer replicas than wanted had confirmed a batch in time.
    NotAcknowledged {
        /// Where the batch was written.
        identity: &'a Identity,
        /// How many were wanted.
        wanted: u32,
        /// How many did.
        had: u32,
    },
    /// The masters are somewhere else now.
    Moved {
        /// What was found.
        masters: &'a str,
    },
    /// Nobody could say where the masters are; what was known before is used.
    NotFound {
        /// Why.
        reason: &'a str,
        /// Failures in a row before this one.
        before: u32,
    },
}

/// Hears every event, on the thread where it happens: it must be quick and must not call Redis.
pub type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// What all connections share.
pub(super) struct Shared {
    observer: Option<Observer>,
    /// Counts the reasons to look again where the masters are.
    doubts: AtomicU64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(observer: Option<Observer>) -> Arc<Self> {
        Arc::new(Self { observer, doubts: AtomicU64::new(0) })
    }

    /// Something says that the masters may be somewhere else now.
    pub(super) fn look_again(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::SeqCst)
    }

    /// Logs a change once and hands the event on.
    pub(super) fn tell(&self, event: &Event<'_>) {
        log(event);
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }
}

fn log(event: &Event<'_>) {
    match event {
        Event::Connected { lane, identity, again: false } => {
            tracing::info!(node = %identity.node, run_id = identity.run_id, ?lane,
                "redis connected");
        }
        Event::Connected { lane, identity, again: true } => {
            tracing::warn!(node = %identity.node, run_id = identity.run_id, ?lane,
                "redis connected again");
        }
        Event::NotConnected { lane, node, reason, before: 0 } => {
            tracing::warn!(%node, ?lane, reason, "redis not connected, will keep trying");
        }
        Event::NotConnected { lane, node, reason, before } => {
            tracing::debug!(%node, ?lane, reason, before, "redis not connected");
        }
        Event::Lost { lane, identity, reason } => {
            tracing::warn!(node = %identity.node, run_id = identity.run_id, ?lane, reason,
                "redis connection given up");
        }
        Event::TimedOut { lane, identity } => {
            tracing::debug!(node = %identity.node, ?lane, "redis did not answer in time");
        }
        Event::NotAcknowledged { identity, wanted, had } => {
            tracing::debug!(node = %identity.node, wanted, had, "redis replicas are late");
        }
        Event::Moved { masters } => tracing::warn!(masters, "redis masters moved"),
        Event::NotFound { reason, before: 0 } => {
            tracing::warn!(reason, "redis masters not found, will keep asking");
        }
        Event::NotFound { reason, before } => {
            tracing::debug!(reason, before, "redis masters not found");
        }
    }
}
