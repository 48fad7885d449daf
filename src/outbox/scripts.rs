//! The calls of the outbox scripts: `list_*.lua` and `stream_*.lua`. The entries are written by
//! `reserve.lua`, whose call is in `redis/scripts/reserve_settle.rs`.
//!
//! An entry is one message: its [packed intents](crate::redis::scripts::intent). In a list it is an
//! element, in a stream the field `intents`. The scripts of both kinds have the same contract, so
//! each call serves both.

use bytes::Bytes;

use crate::config::OutboxKind;
use crate::domain::RequestRecord;
use crate::outbox::{EntryId, OutboxEntry, OutboxStatus};
use crate::redis::scripts::call::Reply;
use crate::redis::scripts::{BucketKeys, Error, Script, ScriptCall, codes};

/// An entry of a stream, waiting or claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: String,
    /// The worker that claimed the entry; `None` while it waits.
    pub holder: Option<String>,
    pub bytes: Vec<u8>,
}

impl OutboxKind {
    fn pick(self, list: Script, stream: Script) -> Script {
        match self {
            Self::List => list,
            Self::Stream => stream,
        }
    }

    /// Keys that only the scripts of lists have.
    fn lists(self, keys: impl IntoIterator<Item = String>) -> impl Iterator<Item = String> {
        keys.into_iter().filter(move |_| self == Self::List)
    }

    /// Parses claimed entries.
    fn entries(self, reply: &mut Reply) -> Result<Vec<OutboxEntry>, Error> {
        if self == Self::List {
            return Ok(reply.byte_strings()?.into_iter().map(element).collect());
        }
        reply.rest(|reply| {
            let id = reply.bytes()?.into();
            Ok(OutboxEntry { id, bytes: reply.bytes()?.into() })
        })
    }
}

/// An element of a list as an entry. Its identity is that of `identity` in `lua/prelude.lua`.
fn element(bytes: Vec<u8>) -> OutboxEntry {
    let head = usize::try_from(codes::IDENTITY_BYTES).ok().and_then(|end| bytes.get(..end));
    let id = [head.unwrap_or(&bytes), bytes.len().to_string().as_bytes()].concat();
    OutboxEntry { id: id.into(), bytes: Bytes::from(bytes) }
}

/// Moves up to `max` entries from the outbox to a worker. Answers the claimed entries.
pub fn claim(
    keys: &BucketKeys,
    kind: OutboxKind,
    worker: &str,
    max: usize,
) -> ScriptCall<Vec<OutboxEntry>> {
    let script = kind.pick(Script::ListClaim, Script::StreamClaim);
    let call = ScriptCall::new(script, keys, move |reply| kind.entries(reply));
    let lists = kind.lists([keys.claimants(), keys.claimed(worker)]);
    call.key(&keys.outbox()).keys(lists).arg(worker).arg(max)
}

/// Moves all entries of a worker's predecessors to the worker. Answers all entries that the worker
/// holds then.
pub fn take_over(
    keys: &BucketKeys,
    kind: OutboxKind,
    worker: &str,
    predecessors: &[String],
) -> ScriptCall<Vec<OutboxEntry>> {
    let script = kind.pick(Script::ListTakeOver, Script::StreamTakeOver);
    let call = ScriptCall::new(script, keys, move |reply| kind.entries(reply));
    let call = match kind {
        OutboxKind::List => call
            .keys([keys.claimants(), keys.claimed(worker)])
            .keys(predecessors.iter().map(|worker| keys.claimed(worker))),
        OutboxKind::Stream => call.key(&keys.outbox()),
    };
    call.arg(worker).args(predecessors)
}

/// Removes published entries, at most [`codes::CLAIM_MAX`]. Answers the number of removed entries;
/// the others belong to other workers.
pub fn acknowledge(
    keys: &BucketKeys,
    kind: OutboxKind,
    worker: &str,
    ended: &[EntryId],
) -> ScriptCall<u64> {
    let script = kind.pick(Script::ListAcknowledge, Script::StreamAcknowledge);
    let mut call = ScriptCall::new(script, keys, Reply::count)
        .key(&keys.outbox())
        .keys(kind.lists([keys.claimed(worker)]));
    for id in ended {
        call = call.packed(|bytes| bytes.extend(id));
    }
    call
}

/// Returns all entries of these workers to the outbox. Answers their number.
pub fn reclaim(keys: &BucketKeys, kind: OutboxKind, workers: &[String]) -> ScriptCall<u64> {
    let script = kind.pick(Script::ListReclaim, Script::StreamReclaim);
    let lists = workers.iter().map(|worker| keys.claimed(worker));
    ScriptCall::new(script, keys, Reply::count)
        .key(&keys.outbox())
        .keys(kind.lists([keys.claimants()].into_iter().chain(lists)))
        .args(workers)
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
            ..OutboxStatus::default()
        };
        let mut names = workers.iter().cloned();
        let claimed = reply.rest(|reply| {
            let worker = match kind {
                OutboxKind::List => names.next().unwrap_or_default(),
                OutboxKind::Stream => reply.text()?,
            };
            Ok(((worker, reply.count()?), placed_at(&reply.bytes()?)))
        })?;
        status.oldest_claimed_ms = claimed.iter().filter_map(|(_, oldest)| *oldest).min();
        status.claimed = claimed.into_iter().map(|(claimed, _)| claimed).collect();
        status.claimed.sort_unstable();
        Ok(status)
    };
    ScriptCall::new(kind.pick(Script::ListStatus, Script::StreamStatus), keys, read)
        .key(&keys.outbox())
        .keys(kind.lists(lists))
}

/// The time of the request in a record; `None` if the bytes are no record.
fn placed_at(record: &[u8]) -> Option<i64> {
    RequestRecord::unpack(record).ok().map(|record| record.placed_at_ms)
}

/// Reads up to `max` entries of a stream, waiting and claimed, from a start as of `XRANGE`: an id,
/// or `(` and an id to exclude it.
pub fn read_stream(keys: &BucketKeys, from: &str, max: usize) -> ScriptCall<Vec<StreamEntry>> {
    let entry = |reply: &mut Reply| {
        let id = reply.text()?;
        let holder = Some(reply.text()?).filter(|holder| !holder.is_empty());
        Ok(StreamEntry { id, holder, bytes: reply.bytes()? })
    };
    let call = ScriptCall::new(Script::StreamRead, keys, move |reply| reply.rest(entry));
    call.key(&keys.outbox()).arg(from).arg(max)
}

/// Reads a part of the outbox or of a private list, between two indices as of `LRANGE`.
pub fn read_list(
    keys: &BucketKeys,
    list: &str,
    (first, last): (i64, i64),
) -> ScriptCall<Vec<Vec<u8>>> {
    ScriptCall::new(Script::ListRead, keys, Reply::byte_strings).key(list).arg(first).arg(last)
}
