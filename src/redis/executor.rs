//! Sends script calls and plain commands to the servers that have the buckets.

use std::fmt::Display;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, Value};

use super::scripts;
use super::scripts::{BucketFence, BucketKeys, Installation, ScriptCall};
use super::transport::{
    Connection, ConnectionPool, ConnectionPurpose, Error as TransportError, single_answer,
};
use crate::domain::{BucketNo, SkuNo};
use crate::runtime::progress;

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The server could not be reached, or rejected the call. Nothing was changed.
    Unavailable { reason: String },
    /// The server did not answer: the call may still take effect, at any later time.
    Unknown { operation: &'static str, reason: String },
    /// Redis reported a bug or foreign data.
    Damaged { what: String },
    /// The script rejected the bucket with this key, or its answer cannot be parsed.
    Rejected { operation: &'static str, sku: SkuNo, key: String, error: scripts::Error },
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct ScriptExecutor {
    pool: ConnectionPool,
    purpose: ConnectionPurpose,
    namespace: Arc<str>,
    installation: Installation,
}

impl ScriptExecutor {
    /// Connects on the first call, for this purpose.
    pub fn new(
        pool: ConnectionPool,
        purpose: ConnectionPurpose,
        namespace: &str,
        installation: Installation,
    ) -> Self {
        Self { pool, purpose, namespace: namespace.into(), installation }
    }

    /// First part of every key.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn keys(&self, sku: SkuNo, bucket: BucketNo) -> BucketKeys {
        BucketKeys::new(&self.namespace, sku, bucket)
    }

    /// Calls a script on one bucket. For the purpose `Hot` it waits for the configured replicas.
    /// Concurrent calls share their round trips to a server.
    pub async fn run<A>(
        &self,
        call: &ScriptCall<A>,
        operation: &'static str,
    ) -> Result<A, CallError> {
        let connection = self.connection(&call.target().bucket()).await?;
        let answer = self.evaluate(&connection, call).await;
        match answer.map_err(|error| CallError::new(error, operation)) {
            Ok(answer) => call.parse(answer).map_err(|error| {
                let (sku, key) = (call.target().sku(), call.target().bucket());
                CallError::Rejected { operation, sku, key, error }
            }),
            Err(error @ CallError::Damaged { .. }) => {
                let keys = call.iter_keys().map(|key| String::from_utf8_lossy(key).into());
                let mistyped = mistyped_keys(&connection, call.script().name(), keys.collect());
                Err(error.on(&mistyped.await))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a call to the server of this connection.
    async fn evaluate<A>(
        &self,
        connection: &Connection,
        call: &ScriptCall<A>,
    ) -> Result<Value, TransportError> {
        // The installation and server that a bucket must have on this connection.
        let server = Arc::clone(&connection.identity().server);
        let fence = BucketFence { installation: self.installation, server };
        let digest = connection.digest(call.script().name())?;
        let command = call.command("EVALSHA", digest, &fence);
        let answers = match self.purpose {
            ConnectionPurpose::Hot => connection.call_and_wait(vec![command]).await,
            _ => connection.call(vec![command]).await,
        };
        progress::answered();
        single_answer(answers?)
    }

    /// Sends plain commands on one key as one pipeline. Returns the first error, if there is one.
    pub async fn send(
        &self,
        key: &str,
        commands: Vec<Cmd>,
        operation: &'static str,
    ) -> Result<Vec<Value>, CallError> {
        let connection = self.connection(key).await?;
        let answers = connection.call(commands).await;
        progress::answered();
        let answers = answers.and_then(|answers| answers.into_iter().collect());
        answers.map_err(|error| CallError::new(error, operation).on(key))
    }

    /// Sends one plain command on a key.
    pub async fn read<T: FromRedisValue>(
        &self,
        key: &str,
        command: Cmd,
        operation: &'static str,
    ) -> Result<T, CallError> {
        let answer = self.send(key, vec![command], operation).await?.pop();
        let no_answer = || CallError::Unknown { operation, reason: "no answer".to_owned() };
        decode(key, answer.ok_or_else(no_answer)?)
    }

    /// Verifies that every master is still the server that was connected to.
    pub async fn ping(&self) -> Result<(), CallError> {
        let verified = self.pool.verify().await;
        verified.map_err(|error| CallError::new(error, "verifying the masters"))
    }

    async fn connection(&self, key: &str) -> Result<Arc<Connection>, CallError> {
        let connection = self.pool.connection(self.purpose, key).await;
        connection.map_err(|error| CallError::new(error, "connecting"))
    }
}

impl CallError {
    pub fn new(error: TransportError, operation: &'static str) -> Self {
        let reason = error.to_string();
        match error {
            TransportError::NotSent { .. } | TransportError::NotBegun { .. } => {
                Self::Unavailable { reason }
            }
            TransportError::Unknown { .. } => Self::Unknown { operation, reason },
            TransportError::Refused { .. } => {
                Self::Damaged { what: format!("{operation}: {reason}") }
            }
        }
    }

    /// Adds the key to the error of a key of another type: Redis does not name it.
    fn on(self, key: &str) -> Self {
        match self {
            Self::Damaged { what } => damaged(key, &what),
            other => other,
        }
    }
}

/// Decodes the answer to a plain command on this key.
pub fn decode<T: FromRedisValue>(key: &str, answer: Value) -> Result<T, CallError> {
    redis::from_redis_value(answer).map_err(|error| damaged(key, &error))
}

pub fn damaged(key: &str, what: &dyn Display) -> CallError {
    CallError::Damaged { what: format!("{key}: {what}") }
}

/// The keys of a call with a wrong type, for the error message: Redis does not name them.
async fn mistyped_keys(connection: &Connection, script: &str, keys: Vec<String>) -> String {
    let types = keys.iter().map(|key| redis::cmd("TYPE").arg(&**key).to_owned()).collect();
    let types = connection.call(types).await.unwrap_or_default();
    let mistyped = keys.iter().zip(&types).filter_map(|(key, kind)| {
        let Ok(Value::SimpleString(kind)) = kind else { return None };
        let name = key.rsplit_once("}:").map_or("", |(_, name)| name);
        let expected = match name.split(':').next() {
            Some("claimants") => "set",
            Some("claimed") => "list",
            Some("outbox") if script.starts_with("list") => "list",
            Some("outbox") if script.starts_with("stream") => "stream",
            _ => "hash",
        };
        (kind != expected && kind != "none").then(|| format!("{key} is a {kind}"))
    });
    let mistyped: Vec<_> = mistyped.collect();
    if mistyped.is_empty() {
        keys.into_iter().next().unwrap_or_default()
    } else {
        mistyped.join(", ")
    }
}
