//! Identifiers. Each is its own type, so that the compiler rejects a buyer in place of a request.
//!
//! Numbers fit into 63 bits: the ledger stores them as signed 64-bit integers. Outside Rust they
//! are decimal strings, because JSON and Lua readers lose digits above 2^53.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use xxhash_rust::xxh3::xxh3_64;

/// The largest numeric id: 63 bits.
pub const ID_MAX: u64 = i64::MAX as u64;

/// The maximum length of a text id, in bytes.
pub const TEXT_ID_BYTES_MAX: usize = 64;

/// Why a text is rejected as an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not a decimal number in 1..=2^63-1.
    #[error("must be a decimal number from 1 to 9223372036854775807")]
    NotANumber,
    /// Not 1 to 64 characters of `A-Z a-z 0-9 . _ -`, or dots only.
    #[error("must be 1 to 64 characters out of A-Z, a-z, 0-9, '.', '_' and '-', not only dots")]
    NotAName,
}

/// Implements `Display` by the inner value.
macro_rules! display_inner {
    ($($name:ident)+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

display_inner!(BuyerId RequestId SaleId SkuId SkuNo BucketNo DeadLetterNo);

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// `None` outside 1..=2^63-1.
            pub fn new(number: u64) -> Option<Self> {
                (1..=ID_MAX).contains(&number).then_some(Self(number))
            }

            /// Converts from the ledger's signed column; `None` below 1.
            pub fn from_db(number: i64) -> Option<Self> {
                u64::try_from(number).ok().and_then(Self::new)
            }

            pub fn get(self) -> u64 {
                self.0
            }

            /// The value of the ledger's signed column; always positive.
            pub fn to_db(self) -> i64 {
                self.0.cast_signed()
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            /// Strict: digits only, no sign, no leading zero, so that one id has one spelling.
            fn from_str(text: &str) -> Result<Self, IdError> {
                let canonical = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
                let number = if canonical { text.parse().ok() } else { None };
                number.and_then(Self::new).ok_or(IdError::NotANumber)
            }
        }
    };
}

number_id! {
    /// A buyer; comes from the authentication, never from the request body.
    BuyerId
}
number_id! {
    /// The number of one purchase request; a repeat has the same. Buyers send it signed, as a text
    /// that `http/buyers/request_ids.rs` defines.
    RequestId
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let fits = (1..=TEXT_ID_BYTES_MAX).contains(&text.len());
                let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
                // `.` and `..` are no names in a path.
                let is_name =
                    fits && text.bytes().all(is_allowed) && text.bytes().any(|b| b != b'.');
                if is_name { Ok(Self(text.into())) } else { Err(IdError::NotAName) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(input)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id! {
    /// A sale's public name.
    SaleId
}
text_id! {
    /// A SKU's public name, unique within its sale.
    SkuId
}

/// The ledger's number of one SKU of one sale. Short, because every hot row and every request id
/// contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkuNo(pub i32);

/// The number of a dead letter in its ledger, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterNo(pub i64);

/// The fencing token of a SKU's loader, counted up by the ledger. Once a loader with a larger token
/// has begun, the writes of earlier loaders are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoaderToken(pub i64);

/// The index of a bucket within its SKU, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketNo(pub u16);

impl BucketNo {
    /// The borrower of units that are about to leave the stock; no bucket has this number.
    pub const LEDGER: Self = Self(u16::MAX);

    /// The home bucket of a buyer, which stores the buyer's limit and requests.
    ///
    /// `xxh3_64(buyer as 8 little-endian bytes) mod buckets`: the hash has a written specification,
    /// so that every process and every later version maps a buyer to the same bucket.
    pub fn home_of(buyer: BuyerId, buckets: u16) -> Self {
        let bucket = xxh3_64(&buyer.get().to_le_bytes()) % u64::from(buckets.max(1));
        Self(u16::try_from(bucket).unwrap_or_default())
    }
}

/// The opening or terms of a sale that a decision belongs to. The ledger increments it at each
/// opening, change of terms and earlier end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub i64);

/// A W3C trace id: 128 bits, displayed as 32 hexadecimal digits. 0 means that the trace of the
/// request was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

impl TraceId {
    /// `None` for 0.
    pub fn known(self) -> Option<Self> {
        (self.0 != 0).then_some(self)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_bucket_never_changes() {
        let home = |buyer| BucketNo::home_of(BuyerId::new(buyer).unwrap(), 8).0;
        assert_eq!([1, 2, 3, 4, 5].map(home), [6, 3, 5, 0, 4]);
    }
}
