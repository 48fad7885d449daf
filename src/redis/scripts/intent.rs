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
//! | 55..59 | payment window, seconds from the time of the request |
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
    bytes.extend(payment_window_s(intent).to_be_bytes());
    bytes.extend(intent.trace.0.to_be_bytes());
}

fn payment_window_s(intent: &OrderIntent) -> i32 {
    let seconds = intent.pay_by_ms.saturating_sub(intent.placed_at_ms) / 1_000;
    i32::try_from(seconds).unwrap_or(i32::MAX)
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
        pay_by_ms: record.placed_at_ms + i64::from(i32::from_be_bytes(rest.take()?)) * 1_000,
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
mod tests {
    use proptest::prelude::*;

    use super::super::record::tests::numbers;
    use super::*;
    use crate::domain::BuyerId;

    prop_compose! {
        fn intents()(
            (request, buyer) in (numbers(), numbers()),
            quantity in 1..=u32::MAX,
            (sku, bucket, epoch) in any::<(i32, u16, i64)>(),
            (has_slot, amount, payment_window_s) in any::<(bool, i64, i32)>(),
            quota in prop::option::of(1..=u32::MAX),
            placed_at_ms in 0..1_i64 << 48,
            trace in any::<u128>(),
        ) -> OrderIntent {
            OrderIntent {
                request: RequestId::new(request).unwrap(),
                sku: SkuNo(sku),
                bucket: BucketNo(bucket),
                epoch: Epoch(epoch),
                buyer: BuyerId::new(buyer).unwrap(),
                quantity,
                slot: if has_slot { i64::try_from(request).unwrap() } else { 0 },
                quota,
                amount,
                placed_at_ms,
                pay_by_ms: placed_at_ms + i64::from(payment_window_s) * 1_000,
                trace: TraceId(trace),
                published_at_ms: None,
            }
        }
    }

    proptest! {
        #[test]
        fn a_packed_intent_unpacks_to_itself(intent in intents()) {
            let bytes = pack(&intent);
            prop_assert_eq!(bytes.len(), INTENT_BYTES);
            prop_assert_eq!(unpack(&bytes), Ok(intent));
            prop_assert_eq!(&bytes[..RECORD_BYTES], RequestRecord::queued(&intent).pack());
        }

        #[test]
        fn a_packed_entry_unpacks_to_itself_and_a_truncated_one_is_refused(
            intents in prop::collection::vec(intents(), 1..5),
            cut in 1..INTENT_BYTES,
        ) {
            let mut bytes = Vec::new();
            for intent in &intents {
                pack_into(intent, &mut bytes);
            }
            prop_assert_eq!(unpack_entry(&bytes).unwrap(), intents);
            bytes.truncate(bytes.len() - cut);
            prop_assert!(unpack_entry(&bytes).is_err());
        }
    }

    #[test]
    fn an_intent_of_another_version_is_refused() {
        let mut bytes = vec![1; INTENT_BYTES];
        bytes[12] = b'Q';
        assert!(unpack(&bytes).is_ok());
        bytes[19] = 2;
        assert_eq!(unpack(&bytes), Err(BrokenRecord("an unknown version")));
        bytes[42] = 2;
        bytes[19] = 1;
        assert_eq!(unpack(&bytes), Err(BrokenRecord("an unknown slot")));
        bytes[12] = b'0';
        assert_eq!(unpack(&bytes), Err(BrokenRecord("not queued")));
        assert_eq!(unpack_entry(&[]), Err(BrokenRecord("empty")));
    }
}
