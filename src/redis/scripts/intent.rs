//! The binary formats of an accepted request: its record, which a bucket stores, and its intent.
//!
//! A record has 18 bytes, and a few more that its state has:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | buyer, big-endian |
//! | 8..11 | units, big-endian |
//! | 11 | state: `Q` queued, `0` to `5` the order's state in the ledger, `F` failed |
//! | 12..18 | time of the request, epoch milliseconds, big-endian |
//! | 18..22 | queued only: the epoch of its terms, big-endian |
//! | 18..20 | order only: its version, big-endian |
//! | 20..24 | order only: its payment deadline, [`PayBy`], big-endian |
//! | 24.. | order only: its amount, big-endian without leading zeros, up to 8 bytes |
//! | 18.. | failed only: one byte for the reason, and its details |
//!
//! Scripts compare the first 11 bytes, and read state and version; they never decode an id.
//!
//! An intent has 78 bytes: the record of the queued request, then the other fields, then a
//! signature that only a process of the installation can compute:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..22 | the record of the request, which a script copies to its page |
//! | 22 | the version of this layout; its highest bit: the slot is the request's own number |
//! | 23..31 | request |
//! | 31..35 | SKU |
//! | 35 | bucket |
//! | 36..39 | quota, 0 for none |
//! | 39..47 | amount |
//! | 47..50 | payment window, seconds |
//! | 50..66 | trace |
//! | 66..78 | HMAC-SHA-256 of the bytes before, its first 96 bits |
//!
//! All numbers are big-endian. An outbox entry is a sequence of intents. 64 of them with the
//! overhead of Redis stay below 5 KiB; a larger value would take 6. A number that does not fit its
//! bytes is beyond every limit of a sale, and stored as the largest one.

use std::fmt;
use std::slice::Chunks;

use bytes::{Buf, BufMut, TryGetError};
use hmac::Mac;

use crate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, OrderState, PayBy, RecordState, Refusal, RequestId,
    RequestRecord, SkuNo, TraceId,
};
use crate::runtime::mac::{HmacSha256, MAC_BYTES, keyed};

/// Bytes of buyer and units, which must be equal in a repeat of the request.
pub const CONTENT_BYTES: usize = 11;

/// First bytes of every record.
pub const HEAD_BYTES: usize = 18;

/// Bytes of the record of a queued request.
pub const QUEUED_BYTES: usize = HEAD_BYTES + 4;

/// Bytes of the record of an order, without its amount.
pub const ORDERED_BYTES: usize = HEAD_BYTES + 6;

/// Most bytes of an amount.
pub const AMOUNT_BYTES_MAX: usize = 8;

/// The latest time that fits: far beyond the year 10000.
const PLACED_AT_MS_MAX: i64 = (1 << 48) - 1;

/// The largest number of three bytes, stored for a larger one: no limit of a sale is beyond it.
const THREE_BYTES_MAX: u32 = 0x00ff_ffff;

fn put_three_bytes(number: u32, bytes: &mut Vec<u8>) {
    bytes.put_uint(number.min(THREE_BYTES_MAX).into(), 3);
}

fn get_three_bytes(bytes: &mut &[u8]) -> Result<u32, TryGetError> {
    Ok(u32::from_be_bytes([0, bytes.try_get_u8()?, bytes.try_get_u8()?, bytes.try_get_u8()?]))
}

/// The bytes were not written by any version of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenRecord(pub &'static str);

impl From<TryGetError> for BrokenRecord {
    fn from(_: TryGetError) -> Self {
        Self("too short")
    }
}

