//! Parses a script's answer strictly: an unexpected answer is an error that quotes it.

use std::vec::IntoIter;

use redis::Value;

use super::record::RequestRecord;
use super::{Error, Script, codes};

/// Most characters of an unexpected answer in its error.
const QUOTED_CHARS: usize = 200;

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
    pub(crate) fn unexpected(&self, what: &impl std::fmt::Debug) -> Error {
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
