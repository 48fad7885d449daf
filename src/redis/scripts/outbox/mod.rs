//! The calls of the scripts that work on outboxes: `list_*.lua`, `stream_*.lua` and `collect.lua`.
//!
//! An entry is one message: the [packed intents](super::intent) of it. In a list it is an element,
//! in a stream the field `intents`. The scripts of both kinds promise the same, so one call leads
//! to either.

use bytes::Bytes;
use redis::Value;

use crate::outbox::{EndedEntry, OutboxEntry};

use super::reply::Reply;
use super::{Error, Installation, OutboxKeys, Script, ScriptCall, codes};

pub mod dead;
pub mod dead_letter;
pub mod read;

pub use dead::Collect;
pub use read::{CountEntries, ReadList, ReadStream};

/// In which structure the entries wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A list, and a private list for each worker.
    List,
    /// A stream with a group of consumers.
    Stream,
}

/// The bucket that a call is for.
#[derive(Debug, Clone, Copy)]
pub struct OutboxTarget<'a> {
    /// Its keys.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// How entries wait.
    pub kind: EntryKind,
}

/// Moves entries from the outbox to a worker.
#[derive(Debug, Clone, Copy)]
pub struct ClaimEntries<'a> {
    /// The bucket.
    pub target: OutboxTarget<'a>,
    /// The worker.
    pub worker: &'a str,
    /// Most entries to move.
    pub max: usize,
}

/// Moves everything that predecessors of a worker hold to it.
#[derive(Debug, Clone, Copy)]
pub struct TakeOver<'a> {
    /// The bucket.
    pub target: OutboxTarget<'a>,
    /// The worker.
    pub worker: &'a str,
    /// Its predecessors.
    pub predecessors: &'a [String],
}

/// Removes entries that ended.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledge<'a> {
    /// The bucket.
    pub target: OutboxTarget<'a>,
    /// The worker.
    pub worker: &'a str,
    /// The entries, at most [`codes::CLAIM_MAX`].
    pub ended: &'a [EndedEntry],
    /// Now, epoch milliseconds.
    pub now_ms: i64,
}

/// Returns everything that these workers hold to the outbox.
#[derive(Debug, Clone, Copy)]
pub struct Reclaim<'a> {
    /// The bucket.
    pub target: OutboxTarget<'a>,
    /// The workers.
    pub workers: &'a [String],
}

impl OutboxTarget<'_> {
    fn script(&self, list: Script, stream: Script) -> Script {
        match self.kind {
            EntryKind::List => list,
            EntryKind::Stream => stream,
        }
    }

    fn begin(&self, script: Script) -> ScriptCall {
        ScriptCall::new(script).key(&self.keys.bucket())
    }

    /// Reads claimed entries.
    fn entries(&self, script: Script, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        let mut reply = Reply::open(script, answer)?;
        if self.kind == EntryKind::List {
            let elements = reply.byte_strings()?;
            reply.end()?;
            return Ok(elements.into_iter().map(element).collect());
        }
        let mut entries = Vec::new();
        while !reply.is_empty() {
            let id = reply.bytes()?.into();
            entries.push(OutboxEntry { id, bytes: reply.bytes()?.into() });
        }
        Ok(entries)
    }
}

/// Reads an answer that is one number.
fn number(script: Script, answer: Value) -> Result<u64, Error> {
    let mut reply = Reply::open(script, answer)?;
    let number = reply.count()?;
    reply.end().map(|()| number)
}

/// An element of a list, whoever wrote it.
fn element(bytes: Vec<u8>) -> OutboxEntry {
    let begin = usize::try_from(codes::IDENTITY_BYTES).ok().and_then(|end| bytes.get(..end));
    let id = [begin.unwrap_or(&bytes), bytes.len().to_string().as_bytes()].concat();
    OutboxEntry { id: id.into(), bytes: Bytes::from(bytes) }
}

impl ClaimEntries<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListClaim, Script::StreamClaim)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox());
        let call = match kind {
            EntryKind::List => call.key(&keys.claimants()).key(&keys.claimed(self.worker)),
            EntryKind::Stream => call,
        };
        call.arg(installation).arg(self.worker).arg(self.max)
    }

    /// Reads the answer: what was moved.
    pub fn parse(&self, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        self.target.entries(self.script(), answer)
    }
}

impl TakeOver<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListTakeOver, Script::StreamTakeOver)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script());
        let call = match kind {
            EntryKind::List => {
                let call = call.key(&keys.claimants()).key(&keys.claimed(self.worker));
                let lists = self.predecessors.iter().map(|worker| keys.claimed(worker));
                lists.fold(call, |call, list| call.key(&list))
            }
            EntryKind::Stream => call.key(&keys.outbox()),
        };
        let call = call.arg(installation).arg(self.worker);
        self.predecessors.iter().fold(call, ScriptCall::arg)
    }

    /// Reads the answer: everything that the worker holds now.
    pub fn parse(&self, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        self.target.entries(self.script(), answer)
    }
}

impl Acknowledge<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListAcknowledge, Script::StreamAcknowledge)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox());
        let call = match kind {
            EntryKind::List => call.key(&keys.claimed(self.worker)),
            EntryKind::Stream => call,
        };
        let end = |ended: &EndedEntry| if ended.letter.is_some() { b'D' } else { b'P' };
        let ends: Vec<u8> = self.ended.iter().map(end).collect();
        let call = call.key(&keys.dead()).arg(installation).bytes(&ends);
        let mut call = self.ended.iter().fold(call, |call, ended| call.bytes(&ended.id));
        for letter in self.ended.iter().filter_map(|ended| ended.letter.as_ref()) {
            call.push_packed(|bytes| dead_letter::pack_into(letter, self.now_ms, bytes));
        }
        call
    }

    /// Reads the answer: how many were removed. The others belong to other workers.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        number(self.script(), answer)
    }
}

impl Reclaim<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListReclaim, Script::StreamReclaim)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox());
        let call = match kind {
            EntryKind::List => {
                let lists = self.workers.iter().map(|worker| keys.claimed(worker));
                lists.fold(call.key(&keys.claimants()), |call, list| call.key(&list))
            }
            EntryKind::Stream => call,
        };
        self.workers.iter().fold(call.arg(installation), ScriptCall::arg)
    }

    /// Reads the answer: how many entries went back.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        number(self.script(), answer)
    }
}
