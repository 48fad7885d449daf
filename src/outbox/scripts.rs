//! The calls of the outbox scripts: `list_*.lua`, `stream_*.lua` and `collect.lua`. The entries are
//! written by `reserve.lua`, whose call is in `redis/scripts/reserve_settle.rs`.
//!
//! An entry is one message: its [packed intents](crate::redis::scripts::intent). In a list it is an
//! element, in a stream the field `intents`. The scripts of both kinds have the same contract, so
//! each call serves both.

use bytes::Bytes;

use crate::config::OutboxKind;
use crate::domain::RequestRecord;
use crate::outbox::{OutboxDeadLetter, OutboxEntry, OutboxStatus, dead_letter_bytes};
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
            Ok(OutboxEntry { id, bytes: reply.bytes()?.into(), dead_letter: None })
        })
    }
}

/// An element of a list as an entry. Its identity is that of `identity` in `lua/prelude.lua`.
fn element(bytes: Vec<u8>) -> OutboxEntry {
    let head = usize::try_from(codes::IDENTITY_BYTES).ok().and_then(|end| bytes.get(..end));
    let id = [head.unwrap_or(&bytes), bytes.len().to_string().as_bytes()].concat();
    OutboxEntry { id: id.into(), bytes: Bytes::from(bytes), dead_letter: None }
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

/// Removes published and given-up entries, at most [`codes::CLAIM_MAX`]. `now_ms` is epoch
/// milliseconds. Answers the number of removed entries, and the positions, from 1, of given-up
/// entries that are not removed: they belong to other workers.
pub fn acknowledge(
    keys: &BucketKeys,
    kind: OutboxKind,
    worker: &str,
    ended: &[OutboxEntry],
    now_ms: i64,
) -> ScriptCall<(u64, Vec<usize>)> {
    let outcome = |ended: &OutboxEntry| if ended.dead_letter.is_some() { b'D' } else { b'P' };
    let script = kind.pick(Script::ListAcknowledge, Script::StreamAcknowledge);
    let read = |reply: &mut Reply| Ok((reply.count()?, reply.rest(Reply::count)?));
    let mut call = ScriptCall::new(script, keys, read)
        .key(&keys.outbox())
        .keys(kind.lists([keys.claimed(worker)]))
        .key(&keys.dead())
        .packed(|bytes| bytes.extend(ended.iter().map(outcome)));
    for ended in ended {
        call = call.packed(|bytes| bytes.extend(&ended.id));
    }
    for new in ended.iter().filter_map(|ended| ended.dead_letter.as_ref()) {
        call = call.packed(|bytes| dead_letter_bytes::pack_into(new, now_ms, bytes));
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

/// Removes dead letters that are stored elsewhere now. They are passed as they were read: removal
/// compares all bytes. Answers the number of removed ones.
pub fn collect(keys: &BucketKeys, dead_letters: &[OutboxDeadLetter]) -> ScriptCall<u64> {
    let mut call = ScriptCall::new(Script::Collect, keys, Reply::count).key(&keys.dead());
    for dead_letter in dead_letters {
        call = call.packed(|bytes| bytes.extend(&dead_letter.id));
    }
    call
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
    let entry = |reply: &mut Reply| {
        let id = reply.text()?;
        let holder = Some(reply.text()?).filter(|holder| !holder.is_empty());
        Ok(StreamEntry { id, holder, bytes: reply.bytes()? })
    };
    let call = ScriptCall::new(Script::StreamRead, keys, move |reply| reply.rest(entry));
    call.key(&keys.outbox()).arg(from).arg(max)
}

/// Reads a part of the outbox, of a private list or of the dead letters, between two indices as of
/// `LRANGE`.
pub fn read_list(
    keys: &BucketKeys,
    list: &str,
    (first, last): (i64, i64),
) -> ScriptCall<Vec<Vec<u8>>> {
    ScriptCall::new(Script::ListRead, keys, Reply::byte_strings).key(list).arg(first).arg(last)
}
