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
            payment_window_s,
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
    // The record of an order is longer than that of a queued request.
    bytes[12] = b'0';
    assert_eq!(unpack(&bytes), Err(BrokenRecord("too short")));
    assert_eq!(unpack_entry(&[]), Err(BrokenRecord("empty")));
}
