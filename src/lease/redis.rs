//! Leases in Redis: a key with an end, changed only by who is named in it.
//!
//! Redis counts the end by its own clock; a jump of that clock, or a fail-over that loses the key,
//! gives the lease to a second holder early. See [`Lease`] for what that may cost.

use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::{Error, Lease, LeaseGrant};
use crate::redis::transport::{ConnectionPool, ConnectionPurpose};
use crate::runtime::clock::SharedClock;

/// A full Redis must still be able to change hands.
const HOLD: &str = "#!lua flags=allow-oom
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0";

const RELEASE: &str = "#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0";

/// This part of the time is kept back: clocks do not run alike.
const MARGIN: u32 = 10;

/// Leases in Redis.
#[derive(Debug)]
pub struct RedisLease {
    links: ConnectionPool,
    namespace: String,
    clock: SharedClock,
}

impl RedisLease {
    /// Leases under keys that begin with `namespace`.
    #[must_use]
    pub fn new(links: ConnectionPool, namespace: &str, clock: SharedClock) -> Self {
        Self { links, namespace: namespace.to_owned(), clock }
    }

    async fn run(&self, script: &str, name: &str, args: &[&str]) -> Result<Value, Error> {
        let key = format!("{}:lease:{name}", self.namespace);
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(&key).arg(args);
        let answers = self.links.call(ConnectionPurpose::Results, &key, &[command]).await;
        let failed = |reason| Error { name: name.to_owned(), reason };
        let answer = answers.map_err(|error| failed(error.to_string()))?.pop();
        let answer = answer.ok_or_else(|| failed("no answer".to_owned()))?;
        answer.map_err(|error| failed(error.to_string()))
    }
}

#[async_trait]
impl Lease for RedisLease {
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        // Redis begins to count later than this.
        let until = self.clock.now() + ttl / MARGIN * (MARGIN - 1);
        let ttl_ms = ttl.as_millis().max(1).to_string();
        match self.run(HOLD, name, &[holder, &ttl_ms]).await? {
            Value::Int(0) => Ok(LeaseGrant::Held { until }),
            Value::BulkString(by) => {
                Ok(LeaseGrant::Taken { by: String::from_utf8_lossy(&by).into_owned() })
            }
            other => Err(Error { name: name.to_owned(), reason: format!("answer {other:?}") }),
        }
    }

    async fn release(&self, name: &str, holder: &str) -> Result<(), Error> {
        self.run(RELEASE, name, &[holder]).await.map(drop)
    }
}
