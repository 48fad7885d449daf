//! The door of `queued.lua`: accepted requests that the ledger has not answered, off the records.
//!
//! Where intents wait for a relay there is no list of them by request id: the records themselves
//! tell. Reading them costs a walk over the pages.

use std::ops::Range;

use redis::Value;

use crate::domain::{Epoch, RequestId};

use super::record::{BrokenRecord, RequestRecord};
use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// A queued request and its record; or why what stands in its place is no record.
pub type QueuedRecord = Result<(RequestId, RequestRecord), BrokenRecord>;

/// Reads queued requests off some pages.
#[derive(Debug, Clone)]
pub struct ReadQueued<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be; the server does not matter.
    pub fence: &'a BucketFence,
    /// The pages.
    pub pages: Range<u16>,
}

/// What the pages hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedFound {
    /// The bucket's latest opening.
    pub epoch: Epoch,
    /// The requests with their records; or what somebody else wrote in such a place.
    pub requests: Vec<QueuedRecord>,
}

impl ReadQueued<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut keys = vec![self.keys.bucket()];
        keys.extend(self.pages.clone().map(|page| self.keys.requests(page)));
        begin(Script::Queued, &keys, self.fence)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<QueuedFound, Error> {
        let mut reply = Reply::open(Script::Queued, answer)?;
        let epoch = Epoch(reply.count()?);
        Ok(QueuedFound { epoch, requests: rest(reply)? })
    }
}

/// The rest of an answer: request and record in turn.
pub(super) fn rest(mut reply: Reply) -> Result<Vec<QueuedRecord>, Error> {
    let mut requests = Vec::new();
    while let Some(request) = reply.next_if_any() {
        let record = reply.next()?;
        requests.push(queued(&request, &record));
    }
    Ok(requests)
}

fn queued(request: &Value, record: &Value) -> QueuedRecord {
    let (Value::BulkString(request), Value::BulkString(record)) = (request, record) else {
        return Err(BrokenRecord("no bytes"));
    };
    let request = std::str::from_utf8(request).ok().and_then(|digits| digits.parse().ok());
    Ok((request.ok_or(BrokenRecord("no request id"))?, RequestRecord::unpack(record)?))
}
