//! What a connection leads to, and whether that may be somewhere else by now.

use std::sync::atomic::{AtomicU64, Ordering};

use super::url::ServerAddress;

/// Which start of which server a connection leads to. Never changes while the connection lives: a
/// server that says otherwise when it is asked again has lost its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Where it is.
    pub node: ServerAddress,
    /// The server's own name for this start of itself: 40 hexadecimal digits.
    pub run_id: String,
    /// `master_replid2`: whose data it had when it last became a master, zeros for a server that
    /// never was a replica. Its `run_id` survives a demotion, with the writes lost in between.
    pub promoted_from: String,
    /// The server's version.
    pub version: String,
    /// Whether accepted writes go to a file on its disk.
    pub aof: bool,
}

/// So much of `master_replid2` tells one promotion from another.
const PROMOTION_CHARS: usize = 16;

impl ServerIdentity {
    /// The server's name in buckets: another one when it may have lost writes.
    #[must_use]
    pub fn server(&self) -> String {
        server_name(&self.run_id, &self.promoted_from)
    }
}

/// The name in buckets of a server that tells these two fields of `INFO`.
pub(super) fn server_name(run_id: &str, master_replid2: &str) -> String {
    let promotion: String = master_replid2.chars().take(PROMOTION_CHARS).collect();
    format!("{run_id}-{promotion}")
}

/// Counts the reasons to look again where the masters are; all connections share it.
#[derive(Debug, Default)]
pub(super) struct TopologyDoubts(AtomicU64);

impl TopologyDoubts {
    /// Something says that the masters may be somewhere else now.
    pub(super) fn look_again(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
