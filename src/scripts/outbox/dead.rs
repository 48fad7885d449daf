//! The door of `collect.lua`: dead letters leave once they were written down elsewhere.

use redis::Value;

use super::super::reply::Reply;
use super::super::{Call, Error, Installation, OutboxKeys, Script};
use crate::outbox::DeadEntry;

/// Removes dead letters from the front.
#[derive(Debug, Clone, Copy)]
pub struct Collect<'a> {
    /// The bucket.
    pub keys: &'a OutboxKeys,
    /// Whose it must be.
    pub installation: Installation,
    /// Letters as they were read, from the front on.
    pub letters: &'a [DeadEntry],
}

impl Collect<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let mut call = Call::new(Script::Collect).key(&self.keys.bucket()).key(&self.keys.dead());
        call = call.arg(self.installation).arg(self.letters.len());
        for end in [self.letters.first(), self.letters.last()] {
            call = call.bytes(end.map_or(&[], |letter| &letter.id));
        }
        call
    }

    /// Reads the answer: false when other letters are in front, and nothing was removed.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Collect, answer)?;
        let collected = reply.yes()?;
        reply.end().map(|()| collected)
    }
}
