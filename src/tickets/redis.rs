//! Uses of tickets in Redis: one key per used ticket, which expires with it.

use async_trait::async_trait;
use redis::Value;

use super::{Error, TicketUses};
use crate::domain::RequestId;
use crate::redis::transport::{ConnectionPool, ConnectionPurpose};
use crate::runtime::clock::SharedClock;

/// Uses of tickets in Redis.
#[derive(Debug)]
pub struct RedisTicketUses {
    pool: ConnectionPool,
    namespace: String,
    clock: SharedClock,
}

impl RedisTicketUses {
    /// Uses under keys that begin with `namespace`.
    pub fn new(pool: ConnectionPool, namespace: &str, clock: SharedClock) -> Self {
        Self { pool, namespace: namespace.to_owned(), clock }
    }
}

#[async_trait]
impl TicketUses for RedisTicketUses {
    async fn bind(
        &self,
        ticket: u64,
        request: RequestId,
        expires_at_ms: i64,
    ) -> Result<RequestId, Error> {
        let key = format!("{}:ticket:{ticket:016x}", self.namespace);
        let ttl_ms = expires_at_ms.saturating_sub(self.clock.wall_ms()).max(1);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(request.get()).arg("NX").arg("PX").arg(ttl_ms);
        let get = redis::cmd("GET").arg(&key).to_owned();
        let answers = self.pool.call(ConnectionPurpose::Results, &key, vec![set, get]).await;
        let mut answers = answers.map_err(|error| Error(error.to_string()))?;
        match answers.pop() {
            Some(Ok(Value::BulkString(bytes))) => {
                let text = String::from_utf8_lossy(&bytes);
                text.parse().map_err(|_invalid| Error(format!("{key} holds {text}")))
            }
            // Not even there after the SET: Redis refused the SET, for example because it is full.
            Some(Ok(other)) => Err(Error(format!("{key}: {other:?}, {answers:?}"))),
            Some(Err(error)) => Err(Error(error.to_string())),
            None => Err(Error("no answer".to_owned())),
        }
    }
}
