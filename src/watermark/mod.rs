//! How far the consumers of each order queue have come.
//!
//! A message lies in its queue, is in the hand of a consumer, or has been acknowledged. The first
//! two cannot be looked into, but a queue is FIFO: once its consumers were delivered what was
//! published at some time, nothing older waits. So each consumer announces a *watermark*: it holds
//! nothing that was published before that time. The watermark of a queue is the least of its living
//! consumers; a request that was published before it, and that the ledger does not know, is lost.
//!
//! Watermarks decide when a request is published again, never what becomes of it. One that is too
//! high (clocks that differ, a consumer that crashed and whose deliveries have not come back yet)
//! costs a duplicate, of which the ledger makes one order. One that is too low delays.
//!
//! On a crash of a consumer: its announcement expires after [`EXPIRES_AFTER`]. May repeat: every
//! call.

use std::time::Duration;

use async_trait::async_trait;

mod redis;

pub use redis::RedisWatermarks;

/// How often a consumer announces its watermark.
pub const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);

/// An announcement that was not renewed for so long is that of a consumer that is gone.
pub const EXPIRES_AFTER: Duration = Duration::from_secs(5);

/// The watermarks could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the watermark of order queue {queue} is not available: {reason}")]
pub struct Error {
    /// The order queue.
    pub queue: u16,
    /// What is wrong.
    pub reason: String,
}

/// The watermarks of all consumers of an installation.
#[async_trait]
pub trait Watermarks: Send + Sync {
    /// This consumer holds nothing of its order queue that was published before `watermark_ms`,
    /// epoch milliseconds. Replaces what it announced before.
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error>;

    /// The least watermark of the living consumers of an order queue; `None` without any.
    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error>;
}
