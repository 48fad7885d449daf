//! The calls of `find.lua` and `queued.lua`: read the records of requests, and buyers' units.

use std::ops::Range;
use std::sync::Arc;

use redis::Value;

use crate::domain::{BuyerId, RequestId, RequestRecord, Sku};

use super::call::{IdColumn, Reply, number};
use super::intent::BrokenRecord;
use super::{BucketKeys, Error, Pages, Script, ScriptCall};

/// A queued request and its record, or why its record is invalid.
pub type QueuedRecord = Result<(RequestId, RequestRecord), BrokenRecord>;

/// Reads the records of requests, at most [`super::codes::ITEMS_MAX`]. Answers one item for each,
/// in order; `None` if this bucket never accepted the request.
pub fn find(
    keys: &BucketKeys,
    sku: &Sku,
    requests: &[RequestId],
) -> ScriptCall<Vec<Option<RequestRecord>>> {
    let ids = requests.iter().map(|request| request.get());
    let column = Arc::new(IdColumn::new(Pages::of_sku(sku), ids));
    let of_answer = Arc::clone(&column);
    let call = ScriptCall::new(Script::Find, keys, move |reply| {
        let records = reply.items(of_answer.size())?.map(|item| match item {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => reply.record(&bytes).map(Some),
            other => Err(reply.unexpected(&other)),
        });
        let records = records.collect::<Result<Vec<_>, Error>>()?;
        let record = |at: u16| records.get(usize::from(at) - 1).copied().flatten();
        Ok(of_answer.positions().map(record).collect())
    });
    call.pages_of(&column, |page| keys.requests(page)).ids_of(&column)
}

/// Reads the units of a buyer; 0 if the bucket has none of this buyer. Buyers are stored under a
/// quota only.
pub fn owned(keys: &BucketKeys, sku: &Sku, buyer: BuyerId) -> ScriptCall<u32> {
    let column = IdColumn::new(Pages::of_sku(sku), std::iter::once(buyer.get()));
    let call = ScriptCall::new(Script::Find, keys, |reply| match reply.next()? {
        Value::Nil => Ok(0),
        Value::BulkString(digits) => number(&digits).ok_or_else(|| reply.unexpected(&digits)),
        other => Err(reply.unexpected(&other)),
    });
    call.pages_of(&column, |page| keys.buyers(page)).ids_of(&column)
}

/// Reads the queued requests on some pages. With an outbox, intents are not stored by request id,
/// so the queued requests are found by their records, which takes a scan of the pages. Only the
/// installation is checked, not the server.
pub fn read_queued(keys: &BucketKeys, pages: Range<u16>) -> ScriptCall<Vec<QueuedRecord>> {
    ScriptCall::new(Script::Queued, keys, queued).keys(pages.map(|page| keys.requests(page)))
}

/// Parses the remaining items: request and record in turn.
pub(super) fn queued(reply: &mut Reply) -> Result<Vec<QueuedRecord>, Error> {
    reply.rest(|reply| Ok(parse_pair(&reply.next()?, &reply.next()?)))
}

fn parse_pair(request: &Value, record: &Value) -> QueuedRecord {
    let (Value::BulkString(request), Value::BulkString(record)) = (request, record) else {
        return Err(BrokenRecord("no bytes"));
    };
    let request = number(request).ok_or(BrokenRecord("no request id"))?;
    Ok((request, RequestRecord::unpack(record)?))
}
