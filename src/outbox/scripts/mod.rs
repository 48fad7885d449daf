//! The calls of the outbox scripts: `list_*.lua`, `stream_*.lua` and `collect.lua`.
//!
//! An entry is one message: its [packed intents](crate::redis::scripts::intent). In a list it is an
//! element, in a stream the field `intents`. The scripts of both kinds have the same contract, so
//! each call serves both.

use bytes::Bytes;
use redis::Value;

use crate::outbox::{EndedEntry, OutboxEntry};

use crate::redis::scripts::reply::Reply;
use crate::redis::scripts::{Error, Installation, OutboxKeys, Script, ScriptCall, codes};

pub mod dead;
pub mod dead_letter;
pub mod read;

pub use dead::Collect;
pub use read::{CountEntries, ReadList, ReadStream};

/// The Redis type of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A list, and a private list for each worker.
    List,
    /// A stream with one consumer group.
    Stream,
}

/// The bucket of a call.
#[derive(Debug, Clone, Copy)]
pub struct OutboxTarget<'a> {
    pub keys: &'a OutboxKeys,
    pub installation: Installation,
    pub kind: EntryKind,
}

/// Moves entries from the outbox to a worker.
#[derive(Debug, Clone, Copy)]
pub struct ClaimEntries<'a> {
    pub target: OutboxTarget<'a>,
    pub worker: &'a str,
    pub max: usize,
}

/// Moves all entries of a worker's predecessors to the worker.
#[derive(Debug, Clone, Copy)]
pub struct TakeOver<'a> {
    pub target: OutboxTarget<'a>,
    pub worker: &'a str,
    pub predecessors: &'a [String],
}

/// Removes published and given-up entries.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledge<'a> {
    pub target: OutboxTarget<'a>,
    pub worker: &'a str,
    /// The entries, at most [`codes::CLAIM_MAX`].
    pub ended: &'a [EndedEntry],
    /// Now, epoch milliseconds.
    pub now_ms: i64,
}

/// Returns all entries of these workers to the outbox.
#[derive(Debug, Clone, Copy)]
pub struct Reclaim<'a> {
    pub target: OutboxTarget<'a>,
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

    /// Parses claimed entries.
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

/// Parses an answer of one number.
fn number(script: Script, answer: Value) -> Result<u64, Error> {
    let mut reply = Reply::open(script, answer)?;
    let number = reply.count()?;
    reply.end().map(|()| number)
}

/// An element of a list as an entry. Its identity is that of `identity` in `lua/prelude.lua`.
fn element(bytes: Vec<u8>) -> OutboxEntry {
    let head = usize::try_from(codes::IDENTITY_BYTES).ok().and_then(|end| bytes.get(..end));
    let id = [head.unwrap_or(&bytes), bytes.len().to_string().as_bytes()].concat();
    OutboxEntry { id: id.into(), bytes: Bytes::from(bytes) }
}

impl ClaimEntries<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListClaim, Script::StreamClaim)
    }

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

    /// The claimed entries.
    pub fn parse(&self, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        self.target.entries(self.script(), answer)
    }
}

impl TakeOver<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListTakeOver, Script::StreamTakeOver)
    }

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

    /// All entries that the worker holds now.
    pub fn parse(&self, answer: Value) -> Result<Vec<OutboxEntry>, Error> {
        self.target.entries(self.script(), answer)
    }
}

impl Acknowledge<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListAcknowledge, Script::StreamAcknowledge)
    }

    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let OutboxTarget { keys, installation, kind } = self.target;
        let call = self.target.begin(self.script()).key(&keys.outbox());
        let call = match kind {
            EntryKind::List => call.key(&keys.claimed(self.worker)),
            EntryKind::Stream => call,
        };
        let outcome = |ended: &EndedEntry| if ended.dead_letter.is_some() { b'D' } else { b'P' };
        let outcomes: Vec<u8> = self.ended.iter().map(outcome).collect();
        let call = call.key(&keys.dead()).arg(installation).bytes(&outcomes);
        let mut call = self.ended.iter().fold(call, |call, ended| call.bytes(&ended.id));
        for given_up in self.ended.iter().filter_map(|ended| ended.dead_letter.as_ref()) {
            call.push_packed(|bytes| dead_letter::pack_into(given_up, self.now_ms, bytes));
        }
        call
    }

    /// The number of removed entries. The others belong to other workers.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        number(self.script(), answer)
    }
}

impl Reclaim<'_> {
    fn script(&self) -> Script {
        self.target.script(Script::ListReclaim, Script::StreamReclaim)
    }

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

    /// The number of returned entries.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        number(self.script(), answer)
    }
}
