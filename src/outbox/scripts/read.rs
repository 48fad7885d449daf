//! The read-only calls: `*_status.lua`, `list_read.lua` and `stream_read.lua`.

use crate::config::OutboxKind;
use crate::domain::RequestRecord;
use crate::outbox::OutboxStatus;
use crate::redis::scripts::call::Reply;
use crate::redis::scripts::{BucketKeys, Script, ScriptCall};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: String,
    /// The worker that claimed the entry; `None` while it waits.
    pub holder: Option<String>,
    pub bytes: Vec<u8>,
}

/// Counts waiting and claimed entries. `workers` are those whose private lists are counted; unused
/// for a stream, whose group lists them.
pub fn count_entries(
    keys: &BucketKeys,
    kind: OutboxKind,
    workers: Vec<String>,
) -> ScriptCall<OutboxStatus> {
    let lists: Vec<String> = workers.iter().map(|worker| keys.claimed(worker)).collect();
    let read = move |reply: &mut Reply| {
        let mut status = OutboxStatus {
            num_waiting: reply.count()?,
            oldest_waiting_ms: placed_at(&reply.bytes()?),
            num_dead: reply.count()?,
            ..OutboxStatus::default()
        };
        let mut names = workers.iter();
        while !reply.is_empty() {
            let worker = match kind {
                OutboxKind::List => names.next().cloned().unwrap_or_default(),
                OutboxKind::Stream => reply.text()?,
            };
            let count = reply.count()?;
            let oldest = placed_at(&reply.bytes()?);
            status.claimed.push((worker, count));
            let both = [status.oldest_claimed_ms, oldest];
            status.oldest_claimed_ms = both.into_iter().flatten().min();
        }
        status.claimed.sort_unstable();
        Ok(status)
    };
    ScriptCall::new(kind.pick(Script::ListStatus, Script::StreamStatus), keys, read)
        .keys([keys.outbox(), keys.dead()])
        .keys(kind.lists(lists))
}

/// The time of the request in a record; `None` if the bytes are no record.
fn placed_at(record: &[u8]) -> Option<i64> {
    RequestRecord::unpack(record).ok().map(|record| record.placed_at_ms)
}

/// Reads up to `max` entries of a stream, waiting and claimed, from a start as of `XRANGE`: an id,
/// or `(` and an id to exclude it.
pub fn read_stream(keys: &BucketKeys, from: &str, max: usize) -> ScriptCall<Vec<StreamEntry>> {
    let read = |reply: &mut Reply| {
        let mut entries = Vec::new();
        while !reply.is_empty() {
            let id = reply.text()?;
            let holder = Some(reply.text()?).filter(|holder| !holder.is_empty());
            entries.push(StreamEntry { id, holder, bytes: reply.bytes()? });
        }
        Ok(entries)
    };
    ScriptCall::new(Script::StreamRead, keys, read).key(&keys.outbox()).arg(from).arg(max)
}

/// Reads a part of the outbox, of a private list or of the dead letters, between two indices as of
/// `LRANGE`.
pub fn read_list(
    keys: &BucketKeys,
    list: &str,
    (first, last): (i64, i64),
) -> ScriptCall<Vec<Vec<u8>>> {
    let read = |reply: &mut Reply| {
        let mut elements = Vec::new();
        while !reply.is_empty() {
            elements.push(reply.bytes()?);
        }
        Ok(elements)
    };
    ScriptCall::new(Script::ListRead, keys, read).key(list).arg(first).arg(last)
}
