//! The call of `collect.lua`: dead letters leave once they were written down elsewhere.

use redis::Value;

use super::super::reply::Reply;
use super::super::{Error, Installation, OutboxKeys, Script, ScriptCall};
use crate::outbox::DeadEntry;

/// Removes dead letters.
#[derive(Debug, Clone, Copy)]
pub struct Collect<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// Letters as they were read.
    pub letters: &'a [DeadEntry],
}

impl Collect<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut call =
            ScriptCall::new(Script::Collect).key(&self.keys.bucket()).key(&self.keys.dead());
        call = call.arg(self.installation);
        for letter in self.letters {
            call = call.bytes(&letter.id);
        }
        call
    }

    /// Reads the answer: how many of them were there.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        let mut reply = Reply::open(Script::Collect, answer)?;
        let removed = reply.count()?;
        reply.end().map(|()| removed)
    }
}
