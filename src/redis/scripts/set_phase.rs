//! The call of `set_phase.lua`: advances a bucket to a later phase or opening.

use redis::Value;

use crate::domain::{Epoch, Phase};

use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// Advances a bucket to a phase of an opening.
#[derive(Debug, Clone, Copy)]
pub struct SetPhase<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub epoch: Epoch,
    pub phase: Phase,
}

impl SetPhase<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        begin(Script::SetPhase, &[self.keys.bucket()], self.fence)
            .arg(self.epoch.0)
            .arg(self.phase.to_db())
    }

    /// Whether the bucket is in that phase now; false if it was in a later one, and stays there.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::SetPhase, answer)?;
        let is_set = reply.flag()?;
        reply.end().map(|()| is_set)
    }
}
