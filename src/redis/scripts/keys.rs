//! The names of a bucket's keys.
//!
//! `<namespace>:{<sku_no>:<bucket>}:<kind>`: the part in braces decides the slot of a Redis
//! Cluster, so that a script finds all keys of its bucket on one server.
//!
//! | kind | type | holds |
//! |---|---|---|
//! | `bucket` | hash | opening, server, phase, stock and other counts |
//! | `requests:<page>` | hash | request id -> [record](super::record) |
//! | `buyers:<page>` | hash | buyer id -> units (policy `quota` only) |
//! | `unsettled` | hash | request id -> [intent](super::intent), until the ledger has answered |
//! | `outbox` | list or stream | entries, each of some accepted intents of one batch |
//! | `claimed:<worker>` | list | entries that a relay worker has claimed (outbox as a list) |
//! | `claimants` | set | the workers that may have such a list |
//! | `dead` | list | [dead letters](super::outbox::dead_letter) to be collected |
//! | `moves` | hash | loans out (`no:<to>`, `out:<to>`), last loan in (`in:<from>`), `next` |
//!
//! Requests and buyers are spread over pages that stay below the 512 fields up to which Redis keeps
//! a hash as one flat run of bytes, where a number of 19 digits takes 10 bytes and a field no
//! pointers.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{BucketNo, Sku, SkuNo};

/// Units per page that pages are planned for: half to all of them are used when the sale is sold
/// out. More would save little, and Redis reads a page from its start.
const UNITS_PER_PAGE: u32 = 96;

/// Most pages of one kind in a bucket: a snapshot counts them all in one step.
const PAGES_MAX: u32 = 4_096;

/// Names the keys of one bucket and tells which page an id is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketKeys {
    prefix: String,
    pages: u16,
}

impl BucketKeys {
    /// The keys of a bucket. The number of pages follows from the SKU alone, so that every process
    /// looks on the same page.
    #[must_use]
    pub fn new(namespace: &str, sku: &Sku, bucket: BucketNo) -> Self {
        let pages = pages_of(sku.initial, sku.buckets);
        Self { prefix: prefix(namespace, sku.no, bucket), pages }
    }

    /// How many pages of requests there are, and as many of buyers; a power of two.
    #[must_use]
    pub fn pages(&self) -> u16 {
        self.pages
    }

    /// The page of a request or buyer.
    #[must_use]
    pub fn page_of(&self, id: u64) -> u16 {
        // The upper bits: the lower ones chose the bucket, and are much the same for all its
        // buyers.
        let spread = xxh3_64(&id.to_le_bytes()) >> 48;
        u16::try_from(spread).unwrap_or_default() & (self.pages - 1)
    }

    /// The counts.
    #[must_use]
    pub fn bucket(&self) -> String {
        self.key("bucket")
    }

    /// Intents without an answer of the ledger.
    #[must_use]
    pub fn unsettled(&self) -> String {
        self.key("unsettled")
    }

    /// Intents for a relay.
    #[must_use]
    pub fn outbox(&self) -> String {
        self.key("outbox")
    }

    /// Loans.
    #[must_use]
    pub fn moves(&self) -> String {
        self.key("moves")
    }

    /// A page of requests.
    #[must_use]
    pub fn requests(&self, page: u16) -> String {
        self.key(format_args!("requests:{page}"))
    }

    /// What the outbox holds that was given up.
    #[must_use]
    pub fn dead(&self) -> String {
        self.key("dead")
    }

    /// A page of buyers.
    #[must_use]
    pub fn buyers(&self, page: u16) -> String {
        self.key(format_args!("buyers:{page}"))
    }

    fn key(&self, kind: impl fmt::Display) -> String {
        format!("{}{kind}", self.prefix)
    }
}

/// Names the keys of one bucket's outbox. They follow from the bucket alone: a relay need not know
/// what is sold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxKeys {
    prefix: String,
}

impl OutboxKeys {
    /// The keys of a bucket.
    #[must_use]
    pub fn new(namespace: &str, sku: SkuNo, bucket: BucketNo) -> Self {
        Self { prefix: prefix(namespace, sku, bucket) }
    }

