//! Sends script calls to the servers that have the buckets.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::Error;
use crate::domain::BucketKey;
use crate::redis::scripts;
use crate::redis::scripts::{Installation, OutboxKeys, ScriptCall};
use crate::redis::transport::{
    CallEffect, Connection, ConnectionPool, ConnectionPurpose, Error as TransportError,
};
use crate::runtime::progress::answered;

#[derive(Debug)]
pub(super) struct OutboxExecutor {
    pool: ConnectionPool,
    namespace: String,
    pub(super) installation: Installation,
}

/// A server's connection, the positions of its calls among all calls, and the calls.
type ServerGroup = (Arc<Connection>, Vec<usize>, Vec<ScriptCall>);

impl OutboxExecutor {
    pub(super) fn new(pool: ConnectionPool, namespace: String, installation: Installation) -> Self {
        Self { pool, namespace, installation }
    }

    pub(super) fn keys(&self, bucket: BucketKey) -> OutboxKeys {
        OutboxKeys::new(&self.namespace, bucket.sku, bucket.bucket)
    }

    pub(super) async fn call(
        &self,
        call: ScriptCall,
        operation: &'static str,
    ) -> Result<Value, Error> {
        let mut answers = self.call_all(vec![call], operation).await;
        answers.pop().unwrap_or_else(|| Err(no_answer(operation)))
    }

    /// Sends the calls of many buckets, as one pipeline to each server. Returns one answer for each
    /// call.
    pub(super) async fn call_all(
        &self,
        calls: Vec<ScriptCall>,
        operation: &'static str,
    ) -> Vec<Result<Value, Error>> {
        let mut answers: Vec<_> = calls.iter().map(|_| Err(no_answer(operation))).collect();
        let mut groups: Vec<ServerGroup> = Vec::new();
        // Concurrently, so that one unreachable server does not delay the others.
        let connections = calls.iter().map(|call| {
            self.pool.connection(ConnectionPurpose::Relay, call.keys().next().unwrap_or_default())
        });
        let connections = join_all(connections.collect::<Vec<_>>()).await;
        for (position, (call, connected)) in calls.into_iter().zip(connections).enumerate() {
            match connected {
                Ok(connection) => {
                    let same =
                        groups.iter_mut().find(|(other, ..)| Arc::ptr_eq(other, &connection));
                    if let Some((_, positions, calls)) = same {
                        positions.push(position);
                        calls.push(call);
                    } else {
                        groups.push((connection, vec![position], vec![call]));
                    }
                }
                Err(error) => store(&mut answers, position, Err(outbox_error(error, operation))),
            }
        }
        let sent = groups.iter().map(|(connection, positions, calls)| async move {
            (positions, send_group(connection, calls, operation).await)
        });
        for (positions, answered) in join_all(sent).await {
            for (position, answer) in positions.iter().zip(answered) {
                store(&mut answers, *position, answer);
            }
        }
        answers
    }

    pub(super) async fn read(
        &self,
        key: &str,
        command: Cmd,
        operation: &'static str,
    ) -> Result<Value, Error> {
        let answers = self.pool.call(ConnectionPurpose::Relay, key, &[command]).await;
        let answer = answers.and_then(|answers| {
            let missing = || TransportError::Unknown { reason: "no answer".to_owned() };
            answers.into_iter().next().unwrap_or_else(|| Err(missing()))
        });
        answer.map_err(|error| match outbox_error(error, operation) {
            Error::Damaged { what } => damaged(key, &what),
            other => other,
        })
    }
}

fn store(answers: &mut [Result<Value, Error>], position: usize, answer: Result<Value, Error>) {
    if let Some(old) = answers.get_mut(position) {
        *old = answer;
    }
}

async fn send_group(
    connection: &Connection,
    calls: &[ScriptCall],
    operation: &'static str,
) -> Vec<Result<Value, Error>> {
    let called = connection.call(calls).await;
    answered();
    let answered = called.unwrap_or_else(|error| vec![Err(error); calls.len()]);
    let mut answers = Vec::with_capacity(calls.len());
    for (call, answer) in calls.iter().zip(answered) {
        answers.push(match answer.map_err(|error| outbox_error(error, operation)) {
            Err(Error::Damaged { what }) => {
                Err(damaged(&mistyped_keys(connection, call).await, &what))
            }
            answer => answer,
        });
    }
    answers
}

/// The keys of a call with a wrong type, for the error message: Redis does not name them.
async fn mistyped_keys(connection: &Connection, call: &ScriptCall) -> String {
    let keys: Vec<_> = call.keys().map(String::from_utf8_lossy).collect();
    let types: Vec<_> = keys.iter().map(|key| redis::cmd("TYPE").arg(&**key).to_owned()).collect();
    let types = connection.call(&types).await.unwrap_or_default();
    let bucket = keys.first().map(|key| &**key).unwrap_or_default();
    let prefix = bucket.strip_suffix("bucket").unwrap_or(bucket);
    let script = call.script().name();
    let mistyped = keys.iter().zip(&types).filter_map(|(key, kind)| {
        let Ok(Value::SimpleString(kind)) = kind else { return None };
        let expected = match key.strip_prefix(prefix) {
            Some("bucket") => "hash",
            Some("claimants") => "set",
            Some("outbox") if script.starts_with("stream") => "stream",
            _ => "list",
        };
        (kind != expected && kind != "none").then(|| format!("{key} is a {kind}"))
    });
    let mistyped: Vec<_> = mistyped.collect();
    if mistyped.is_empty() { bucket.to_owned() } else { mistyped.join(", ") }
}

pub(super) fn outbox_error(error: TransportError, operation: &'static str) -> Error {
    match error.class() {
        CallEffect::NotDone => Error::Unavailable { reason: error.to_string() },
        CallEffect::Unknown => Error::Unknown { operation, reason: error.to_string() },
        CallEffect::Refused => Error::Damaged { what: format!("{operation}: {error}") },
    }
}

fn no_answer(operation: &'static str) -> Error {
    Error::Unknown { operation, reason: "no answer".to_owned() }
}

pub(super) fn damaged(key: &str, what: &dyn std::fmt::Display) -> Error {
    Error::Damaged { what: format!("{key}: {what}") }
}

/// Maps a script's rejection.
pub(super) fn script_error(
    keys: &OutboxKeys,
    operation: &'static str,
    error: &scripts::Error,
) -> Error {
    let key = keys.bucket();
    match error {
        scripts::Error::Foreign => {
            let remedy = "set another `namespace`, or use another Redis";
            damaged(&key, &format_args!("{error}; {remedy}"))
        }
        scripts::Error::Corrupt { .. } | scripts::Error::TooMany => damaged(&key, error),
        // Nothing was written, or the effect is unknown: the caller must read again.
        scripts::Error::Unexpected { .. }
        | scripts::Error::NotReady
        | scripts::Error::Fenced
        | scripts::Error::OldLoader => {
            Error::Unknown { operation, reason: format!("{key}: {error}") }
        }
    }
}
