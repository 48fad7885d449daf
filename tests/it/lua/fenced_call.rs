//! Script calls of different answers in one list.

use std::sync::Arc;

use floodgate::redis::scripts::{BucketFence, Error, Script, ScriptCall};
use redis::Value;

/// A call of any answer, with its fence.
#[derive(Debug, Clone)]
pub struct FencedCall {
    call: Arc<dyn AnyCall>,
    fence: BucketFence,
}

trait AnyCall: std::fmt::Debug {
    fn script(&self) -> Script;
    fn keys(&self) -> Vec<Vec<u8>>;
    fn command(&self, name: &str, script: &str, fence: &BucketFence) -> redis::Cmd;
    fn parse(&self, answer: Value) -> Result<(), Error>;
}

impl<A> AnyCall for ScriptCall<A> {
    fn script(&self) -> Script {
        self.script()
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        self.iter_keys().map(<[u8]>::to_vec).collect()
    }

    fn command(&self, name: &str, script: &str, fence: &BucketFence) -> redis::Cmd {
        self.command(name, script, fence)
    }

    fn parse(&self, answer: Value) -> Result<(), Error> {
        self.parse(answer).map(drop)
    }
}

impl FencedCall {
    pub fn new<A: 'static>(call: ScriptCall<A>, fence: &BucketFence) -> Self {
        Self { call: Arc::new(call), fence: fence.clone() }
    }

    pub fn script(&self) -> Script {
        self.call.script()
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.call.keys()
    }

    /// The call of another text than that of its script.
    pub fn eval(&self, text: &str) -> redis::Cmd {
        self.call.command("EVAL", text, &self.fence)
    }

    pub fn evalsha(&self, sha: &str) -> redis::Cmd {
        self.call.command("EVALSHA", sha, &self.fence)
    }

    pub fn parse(&self, answer: Value) -> Result<(), Error> {
        self.call.parse(answer)
    }
}
