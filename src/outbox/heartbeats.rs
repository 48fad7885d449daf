//! Which relay workers work, and private lists that their buckets do not know of.
//!
//! A worker announces itself by a key that expires; names are spread over the servers, and no claim
//! reads or writes one. The set `claimants` of a bucket names the workers whose private lists are
//! looked at; where somebody deleted it, the lists themselves are found by a search through all
//! keys, a step at a time.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::Error;
use crate::outbox::executor::{damaged, outbox_error};
use crate::redis::transport::{
    ConnectionPool, ConnectionPurpose, Error as LinkError, PipelineAnswers, ServerAddress,
};

/// Keys that one step of the search looks at, on each server.
const KEYS_PER_STEP: u32 = 1_000;

/// A full Redis must still hear a heartbeat.
const ANNOUNCE: &str = "#!lua flags=allow-oom
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
return 0";

/// Heartbeats in Redis.
#[derive(Debug)]
pub(super) struct Heartbeats {
    links: ConnectionPool,
    namespace: String,
    /// How far the search has come, on each server.
    cursors: Mutex<HashMap<ServerAddress, String>>,
}

impl Heartbeats {
    pub(super) fn new(links: ConnectionPool, namespace: String) -> Self {
        Self { links, namespace, cursors: Mutex::default() }
    }

    fn key(&self, worker: &str) -> String {
        format!("{}:relay:{worker}", self.namespace)
    }

    pub(super) async fn announce(&self, worker: &str, heartbeat: Duration) -> Result<(), Error> {
        let doing = "announcing a worker";
        let (key, ttl_ms) = (self.key(worker), heartbeat.as_millis().max(1).to_string());
        let set = redis::cmd("EVAL").arg(ANNOUNCE).arg(1).arg(&key).arg(ttl_ms).to_owned();
        first(self.links.call(ConnectionPurpose::Relay, &key, &[set]).await, doing).map(drop)
    }

    pub(super) async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        let asked = workers.iter().map(|worker| async move {
            let key = self.key(worker);
            let exists = redis::cmd("EXISTS").arg(&key).to_owned();
            let answer =
                first(self.links.call(ConnectionPurpose::Relay, &key, &[exists]).await, "asking");
            matches!(answer, Ok(Value::Int(0))).then(|| worker.clone())
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// One step of the search for private lists, on each server: enters their workers into the
    /// claimants of their buckets. A server that cannot be asked is left out; its buckets cannot be
    /// read either, and that is reported there.
    pub(super) async fn restore_claimants(&self) -> Result<(), Error> {
        let doing = "searching private lists";
        let masters = self.links.masters().await.map_err(|error| outbox_error(error, doing))?;
        let mut outcome = Ok(());
        for node in masters {
            outcome = outcome.and(self.search(node, doing).await);
        }
        outcome
    }

    async fn search(&self, node: ServerAddress, doing: &'static str) -> Result<(), Error> {
        // The names are those of `scripts::keys`.
        let pattern = format!("{}:{{*}}:claimed:*", self.namespace);
        let link = self.links.link_to(ConnectionPurpose::Relay, &node).await;
        let link = link.map_err(|error| outbox_error(error, doing))?;
        let cursor = self.cursors.lock().get(&node).cloned();
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.as_deref().unwrap_or("0"));
        scan.arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_PER_STEP);
        let answer = first(link.call(&[scan]).await, doing)?;
        let (next, keys): (String, Vec<String>) =
            redis::from_redis_value(answer).map_err(|error| damaged(&pattern, &error))?;
        self.cursors.lock().insert(node, next);
        let enter = |key: &String| {
            let (bucket, worker) = key.split_once("claimed:")?;
            Some(redis::cmd("SADD").arg(format!("{bucket}claimants")).arg(worker).to_owned())
        };
        let entered: Vec<Cmd> = keys.iter().filter_map(enter).collect();
        if !entered.is_empty() {
            // What fails here comes again with the next search.
            link.call(&entered).await.map_err(|error| outbox_error(error, doing))?;
        }
        Ok(())
    }
}

/// The only answer.
fn first(answers: Result<PipelineAnswers, LinkError>, doing: &'static str) -> Result<Value, Error> {
    let missing = || Error::Unknown { doing, reason: "no answer".to_owned() };
    let mut answers = answers.map_err(|error| outbox_error(error, doing))?;
    let answer = answers.pop().ok_or_else(missing)?;
    answer.map_err(|error| outbox_error(error, doing))
}
