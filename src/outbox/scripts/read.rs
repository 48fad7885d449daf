//! The read-only calls: `*_standing.lua`, `list_read.lua` and `stream_read.lua`.

use redis::Value;

use super::{EntryKind, OutboxTarget};
use crate::outbox::OutboxStatus;
use crate::redis::scripts::record::RequestRecord;
use crate::redis::scripts::reply::Reply;
use crate::redis::scripts::{Error, Installation, OutboxKeys, Script, ScriptCall};

/// Counts waiting and claimed entries.
#[derive(Debug, Clone, Copy)]
pub struct CountEntries<'a> {
    pub target: OutboxTarget<'a>,
    /// The workers whose private lists are counted; unused for a stream, whose group lists them.
    pub workers: &'a [String],
}

/// Reads a part of the outbox, of a private list or of the dead letters.
#[derive(Debug, Clone, Copy)]
pub struct ReadList<'a> {
    pub keys: &'a OutboxKeys,
    pub installation: Installation,
    pub list: &'a str,
    /// First and last index, as of `LRANGE`.
    pub places: (i64, i64),
}

/// Reads entries of a stream, waiting and claimed.
#[derive(Debug, Clone, Copy)]
pub struct ReadStream<'a> {
    pub keys: &'a OutboxKeys,
    pub installation: Installation,
    /// Start as of `XRANGE`: an id, or `(` and an id to exclude it.
    pub from: &'a str,
    pub max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: String,
    /// The worker that claimed the entry; `None` while it waits.
    pub holder: Option<String>,
    pub bytes: Vec<u8>,
}

impl CountEntries<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListStatus, Script::StreamStatus)
    }

    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox()).key(&keys.dead());
        let workers = if kind == EntryKind::List { self.workers } else { &[] };
        let lists = workers.iter().map(|worker| keys.claimed(worker));
        lists.fold(call, |call, list| call.key(&list)).arg(installation)
    }

    pub fn parse(&self, answer: Value) -> Result<OutboxStatus, Error> {
        let mut reply = Reply::open(self.script(), answer)?;
        let mut status = OutboxStatus {
            num_waiting: reply.count()?,
            oldest_waiting_ms: accepted_at(&reply.bytes()?),
            num_dead: reply.count()?,
            ..OutboxStatus::default()
        };
        let mut names = self.workers.iter();
        while !reply.is_empty() {
            let worker = match self.target.kind {
                EntryKind::List => names.next().cloned().unwrap_or_default(),
                EntryKind::Stream => reply.text()?,
            };
            let count = reply.count()?;
            let oldest = accepted_at(&reply.bytes()?);
            status.claimed.push((worker, count));
            let both = [status.oldest_claimed_ms, oldest];
            status.oldest_claimed_ms = both.into_iter().flatten().min();
        }
        status.claimed.sort_unstable();
        Ok(status)
    }
}

impl ReadStream<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let call =
            ScriptCall::new(Script::StreamRead).key(&self.keys.bucket()).key(&self.keys.outbox());
        call.arg(self.installation).arg(self.from).arg(self.max)
    }

    pub fn parse(answer: Value) -> Result<Vec<StreamEntry>, Error> {
        let mut reply = Reply::open(Script::StreamRead, answer)?;
        let mut entries = Vec::new();
        while !reply.is_empty() {
            let id = reply.text()?;
            let holder = Some(reply.text()?).filter(|holder| !holder.is_empty());
            entries.push(StreamEntry { id, holder, bytes: reply.bytes()? });
        }
        Ok(entries)
    }
}

/// The request time of a record; `None` if the bytes are no record.
fn accepted_at(record: &[u8]) -> Option<i64> {
    RequestRecord::unpack(record).ok().map(|record| record.placed_at_ms)
}

impl ReadList<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let call = ScriptCall::new(Script::ListRead).key(&self.keys.bucket()).key(self.list);
        call.arg(self.installation).arg(self.places.0).arg(self.places.1)
    }

    pub fn parse(&self, answer: Value) -> Result<Vec<Vec<u8>>, Error> {
        let mut reply = Reply::open(Script::ListRead, answer)?;
        let mut elements = Vec::new();
        while !reply.is_empty() {
            elements.push(reply.bytes()?);
        }
        Ok(elements)
    }
}
