//! Leases for tasks that one process at a time should run: loading buckets (`loader`) and
//! reconciling (`reconciler`).
//!
//! A [`Lease`] avoids duplicate work, no more: a holder can lose it without noticing in time. A
//! write that must never happen twice carries a fencing token that the ledger counts
//! (`Ledger::next_token`) and is rejected by the store; a lease issues no token.
//!
//! On error: not held. If the holder crashes: the lease expires. May repeat: every call.

use std::time::{Duration, Instant};

use async_trait::async_trait;

mod redis;
mod sole;

pub use redis::RedisLease;
pub use sole::SoleLease;

/// The result of [`Lease::hold`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseGrant {
    Held {
        /// End of the lease by the caller's clock, unless it is renewed. No other process holds the
        /// lease before.
        until: Instant,
    },
    /// Another process holds the lease.
    Taken { by: String },
}

impl LeaseGrant {
    /// Whether the caller holds the lease at this time.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        matches!(self, Self::Held { until } if now < *until)
    }
}

/// The lease's holder is unknown: the caller must act as if another process held it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lease {name} could not be asked for: {reason}")]
pub struct Error {
    pub name: String,
    pub reason: String,
}

/// Leases by name.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Takes or renews a lease. `holder` names one start of one process. Renew after a third of
    /// `ttl`; if a renewal fails, the lease is held until the last `until`.
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error>;

    /// Ends a lease early, if the holder still has it.
    async fn release(&self, name: &str, holder: &str) -> Result<(), Error>;
}
