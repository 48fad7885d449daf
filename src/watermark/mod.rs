//! The progress of each order queue's consumers.
//!
//! A message waits in its queue, is unacknowledged at a consumer, or has been acknowledged.
//! Messages in the first two states cannot be listed, but a queue is FIFO: once a message was
//! delivered, no older one waits. So each consumer announces a *watermark*: it holds no message
//! that was published before that time. A queue's watermark is the smallest one of its live
//! consumers. A request that was published before the queue's watermark and is not in the ledger is
//! lost.
//!
//! Watermarks decide when a request is submitted without its message, never its result. One that is
//! too high (clocks differ; the deliveries of a crashed consumer are not requeued yet) costs a
//! second submission, of which the ledger makes one order. One that is too low delays.
//!
//! If a consumer crashes: its watermark expires after [`EXPIRES_AFTER`]. May repeat: every call.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use crate::redis::transport::{ConnectionPool, Error};

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
}

#[async_trait]
impl Watermarks for RedisWatermarks {
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error> {
        let expires_ms = u64::try_from(EXPIRES_AFTER.as_millis()).unwrap_or(u64::MAX);
        let consumers_key = self.consumers_key(queue);
        let mut announce = redis::cmd("EVAL");
        announce.arg(ANNOUNCE).arg(2).arg(self.key(queue, consumer)).arg(&consumers_key);
        announce.arg(consumer).arg(watermark_ms).arg(expires_ms);
        self.pool.query(&consumers_key, announce).await
    }

    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error> {
        let consumers_key = self.consumers_key(queue);
        let names = redis::cmd("HKEYS").arg(&consumers_key).to_owned();
        let consumers: Vec<String> = self.pool.query(&consumers_key, names).await?;
        let get = |consumer: &String| {
            let key = self.key(queue, consumer);
            let get = redis::cmd("GET").arg(&key).to_owned();
            async move { self.pool.query::<Option<i64>>(&key, get).await }
        };
        let watermarks = try_join_all(consumers.iter().map(get)).await?;
        let all = consumers.into_iter().zip(&watermarks);
        let expired = all.filter_map(|(consumer, found)| found.is_none().then_some(consumer));
        let expired: Vec<String> = expired.collect();
        // A consumer that announces meanwhile adds its name again within a second.
        if !expired.is_empty() {
            let remove = redis::cmd("HDEL").arg(&consumers_key).arg(expired).to_owned();
            self.pool.query::<()>(&consumers_key, remove).await?;
        }
        Ok(watermarks.into_iter().flatten().min())
    }
}
