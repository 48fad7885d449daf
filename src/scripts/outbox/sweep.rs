//! The door of `stream_sweep.lua`: entries that somebody has held for too long.

use std::time::Duration;

use redis::Value;

use super::super::reply::Reply;
use super::super::{Call, Error, Installation, OutboxKeys, Script};
use super::GivenBack;

/// Gives to nobody what was held for too long, a part of the stream's group at a time.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// Longest time in a hand.
    pub longest: Duration,
    /// Where the part begins: `0-0`, or where the part before ended.
    pub from: &'a str,
}

impl Sweep<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let call = Call::new(Script::StreamSweep).key(&self.keys.bucket()).key(&self.keys.line());
        call.arg(self.installation).arg(self.longest.as_millis()).arg(self.from)
    }

    /// Reads the answer: what came back, and where the part ended.
    pub fn parse(answer: Value) -> Result<(GivenBack, String), Error> {
        let mut reply = Reply::open(Script::StreamSweep, answer)?;
        let vanished = reply.texts()?;
        let num_entries = reply.count()?;
        let end = reply.text()?;
        reply.end().map(|()| (GivenBack { num_entries, vanished }, end))
    }
}
