//! The doors of the scripts that work on outboxes: `list_*.lua`, `stream_*.lua` and `collect.lua`.
//!
//! An entry is one message: the [packed intents](super::intent) of it. In a list it is an element
//! whose first byte counts the attempts to publish it; in a stream it is the field `intents`, and
//! the attempts are the deliveries after the first. The scripts of both kinds do the same, so that
//! one door leads to either.

use bytes::Bytes;
use redis::Value;

use crate::outbox::{Entry, Fate, Worker};

use super::reply::Reply;
use super::{Call, Error, Installation, OutboxKeys, Script};

pub mod dead;
pub mod letter;
pub mod read;
pub mod sweep;

pub use dead::Collect;
pub use read::{ReadList, ReadStream, StandingOf};
pub use sweep::Sweep;

/// Bytes of an entry that name it among others: as far as the request id of its first intent.
const NAME_BYTES: usize = 28;

/// In which structure the entries wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// A list, and a list for each hand.
    List,
    /// A stream with a group of consumers.
    Stream,
}

/// Moves entries from the line into a worker's hand.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// How entries wait.
    pub line: Line,
    /// Whose hand.
    pub worker: &'a Worker,
    /// The mark of the hand, or the new one.
    pub mark: u64,
    /// From what the worker goes on.
    pub step: Step,
    /// Most entries to move.
    pub max: usize,
}

/// What a life has done in a bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it begins. The answer is the whole hand.
    Begin,
    /// It began, and looks at its hand again under a new mark. The answer is the whole hand.
    Look,
    /// It knows that so many entries are in its hand; the script refuses when that is wrong. The
    /// answer is what was moved.
    GoOn {
        /// Entries in hand.
        held: usize,
    },
}

/// What a claim came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// What was moved, or the whole hand: see [`Step`].
    pub entries: Vec<Entry>,
    /// Entries that somebody deleted although they were claimed.
    pub vanished: Vec<String>,
}

/// Notes what became of each entry in a hand.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// How entries wait.
    pub line: Line,
    /// Whose hand.
    pub worker: &'a Worker,
    /// The mark of the hand.
    pub mark: u64,
    /// The whole hand, at most [`super::codes::HAND_MAX`].
    pub entries: &'a [Entry],
    /// What became of each entry.
    pub fates: &'a [Fate],
    /// Now, epoch milliseconds.
    pub now_ms: i64,
}

/// Returns a whole hand to the line and forgets the worker.
#[derive(Debug, Clone, Copy)]
pub struct GiveBack<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// How entries wait.
    pub line: Line,
    /// Whose hand.
    pub worker: &'a str,
}

/// What came back into the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenBack {
    /// How many entries.
    pub num_entries: u64,
    /// Entries that somebody deleted although they were claimed.
    pub vanished: Vec<String>,
}

impl Claim<'_> {
    fn script(&self) -> Script {
        match self.line {
            Line::List => Script::ListClaim,
            Line::Stream => Script::StreamClaim,
        }
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let (keys, worker) = (self.keys, self.worker);
        let call = begin(self.script(), keys);
        let call = match self.line {
            Line::List => call.key(&keys.hand(&worker.name)),
            Line::Stream => call,
        };
        let call = call.key(&keys.line()).arg(self.installation);
        let call = call.arg(&worker.name).arg(life(worker, self.mark));
        let call = match self.step {
            Step::Begin => call.arg("begin").arg(0),
            Step::Look => call.arg("look").arg(0),
            Step::GoOn { held } => call.arg("go on").arg(held),
        };
        call.arg(self.max)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<Claimed, Error> {
        let mut reply = Reply::open(self.script(), answer)?;
        let vanished = match self.line {
            Line::List => Vec::new(),
            Line::Stream => reply.texts()?,
        };
        let mut entries = Vec::new();
        while !reply.is_empty() {
            entries.push(match self.line {
                Line::List => element(reply.bytes()?),
                Line::Stream => {
                    let id = reply.bytes()?.into();
                    let deliveries: u32 = reply.count()?;
                    let attempts = deliveries.saturating_sub(1);
                    Entry { id, bytes: reply.bytes()?.into(), attempts }
                }
            });
        }
        Ok(Claimed { entries, vanished })
    }
}

/// A life and its mark, as they are on record.
fn life(worker: &Worker, mark: u64) -> String {
    format!("{}.{mark}", worker.life)
}

/// An element of a list, whoever wrote it.
fn element(bytes: Vec<u8>) -> Entry {
    let mut bytes = Bytes::from(bytes);
    let attempts = bytes.split_to(bytes.len().min(1)).first().copied().unwrap_or_default();
    let name = bytes.get(..NAME_BYTES).unwrap_or(&bytes);
    Entry { id: name.into(), bytes: bytes.clone(), attempts: attempts.into() }
}

impl Report<'_> {
    fn script(line: Line) -> Script {
        match line {
            Line::List => Script::ListReport,
            Line::Stream => Script::StreamReport,
        }
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let (keys, worker) = (self.keys, self.worker);
        let fates: Vec<u8> = self.fates.iter().map(letter_of).collect();
        let place = match self.line {
            Line::List => keys.hand(&worker.name),
            Line::Stream => keys.line(),
        };
        let call = begin(Self::script(self.line), keys).key(&place).key(&keys.dead());
        let call = call.arg(self.installation).arg(&worker.name).arg(life(worker, self.mark));
        let call = call.bytes(&fates);
        let mut call = match self.line {
            Line::List => {
                let ends = [self.entries.first(), self.entries.last()];
                let bytes = ends.map(|end| end.map_or(&[][..], |entry| &entry.bytes));
                bytes.into_iter().fold(call, Call::bytes)
            }
            Line::Stream => self.entries.iter().fold(call, |call, entry| call.bytes(&entry.id)),
        };
        for (entry, fate) in self.entries.iter().zip(self.fates) {
            if let Fate::Dead { reason } = fate {
                call.push_packed(|bytes| letter::pack_into(entry, reason, self.now_ms, bytes));
            }
        }
        call
    }

    /// Reads the answer: entries that stay in hand, and that somebody deleted all the same.
    pub fn parse(line: Line, answer: Value) -> Result<Vec<String>, Error> {
        let mut reply = Reply::open(Self::script(line), answer)?;
        let vanished = match line {
            Line::List => Vec::new(),
            Line::Stream => reply.texts()?,
        };
        reply.end().map(|()| vanished)
    }
}

fn letter_of(fate: &Fate) -> u8 {
    match fate {
        Fate::Published => b'P',
        Fate::Kept => b'K',
        Fate::Failed => b'F',
        Fate::Dead { .. } => b'D',
    }
}

impl GiveBack<'_> {
    fn script(&self) -> Script {
        match self.line {
            Line::List => Script::ListGiveBack,
            Line::Stream => Script::StreamGiveBack,
        }
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let keys = self.keys;
        let call = begin(self.script(), keys);
        let call = match self.line {
            Line::List => call.key(&keys.hand(self.worker)),
            Line::Stream => call,
        };
        call.key(&keys.line()).arg(self.installation).arg(self.worker)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<GivenBack, Error> {
        let mut reply = Reply::open(self.script(), answer)?;
        let vanished = match self.line {
            Line::List => Vec::new(),
            Line::Stream => reply.texts()?,
        };
        let num_entries = reply.count()?;
        reply.end().map(|()| GivenBack { num_entries, vanished })
    }
}

/// Begins a call with the keys that most have.
fn begin(script: Script, keys: &OutboxKeys) -> Call {
    Call::new(script).key(&keys.bucket()).key(&keys.claims())
}
