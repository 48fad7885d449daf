//! The progress of each order queue's consumers.
//!
//! A message waits in its queue, is unacknowledged at a consumer, or has been acknowledged.
//! Messages in the first two states cannot be listed, but a queue is FIFO: once a message was
//! delivered, no older one waits. So each consumer announces a *watermark*: it holds no message
//! that was published before that time. A queue's watermark is the smallest one of its live
//! consumers. A request that was published before the queue's watermark and is not in the ledger is
//! lost.
//!
//! Watermarks decide when a request is published again, never its result. A watermark that is too
//! high (clocks differ; the deliveries of a crashed consumer are not requeued yet) costs a
//! duplicate, of which the ledger makes one order. A watermark that is too low delays.
//!
//! If a consumer crashes: its watermark expires after [`EXPIRES_AFTER`]. May repeat: every call.

use std::time::Duration;

use async_trait::async_trait;

mod redis;

pub use redis::RedisWatermarks;

/// Interval at which a consumer announces its watermark.
pub const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);

/// A watermark that was not renewed for this time has expired: its consumer is gone.
pub const EXPIRES_AFTER: Duration = Duration::from_secs(5);

/// The watermarks could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the watermark of order queue {queue} is not available: {reason}")]
pub struct Error {
    pub queue: u16,
    pub reason: String,
}

/// The watermarks of all consumers of an installation.
#[async_trait]
pub trait Watermarks: Send + Sync {
    /// Announces that this consumer holds no message of its order queue that was published before
    /// `watermark_ms`, epoch milliseconds. Replaces its previous watermark.
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error>;

    /// The smallest watermark of an order queue's live consumers; `None` without any.
    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error>;
}
