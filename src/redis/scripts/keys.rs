//! The names of a bucket's keys.
//!
//! `<namespace>:{<sku_no>:<bucket>}:<kind>`: the part in braces is the hash tag of Redis Cluster,
//! so that all keys of a bucket are in one slot.
//!
//! | kind | type | holds |
//! |---|---|---|
//! | `bucket` | hash | epoch, server, phase, stock and other counts |
//! | `requests:<page>` | hash | request id -> [record](super::record) |
//! | `buyers:<page>` | hash | buyer id -> units (policy `quota` only) |
//! | `unsettled` | hash | request id -> [intent](super::intent), until the ledger has decided |
//! | `outbox` | list or stream | entries of accepted intents; an entry's are of one batch |
//! | `claimed:<worker>` | list | entries that a relay worker has claimed (outbox as a list) |
//! | `claimants` | set | the workers that may have such a list |
//! | `dead` | list | [dead letters](crate::outbox::scripts::dead_letter) to collect |
//! | `moves` | hash | loans out (`no:<to>`, `out:<to>`), last loan in (`in:<from>`), `next` |
//!
//! Requests and buyers are distributed over pages of fewer than 512 fields. Up to 512 fields Redis
//! stores a hash as a listpack: a number of 19 digits takes 10 bytes, and a field no pointers.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{BucketNo, Sku, SkuNo};

/// Planned units per page; a sold-out sale uses half to all of them. Larger pages would save
/// little, and Redis scans a page from its start.
const UNITS_PER_PAGE: u32 = 96;

/// Most pages of one kind in a bucket: a snapshot counts them all in one step.
const PAGES_MAX: u32 = 4_096;

/// The key names of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketKeys {
    sku: SkuNo,
    prefix: String,
}

impl BucketKeys {
    pub fn new(namespace: &str, sku: SkuNo, bucket: BucketNo) -> Self {
        Self { sku, prefix: format!("{namespace}:{{{sku}:{bucket}}}:") }
    }

    pub fn sku(&self) -> SkuNo {
        self.sku
    }

    pub fn bucket(&self) -> String {
        self.key("bucket")
    }

    /// Stored intents without a ledger decision.
    pub fn unsettled(&self) -> String {
        self.key("unsettled")
    }

    pub fn moves(&self) -> String {
        self.key("moves")
    }

    pub fn requests(&self, page: u16) -> String {
        self.key(format_args!("requests:{page}"))
    }

    pub fn buyers(&self, page: u16) -> String {
        self.key(format_args!("buyers:{page}"))
    }

    pub fn outbox(&self) -> String {
        self.key("outbox")
    }

    /// The workers that may have a private list.
    pub fn claimants(&self) -> String {
        self.key("claimants")
    }

    pub fn claimed(&self, worker: &str) -> String {
        self.key(format_args!("claimed:{worker}"))
    }

    /// Dead letters of the outbox.
    pub fn dead(&self) -> String {
        self.key("dead")
    }

    fn key(&self, kind: impl fmt::Display) -> String {
        format!("{}{kind}", self.prefix)
    }
}

/// The number of pages of requests, and of buyers, in each bucket of a SKU; a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages(pub(super) u16);

impl Pages {
    /// Follows from the SKU alone, so that every process uses the same page for an id.
    pub fn of_sku(sku: &Sku) -> Self {
        let units = sku.planned_units() / u32::from(sku.buckets.max(1));
        let pages = units.div_ceil(UNITS_PER_PAGE).next_power_of_two().clamp(1, PAGES_MAX);
        Self(u16::try_from(pages).unwrap_or(1))
    }

    pub fn all(self) -> Range<u16> {
        0..self.0
    }

    /// The page of a request or buyer.
    pub fn page_of(self, id: u64) -> u16 {
        // The upper bits: the lower ones select the bucket, so they are similar for all its buyers.
        let hash = xxh3_64(&id.to_le_bytes()) >> 48;
        u16::try_from(hash).unwrap_or_default() & (self.0 - 1)
    }
}

/// The ledger that a bucket belongs to: a random number from the creation of the ledger, displayed
/// as 8 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Installation(pub u32);

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
