//! The door of `turn.lua`: a bucket goes on to another phase, or to the next opening.

use redis::Value;

use crate::domain::{Epoch, Phase};

use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// Moves a bucket on to a phase of an opening.
#[derive(Debug, Clone, Copy)]
pub struct SetPhase<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The opening.
    pub epoch: Epoch,
    /// The phase.
    pub phase: Phase,
}

impl SetPhase<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        begin(Script::SetPhase, &[self.keys.bucket()], self.fence)
            .arg(self.epoch.0)
            .arg(self.phase.to_db())
    }

    /// Reads the answer: false when the bucket is further on, and stays there.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::SetPhase, answer)?;
        let turned = reply.yes()?;
        reply.end().map(|()| turned)
    }
}
