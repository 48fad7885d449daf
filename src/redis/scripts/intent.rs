//! The binary format of an order intent: its record, then the other fields, 75 bytes in all.
//!
//! | bytes | holds |
//! |---|---|
//! | 0..19 | the [record](super::record) of the request, which a script copies to its page |
//! | 19 | the version of this layout |
//! | 20..28 | request |
//! | 28..32 | SKU |
//! | 32..34 | bucket |
//! | 34..42 | epoch |
//! | 42 | slot: 0 for slot 0, 1 for the request's own number |
//! | 43..47 | quota, 0 for none |
//! | 47..55 | amount |
//! | 55..59 | payment window, seconds |
//! | 59..75 | trace |
//!
//! All numbers are big-endian. An outbox entry is a sequence of intents. 64 of them with the
//! overhead of Redis stay below 5 KiB; a larger value would take 6.

use crate::domain::{BucketNo, Epoch, OrderIntent, RequestId, SkuNo, TraceId};

use super::record::{BrokenRecord, Cursor, RECORD_BYTES, RequestRecord, RequestStage};

/// Bytes of one intent.
pub const INTENT_BYTES: usize = 75;

const VERSION: u8 = 1;

pub fn pack_into(intent: &OrderIntent, bytes: &mut Vec<u8>) {
    RequestRecord::queued(intent).pack_into(bytes);
    bytes.push(VERSION);
    bytes.extend(intent.request.get().to_be_bytes());
    bytes.extend(intent.sku.0.to_be_bytes());
    bytes.extend(intent.bucket.0.to_be_bytes());
    bytes.extend(intent.epoch.0.to_be_bytes());
    bytes.push(u8::from(intent.slot != 0));
    bytes.extend(intent.quota.unwrap_or(0).to_be_bytes());
    bytes.extend(intent.amount.to_be_bytes());
    bytes.extend(intent.payment_window_s.to_be_bytes());
    bytes.extend(intent.trace.0.to_be_bytes());
}

pub fn pack(intent: &OrderIntent) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INTENT_BYTES);
    pack_into(intent, &mut bytes);
    bytes
}

/// Decodes an intent.
///
/// # Errors
/// Names the first invalid part.
pub fn unpack(bytes: &[u8]) -> Result<OrderIntent, BrokenRecord> {
    let (record, rest) = bytes.split_at_checked(RECORD_BYTES).ok_or(BrokenRecord("too short"))?;
    let record = RequestRecord::unpack(record)?;
    if record.stage != RequestStage::Queued {
        return Err(BrokenRecord("not queued"));
    }
    let mut rest = Cursor(rest);
    if rest.take()? != [VERSION] {
        return Err(BrokenRecord("an unknown version"));
    }
    let request =
        RequestId::new(u64::from_be_bytes(rest.take()?)).ok_or(BrokenRecord("no request"))?;
    let intent = OrderIntent {
        request,
        sku: SkuNo(i32::from_be_bytes(rest.take()?)),
        bucket: BucketNo(u16::from_be_bytes(rest.take()?)),
        epoch: Epoch(i64::from_be_bytes(rest.take()?)),
        buyer: record.buyer,
        quantity: record.quantity,
        slot: match rest.take()? {
            [0] => 0,
            [1] => request.to_db(),
            _ => return Err(BrokenRecord("an unknown slot")),
        },
        quota: Some(u32::from_be_bytes(rest.take()?)).filter(|limit| *limit > 0),
        amount: i64::from_be_bytes(rest.take()?),
        placed_at_ms: record.placed_at_ms,
        payment_window_s: i32::from_be_bytes(rest.take()?),
        trace: TraceId(u128::from_be_bytes(rest.take()?)),
        published_at_ms: None,
    };
    rest.end()?;
    Ok(intent)
}

/// Decodes the intents of an outbox entry.
///
/// # Errors
/// Names the first invalid part; then none of the intents is returned.
pub fn unpack_entry(bytes: &[u8]) -> Result<Vec<OrderIntent>, BrokenRecord> {
    if bytes.is_empty() {
        return Err(BrokenRecord("empty"));
    }
    bytes.chunks(INTENT_BYTES).map(unpack).collect()
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
