//! One call of a script, for any connection, and its answer. The answer is parsed strictly: an
//! unexpected one is an error that quotes it.

use std::fmt::{Debug, Display, Formatter, Write};
use std::vec::IntoIter;

use redis::{Cmd, Value};

use super::{BucketFence, BucketKeys, Error, Script, codes};
use crate::domain::RequestRecord;

/// Most characters of an unexpected answer in its error.
const QUOTED_CHARS: usize = 200;

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

/// The items of an answer after the code `OK`.
#[derive(Debug)]
pub(crate) struct Reply {
    script: Script,
    items: IntoIter<Value>,
}

impl Reply {
    /// Parses the code; every other than `OK` is an error.
    pub(crate) fn open(script: Script, value: Value) -> Result<Self, Error> {
        let mut reply = Self { script, items: IntoIter::default() };
        let Value::Array(items) = value else { return Err(reply.unexpected(&value)) };
        reply.items = items.into_iter();
        match reply.count()? {
            codes::OK => Ok(reply),
            codes::NOT_READY => Err(Error::NotReady),
            codes::FENCED => Err(Error::Fenced),
            codes::FOREIGN => Err(Error::Foreign),
            codes::CORRUPT => Err(Error::Corrupt { what: reply.text()? }),
            codes::TOO_MANY => Err(Error::TooMany),
            codes::OLD_LOADER => Err(Error::OldLoader),
            code => Err(reply.unexpected(&code)),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Value, Error> {
        self.items.next().ok_or_else(|| self.unexpected(&"it ends too early"))
    }

    /// Text; invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(self.unexpected(&other)),
        }
    }

    /// A list of byte strings.
    pub(crate) fn byte_strings(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let value = self.next()?;
        redis::from_redis_value(value).map_err(|error| self.unexpected(&error))
    }

    /// Whether no item is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    /// A count that fits its type.
    pub(crate) fn count<T: TryFrom<i64>>(&mut self) -> Result<T, Error> {
        match self.next()? {
            Value::Int(number) => T::try_from(number).map_err(|_range| self.unexpected(&number)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// 1 or 0.
    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        match self.count()? {
            0_i64 => Ok(false),
            1 => Ok(true),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Takes the remaining items, exactly `size`.
    pub(crate) fn items(&mut self, size: usize) -> Result<IntoIter<Value>, Error> {
        if self.items.len() == size {
            Ok(std::mem::take(&mut self.items))
        } else {
            Err(self.unexpected(&format!("{} items instead of {size}", self.items.len())))
        }
    }

    /// Checks that no item is left.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.items(0).map(drop)
    }

    pub(crate) fn record(&self, bytes: &[u8]) -> Result<RequestRecord, Error> {
        RequestRecord::unpack(bytes).map_err(|broken| self.unexpected(&broken))
    }

    /// The error of an unexpected answer.
    pub(crate) fn unexpected(&self, what: &impl Debug) -> Error {
        let reply = format!("{what:?}").chars().take(QUOTED_CHARS).collect();
        Error::Unexpected { script: self.script.name(), reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: Vec<Value>) -> Result<Reply, Error> {
        Reply::open(Script::SetPhase, Value::Array(items))
    }

    #[test]
    fn the_error_of_an_unexpected_answer_quotes_script_and_answer() {
        let unexpected = |value| Reply::open(Script::SetPhase, value).err().unwrap().to_string();
        assert_eq!(unexpected(Value::Nil), "script set_phase answered nil");
        assert_eq!(
            unexpected(Value::Array(vec![])),
            "script set_phase answered \"it ends too early\""
        );
        assert!(unexpected(Value::Array(vec![Value::Int(99)])).contains("99"));
        let mut reply = open(vec![Value::Int(0), Value::Int(-1), Value::Int(2)]).unwrap();
        assert!(reply.count::<u32>().is_err(), "negative");
        assert!(reply.flag().is_err(), "neither yes nor no");
        let mut reply = open(vec![Value::Int(0), Value::Int(1)]).unwrap();
        assert!(reply.end().unwrap_err().to_string().contains("1 items instead of 0"));
    }
}
