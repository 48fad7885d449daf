//! Sends script calls to the server that has the bucket.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::super::Error;
use crate::domain::{BucketNo, Sku};
use crate::redis::scripts::{BucketFence, BucketKeys, Installation, ScriptCall};
use crate::redis::transport::{
    CallEffect, Connection, ConnectionPool, ConnectionPurpose, Error as TransportError,
    PipelineAnswers, PipelineRequest,
};
use crate::runtime::progress::answered;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct StockExecutor {
    pool: ConnectionPool,
    namespace: Arc<str>,
    installation: Installation,
}

impl StockExecutor {
    pub(super) fn new(pool: ConnectionPool, namespace: String, installation: Installation) -> Self {
        Self { pool, namespace: namespace.into(), installation }
    }

    /// The keys of every bucket, in bucket order.
    pub(super) fn keys_of(&self, sku: &Sku) -> Vec<BucketKeys> {
        let buckets = (0..sku.buckets.max(1)).map(BucketNo);
        buckets.map(|bucket| BucketKeys::new(&self.namespace, sku, bucket)).collect()
    }

    /// A connection to the server that has the bucket.
    pub(super) async fn connection(
        &self,
        purpose: ConnectionPurpose,
        keys: &BucketKeys,
    ) -> Result<Arc<Connection>, Error> {
        self.pool
            .connection(purpose, keys.bucket())
            .await
            .map_err(|error| stock_error(error, "connecting"))
    }

    /// The installation and server that a bucket must have on this connection.
    pub(super) fn fence(&self, connection: &Connection) -> BucketFence {
        let server = connection.identity().server().into();
        BucketFence { installation: self.installation, server }
    }

    pub(super) async fn call(
        &self,
        connection: &Connection,
        call: ScriptCall,
        operation: &'static str,
    ) -> Result<Value, Error> {
        let calls = [call];
        let answers = connection.call(&calls).await;
        self.single_answer(connection, &calls, answers, operation).await
    }

    /// Sends one call and waits for the configured replicas.
    pub(super) async fn call_and_wait(
        &self,
        connection: &Connection,
        call: ScriptCall,
        operation: &'static str,
    ) -> Result<Value, Error> {
        let calls = [call];
        let answers = connection.call_and_wait(&calls).await;
        self.single_answer(connection, &calls, answers, operation).await
    }

    async fn single_answer(
        &self,
        connection: &Connection,
        calls: &[ScriptCall; 1],
        answers: Result<PipelineAnswers, TransportError>,
        operation: &'static str,
    ) -> Result<Value, Error> {
        answered();
        let missing = || TransportError::Unknown { reason: "no answer".to_owned() };
        let answer = answers
            .and_then(|answers| answers.into_iter().next().unwrap_or_else(|| Err(missing())));
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => stock_error(error, operation),
        };
        let (Error::Damaged { what }, [call]) = (&error, calls) else { return Err(error) };
        Err(Error::Damaged {
            what: format!("{}: {what}", self.mistyped_keys(connection, call).await),
        })
    }

    /// The keys of a call with a wrong type, for the error message: Redis does not name them.
    async fn mistyped_keys(&self, connection: &Connection, call: &ScriptCall) -> String {
        let keys: Vec<_> = call.keys().map(String::from_utf8_lossy).collect();
        let types: Vec<_> =
            keys.iter().map(|key| redis::cmd("TYPE").arg(&**key).to_owned()).collect();
        let types = self.send(connection, &types, "reading types").await.unwrap_or_default();
        let mistyped = keys.iter().zip(&types).filter_map(|(key, kind)| match kind {
            Value::SimpleString(kind) if !matches!(kind.as_str(), "hash" | "none") => {
                Some(format!("{key} is a {kind}"))
            }
            _ => None,
        });
        let mistyped: Vec<_> = mistyped.collect();
        if mistyped.is_empty() {
            keys.first().cloned().unwrap_or_default().into()
        } else {
            mistyped.join(", ")
        }
    }

    /// Sends requests as one pipeline. Returns the first error, if there is one.
    pub(super) async fn send(
        &self,
        connection: &Connection,
        requests: &[impl PipelineRequest],
        operation: &'static str,
    ) -> Result<Vec<Value>, Error> {
        let answers = connection.call(requests).await;
        answered();
        let answers = answers.map_err(|error| stock_error(error, operation))?;
        let answers: Result<Vec<_>, _> = answers.into_iter().collect();
        answers.map_err(|error| stock_error(error, operation))
    }

    /// Verifies that every master is still the server that was connected to.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.pool.verify().await.map_err(|error| stock_error(error, "verifying the masters"))
    }
}

fn stock_error(error: TransportError, operation: &'static str) -> Error {
    match error.class() {
        CallEffect::NotDone => Error::Unavailable { reason: error.to_string() },
        CallEffect::Unknown => Error::Unknown { operation, reason: error.to_string() },
        CallEffect::Refused => Error::Damaged { what: format!("{operation}: {error}") },
    }
}

impl PipelineRequest for ScriptCall {
    fn script(&self) -> Option<&'static str> {
        Some(ScriptCall::script(self).name())
    }

    fn command(&self, sha: &str) -> Cmd {
        self.evalsha(sha)
    }
}
