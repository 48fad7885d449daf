//! From a door to the server that has the bucket, and back.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::Error;
use crate::redis::scripts;
use crate::redis::scripts::{Installation, OutboxKeys, ScriptCall};
use crate::redis::transport::{
    CallEffect, Connection, ConnectionPool, ConnectionPurpose, Error as LinkError,
};
use crate::runtime::progress::answered;
use crate::stock::BucketKey;

/// How outboxes are reached and named.
#[derive(Debug)]
pub(super) struct OutboxExecutor {
    links: ConnectionPool,
    namespace: String,
    pub(super) installation: Installation,
}

/// Calls for one server, with their places among all.
type ServerGroup = (Arc<Connection>, Vec<usize>, Vec<ScriptCall>);

impl OutboxExecutor {
    pub(super) fn new(
        links: ConnectionPool,
        namespace: String,
        installation: Installation,
    ) -> Self {
        Self { links, namespace, installation }
    }

    /// The keys of a bucket's outbox.
    pub(super) fn keys(&self, bucket: BucketKey) -> OutboxKeys {
        OutboxKeys::new(&self.namespace, bucket.sku, bucket.bucket)
    }

    /// Sends one call.
    pub(super) async fn ask(&self, call: ScriptCall, doing: &'static str) -> Result<Value, Error> {
        let mut answers = self.ask_all(vec![call], doing).await;
        answers.pop().unwrap_or_else(|| Err(no_answer(doing)))
    }

    /// Sends calls of many buckets, in one go to each server. There is one answer for each.
    pub(super) async fn ask_all(
        &self,
        calls: Vec<ScriptCall>,
        doing: &'static str,
    ) -> Vec<Result<Value, Error>> {
        let mut answers: Vec<_> = calls.iter().map(|_| Err(no_answer(doing))).collect();
        let mut groups: Vec<ServerGroup> = Vec::new();
        // Side by side: the others do not wait for each server that cannot be reached in turn.
        let linked = calls.iter().map(|call| {
            self.links.link(ConnectionPurpose::Relay, call.keys().next().unwrap_or_default())
        });
        let linked = join_all(linked.collect::<Vec<_>>()).await;
        for (place, (call, linked)) in calls.into_iter().zip(linked).enumerate() {
            match linked {
                Ok(link) => {
                    let same = groups.iter_mut().find(|(other, ..)| Arc::ptr_eq(other, &link));
                    if let Some((_, places, calls)) = same {
                        places.push(place);
                        calls.push(call);
                    } else {
                        groups.push((link, vec![place], vec![call]));
                    }
                }
                Err(error) => set(&mut answers, place, Err(outbox_error(error, doing))),
            }
        }
        let sent = groups.iter().map(|(link, places, calls)| async move {
            (places, ask_link(link, calls, doing).await)
        });
        for (places, answered) in join_all(sent).await {
            for (place, answer) in places.iter().zip(answered) {
                set(&mut answers, *place, answer);
            }
        }
        answers
    }

    /// Sends a plain command on one key.
    pub(super) async fn read(
        &self,
        key: &str,
        command: Cmd,
        doing: &'static str,
    ) -> Result<Value, Error> {
        let answers = self.links.call(ConnectionPurpose::Relay, key, &[command]).await;
        let answer = answers.and_then(|answers| {
            let missing = || LinkError::Unknown { reason: "no answer".to_owned() };
            answers.into_iter().next().unwrap_or_else(|| Err(missing()))
        });
        answer.map_err(|error| match outbox_error(error, doing) {
            Error::Damaged { what } => damaged(key, &what),
            other => other,
        })
    }
}

fn set(answers: &mut [Result<Value, Error>], place: usize, answer: Result<Value, Error>) {
    if let Some(old) = answers.get_mut(place) {
        *old = answer;
    }
}

async fn ask_link(
    link: &Connection,
    calls: &[ScriptCall],
    doing: &'static str,
) -> Vec<Result<Value, Error>> {
    let called = link.call(calls).await;
    answered();
    let answered = called.unwrap_or_else(|error| vec![Err(error); calls.len()]);
    let mut answers = Vec::with_capacity(calls.len());
    for (call, answer) in calls.iter().zip(answered) {
        answers.push(match answer.map_err(|error| outbox_error(error, doing)) {
            Err(Error::Damaged { what }) => Err(damaged(&strange_keys(link, call).await, &what)),
            answer => answer,
        });
    }
    answers
}

/// Which keys of a call hold what no version of this program wrote; for whoever has to repair it.
/// Redis itself does not say.
async fn strange_keys(link: &Connection, call: &ScriptCall) -> String {
    let keys: Vec<_> = call.keys().map(String::from_utf8_lossy).collect();
    let types: Vec<_> = keys.iter().map(|key| redis::cmd("TYPE").arg(&**key).to_owned()).collect();
    let types = link.call(&types).await.unwrap_or_default();
    let bucket = keys.first().map(|key| &**key).unwrap_or_default();
    let prefix = bucket.strip_suffix("bucket").unwrap_or(bucket);
    let script = call.script().name();
    let strange = keys.iter().zip(&types).filter_map(|(key, kind)| {
        let Ok(Value::SimpleString(kind)) = kind else { return None };
        let own = match key.strip_prefix(prefix) {
            Some("bucket") => "hash",
            Some("claimants") => "set",
            Some("outbox") if script.starts_with("stream") => "stream",
            _ => "list",
        };
        (kind != own && kind != "none").then(|| format!("{key} is a {kind}"))
    });
    let strange: Vec<_> = strange.collect();
    if strange.is_empty() { bucket.to_owned() } else { strange.join(", ") }
}

/// What a failed call means.
pub(super) fn outbox_error(error: LinkError, doing: &'static str) -> Error {
    match error.class() {
        CallEffect::NotDone => Error::Unavailable { reason: error.to_string() },
        CallEffect::Unknown => Error::Unknown { doing, reason: error.to_string() },
        CallEffect::Refused => Error::Damaged { what: format!("{doing}: {error}") },
    }
}

fn no_answer(doing: &'static str) -> Error {
    Error::Unknown { doing, reason: "no answer".to_owned() }
}

pub(super) fn damaged(key: &str, what: &dyn std::fmt::Display) -> Error {
    Error::Damaged { what: format!("{key}: {what}") }
}

/// What a script's own word means.
pub(super) fn told(keys: &OutboxKeys, doing: &'static str, error: &scripts::Error) -> Error {
    let key = keys.bucket();
    match error {
        scripts::Error::Foreign => {
            let remedy = "set another `namespace`, or use another Redis";
            damaged(&key, &format_args!("{error}; {remedy}"))
        }
        scripts::Error::Corrupt { .. } | scripts::Error::TooMany => damaged(&key, error),
        // Nothing was written, or nobody knows what: in either case the asker has to look again.
        scripts::Error::Unexpected { .. }
        | scripts::Error::NotReady
        | scripts::Error::Fenced
        | scripts::Error::OldLoader => Error::Unknown { doing, reason: format!("{key}: {error}") },
    }
}
