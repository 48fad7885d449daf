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
use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue};

use crate::redis::transport::ConnectionPool;

/// Interval at which a consumer announces its watermark.
pub const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);

/// A watermark that was not renewed for this time has expired: its consumer is gone.
pub const EXPIRES_AFTER: Duration = Duration::from_secs(5);

/// `allow-oom`: a full Redis must still store a watermark, or its consumer seems to be gone.
const ANNOUNCE: &str = "#!lua flags=allow-oom
local key, consumers, consumer, watermark, ttl_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
redis.call('HSET', consumers, consumer, '')
redis.call('SET', key, watermark, 'PX', ttl_ms)
return 0";

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

/// Watermarks in Redis: for each consumer a key that expires, for each order queue a hash of its
/// consumers' names.
#[derive(Debug)]
pub struct RedisWatermarks {
    pool: ConnectionPool,
    namespace: String,
}

impl RedisWatermarks {
    /// Watermarks under keys that begin with `namespace`.
    pub fn new(pool: ConnectionPool, namespace: &str) -> Self {
        Self { pool, namespace: namespace.to_owned() }
    }

    /// The keys of an order queue share a hash tag.
    fn key(&self, queue: u16, name: &str) -> String {
        format!("{}:{{watermark:{queue}}}:{name}", self.namespace)
    }

    fn consumers_key(&self, queue: u16) -> String {
        self.key(queue, "consumers")
    }

    async fn query<T: FromRedisValue>(&self, queue: u16, command: Cmd) -> Result<T, Error> {
        let answer = self.pool.query(&self.consumers_key(queue), command).await;
        let answer = answer.map_err(|error| Error { queue, reason: error.to_string() })?;
        redis::from_redis_value(answer).map_err(|error| Error { queue, reason: error.to_string() })
    }
}

#[async_trait]
impl Watermarks for RedisWatermarks {
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error> {
        let expires_ms = u64::try_from(EXPIRES_AFTER.as_millis()).unwrap_or(u64::MAX);
        let mut announce = redis::cmd("EVAL");
        announce.arg(ANNOUNCE).arg(2).arg(self.key(queue, consumer)).arg(self.consumers_key(queue));
        announce.arg(consumer).arg(watermark_ms).arg(expires_ms);
        self.query(queue, announce).await
    }

    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error> {
        let names = redis::cmd("HKEYS").arg(self.consumers_key(queue)).to_owned();
        let consumers: Vec<String> = self.query(queue, names).await?;
        let get = |consumer: &String| {
            let get = redis::cmd("GET").arg(self.key(queue, consumer)).to_owned();
            self.query::<Option<i64>>(queue, get)
        };
        let watermarks = try_join_all(consumers.iter().map(get)).await?;
        let all = consumers.into_iter().zip(&watermarks);
        let expired = all.filter_map(|(consumer, found)| found.is_none().then_some(consumer));
        let expired: Vec<String> = expired.collect();
        // A consumer that announces meanwhile adds its name again within a second.
        if !expired.is_empty() {
            let remove = redis::cmd("HDEL").arg(self.consumers_key(queue)).arg(expired).to_owned();
            self.query::<()>(queue, remove).await?;
        }
        Ok(watermarks.into_iter().flatten().min())
    }
}
