//! The doors of `load_begin.lua`, `load_rows.lua` and `open.lua`: a bucket is built from the
//! ledger.
//!
//! A loader has a token that the ledger counts up, and uses it for one load: it begins with all
//! buckets of the SKU, enters the rows, and opens them. A step that comes late, after another
//! loader began or after the bucket was opened, changes nothing.

use redis::Value;

use crate::domain::{BuyerId, Epoch, Phase, RequestId};
use crate::stock::LoaderToken;

use super::record::Record;
use super::reply::Reply;
use super::{BucketKeys, Call, Error, Fence, Script, begin};

/// Empties a bucket and takes it for one loader.
#[derive(Debug, Clone, Copy)]
pub struct LoadBegin<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be, and the server it is loaded on.
    pub fence: &'a Fence,
    /// The loader.
    pub loader: LoaderToken,
}

/// Enters rows of requests and buyers.
#[derive(Debug, Clone, Copy)]
pub struct LoadRows<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a Fence,
    /// The loader.
    pub loader: LoaderToken,
    /// The rows, at most [`super::codes::ITEMS_MAX`]. Sorted by [`BucketKeys::page_of`] they take
    /// the fewest commands.
    pub rows: &'a [Row],
}

/// One field of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// A request that was accepted.
    Request(RequestId, Record),
    /// A buyer who has its one order.
    First(BuyerId, RequestId),
    /// A buyer's units in all; a row replaces one that was entered before.
    Units(BuyerId, u32),
}

/// Publishes a bucket.
#[derive(Debug, Clone, Copy)]
pub struct Open<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a Fence,
    /// The loader.
    pub loader: LoaderToken,
    /// The opening.
    pub epoch: Epoch,
    /// The phase.
    pub phase: Phase,
    /// Free units.
    pub stock: u32,
    /// Units given back after refusals, among the rows entered.
    pub released_units: u64,
    /// Failures among the rows entered.
    pub num_failed: u64,
    /// Requests without an answer among the rows entered.
    pub num_queued: u64,
}

impl LoadBegin<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let pages = 0..self.keys.pages();
        let mut keys = vec![self.keys.bucket(), self.keys.moves()];
        keys.extend(pages.clone().map(|page| self.keys.requests(page)));
        keys.extend(pages.map(|page| self.keys.buyers(page)));
        begin(Script::LoadBegin, &keys, self.fence).arg(self.loader.0)
    }

    /// Reads the answer: false when this loader had begun before, and rows may be there already.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::LoadBegin, answer)?;
        let emptied = reply.yes()?;
        reply.end().map(|()| emptied)
    }
}

impl Row {
    /// Where the row goes: on a page of requests or of buyers, and which.
    fn place(&self, keys: &BucketKeys) -> (bool, u16) {
        match self {
            Self::Request(request, _) => (false, keys.page_of(request.get())),
            Self::First(buyer, _) | Self::Units(buyer, _) => (true, keys.page_of(buyer.get())),
        }
    }

    fn push(&self, call: &mut Call) {
        match self {
            Self::Request(request, record) => {
                call.push(request);
                call.push_packed(|bytes| record.pack_into(bytes));
            }
            Self::First(buyer, first) => {
                call.push(buyer);
                call.push(first);
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
    pub fn call(&self) -> Call {
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

impl Open<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        begin(Script::Open, &[self.keys.bucket()], self.fence)
            .arg(self.loader.0)
            .arg(self.epoch.0)
            .arg(self.phase.to_db())
            .arg(self.stock)
            .arg(self.released_units)
            .arg(self.num_failed)
            .arg(self.num_queued)
    }

    /// Reads the answer: false when this loader had published the bucket before.
    pub fn parse(&self, answer: Value) -> Result<bool, Error> {
        let mut reply = Reply::open(Script::Open, answer)?;
        let published = reply.yes()?;
        reply.end().map(|()| published)
    }
}
