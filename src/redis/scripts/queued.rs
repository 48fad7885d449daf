//! The call of `queued.lua`: reads the accepted requests without a ledger decision.
//!
//! With an outbox, intents are not stored by request id, so the queued requests are found by their
//! records. That takes a scan of the pages.

use std::ops::Range;

use redis::Value;

use crate::domain::{Epoch, RequestId};

use super::record::{BrokenRecord, RequestRecord};
use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// A queued request and its record, or why its record is invalid.
pub type QueuedRecord = Result<(RequestId, RequestRecord), BrokenRecord>;

/// Reads the queued requests on some pages.
#[derive(Debug, Clone)]
pub struct ReadQueued<'a> {
    pub keys: &'a BucketKeys,
    /// Only the installation is checked, not the server.
    pub fence: &'a BucketFence,
    pub pages: Range<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedFound {
    pub epoch: Epoch,
    pub requests: Vec<QueuedRecord>,
}

impl ReadQueued<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut keys = vec![self.keys.bucket()];
        keys.extend(self.pages.clone().map(|page| self.keys.requests(page)));
        begin(Script::Queued, &keys, self.fence)
    }

    pub fn parse(&self, answer: Value) -> Result<QueuedFound, Error> {
        let mut reply = Reply::open(Script::Queued, answer)?;
        let epoch = Epoch(reply.count()?);
        Ok(QueuedFound { epoch, requests: parse_pairs(reply)? })
    }
}

/// Parses the remaining items: request and record in turn.
pub(super) fn parse_pairs(mut reply: Reply) -> Result<Vec<QueuedRecord>, Error> {
    let mut requests = Vec::new();
    while let Some(request) = reply.next_if_any() {
        let record = reply.next()?;
        requests.push(parse_pair(&request, &record));
    }
    Ok(requests)
}

fn parse_pair(request: &Value, record: &Value) -> QueuedRecord {
    let (Value::BulkString(request), Value::BulkString(record)) = (request, record) else {
        return Err(BrokenRecord("no bytes"));
    };
    let request = std::str::from_utf8(request).ok().and_then(|digits| digits.parse().ok());
    Ok((request.ok_or(BrokenRecord("no request id"))?, RequestRecord::unpack(record)?))
}
