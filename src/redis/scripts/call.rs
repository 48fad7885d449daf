//! One call of a script, for any connection.

use std::fmt::{Debug, Display, Formatter, Write};

use redis::{Cmd, Value};

use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script};

/// A call of a script on one bucket: keys, arguments, and how the items of an answer `OK` are read.
/// Every script has the bucket's hash as its first key, and server and installation of the fence as
/// its first arguments.
pub struct ScriptCall<A> {
    script: Script,
    target: BucketKeys,
    keys: ByteStrings,
    args: ByteStrings,
    read: Reader<A>,
}

type Reader<A> = Box<dyn Fn(&mut Reply) -> Result<A, Error> + Send + Sync>;

/// Byte strings in one allocation: a batch has hundreds.
#[derive(Debug, Default)]
struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl<A> ScriptCall<A> {
    /// A call without further keys and arguments.
    pub(crate) fn new(
        script: Script,
        keys: &BucketKeys,
        read: impl Fn(&mut Reply) -> Result<A, Error> + Send + Sync + 'static,
    ) -> Self {
        let (target, read) = (keys.clone(), Box::new(read));
        let (none, args) = Default::default();
        Self { script, target, keys: none, args, read }.key(&keys.bucket())
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.keys([key])
    }

    pub(crate) fn keys(mut self, keys: impl IntoIterator<Item: AsRef<str>>) -> Self {
        for key in keys {
            self.keys.push(|bytes| bytes.extend(key.as_ref().as_bytes()));
        }
        self
    }

    /// Adds a text or number as an argument.
    pub(crate) fn arg(self, string: impl Display) -> Self {
        self.args([string])
    }

    pub(crate) fn args(mut self, strings: impl IntoIterator<Item: Display>) -> Self {
        for string in strings {
            // Writing to memory cannot fail.
            let _ = write!(self.args, "{string}");
            self.args.push(|_| {});
        }
        self
    }

    /// Adds an argument that `pack` appends.
    pub(crate) fn packed(mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.args.push(pack);
        self
    }

    pub fn script(&self) -> Script {
        self.script
    }

    pub fn target(&self) -> &BucketKeys {
        &self.target
    }

    /// The keys; all are in one cluster slot.
    pub fn iter_keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter()
    }

    /// The command `EVALSHA` or `EVAL` with the script's digest or text.
    pub fn command(&self, name: &str, script: &str, fence: &BucketFence) -> Cmd {
        let size = self.keys.bytes.len() + self.args.bytes.len() + script.len() + 64;
        let mut command = Cmd::with_capacity(self.keys.ends.len() + self.args.ends.len() + 5, size);
        command.arg(name).arg(script).arg(self.keys.ends.len());
        for key in self.keys.iter() {
            command.arg(key);
        }
        command.arg(&*fence.server).arg(fence.installation.to_string());
        for arg in self.args.iter() {
            command.arg(arg);
        }
        command
    }

    pub fn parse(&self, answer: Value) -> Result<A, Error> {
        let mut reply = Reply::open(self.script, answer)?;
        let answer = (self.read)(&mut reply)?;
        reply.end().map(|()| answer)
    }
}

impl<A> Debug for ScriptCall<A> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptCall").field("script", &self.script).finish_non_exhaustive()
    }
}

impl ByteStrings {
    fn push(&mut self, pack: impl FnOnce(&mut Vec<u8>)) {
        pack(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let string = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            string
        })
    }
}

impl Write for ByteStrings {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