impl RequestRecord {
    /// Appends the record's bytes.
    pub fn pack_into(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.buyer.get());
        put_three_bytes(self.quantity, bytes);
        bytes.put_u8(match self.state {
            RecordState::Queued { .. } => b'Q',
            RecordState::Ordered { state, .. } => b'0' + state as u8,
            RecordState::Failed(_) => b'F',
        });
        bytes.put_int(self.placed_at_ms.clamp(0, PLACED_AT_MS_MAX), 6);
        match self.state {
            RecordState::Queued { epoch } => {
                bytes.put_i32(i32::try_from(epoch.0).unwrap_or(i32::MAX));
            }
            RecordState::Ordered { version, pay_by, amount, .. } => {
                bytes.put_u16(version);
                bytes.put_u32(pay_by.0);
                bytes.extend(amount.max(0).to_be_bytes().into_iter().skip_while(|byte| *byte == 0));
            }
            RecordState::Failed(reason) => pack_reason(reason, bytes),
        }
    }

    /// Decodes a record.
    pub fn unpack(mut bytes: &[u8]) -> Result<Self, BrokenRecord> {
        let rest = &mut bytes;
        let buyer = BuyerId::new(rest.try_get_u64()?).ok_or(BrokenRecord("no buyer"))?;
        let quantity = get_three_bytes(rest)?;
        if quantity == 0 {
            return Err(BrokenRecord("no units"));
        }
        let code = rest.try_get_u8()?;
        let placed_at_ms = rest.try_get_uint(6)?.cast_signed();
        let state = match code {
            b'Q' => RecordState::Queued { epoch: Epoch(rest.try_get_i32()?.into()) },
            b'F' => RecordState::Failed(unpack_reason(rest)?),
            _ => RecordState::Ordered {
                state: OrderState::from_db(i16::from(code) - i16::from(b'0'))
                    .ok_or(BrokenRecord("an unknown state"))?,
                version: rest.try_get_u16()?,
                pay_by: PayBy(rest.try_get_u32()?),
                amount: unpack_amount(rest)?,
            },
        };
        end(rest)?;
        Ok(Self { buyer, quantity, placed_at_ms, state })
    }
}

fn pack_reason(reason: Refusal, bytes: &mut Vec<u8>) {
    match reason {
        Refusal::SoldOut => bytes.push(b'S'),
        Refusal::AlreadyPurchased { first } => {
            bytes.push(b'A');
            bytes.put_u64(first.get());
        }
        Refusal::QuotaExceeded { owned, limit } => {
            bytes.push(b'Q');
            bytes.put_u32(owned);
            bytes.put_u32(limit);
        }
        Refusal::RequestIdReused => bytes.push(b'R'),
        Refusal::NotStarted => bytes.push(b'N'),
        Refusal::Ended => bytes.push(b'E'),
        Refusal::Discarded => bytes.push(b'D'),
        Refusal::Barred => bytes.push(b'B'),
        Refusal::CancelledByBuyer => bytes.push(b'C'),
        Refusal::QueueTimeout => bytes.push(b'T'),
    }
}

fn unpack_reason(rest: &mut &[u8]) -> Result<Refusal, BrokenRecord> {
    Ok(match rest.try_get_u8()? {
        b'S' => Refusal::SoldOut,
        b'A' => {
            let first = RequestId::new(rest.try_get_u64()?);
            Refusal::AlreadyPurchased { first: first.ok_or(BrokenRecord("no first request"))? }
        }
        b'Q' => Refusal::QuotaExceeded { owned: rest.try_get_u32()?, limit: rest.try_get_u32()? },
        b'R' => Refusal::RequestIdReused,
        b'N' => Refusal::NotStarted,
        b'E' => Refusal::Ended,
        b'D' => Refusal::Discarded,
        b'B' => Refusal::Barred,
        b'C' => Refusal::CancelledByBuyer,
        b'T' => Refusal::QueueTimeout,
        _ => return Err(BrokenRecord("an unknown reason")),
    })
}

/// All bytes, as an amount.
fn unpack_amount(rest: &mut &[u8]) -> Result<i64, BrokenRecord> {
    if rest.first() == Some(&0) || rest.len() > AMOUNT_BYTES_MAX {
        return Err(BrokenRecord("an unreadable amount"));
    }
    let amount = rest.try_get_uint(rest.len())?;
    i64::try_from(amount).map_err(|_overflow| BrokenRecord("an unreadable amount"))
}

