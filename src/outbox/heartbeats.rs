//! Heartbeats of relay workers, and the search for private lists that no `claimants` set names.
//!
//! A worker's heartbeat is a key that expires; the keys are distributed over the servers, and no
//! claim reads or writes one. A bucket's set `claimants` names the workers whose private lists are
//! read; if that set was deleted, a stepwise scan of all keys finds the lists.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::Error;
use crate::outbox::executor::{damaged, outbox_error};
use crate::redis::transport::{
    ConnectionPool, ConnectionPurpose, Error as TransportError, PipelineAnswers, ServerAddress,
};

/// Keys that one step of the search scans, on each server.
const KEYS_PER_STEP: u32 = 1_000;

/// A full Redis must still store a heartbeat.
const ANNOUNCE: &str = "#!lua flags=allow-oom
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
return 0";

#[derive(Debug)]
pub(super) struct Heartbeats {
    pool: ConnectionPool,
    namespace: String,
    /// The `SCAN` cursor of each server.
    cursors: Mutex<HashMap<ServerAddress, String>>,
}

impl Heartbeats {
    pub(super) fn new(pool: ConnectionPool, namespace: String) -> Self {
        Self { pool, namespace, cursors: Mutex::default() }
    }

    fn key(&self, worker: &str) -> String {
        format!("{}:relay:{worker}", self.namespace)
    }

    pub(super) async fn announce(&self, worker: &str, heartbeat: Duration) -> Result<(), Error> {
        let operation = "renewing a heartbeat";
        let (key, ttl_ms) = (self.key(worker), heartbeat.as_millis().max(1).to_string());
        let set = redis::cmd("EVAL").arg(ANNOUNCE).arg(1).arg(&key).arg(ttl_ms).to_owned();
        single_answer(self.pool.call(ConnectionPurpose::Relay, &key, &[set]).await, operation)
            .map(drop)
    }

    pub(super) async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        let reads = workers.iter().map(|worker| async move {
            let key = self.key(worker);
            let exists = redis::cmd("EXISTS").arg(&key).to_owned();
            let answer = single_answer(
                self.pool.call(ConnectionPurpose::Relay, &key, &[exists]).await,
                "reading a heartbeat",
            );
            matches!(answer, Ok(Value::Int(0))).then(|| worker.clone())
        });
        join_all(reads).await.into_iter().flatten().collect()
    }

    /// One step of the search for private lists, on each server: adds their workers to the
    /// claimants of their buckets. A server that fails does not stop the search on the others.
    pub(super) async fn restore_claimants(&self) -> Result<(), Error> {
        let operation = "searching private lists";
        let masters = self.pool.masters().await.map_err(|error| outbox_error(error, operation))?;
        let mut outcome = Ok(());
        for node in masters {
            outcome = outcome.and(self.search(node, operation).await);
        }
        outcome
    }

    async fn search(&self, node: ServerAddress, operation: &'static str) -> Result<(), Error> {
        // The key names follow `scripts::keys`.
        let pattern = format!("{}:{{*}}:claimed:*", self.namespace);
        let connection = self.pool.connection_to(ConnectionPurpose::Relay, &node).await;
        let connection = connection.map_err(|error| outbox_error(error, operation))?;
        let cursor = self.cursors.lock().get(&node).cloned();
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.as_deref().unwrap_or("0"));
        scan.arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_PER_STEP);
        let answer = single_answer(connection.call(&[scan]).await, operation)?;
        let (next, keys): (String, Vec<String>) =
            redis::from_redis_value(answer).map_err(|error| damaged(&pattern, &error))?;
        self.cursors.lock().insert(node, next);
        let add = |key: &String| {
            let (bucket, worker) = key.split_once("claimed:")?;
            Some(redis::cmd("SADD").arg(format!("{bucket}claimants")).arg(worker).to_owned())
        };
        let additions: Vec<Cmd> = keys.iter().filter_map(add).collect();
        if !additions.is_empty() {
            // A failed addition is repeated by the next search.
            connection.call(&additions).await.map_err(|error| outbox_error(error, operation))?;
        }
        Ok(())
    }
}

fn single_answer(
    answers: Result<PipelineAnswers, TransportError>,
    operation: &'static str,
) -> Result<Value, Error> {
    let missing = || Error::Unknown { operation, reason: "no answer".to_owned() };
    let mut answers = answers.map_err(|error| outbox_error(error, operation))?;
    let answer = answers.pop().ok_or_else(missing)?;
    answer.map_err(|error| outbox_error(error, operation))
}
