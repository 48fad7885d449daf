//! Leases for tasks that one process at a time should run: loading buckets (`loader`), repairing
//! (`repair`), reconciling (`reconciler`), publishing order events (`event_publisher`) and hints of
//! due orders (`hint_publisher`).
//!
//! A [`Lease`] avoids duplicate work, no more: a holder can lose it without noticing in time. A
//! write that must never happen twice carries a fencing token that the ledger counts
//! (`Ledger::next_token`) and is rejected by the store; a lease issues no token.
//!
//! On error: not held. If the holder crashes: the lease expires. May repeat: every call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::redis::transport::{ConnectionPool, Error};
use crate::runtime::clock::SharedClock;
use crate::runtime::unique_name;

/// Returns the holder. `allow-oom`: leases must work on a full Redis.
const HOLD: &str = "#!lua flags=allow-oom
local key, caller, ttl_ms = KEYS[1], ARGV[1], ARGV[2]
local holder = redis.call('GET', key)
if holder and holder ~= caller then return holder end
redis.call('SET', key, caller, 'PX', ttl_ms)
return caller";

const RELEASE: &str = "#!lua flags=allow-oom
local key, caller = KEYS[1], ARGV[1]
if redis.call('GET', key) == caller then redis.call('DEL', key) end
return caller";

/// The caller's lease is shorter than the key's by one part in `MARGIN`, for clock drift.
const MARGIN: u32 = 10;

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
    pub fn is_held(&self, now: Instant) -> bool {
        matches!(self, Self::Held { until } if now < *until)
    }
}

/// Leases by name.
///
/// # Errors
/// The holder is unknown: the caller must act as if another process held the lease.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Takes or renews a lease. `holder` names one start of one process. Renew after a third of
    /// `ttl`; if a renewal fails, the lease is held until the last `until`.
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error>;

    /// Ends a lease early, if the holder still has it.
    async fn release(&self, name: &str, holder: &str) -> Result<(), Error>;
}

/// One lease, as a task of this process asks for it.
pub struct TaskLease {
    lease: Arc<dyn Lease>,
    pub name: &'static str,
    /// Names the task of this start of the process.
    holder: Arc<str>,
    ttl: Duration,
    clock: SharedClock,
}

impl TaskLease {
    pub fn new(
        lease: &Arc<dyn Lease>,
        name: &'static str,
        ttl_ms: u64,
        clock: &SharedClock,
    ) -> Self {
        let (lease, clock) = (Arc::clone(lease), Arc::clone(clock));
        Self { lease, name, holder: unique_name(), ttl: Duration::from_millis(ttl_ms), clock }
    }

    /// Takes or renews the lease. Returns whether this task has it.
    pub async fn acquire(&self) -> Result<bool, Error> {
        let grant = self.lease.hold(self.name, &self.holder, self.ttl).await?;
        Ok(grant.is_held(self.clock.now()))
    }

    /// Renews the lease, and returns when it is lost: taken by another process, or expired because
    /// no renewal succeeded.
    pub async fn lost(&self) {
        let mut held_until = self.clock.now();
        loop {
            match self.lease.hold(self.name, &self.holder, self.ttl).await {
                Ok(LeaseGrant::Held { until }) => held_until = until,
                Ok(LeaseGrant::Taken { .. }) => return,
                Err(error) => tracing::warn!(lease = self.name, %error, "lease not renewed"),
            }
            if self.clock.now() >= held_until {
                return;
            }
            tokio::time::sleep(self.ttl / 3).await;
        }
    }

    /// Ends the lease early, so that another process can take it at once.
    pub async fn release(&self) {
        if let Err(error) = self.lease.release(self.name, &self.holder).await {
            tracing::warn!(lease = self.name, %error, "lease not released, it expires on its own");
        }
    }
}

/// Grants every lease, in an installation with one process: its ledger admits no second one.
#[derive(Debug)]
pub struct SoleLease {
    clock: SharedClock,
}

impl SoleLease {
    pub fn new(clock: SharedClock) -> Self {
        Self { clock }
    }
}

#[async_trait]
impl Lease for SoleLease {
    async fn hold(&self, _name: &str, _holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        Ok(LeaseGrant::Held { until: self.clock.now() + ttl })
    }

    async fn release(&self, _name: &str, _holder: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Leases in Redis: a key that expires, changed only by the holder that it names.
///
/// Redis expires the key by its own clock. If that clock jumps, or a failover loses the key, a
/// second holder gets the lease early; see [`Lease`] for the consequences.
#[derive(Debug)]
pub struct RedisLease {
    pool: ConnectionPool,
    namespace: String,
    clock: SharedClock,
}

impl RedisLease {
    /// Leases under keys that begin with `namespace`.
    pub fn new(pool: ConnectionPool, namespace: &str, clock: SharedClock) -> Self {
        Self { pool, namespace: namespace.to_owned(), clock }
    }

    async fn run(&self, script: &str, name: &str, args: &[&str]) -> Result<Vec<u8>, Error> {
        let key = format!("{}:lease:{name}", self.namespace);
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(&key).arg(args);
        self.pool.query(&key, command).await
    }
}

#[async_trait]
impl Lease for RedisLease {
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        // Measured before the call: the key expires later than this.
        let until = self.clock.now() + ttl / MARGIN * (MARGIN - 1);
        let ttl_ms = ttl.as_millis().max(1).to_string();
        let by = self.run(HOLD, name, &[holder, &ttl_ms]).await?;
        if by == holder.as_bytes() {
            return Ok(LeaseGrant::Held { until });
        }
        Ok(LeaseGrant::Taken { by: String::from_utf8_lossy(&by).into_owned() })
    }

    async fn release(&self, name: &str, holder: &str) -> Result<(), Error> {
        self.run(RELEASE, name, &[holder]).await.map(drop)
    }
}