fn end(rest: &[u8]) -> Result<(), BrokenRecord> {
    if rest.is_empty() { Ok(()) } else { Err(BrokenRecord("too long")) }
}

/// Bytes of one intent.
pub const INTENT_BYTES: usize = 78;

/// The version that is written and read.
pub const VERSION: u8 = 3;

/// In the byte of the version: the slot is the request's own number.
const OWN_SLOT: u8 = 0x80;

/// Signs accepted intents. Every process of an installation has the same key, from the ledger.
#[derive(Clone)]
pub struct IntentKey(HmacSha256);

impl IntentKey {
    pub fn new(secret: &[u8]) -> Self {
        Self(keyed(secret))
    }

    /// Whether a process of this installation packed this intent. Compares in constant time.
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8]) -> bool {
        bytes.split_last_chunk::<MAC_BYTES>().is_some_and(|(signed, code)| {
            self.0.clone().chain_update(signed).verify_truncated_left(code).is_ok()
        })
    }
}

impl fmt::Debug for IntentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntentKey(..)")
    }
}

pub fn pack_into(intent: &OrderIntent, key: &IntentKey, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    RequestRecord::queued(intent).pack_into(bytes);
    bytes.put_u8(if intent.slot == 0 { VERSION } else { VERSION | OWN_SLOT });
    bytes.put_u64(intent.request.get());
    bytes.put_i32(intent.sku.0);
    bytes.put_u8(u8::try_from(intent.bucket.0).unwrap_or(u8::MAX));
    put_three_bytes(intent.quota.unwrap_or(0), bytes);
    bytes.put_i64(intent.amount);
    put_three_bytes(u32::try_from(intent.payment_window_s).unwrap_or(u32::MAX), bytes);
    bytes.put_u128(intent.trace.0);
    let code = key.0.clone().chain_update(bytes.get(start..).unwrap_or_default()).finalize();
    bytes.extend(code.into_bytes().iter().take(MAC_BYTES));
}

pub fn pack(intent: &OrderIntent, key: &IntentKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INTENT_BYTES);
    pack_into(intent, key, &mut bytes);
    bytes
}

/// The intents of a sequence; the last one may be cut.
pub fn split(bytes: &[u8]) -> Chunks<'_, u8> {
    bytes.chunks(INTENT_BYTES)
}

/// Decodes an intent, whatever its origin.
pub fn unpack(bytes: &[u8]) -> Result<OrderIntent, BrokenRecord> {
    let (record, mut rest) =
        bytes.split_at_checked(QUEUED_BYTES).ok_or(BrokenRecord("too short"))?;
    let record = RequestRecord::unpack(record)?;
    let RecordState::Queued { epoch } = record.state else {
        return Err(BrokenRecord("not queued"));
    };
    let version = rest.try_get_u8()?;
    if version & !OWN_SLOT != VERSION {
        return Err(BrokenRecord("an unknown version"));
    }
    let request = RequestId::new(rest.try_get_u64()?).ok_or(BrokenRecord("no request"))?;
    let intent = OrderIntent {
        request,
        sku: SkuNo(rest.try_get_i32()?),
        bucket: BucketNo(rest.try_get_u8()?.into()),
        epoch,
        buyer: record.buyer,
        quantity: record.quantity,
        slot: if version & OWN_SLOT == 0 { 0 } else { request.to_db() },
        quota: Some(get_three_bytes(&mut rest)?).filter(|it| *it > 0),
        amount: rest.try_get_i64()?,
        placed_at_ms: record.placed_at_ms,
        payment_window_s: get_three_bytes(&mut rest)?.cast_signed(),
        trace: TraceId(rest.try_get_u128()?),
        published_at_ms: None,
    };
    let (_code, rest) = rest.split_at_checked(MAC_BYTES).ok_or(BrokenRecord("too short"))?;
    end(rest)?;
    Ok(intent)
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
