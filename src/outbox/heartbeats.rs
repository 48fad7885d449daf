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
use crate::redis::executor::{CallError, ScriptExecutor, decode, send_on};
use crate::redis::transport::ServerAddress;

/// Keys that one step of the search scans, on each server.
const KEYS_PER_STEP: u32 = 1_000;

/// A full Redis must still store a heartbeat.
const RENEW_HEARTBEAT: &str = "#!lua flags=allow-oom
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
return 0";

#[derive(Debug)]
pub(super) struct Heartbeats {
    executor: ScriptExecutor,
    /// The `SCAN` cursor of each server.
    cursors: Mutex<HashMap<ServerAddress, String>>,
}

impl Heartbeats {
    pub(super) fn new(executor: ScriptExecutor) -> Self {
        Self { executor, cursors: Mutex::default() }
    }

    fn key(&self, worker: &str) -> String {
        format!("{}:relay:{worker}", self.executor.namespace())
    }

    pub(super) async fn renew(&self, worker: &str, ttl: Duration) -> Result<(), Error> {
        let (key, ttl_ms) = (self.key(worker), ttl.as_millis().max(1).to_string());
        let set = redis::cmd("EVAL").arg(RENEW_HEARTBEAT).arg(1).arg(&key).arg(ttl_ms).to_owned();
        Ok(self.executor.send(&key, vec![set], "renewing a heartbeat").await.map(drop)?)
    }

    pub(super) async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        let reads = workers.iter().map(|worker| async move {
            let key = self.key(worker);
            let exists = redis::cmd("EXISTS").arg(&key).to_owned();
            let answer = self.executor.read(&key, exists, "reading a heartbeat").await;
            matches!(answer, Ok(Value::Int(0))).then(|| worker.clone())
        });
        join_all(reads).await.into_iter().flatten().collect()
    }

    /// One step of the search for private lists, on each server: adds their workers to the
    /// claimants of their buckets. A server that fails does not stop the search on the others.
    pub(super) async fn restore_claimants(&self) -> Result<(), Error> {
        let operation = "searching private lists";
        let mut outcome = Ok(());
        for node in self.executor.masters(operation).await? {
            outcome = outcome.and(self.search(node, operation).await);
        }
        Ok(outcome?)
    }

    async fn search(&self, node: ServerAddress, operation: &'static str) -> Result<(), CallError> {
        // The key names follow `redis::scripts`.
        let pattern = format!("{}:{{*}}:claimed:*", self.executor.namespace());
        let connection = self.executor.connection_to(&node, operation).await?;
        let cursor = self.cursors.lock().get(&node).cloned();
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.as_deref().unwrap_or("0"));
        scan.arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_PER_STEP);
        let answer = send_on(&connection, &pattern, vec![scan], operation).await?.pop();
        let (next, keys): (String, Vec<String>) = decode(&pattern, answer.unwrap_or(Value::Nil))?;
        self.cursors.lock().insert(node, next);
        let add = |key: &String| {
            let (bucket, worker) = key.split_once("claimed:")?;
            Some(redis::cmd("SADD").arg(format!("{bucket}claimants")).arg(worker).to_owned())
        };
        let additions: Vec<Cmd> = keys.iter().filter_map(add).collect();
        if !additions.is_empty() {
            // A failed addition is repeated by the next search.
            let added = connection.call(additions).await;
            added.map_err(|error| CallError::new(error, operation))?;
        }
        Ok(())
    }
}
