//! The doors of `hold.lua`, `clear.lua`, `load_rows.lua` and `open.lua`: a bucket is built from the
//! ledger.
//!
//! A loader has a token that the ledger counts up, and uses it for one load: it holds all buckets
//! of the SKU, clears their pages, enters the rows, and opens them. A step that comes late, after
//! another loader came or after the bucket was opened, changes nothing.

use std::ops::Range;

use redis::Value;

use crate::domain::{BuyerId, Epoch, Phase, RequestId};
use crate::stock::LoaderToken;

use super::queued::{self, QueuedRecord};
use super::record::RequestRecord;
use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// Holds a bucket for one loader.
#[derive(Debug, Clone, Copy)]
pub struct HoldBucket<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be, and the server it is loaded on.
    pub fence: &'a BucketFence,
    /// The loader.
    pub loader: LoaderToken,
}

/// Empties some pages of a held bucket, but for the requests that the ledger has not decided.
#[derive(Debug, Clone)]
pub struct ClearBucket<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be, and the server it is loaded on.
    pub fence: &'a BucketFence,
    /// The loader.
    pub loader: LoaderToken,
    /// The pages.
    pub pages: Range<u16>,
}

/// Enters rows of requests and buyers.
#[derive(Debug, Clone, Copy)]
pub struct LoadRows<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The loader.
    pub loader: LoaderToken,
    /// The rows, at most [`super::codes::ITEMS_MAX`]. Sorted by [`BucketKeys::page_of`] they take
    /// the fewest commands.
    pub rows: &'a [LoadRow],
}

/// One field of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadRow {
    /// A request that was accepted.
    Request(RequestId, RequestRecord),
    /// A buyer's units in all, under a quota; a row replaces one that was entered before.
    Units(BuyerId, u32),
}

/// Publishes a bucket.
#[derive(Debug, Clone, Copy)]
pub struct OpenBucket<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The loader.
    pub loader: LoaderToken,
    /// The opening that the loader knows.
    pub epoch: Epoch,
    /// The phase that it knows; a later one that was set meanwhile is published instead.
    pub phase: Phase,
    /// Free units.
    pub stock: u32,
    /// Units given back after refusals, among the rows entered.
    pub released_units: u64,
    /// Failures among the rows entered.
    pub num_failed: u64,
    /// Requests without an answer among the rows entered.
    pub num_queued: u64,
    /// Whether no request at all was entered.
    pub is_new: bool,
}

impl HoldBucket<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        begin(Script::Hold, &[self.keys.bucket()], self.fence).arg(self.loader.0)
    }

    /// Reads the answer: false when this loader held the bucket before.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Hold, answer)?;
        let held = reply.yes()?;
        reply.end().map(|()| held)
    }
}

impl ClearBucket<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut keys = vec![self.keys.bucket(), self.keys.moves(), self.keys.unsettled()];
        keys.extend(self.pages.clone().map(|page| self.keys.requests(page)));
        keys.extend(self.pages.clone().map(|page| self.keys.buyers(page)));
        begin(Script::Clear, &keys, self.fence).arg(self.loader.0)
    }

    /// Reads the answer: the requests that stay, or what somebody else wrote in such a place.
    pub fn parse(&self, answer: Value) -> Result<Vec<QueuedRecord>, Error> {
        queued::rest(Reply::open(Script::Clear, answer)?)
    }
}

impl LoadRow {
    /// Where the row goes: on a page of requests or of buyers, and which.
    fn place(&self, keys: &BucketKeys) -> (bool, u16) {
        match self {
            Self::Request(request, _) => (false, keys.page_of(request.get())),
            Self::Units(buyer, _) => (true, keys.page_of(buyer.get())),
        }
    }

    fn push(&self, call: &mut ScriptCall) {
        match self {
            Self::Request(request, record) => {
                call.push(request);
                call.push_packed(|bytes| record.pack_into(bytes));
            }
            Self::Units(buyer, units) => {
                call.push(buyer);
                call.push(units);
            }
        }
    }
}

impl LoadRows<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut sorted: Vec<_> = self.rows.iter().map(|row| (row.place(self.keys), row)).collect();
        sorted.sort_by_key(|(place, _)| *place);
        let mut keys = vec![self.keys.bucket()];
        let mut counts = Vec::new();
        let pages = sorted.chunk_by(|(a, _), (b, _)| a == b);
        for page in pages.flat_map(|page| page.chunks(usize::from(u8::MAX))) {
            if let Some(((is_buyers, no), _)) = page.first() {
                let key = if *is_buyers { self.keys.buyers(*no) } else { self.keys.requests(*no) };
                keys.push(key);
                counts.extend(u8::try_from(page.len()));
            }
        }
        let mut call = begin(Script::LoadRows, &keys, self.fence).arg(self.loader.0).bytes(&counts);
        for (_, row) in sorted {
            row.push(&mut call);
        }
        call
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<(), Error> {
        Reply::open(Script::LoadRows, answer)?.end()
    }
}

impl OpenBucket<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        begin(Script::Open, &[self.keys.bucket()], self.fence)
            .arg(self.loader.0)
            .arg(self.epoch.0)
            .arg(self.phase.to_db())
            .arg(self.stock)
            .arg(self.released_units)
            .arg(self.num_failed)
            .arg(self.num_queued)
            .arg(u8::from(self.is_new))
    }

    /// Reads the answer: false when this loader had published the bucket before.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Open, answer)?;
        let published = reply.yes()?;
        reply.end().map(|()| published)
    }
}