    /// Whose the bucket is.
    #[must_use]
    pub fn bucket(&self) -> String {
        self.key("bucket")
    }

    /// Entries that wait.
    #[must_use]
    pub fn outbox(&self) -> String {
        self.key("outbox")
    }

    /// The workers that may have a private list.
    #[must_use]
    pub fn claimants(&self) -> String {
        self.key("claimants")
    }

    /// A worker's private list.
    #[must_use]
    pub fn claimed(&self, worker: &str) -> String {
        self.key(format_args!("claimed:{worker}"))
    }

    /// Dead letters.
    #[must_use]
    pub fn dead(&self) -> String {
        self.key("dead")
    }

    fn key(&self, kind: impl fmt::Display) -> String {
        format!("{}{kind}", self.prefix)
    }
}

fn prefix(namespace: &str, sku: SkuNo, bucket: BucketNo) -> String {
    format!("{namespace}:{{{sku}:{bucket}}}:")
}

fn pages_of(initial: u32, buckets: u16) -> u16 {
    let units = initial / u32::from(buckets.max(1));
    let pages = units.div_ceil(UNITS_PER_PAGE).next_power_of_two().clamp(1, PAGES_MAX);
    u16::try_from(pages).unwrap_or(1)
}

/// Which ledger a bucket belongs to: a number drawn when the ledger was made, shown as 8
/// hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Installation(pub u32);

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::BuyerId;

    pub fn keys(pages: u16) -> BucketKeys {
        BucketKeys { prefix: prefix("fg", SkuNo(12), BucketNo(3)), pages }
    }

    #[test]
    fn all_keys_of_a_bucket_share_one_hash_tag() {
        let keys = keys(4);
        assert_eq!(keys.bucket(), "fg:{12:3}:bucket");
        assert_eq!(keys.requests(2), "fg:{12:3}:requests:2");
        assert_eq!(keys.buyers(3), "fg:{12:3}:buyers:3");
        for key in [keys.unsettled(), keys.outbox(), keys.moves()] {
            assert!(key.starts_with("fg:{12:3}:"), "{key}");
        }
        let outbox = OutboxKeys::new("fg", SkuNo(12), BucketNo(3));
        assert_eq!((outbox.bucket(), outbox.outbox()), (keys.bucket(), keys.outbox()));
        assert_eq!(outbox.claimed("node/1"), "fg:{12:3}:claimed:node/1");
        for key in [outbox.claimants(), outbox.dead()] {
            assert!(key.starts_with("fg:{12:3}:"), "{key}");
        }
    }

    #[test]
    fn pages_are_a_power_of_two_that_keeps_a_page_flat() {
        let table = [(1, 1, 1), (96, 1, 1), (97, 1, 2), (1_000, 8, 2), (100_000, 8, 256)];
        for (initial, buckets, pages) in table {
            assert_eq!(pages_of(initial, buckets), pages, "{initial} in {buckets}");
        }
        assert_eq!(pages_of(1_000_000_000, 1), 4_096);
        assert_eq!(pages_of(0, 0), 1);
    }

    #[test]
    fn the_page_of_an_id_is_fixed_for_ever() {
        let keys = keys(64);
        let pages = [1, 2, 3, 1 << 62].map(|id| keys.page_of(id));
        assert_eq!(pages, [60, 6, 18, 29]);
    }

    #[test]
    fn the_buyers_of_one_bucket_use_all_its_pages_evenly() {
        for buckets in [1, 7, 8, 64] {
            let keys = keys(32);
            let mut sizes = [0_u32; 32];
            let at_home = (1..)
                .filter(|id| BucketNo::home_of(BuyerId::new(*id).unwrap(), buckets).0 == 0)
                .take(32 * 96);
            for buyer in at_home {
                sizes[usize::from(keys.page_of(buyer))] += 1;
            }
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(*least > 48 && *most < 160, "{buckets} buckets: {least} to {most}");
        }
    }

    #[test]
    fn an_installation_has_eight_digits() {
        assert_eq!(Installation(0xa1).to_string(), "000000a1");
    }
}
