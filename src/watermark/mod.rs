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
use redis::{Cmd, FromRedisValue, Value};

use crate::redis::transport::{ConnectionPool, ConnectionPurpose, Error as TransportError};

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

    /// Sends commands as one pipeline. Returns the first error, if there is one.
    async fn send(&self, queue: u16, commands: Vec<Cmd>) -> Result<Vec<Value>, Error> {
        let failed = |error: TransportError| Error { queue, reason: error.to_string() };
        let sent =
            self.pool.call(ConnectionPurpose::Results, &self.consumers_key(queue), commands).await;
        let answers = sent.map_err(failed)?.into_iter();
        answers.map(|answer| answer.map_err(failed)).collect()
    }
}

fn read<T: FromRedisValue>(queue: u16, answer: Value) -> Result<T, Error> {
    redis::from_redis_value(answer).map_err(|error| Error { queue, reason: error.to_string() })
}

#[async_trait]
impl Watermarks for RedisWatermarks {
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error> {
        let expires_ms = u64::try_from(EXPIRES_AFTER.as_millis()).unwrap_or(u64::MAX);
        let mut announce = redis::cmd("EVAL");
        announce.arg(ANNOUNCE).arg(2).arg(self.key(queue, consumer)).arg(self.consumers_key(queue));
        announce.arg(consumer).arg(watermark_ms).arg(expires_ms);
        self.send(queue, vec![announce]).await.map(drop)
    }

    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error> {
        let keys = redis::cmd("HKEYS").arg(self.consumers_key(queue)).to_owned();
        let answer = self.send(queue, vec![keys]).await?.pop().unwrap_or(Value::Nil);
        let consumers: Vec<String> = read(queue, answer)?;
        let get = |consumer| redis::cmd("GET").arg(self.key(queue, consumer)).to_owned();
        let gets: Vec<Cmd> = consumers.iter().map(|consumer| get(consumer.as_str())).collect();
        if gets.is_empty() {
            return Ok(None);
        }
        let (mut smallest, mut remove_expired) = (None, redis::cmd("HDEL"));
        remove_expired.arg(self.consumers_key(queue));
        let mut any_expired = false;
        for (consumer, answer) in consumers.iter().zip(self.send(queue, gets).await?) {
            if let Some(watermark) = read::<Option<i64>>(queue, answer)? {
                smallest = smallest.into_iter().chain([watermark]).min();
            } else {
                remove_expired.arg(consumer);
                any_expired = true;
            }
        }
        // A consumer that announces meanwhile adds its name again within a second.
        if any_expired {
            self.send(queue, vec![remove_expired]).await?;
        }
        Ok(smallest)
    }
}
