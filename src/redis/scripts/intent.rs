//! The binary format of an order intent: its record, then the other fields, then a signature that
//! only a process of the installation can compute; 78 bytes in all.
//!
//! | bytes | holds |
//! |---|---|
//! | 0..22 | the [record](super::record) of the request, which a script copies to its page |
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

use hmac::Mac;

use super::record::{BrokenRecord, Cursor, QUEUED_BYTES, of_three_bytes, three_bytes};
use crate::domain::{BucketNo, OrderIntent, RecordState, RequestId, RequestRecord, SkuNo, TraceId};
use crate::runtime::mac::{HmacSha256, MAC_BYTES, keyed};

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
    bytes.push(if intent.slot == 0 { VERSION } else { VERSION | OWN_SLOT });
    bytes.extend(intent.request.get().to_be_bytes());
    bytes.extend(intent.sku.0.to_be_bytes());
    bytes.push(u8::try_from(intent.bucket.0).unwrap_or(u8::MAX));
    bytes.extend(three_bytes(intent.quota.unwrap_or(0)));
    bytes.extend(intent.amount.to_be_bytes());
    bytes.extend(three_bytes(u32::try_from(intent.payment_window_s).unwrap_or(u32::MAX)));
    bytes.extend(intent.trace.0.to_be_bytes());
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
///
/// # Errors
/// Names the first invalid part.
pub fn unpack(bytes: &[u8]) -> Result<OrderIntent, BrokenRecord> {
    let (record, rest) = bytes.split_at_checked(QUEUED_BYTES).ok_or(BrokenRecord("too short"))?;
    let record = RequestRecord::unpack(record)?;
    let RecordState::Queued { epoch } = record.state else {
        return Err(BrokenRecord("not queued"));
    };
    let mut rest = Cursor(rest);
    let [version] = rest.take()?;
    if version & !OWN_SLOT != VERSION {
        return Err(BrokenRecord("an unknown version"));
    }
    let request =
        RequestId::new(u64::from_be_bytes(rest.take()?)).ok_or(BrokenRecord("no request"))?;
    let intent = OrderIntent {
        request,
        sku: SkuNo(i32::from_be_bytes(rest.take()?)),
        bucket: BucketNo(u8::from_be_bytes(rest.take()?).into()),
        epoch,
        buyer: record.buyer,
        quantity: record.quantity,
        slot: if version & OWN_SLOT == 0 { 0 } else { request.to_db() },
        quota: Some(of_three_bytes(rest.take()?)).filter(|it| *it > 0),
        amount: i64::from_be_bytes(rest.take()?),
        placed_at_ms: record.placed_at_ms,
        payment_window_s: of_three_bytes(rest.take()?).cast_signed(),
        trace: TraceId(u128::from_be_bytes(rest.take()?)),
        published_at_ms: None,
    };
    let _code: [u8; MAC_BYTES] = rest.take()?;
    rest.end()?;
    Ok(intent)
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
