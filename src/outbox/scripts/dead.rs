//! The call of `collect.lua`: removes dead letters that are stored elsewhere now.

use redis::Value;

use crate::outbox::DeadEntry;
use crate::redis::scripts::reply::Reply;
use crate::redis::scripts::{Error, Installation, OutboxKeys, Script, ScriptCall};

/// Removes dead letters.
#[derive(Debug, Clone, Copy)]
pub struct Collect<'a> {
    pub keys: &'a OutboxKeys,
    pub installation: Installation,
    /// As they were read: removal compares all bytes.
    pub letters: &'a [DeadEntry],
}

impl Collect<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut call =
            ScriptCall::new(Script::Collect).key(&self.keys.bucket()).key(&self.keys.dead());
        call = call.arg(self.installation);
        for dead_letter in self.letters {
            call = call.bytes(&dead_letter.id);
        }
        call
    }

    /// The number of removed dead letters.
    pub fn parse(&self, answer: Value) -> Result<u64, Error> {
        let mut reply = Reply::open(Script::Collect, answer)?;
        let removed = reply.count()?;
        reply.end().map(|()| removed)
    }
}
