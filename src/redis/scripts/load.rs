//! The calls of `hold.lua`, `clear.lua`, `load_rows.lua` and `open.lua`, which build a bucket from
//! the ledger, and of `set_phase.lua`.
//!
//! A loader has a token that the ledger counts up, and uses it for one load: it holds all buckets
//! of the SKU, clears their pages, writes the rows, and opens the buckets. A late step, after
//! another loader has begun or after the bucket was opened, changes nothing.

use std::ops::Range;

use crate::domain::{BuyerId, Epoch, LoaderToken, Phase, RequestId, RequestRecord, Sku};

use super::call::Reply;
use super::lookup::{QueuedRecord, queued};
use super::{BucketKeys, Pages, Script, ScriptCall};

/// One field of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadRow {
    Request(RequestId, RequestRecord),
    /// A buyer's total units, under a quota; replaces the buyer's earlier row.
    Units(BuyerId, u32),
}

/// Publishes a bucket.
#[derive(Debug, Clone, Copy)]
pub struct OpenBucket {
    pub loader: LoaderToken,
    pub epoch: Epoch,
    /// If a later epoch or phase was set during the load, that one is published instead.
    pub phase: Phase,
    pub stock: u32,
    /// Units returned after refusals, among the loaded rows.
    pub released_units: u64,
    /// Units of the ended orders among the loaded rows.
    pub returned_units: u64,
    /// Failures among the loaded rows.
    pub num_failed: u64,
    /// Requests without a ledger decision among the loaded rows.
    pub num_queued: u64,
    /// Whether no request was loaded.
    pub is_new: bool,
    /// The last change of the SKU's stock among the loaded units.
    pub change_no: i32,
}

/// Holds a bucket for one loader, on the server of the fence. Answers false if this loader held the
/// bucket before.
pub fn hold(keys: &BucketKeys, loader: LoaderToken) -> ScriptCall<bool> {
    ScriptCall::new(Script::Hold, keys, Reply::flag).arg(loader.0)
}

/// Empties some pages of a held bucket, except for requests without a ledger decision. The bucket
/// is loaded on the server of the fence. Answers the requests that stay, or the error of an
/// unreadable one.
pub fn clear(
    keys: &BucketKeys,
    loader: LoaderToken,
    pages: Range<u16>,
) -> ScriptCall<Vec<QueuedRecord>> {
    ScriptCall::new(Script::Clear, keys, queued)
        .keys([keys.moves(), keys.unsettled()])
        .keys(pages.clone().map(|page| keys.requests(page)))
        .keys(pages.map(|page| keys.buyers(page)))
        .arg(loader.0)
}

impl LoadRow {
    /// The page of the row: false for requests, true for buyers, and its number.
    fn page(&self, pages: Pages) -> (bool, u16) {
        match self {
            Self::Request(request, _) => (false, pages.page_of(request.get())),
            Self::Units(buyer, _) => (true, pages.page_of(buyer.get())),
        }
    }
}

/// Writes rows of requests and buyers, at most [`super::codes::ITEMS_MAX`]. Requests that the
/// ledger has decided are no longer unsettled.
pub fn load_rows(
    keys: &BucketKeys,
    sku: &Sku,
    loader: LoaderToken,
    rows: &[LoadRow],
) -> ScriptCall<()> {
    let pages = Pages::of_sku(sku);
    let mut sorted: Vec<_> = rows.iter().map(|row| (row.page(pages), row)).collect();
    sorted.sort_by_key(|(page, _)| *page);
    let mut counts = Vec::new();
    let mut call = ScriptCall::new(Script::LoadRows, keys, |_| Ok(()));
    call = call.key(&keys.unsettled()).arg(loader.0);
    let pages = sorted.chunk_by(|(a, _), (b, _)| a == b);
    for page in pages.flat_map(|page| page.chunks(usize::from(u8::MAX))) {
        if let Some(((is_buyers, no), _)) = page.first() {
            call = call.key(&if *is_buyers { keys.buyers(*no) } else { keys.requests(*no) });
            counts.extend(u8::try_from(page.len()));
        }
    }
    call = call.packed(|bytes| bytes.extend(&counts));
    for (_, row) in sorted {
        call = match row {
            LoadRow::Request(no, record) => call.arg(no).packed(|bytes| record.pack_into(bytes)),
            LoadRow::Units(buyer, units) => call.arg(buyer).arg(units),
        };
    }
    call
}

impl OpenBucket {
    /// Answers false if this loader has published the bucket before.
    pub fn call(&self, keys: &BucketKeys) -> ScriptCall<bool> {
        ScriptCall::new(Script::Open, keys, Reply::flag)
            .arg(self.loader.0)
            .arg(self.epoch.0)
            .arg(self.phase.to_db())
            .arg(self.stock)
            .arg(self.released_units)
            .arg(self.returned_units)
            .arg(self.num_failed)
            .arg(self.num_queued)
            .arg(u8::from(self.is_new))
            .arg(self.change_no)
    }
}

/// Advances a bucket to a later phase or opening. Answers whether the bucket is in that phase now;
/// false if it was in a later one, and stays there.
pub fn set_phase(keys: &BucketKeys, epoch: Epoch, phase: Phase) -> ScriptCall<bool> {
    ScriptCall::new(Script::SetPhase, keys, Reply::flag).arg(epoch.0).arg(phase.to_db())
}
