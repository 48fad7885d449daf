//! Flow step 3/12: stock -> Redis.
//!
//! The Lua scripts of the Redis stock and outbox, with one typed call for each.
//!
//! A script is one atomic step on one bucket; its text is in `lua/`. Its typed call is a
//! [`ScriptCall`], which also parses the answer; it does no I/O, so that any connection can send
//! it. Key names, argument order and value layouts are defined here. The call of `reserve.lua`,
//! which writes the outbox, is in `reserve_settle`; those of the other outbox scripts are in
//! `outbox/scripts.rs`.
//!
//! Limits: at most [`codes::ITEMS_MAX`] items in a call. On error: unless a script answers `OK`, it
//! has written nothing. May repeat: every call, by request id, loan number or loader token.
//!
//! # Keys
//!
//! `<namespace>:{<sku_no>:<bucket>}:<kind>`: the part in braces is the hash tag of Redis Cluster,
//! so that all keys of a bucket are in one slot.
//!
//! | kind | type | holds |
//! |---|---|---|
//! | `bucket` | hash | epoch, server, phase, stock and other counts |
//! | `requests:<page>` | hash | request id -> [record](intent) |
//! | `buyers:<page>` | hash | buyer id -> units (policy `quota` only) |
//! | `unsettled` | hash | request id -> [intent], until the ledger has decided |
//! | `outbox` | list or stream | entries of accepted intents; an entry's are of one batch |
//! | `claimed:<worker>` | list | entries that a relay worker has claimed (outbox as a list) |
//! | `claimants` | set | the workers that may have such a list |
//! | `moves` | hash | loans out (`no:<to>`, `out:<to>`), last loan in (`in:<from>`), `next` |
//!
//! Requests and buyers are distributed over pages of fewer than 512 fields. Up to 512 fields Redis
//! stores a hash as a listpack: a number of 19 digits takes 10 bytes, and a field no pointers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{BucketNo, Sku, SkuNo};

pub(crate) mod call;
pub mod codes;
pub mod intent;
pub mod load;
pub mod loans;
pub mod lookup;
pub mod reserve_settle;
pub mod snapshot;

use call::Reply;

pub use call::ScriptCall;
pub use load::OpenBucket;
pub use reserve_settle::{EntryLimits, OutboxArgs};

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        /// A Lua script of the folder `lua/`, whose head describes it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Script {
            $($name),*
        }

        impl Script {
            /// Every script; a connection loads them before its first call.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in logs and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $file),*
                }
            }

            fn body(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!("../../../lua/", $file, ".lua"))),*
                }
            }
        }
    };
}

scripts! {
    Reserve = "reserve";
    Settle = "settle";
    Release = "release";
    SetPhase = "set_phase";
    Lend = "lend";
    Borrow = "borrow";
    ClearLoan = "clear_loan";
    ChangeStock = "change_stock";
    Hold = "hold";
    Clear = "clear";
    LoadRows = "load_rows";
    Open = "open";
    Snapshot = "snapshot";
    Find = "find";
    Queued = "queued";
    ListClaim = "list_claim";
    ListTakeOver = "list_take_over";
    ListAcknowledge = "list_acknowledge";
    ListReclaim = "list_reclaim";
    ListStatus = "list_status";
    ListRead = "list_read";
    StreamClaim = "stream_claim";
    StreamTakeOver = "stream_take_over";
    StreamAcknowledge = "stream_acknowledge";
    StreamReclaim = "stream_reclaim";
    StreamStatus = "stream_status";
    StreamRead = "stream_read";
}

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

    fn key(&self, kind: impl fmt::Display) -> String {
        format!("{}{kind}", self.prefix)
    }
}

/// The number of pages of requests, and of buyers, in each bucket of a SKU; a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages(u16);

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

/// The owner that a bucket must have; a script rejects any other bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketFence {
    pub installation: Installation,
    /// The identity of the connected server.
    pub server: Arc<str>,
}

/// Why a script call failed. Unless the variant says otherwise, nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bucket is missing or being loaded.
    #[error("the bucket is not loaded")]
    NotReady,
    /// The bucket was opened before a failover or restart: writes may be lost.
    #[error("the bucket was opened on another server")]
    Fenced,
    /// Another ledger uses the same key names on the same server, or another program has written
    /// to the bucket.
    #[error(
        "the bucket is of another installation or its epoch is unreadable: `redis buckets` of \
         `floodgate doctor` tells which; each installation needs a `namespace` of its own"
    )]
    Foreign,
    /// A value was not written by any script.
    #[error("the bucket is damaged: {what}")]
    Corrupt { what: String },
    /// The call has too many items, or the bucket has used all loan numbers.
    #[error("more than {} items in one call, or no loan number is left", codes::ITEMS_MAX)]
    TooMany,
    /// A loader with a larger token has begun, or this loader has finished.
    #[error("another loader came after this one")]
    OldLoader,
    /// A bug, or corrupt values. Other items of the batch may have been written: repeat the call
    /// with the same ids.
    #[error("script {script} answered {reply}")]
    Unexpected { script: &'static str, reply: String },
}

/// A bucket's units and change count after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketLevel {
    pub stock: u32,
    /// Units lent out and not yet confirmed.
    pub lent: u32,
    /// Number of changes to the accepted requests, starting at a base from the loader's token.
    /// Equal numbers mean that the accepted requests have not changed.
    pub changes: u64,
}

impl BucketLevel {
    /// Whether the bucket has never accepted a request.
    pub fn is_new(&self) -> bool {
        self.changes.is_multiple_of(codes::NUMBERS_PER_LOAD.cast_unsigned())
    }

    fn read(reply: &mut Reply) -> Result<Self, Error> {
        Ok(Self { stock: reply.count()?, lent: reply.count()?, changes: reply.count()? })
    }
}

/// An answer with the bucket's level after the call.
pub type Leveled<T> = (T, BucketLevel);

/// Reads the bucket's level and then the rest of the answer.
fn leveled<T>(
    read: impl Fn(&mut Reply) -> Result<T, Error>,
) -> impl Fn(&mut Reply) -> Result<Leveled<T>, Error> {
    move |reply| {
        let level = BucketLevel::read(reply)?;
        Ok((read(reply)?, level))
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod keys_tests;
