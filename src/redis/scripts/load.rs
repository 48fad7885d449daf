//! The calls of `hold.lua`, `clear.lua`, `load_rows.lua` and `open.lua`: build a bucket from the
//! ledger.
//!
//! A loader has a token that the ledger counts up, and uses it for one load: it holds all buckets
//! of the SKU, clears their pages, writes the rows, and opens the buckets. A late step, after
//! another loader has begun or after the bucket was opened, changes nothing.

use std::ops::Range;

use redis::Value;

use crate::domain::{BuyerId, Epoch, LoaderToken, Phase, RequestId};

use super::queued::{self, QueuedRecord};
use super::record::RequestRecord;
use super::reply::Reply;
use super::{BucketFence, BucketKeys, Error, Script, ScriptCall, begin};

/// Holds a bucket for one loader.
#[derive(Debug, Clone, Copy)]
pub struct HoldBucket<'a> {
    pub keys: &'a BucketKeys,
    /// Also the server that the bucket is loaded on.
    pub fence: &'a BucketFence,
    pub loader: LoaderToken,
}

/// Empties some pages of a held bucket, except for requests without a ledger decision.
#[derive(Debug, Clone)]
pub struct ClearBucket<'a> {
    pub keys: &'a BucketKeys,
    /// Also the server that the bucket is loaded on.
    pub fence: &'a BucketFence,
    pub loader: LoaderToken,
    pub pages: Range<u16>,
}

/// Writes rows of requests and buyers.
#[derive(Debug, Clone, Copy)]
pub struct LoadRows<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub loader: LoaderToken,
    /// At most [`super::codes::ITEMS_MAX`]. Sorted by [`BucketKeys::page_of`] they need the fewest
    /// commands.
    pub rows: &'a [LoadRow],
}

/// One field of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadRow {
    Request(RequestId, RequestRecord),
    /// A buyer's total units, under a quota; replaces the buyer's earlier row.
    Units(BuyerId, u32),
}

/// Publishes a bucket.
#[derive(Debug, Clone, Copy)]
pub struct OpenBucket<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub loader: LoaderToken,
    pub epoch: Epoch,
    /// If a later epoch or phase was set during the load, that one is published instead.
    pub phase: Phase,
    pub stock: u32,
    /// Units returned after refusals, among the loaded rows.
    pub released_units: u64,
    /// Failures among the loaded rows.
    pub num_failed: u64,
    /// Requests without a ledger decision among the loaded rows.
    pub num_queued: u64,
    /// Whether no request was loaded.
    pub is_new: bool,
}

impl HoldBucket<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        begin(Script::Hold, &[self.keys.bucket()], self.fence).arg(self.loader.0)
    }

    /// False if this loader held the bucket before.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Hold, answer)?;
        let held = reply.flag()?;
        reply.end().map(|()| held)
    }
}

impl ClearBucket<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut keys = vec![self.keys.bucket(), self.keys.moves(), self.keys.unsettled()];
        keys.extend(self.pages.clone().map(|page| self.keys.requests(page)));
        keys.extend(self.pages.clone().map(|page| self.keys.buyers(page)));
        begin(Script::Clear, &keys, self.fence).arg(self.loader.0)
    }

    /// The requests that stay, or the error of an unreadable one.
    pub fn parse(&self, answer: Value) -> Result<Vec<QueuedRecord>, Error> {
        queued::parse_pairs(Reply::open(Script::Clear, answer)?)
    }
}

impl LoadRow {
    /// The page of the row: false for requests, true for buyers, and its number.
    fn page(&self, keys: &BucketKeys) -> (bool, u16) {
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
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let mut sorted: Vec<_> = self.rows.iter().map(|row| (row.page(self.keys), row)).collect();
        sorted.sort_by_key(|(page, _)| *page);
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

    pub fn parse(&self, answer: Value) -> Result<(), Error> {
        Reply::open(Script::LoadRows, answer)?.end()
    }
}

impl OpenBucket<'_> {
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

    /// False if this loader has published the bucket before.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Open, answer)?;
        let published = reply.flag()?;
        reply.end().map(|()| published)
    }
}
