//! The identity of a connected server, and requests to read the topology again.

use std::sync::atomic::{AtomicU64, Ordering};

use super::url::ServerAddress;

/// One start of one server. Constant for a connection: if the server reports another identity, the
/// connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    pub node: ServerAddress,
    /// Redis `run_id`, new at each start: 40 hexadecimal digits.
    pub run_id: String,
    /// Redis `master_replid2`: the replication id of the master whose data the server had when it
    /// was last promoted; zeros if it was never a replica. It reveals a demotion and promotion in
    /// between, which keep the `run_id` but may lose writes.
    pub promoted_from: String,
    pub version: String,
    /// Whether the server writes an append-only file.
    pub aof: bool,
}

/// Prefix of `master_replid2` that distinguishes promotions.
const PROMOTION_CHARS: usize = 16;

impl ServerIdentity {
    /// The server name stored in buckets. It changes whenever the server may have lost writes.
    #[must_use]
    pub fn server(&self) -> String {
        server_name(&self.run_id, &self.promoted_from)
    }
}

/// The server name stored in buckets, from these two fields of `INFO`.
pub(super) fn server_name(run_id: &str, master_replid2: &str) -> String {
    let promotion: String = master_replid2.chars().take(PROMOTION_CHARS).collect();
    format!("{run_id}-{promotion}")
}

/// Counts requests to read the topology again. Shared by all connections.
#[derive(Debug, Default)]
pub(super) struct RefreshRequests(AtomicU64);

impl RefreshRequests {
    /// Requests a read: an error suggests that the masters have changed.
    pub(super) fn request(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
