//! Who may do what one process at a time should do: load buckets, sweep, drain.
//!
//! A [`Lease`] keeps well-meaning processes out of each other's way, no more: it can be lost
//! without the holder noticing in time. What must never happen twice is refused by whoever is
//! written to, by a token that the ledger counts (`Ledger::next_token`); no token comes from here.
//!
//! On error: not held. On death of the holder: free when it ends. May repeat: every call.

use std::time::{Duration, Instant};

use async_trait::async_trait;

mod redis;
mod sole;

pub use redis::RedisLease;
pub use sole::SoleLease;

/// What came of asking for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseGrant {
    /// It is the asker's.
    Held {
        /// To be given up at this time of the asker's clock unless it was renewed; nobody else has
        /// it before.
        until: Instant,
    },
    /// Somebody else has it.
    Taken {
        /// Who.
        by: String,
    },
}

impl LeaseGrant {
    /// Whether it is the asker's at this time.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        matches!(self, Self::Held { until } if now < *until)
    }
}

/// Nobody could say who has the lease: act as if another has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lease {name} could not be asked for: {reason}")]
pub struct Error {
    /// Which lease.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Leases by name.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Takes or renews a lease. `holder` names one start of one process. Renew after a third of
    /// `ttl`; when a renewal fails, the lease is held until the last `until`.
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error>;

    /// Ends a lease early, if the holder still has it.
    async fn release(&self, name: &str, holder: &str) -> Result<(), Error>;
}
