//! Reads what a script answered, strictly: an answer that no script gives is an error that shows
//! it.

use std::vec::IntoIter;

use redis::Value;

use super::record::RequestRecord;
use super::{Error, Script, codes};

/// Most characters of a strange answer that are shown.
const SHOWN_CHARS: usize = 200;

/// The rest of an answer that began with OK.
pub(super) struct Reply {
    script: Script,
    items: IntoIter<Value>,
}

impl Reply {
    /// Reads the code in front. Anything but OK is an error.
    pub(super) fn open(script: Script, value: Value) -> Result<Self, Error> {
        let Value::Array(items) = value else { return Err(strange(script, &value)) };
        let mut reply = Self { script, items: items.into_iter() };
        match reply.int()? {
            codes::OK => Ok(reply),
            codes::NOT_READY => Err(Error::NotReady),
            codes::FENCED => Err(Error::Fenced),
            codes::FOREIGN => Err(Error::Foreign),
            codes::CORRUPT => Err(Error::Corrupt { what: reply.text()? }),
            codes::TOO_MANY => Err(Error::TooMany),
            codes::OLD_LOADER => Err(Error::OldLoader),
            code => Err(strange(script, &Value::Int(code))),
        }
    }

    /// Any next item.
    pub(super) fn next(&mut self) -> Result<Value, Error> {
        self.items.next().ok_or_else(|| strange(self.script, &"it ends too early"))
    }

    /// The next item, unless the answer has ended.
    pub(super) fn next_if_any(&mut self) -> Option<Value> {
        self.items.next()
    }

    fn int(&mut self) -> Result<i64, Error> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            other => Err(self.strange(&other)),
        }
    }

    /// Text for people.
    pub(super) fn text(&mut self) -> Result<String, Error> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Any bytes.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(self.strange(&other)),
        }
    }

    /// Any bytes, several in a list of their own.
    pub(super) fn byte_strings(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let value = self.next()?;
        redis::from_redis_value(value).map_err(|error| self.strange(&error))
    }

    /// Whether everything was read.
    pub(super) fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    /// A count that fits its type.
    pub(super) fn count<T: TryFrom<i64>>(&mut self) -> Result<T, Error> {
        let number = self.int()?;
        T::try_from(number).ok().ok_or_else(|| self.strange(&number))
    }

    /// 1 or 0.
    pub(super) fn yes(&mut self) -> Result<bool, Error> {
        match self.int()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.strange(&other)),
        }
    }

    /// The items that are left, and no more and no fewer than `size`.
    pub(super) fn items(self, size: usize) -> Result<impl Iterator<Item = Value>, Error> {
        if self.items.len() == size {
            Ok(self.items)
        } else {
            Err(self.strange(&format!("{} items instead of {size}", self.items.len())))
        }
    }

    /// Nothing is left.
    pub(super) fn end(self) -> Result<(), Error> {
        self.items(0).map(drop)
    }

    /// This was not to be expected.
    pub(super) fn strange(&self, what: &impl std::fmt::Debug) -> Error {
        strange(self.script, what)
    }
}

/// An answer that no script gives.
pub(super) fn strange(script: Script, what: &impl std::fmt::Debug) -> Error {
    let reply = format!("{what:?}").chars().take(SHOWN_CHARS).collect();
    Error::Unexpected { script: script.name(), reply }
}

/// A record out of an answer.
pub(super) fn record(script: Script, bytes: &[u8]) -> Result<RequestRecord, Error> {
    RequestRecord::unpack(bytes).map_err(|broken| strange(script, &broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: Vec<Value>) -> Result<Reply, Error> {
        Reply::open(Script::SetPhase, Value::Array(items))
    }

    #[test]
    fn every_code_in_front_is_an_answer_or_an_error_of_its_own() {
        assert!(open(vec![Value::Int(codes::OK)]).is_ok());
        let table = [
            (codes::NOT_READY, Error::NotReady),
            (codes::FENCED, Error::Fenced),
            (codes::FOREIGN, Error::Foreign),
            (codes::TOO_MANY, Error::TooMany),
            (codes::OLD_LOADER, Error::OldLoader),
        ];
        for (code, error) in table {
            assert_eq!(open(vec![Value::Int(code)]).err(), Some(error));
        }
        let stock = Value::BulkString(b"stock".to_vec());
        let corrupt = open(vec![Value::Int(codes::CORRUPT), stock]).err();
        assert_eq!(corrupt, Some(Error::Corrupt { what: "stock".to_owned() }));
    }

    #[test]
    fn a_strange_answer_names_the_script_and_what_came() {
        let strange = |value| Reply::open(Script::SetPhase, value).err().unwrap().to_string();
        assert_eq!(strange(Value::Nil), "script set_phase answered nil");
        assert_eq!(
            strange(Value::Array(vec![])),
            "script set_phase answered \"it ends too early\""
        );
        assert!(strange(Value::Array(vec![Value::Int(99)])).contains("99"));
        let mut reply = open(vec![Value::Int(0), Value::Int(-1), Value::Int(2)]).unwrap();
        assert!(reply.count::<u32>().is_err(), "negative");
        assert!(reply.yes().is_err(), "neither yes nor no");
        let reply = open(vec![Value::Int(0), Value::Int(1)]).unwrap();
        assert!(reply.end().unwrap_err().to_string().contains("1 items instead of 0"));
    }
}
