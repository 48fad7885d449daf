//! The binary format of an order intent: its record, then the other fields, then a signature that
//! only a process of the installation can compute; 79 bytes in all.
//!
//! | bytes | holds |
//! |---|---|
//! | 0..19 | the [record](super::record) of the request, which a script copies to its page |
//! | 19 | the version of this layout; its highest bit: the slot is the request's own number |
//! | 20..28 | request |
//! | 28..32 | SKU |
//! | 32 | bucket |
//! | 33..37 | epoch |
//! | 37..40 | quota, 0 for none |
//! | 40..48 | amount |
//! | 48..51 | payment window, seconds |
//! | 51..67 | trace |
//! | 67..79 | HMAC-SHA-256 of the bytes before, its first 96 bits |
//!
//! All numbers are big-endian. An outbox entry is a sequence of intents of one version. 64 of them
//! with the overhead of Redis stay below 5 KiB; a larger value would take 6. A number that does not
//! fit its bytes is beyond every limit of a sale, and stored as the largest one.
//!
//! Version 1 has no signature, takes [`UNSIGNED_BYTES`], and is read only.

use std::fmt;
use std::slice::Chunks;

use hmac::Mac;

use super::record::{BrokenRecord, Cursor, RECORD_BYTES};
use crate::domain::{
    BucketNo, Epoch, OrderIntent, RecordState, RequestId, RequestRecord, SkuNo, TraceId,
};
use crate::runtime::mac::{HmacSha256, MAC_BYTES, keyed};

/// Bytes of one intent.
pub const INTENT_BYTES: usize = 79;

/// Bytes of one intent of version 1.
pub const UNSIGNED_BYTES: usize = 75;

/// Version 1, without a signature.
pub const UNSIGNED: u8 = 1;

/// The version that is written.
pub const VERSION: u8 = 2;

/// In the byte of the version: the slot is the request's own number.
const OWN_SLOT: u8 = 0x80;

/// The largest number of three bytes.
const THREE_BYTES_MAX: u32 = 0x00ff_ffff;

/// Signs accepted intents. Every process of an installation has the same key, from the ledger.
#[derive(Clone)]
pub struct IntentKey(HmacSha256);

impl IntentKey {
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(keyed(secret))
    }

    /// What a packed intent shows of its origin. Compares in constant time.
    #[must_use]
    pub fn origin(&self, bytes: &[u8]) -> IntentOrigin {
        if version_of(bytes) == UNSIGNED && bytes.len() == UNSIGNED_BYTES {
            return IntentOrigin::Unsigned;
        }
        let Some((signed, code)) = bytes.split_last_chunk::<MAC_BYTES>() else {
            return IntentOrigin::Forged;
        };
        match self.0.clone().chain_update(signed).verify_truncated_left(code) {
            Ok(()) => IntentOrigin::Signed,
            Err(_differs) => IntentOrigin::Forged,
        }
    }
}

impl fmt::Debug for IntentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntentKey(..)")
    }
}

/// What a packed intent shows of its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntentOrigin {
    /// A process of this installation packed it.
    Signed,
    /// Version 1: anyone who can write to Redis or the broker may have packed it.
    Unsigned,
    /// The signature is of another key, or of other bytes.
    Forged,
}

pub fn pack_into(intent: &OrderIntent, key: &IntentKey, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    RequestRecord::queued(intent).pack_into(bytes);
    bytes.push(if intent.slot == 0 { VERSION } else { VERSION | OWN_SLOT });
    bytes.extend(intent.request.get().to_be_bytes());
    bytes.extend(intent.sku.0.to_be_bytes());
    bytes.push(u8::try_from(intent.bucket.0).unwrap_or(u8::MAX));
    bytes.extend(i32::try_from(intent.epoch.0).unwrap_or(i32::MAX).to_be_bytes());
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

fn three_bytes(number: u32) -> [u8; 3] {
    let [_, bytes @ ..] = number.min(THREE_BYTES_MAX).to_be_bytes();
    bytes
}

/// The version of the intents of a sequence: that of the first one, if this program reads it.
pub fn version_of(bytes: &[u8]) -> u8 {
    if bytes.get(RECORD_BYTES) == Some(&UNSIGNED) { UNSIGNED } else { VERSION }
}

/// The intents of a sequence; the last one may be cut.
pub fn split(bytes: &[u8]) -> Chunks<'_, u8> {
    bytes.chunks(bytes_of(version_of(bytes).into()))
}

