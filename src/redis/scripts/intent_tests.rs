use proptest::prelude::*;

use super::super::record::THREE_BYTES_MAX;
use super::super::record::tests::numbers;
use super::*;
use crate::domain::{BuyerId, Epoch, RequestRecord};

fn key() -> IntentKey {
    IntentKey::new(&[7; 32])
}

prop_compose! {
    fn intents()(
        (request, buyer) in (numbers(), numbers()),
        quantity in 1..=THREE_BYTES_MAX,
        (sku, bucket, epoch) in any::<(i32, u8, i32)>(),
        (has_slot, amount) in any::<(bool, i64)>(),
        payment_window_s in 0..=0x00ff_ffff_i32,
        quota in prop::option::of(1..=THREE_BYTES_MAX),
        placed_at_ms in 0..1_i64 << 48,
        trace in any::<u128>(),
    ) -> OrderIntent {
        OrderIntent {
            request: RequestId::new(request).unwrap(),
            sku: SkuNo(sku),
            bucket: BucketNo(bucket.into()),
            epoch: Epoch(epoch.into()),
            buyer: BuyerId::new(buyer).unwrap(),
            quantity,
            slot: if has_slot { i64::try_from(request).unwrap() } else { 0 },
            quota,
            amount,
            placed_at_ms,
            payment_window_s,
            trace: TraceId(trace),
            published_at_ms: None,
        }
    }
}

fn unpack_all(bytes: &[u8]) -> Result<Vec<OrderIntent>, BrokenRecord> {
    split(bytes).map(unpack).collect()
}

proptest! {
    #[test]
    fn a_packed_intent_unpacks_to_itself(intent in intents()) {
        let bytes = pack(&intent, &key());
        prop_assert!(key().has_signed(&bytes));
        prop_assert_eq!(bytes.len(), INTENT_BYTES);
        prop_assert_eq!(unpack(&bytes), Ok(intent));
        prop_assert_eq!(&bytes[..QUEUED_BYTES], RequestRecord::queued(&intent).pack());
    }

    #[test]
    fn a_packed_entry_unpacks_to_itself_and_a_truncated_one_is_refused(
        intents in prop::collection::vec(intents(), 1..5),
        cut in 1..INTENT_BYTES,
    ) {
        let mut bytes = Vec::new();
        for intent in &intents {
            pack_into(intent, &key(), &mut bytes);
        }
        prop_assert_eq!(unpack_all(&bytes).unwrap(), intents);
        bytes.truncate(bytes.len() - cut);
        prop_assert!(unpack_all(&bytes).is_err());
    }
}

#[test]
fn a_number_beyond_every_limit_is_stored_as_the_largest_one() {
    let intent = OrderIntent {
        bucket: BucketNo(u16::MAX),
        epoch: Epoch(i64::MAX),
        quota: Some(u32::MAX),
        payment_window_s: -1,
        ..crate::domain::samples::intent(1)
    };
    let stored = unpack(&pack(&intent, &key())).unwrap();
    assert_eq!((stored.bucket, stored.epoch), (BucketNo(255), Epoch(i32::MAX.into())));
    assert_eq!((stored.quota, stored.payment_window_s), (Some(0xff_ffff), 0xff_ffff));
}

#[test]
fn an_intent_of_another_version_or_length_is_refused() {
    let mut bytes = vec![1; INTENT_BYTES];
    bytes[11] = b'Q';
    for version in [0, 1, 2, 2 | OWN_SLOT, 4] {
        bytes[22] = version;
        assert_eq!(unpack(&bytes), Err(BrokenRecord("an unknown version")));
    }
    bytes[22] = VERSION;
    assert!(unpack(&bytes).is_ok());
    assert!(!key().has_signed(&bytes));
    assert_eq!(unpack(&bytes[..INTENT_BYTES - 1]), Err(BrokenRecord("too short")));
    // The record of an order is longer than that of a queued request.
    bytes[11] = b'0';
    assert_eq!(unpack(&bytes), Err(BrokenRecord("too short")));
    bytes[11] = b'Q';
    bytes.push(1);
    assert_eq!(unpack(&bytes), Err(BrokenRecord("too long")));
}
