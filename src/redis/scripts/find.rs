//! The call of `find.lua`: reads the records of requests.

use redis::Value;

use crate::domain::RequestId;

use super::column::IdColumn;
use super::record::RequestRecord;
use super::reply::{Reply, record, unexpected};
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// Reads the records of requests.
#[derive(Debug, Clone, Copy)]
pub struct Find<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    /// The requests, at most [`super::codes::ITEMS_MAX`].
    pub requests: &'a [RequestId],
}

impl Find<'_> {
    fn column(&self) -> IdColumn {
        IdColumn::new(self.keys, self.requests.iter().map(|request| request.get()))
    }

    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let column = self.column();
        let mut keys = vec![self.keys.bucket()];
        keys.extend(column.pages().map(|page| self.keys.requests(page)));
        let mut call = begin(Script::Find, &keys, self.fence);
        column.push_counts(&mut call);
        column.push_ids(&mut call);
        call
    }

    /// One item for each request, in order; `None` if this bucket never accepted the request.
    pub fn parse(&self, answer: Value) -> Result<Vec<Option<RequestRecord>>, Error> {
        let column = self.column();
        let items = Reply::open(Script::Find, answer)?.items(column.size())?;
        let records = items.map(|item| match item {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => record(Script::Find, &bytes).map(Some),
            other => Err(unexpected(Script::Find, &other)),
        });
        let records = records.collect::<Result<Vec<_>, Error>>()?;
        Ok(column
            .positions()
            .map(|at| records.get(usize::from(at) - 1).copied().flatten())
            .collect())
    }
}
