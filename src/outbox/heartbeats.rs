//! Heartbeats of relay workers: keys that expire. They are distributed over the servers, and no
//! claim reads or writes one.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::Error;
use crate::redis::executor::ScriptExecutor;

/// A full Redis must still store a heartbeat.
const RENEW_HEARTBEAT: &str = "#!lua flags=allow-oom
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
return 0";

#[derive(Debug)]
pub(super) struct Heartbeats {
    executor: ScriptExecutor,
}

impl Heartbeats {
    pub(super) fn new(executor: ScriptExecutor) -> Self {
        Self { executor }
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
}
