//! Watermarks in Redis: for each consumer a key that expires, for each order queue a hash of its
//! consumers' names.

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::{EXPIRES_AFTER, Error, Watermarks};
use crate::redis::transport::{ConnectionPool, ConnectionPurpose};

/// `allow-oom`: a full Redis must still store a watermark, or its consumer seems to be gone.
const ANNOUNCE: &str = "#!lua flags=allow-oom
local key, consumers, consumer, watermark, ttl_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
redis.call('HSET', consumers, consumer, '')
redis.call('SET', key, watermark, 'PX', ttl_ms)
return 0";

/// Watermarks in Redis.
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
    async fn send(&self, queue: u16, commands: &[Cmd]) -> Result<Vec<Value>, Error> {
        let failed =
            |error: crate::redis::transport::Error| Error { queue, reason: error.to_string() };
        let sent =
            self.pool.call(ConnectionPurpose::Results, &self.consumers_key(queue), commands).await;
        let answers = sent.map_err(failed)?.into_iter();
        answers.map(|answer| answer.map_err(failed)).collect()
    }
}

fn read<T: redis::FromRedisValue>(queue: u16, answer: Value) -> Result<T, Error> {
    redis::from_redis_value(answer).map_err(|error| Error { queue, reason: error.to_string() })
}

#[async_trait]
impl Watermarks for RedisWatermarks {
    async fn announce(&self, queue: u16, consumer: &str, watermark_ms: i64) -> Result<(), Error> {
        let expires_ms = u64::try_from(EXPIRES_AFTER.as_millis()).unwrap_or(u64::MAX);
        let mut announce = redis::cmd("EVAL");
        announce.arg(ANNOUNCE).arg(2).arg(self.key(queue, consumer)).arg(self.consumers_key(queue));
        announce.arg(consumer).arg(watermark_ms).arg(expires_ms);
        self.send(queue, &[announce]).await.map(drop)
    }

    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error> {
        let keys = redis::cmd("HKEYS").arg(self.consumers_key(queue)).to_owned();
        let answer = self.send(queue, &[keys]).await?.pop().unwrap_or(Value::Nil);
        let consumers: Vec<String> = read(queue, answer)?;
        let get = |consumer| redis::cmd("GET").arg(self.key(queue, consumer)).to_owned();
        let gets: Vec<Cmd> = consumers.iter().map(|consumer| get(consumer.as_str())).collect();
        if gets.is_empty() {
            return Ok(None);
        }
        let (mut smallest, mut remove_expired) = (None, redis::cmd("HDEL"));
        remove_expired.arg(self.consumers_key(queue));
        let mut any_expired = false;
        for (consumer, answer) in consumers.iter().zip(self.send(queue, &gets).await?) {
            if let Some(watermark) = read::<Option<i64>>(queue, answer)? {
                smallest = smallest.into_iter().chain([watermark]).min();
            } else {
                remove_expired.arg(consumer);
                any_expired = true;
            }
        }
        // A consumer that announces meanwhile adds its name again within a second.
        if any_expired {
            self.send(queue, &[remove_expired]).await?;
        }
        Ok(smallest)
    }
}
