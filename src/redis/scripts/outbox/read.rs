//! The calls of `*_standing.lua`, `list_read.lua` and `stream_read.lua`: looks that change nothing.

use redis::Value;

use super::super::record::RequestRecord;
use super::super::reply::Reply;
use super::super::{Error, Installation, OutboxKeys, Script, ScriptCall};
use super::{EntryKind, OutboxTarget, element};
use crate::outbox::{OutboxEntry, OutboxStatus};

/// Counts what waits.
#[derive(Debug, Clone, Copy)]
pub struct CountEntries<'a> {
    /// The bucket.
    pub target: OutboxTarget<'a>,
    /// The workers whose private lists are counted. A stream knows its consumers itself.
    pub workers: &'a [String],
}

/// Reads a part of the outbox, of a private list or of the dead letters.
#[derive(Debug, Clone, Copy)]
pub struct ReadList<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// Which list.
    pub list: &'a str,
    /// The first place, and the last; negative ones count from the end.
    pub places: (i64, i64),
}

/// Reads entries of a stream, whoever holds them.
#[derive(Debug, Clone, Copy)]
pub struct ReadStream<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// Where to begin: an id, or `(` and the id before.
    pub from: &'a str,
    /// Most entries.
    pub max: usize,
}

/// One entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// Its id.
    pub id: String,
    /// Who holds it; `None` where it waits.
    pub holder: Option<String>,
    /// The message.
    pub bytes: Vec<u8>,
}

impl CountEntries<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListStanding, Script::StreamStanding)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox()).key(&keys.dead());
        let workers = if kind == EntryKind::List { self.workers } else { &[] };
        let lists = workers.iter().map(|worker| keys.claimed(worker));
        lists.fold(call, |call, list| call.key(&list)).arg(installation)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<OutboxStatus, Error> {
        let mut reply = Reply::open(self.script(), answer)?;
        let mut standing = OutboxStatus {
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
            standing.in_hand.push((worker, count));
            let both = [standing.oldest_in_hand_ms, oldest];
            standing.oldest_in_hand_ms = both.into_iter().flatten().min();
        }
        standing.in_hand.sort_unstable();
        Ok(standing)
    }
}

impl ReadStream<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let call =
            ScriptCall::new(Script::StreamRead).key(&self.keys.bucket()).key(&self.keys.outbox());
        call.arg(self.installation).arg(self.from).arg(self.max)
    }

    /// Reads the answer.
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

/// When the request of a record was accepted; `None` where there is no record.
fn accepted_at(record: &[u8]) -> Option<i64> {
    RequestRecord::unpack(record).ok().map(|record| record.placed_at_ms)
}

impl ReadList<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let call = ScriptCall::new(Script::ListRead).key(&self.keys.bucket()).key(self.list);
        call.arg(self.installation).arg(self.places.0).arg(self.places.1)
    }

    /// Reads the answer as it is.
    pub fn parse(&self, answer: Value) -> Result<Vec<Vec<u8>>, Error> {
        let mut reply = Reply::open(Script::ListRead, answer)?;
        let mut elements = Vec::new();
        while !reply.is_empty() {
            elements.push(reply.bytes()?);
        }
        Ok(elements)
    }

    /// Reads the answer as entries.
    pub fn parse_entries(&self, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        Ok(self.parse(answer)?.into_iter().map(element).collect())
    }
}