/// Bytes of one intent of this version.
pub fn bytes_of(version: i64) -> usize {
    if version == i64::from(UNSIGNED) { UNSIGNED_BYTES } else { INTENT_BYTES }
}

/// Decodes an intent, whatever its origin.
///
/// # Errors
/// Names the first invalid part.
pub fn unpack(bytes: &[u8]) -> Result<OrderIntent, BrokenRecord> {
    let (record, rest) = bytes.split_at_checked(RECORD_BYTES).ok_or(BrokenRecord("too short"))?;
    let record = RequestRecord::unpack(record)?;
    if record.state != RecordState::Queued {
        return Err(BrokenRecord("not queued"));
    }
    let mut rest = Cursor(rest);
    let [version] = rest.take()?;
    let is_unsigned = version == UNSIGNED;
    if !is_unsigned && version & !OWN_SLOT != VERSION {
        return Err(BrokenRecord("an unknown version"));
    }
    let request =
        RequestId::new(u64::from_be_bytes(rest.take()?)).ok_or(BrokenRecord("no request"))?;
    let sku = SkuNo(i32::from_be_bytes(rest.take()?));
    let mut intent = OrderIntent {
        request,
        sku,
        bucket: BucketNo(0),
        epoch: Epoch(0),
        buyer: record.buyer,
        quantity: record.quantity,
        slot: if version & OWN_SLOT == 0 { 0 } else { request.to_db() },
        quota: None,
        amount: 0,
        placed_at_ms: record.placed_at_ms,
        payment_window_s: 0,
        trace: TraceId(0),
        published_at_ms: None,
    };
    if is_unsigned {
        unpack_unsigned(&mut rest, &mut intent)?;
    } else {
        let [bucket] = rest.take()?;
        intent.bucket = BucketNo(bucket.into());
        intent.epoch = Epoch(i32::from_be_bytes(rest.take()?).into());
        intent.quota = Some(of_three_bytes(rest.take()?).unsigned_abs()).filter(|it| *it > 0);
        intent.amount = i64::from_be_bytes(rest.take()?);
        intent.payment_window_s = of_three_bytes(rest.take()?);
        intent.trace = TraceId(u128::from_be_bytes(rest.take()?));
        let _code: [u8; MAC_BYTES] = rest.take()?;
    }
    rest.end()?;
    Ok(intent)
}

/// The fields after the SKU, in version 1.
fn unpack_unsigned(rest: &mut Cursor<'_>, intent: &mut OrderIntent) -> Result<(), BrokenRecord> {
    intent.bucket = BucketNo(u16::from_be_bytes(rest.take()?));
    intent.epoch = Epoch(i64::from_be_bytes(rest.take()?));
    intent.slot = match rest.take()? {
        [0] => 0,
        [1] => intent.request.to_db(),
        _ => return Err(BrokenRecord("an unknown slot")),
    };
    intent.quota = Some(u32::from_be_bytes(rest.take()?)).filter(|limit| *limit > 0);
    intent.amount = i64::from_be_bytes(rest.take()?);
    intent.payment_window_s = i32::from_be_bytes(rest.take()?);
    intent.trace = TraceId(u128::from_be_bytes(rest.take()?));
    Ok(())
}

fn of_three_bytes([high, middle, low]: [u8; 3]) -> i32 {
    i32::from_be_bytes([0, high, middle, low])
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
