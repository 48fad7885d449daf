use proptest::prelude::*;

use super::*;
use crate::domain::ids::ID_MAX;

/// Ids of any length, half of them of 18 and 19 digits.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![1..=ID_MAX, 100_000_000_000_000_000..=ID_MAX]
}

fn packed(record: &RequestRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.pack_into(&mut bytes);
    bytes
}

fn refusals() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::SoldOut),
        numbers()
            .prop_map(|first| Refusal::AlreadyPurchased { first: RequestId::new(first).unwrap() }),
        any::<(u32, u32)>().prop_map(|(owned, limit)| Refusal::QuotaExceeded { owned, limit }),
        Just(Refusal::RequestIdReused),
        Just(Refusal::NotStarted),
        Just(Refusal::Ended),
        Just(Refusal::Discarded),
        Just(Refusal::Barred),
        Just(Refusal::CancelledByBuyer),
        Just(Refusal::QueueTimeout),
    ]
}

fn states() -> impl Strategy<Value = RecordState> {
    prop_oneof![
        any::<i32>().prop_map(|epoch| RecordState::Queued { epoch: Epoch(epoch.into()) }),
        (
            prop::sample::select(OrderState::ALL.to_vec()),
            (any::<u16>(), 0..=i64::MAX, any::<u32>())
        )
            .prop_map(|(state, (version, amount, pay_by))| {
                let pay_by = PayBy(pay_by);
                RecordState::Ordered { state, version, amount, pay_by }
            }),
        refusals().prop_map(RecordState::Failed),
    ]
}

prop_compose! {
    fn records()(
        buyer in numbers(),
        quantity in 1..=THREE_BYTES_MAX,
        placed_at_ms in 0..=PLACED_AT_MS_MAX,
        state in states(),
    ) -> RequestRecord {
        RequestRecord { buyer: BuyerId::new(buyer).unwrap(), quantity, placed_at_ms, state }
    }
}

proptest! {
    #[test]
    fn a_packed_record_unpacks_to_itself(record in records()) {
        let bytes = packed(&record);
        match record.state {
            RecordState::Queued { .. } => prop_assert_eq!(bytes.len(), QUEUED_BYTES),
            RecordState::Ordered { .. } => {
                let amount_bytes = bytes.len().checked_sub(ORDERED_BYTES);
                prop_assert!(amount_bytes.is_some_and(|it| it <= AMOUNT_BYTES_MAX));
            }
            RecordState::Failed(_) => prop_assert!(bytes.len() > HEAD_BYTES),
        }
        prop_assert_eq!(RequestRecord::unpack(&bytes), Ok(record));
    }

    #[test]
    fn a_record_cut_short_or_made_longer_is_refused(record in records(), at in any::<usize>()) {
        let mut bytes = packed(&record);
        // What follows is the amount, whose length only its hash field tells.
        let is_ordered = matches!(record.state, RecordState::Ordered { .. });
        let end = if is_ordered { ORDERED_BYTES } else { bytes.len() };
        prop_assert!(RequestRecord::unpack(&bytes[..at % end]).is_err());
        bytes.resize(end + if is_ordered { AMOUNT_BYTES_MAX + 1 } else { 1 }, 1);
        prop_assert!(RequestRecord::unpack(&bytes).is_err());
    }

    #[test]
    fn an_unpacked_record_packs_to_the_same_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..32),
    ) {
        if let Ok(record) = RequestRecord::unpack(&bytes) {
            prop_assert_eq!(packed(&record), bytes);
        }
    }
}

#[test]
fn an_invalid_part_is_named() {
    let good = packed(&RequestRecord {
        buyer: BuyerId::new(7).unwrap(),
        quantity: 1,
        placed_at_ms: 1,
        state: RecordState::Queued { epoch: Epoch(1) },
    });
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        RequestRecord::unpack(&bytes).unwrap_err().0
    };
    assert_eq!(with(7, 0), "no buyer");
    assert_eq!(with(0, 0x80), "no buyer");
    assert_eq!(with(10, 0), "no units");
    assert_eq!(with(11, b'6'), "an unknown state");
    assert_eq!(with(11, b'5'), "too short");
    assert_eq!(with(11, b'F'), "an unknown reason");
}

#[test]
fn a_time_outside_the_range_is_clamped() {
    for (placed_at_ms, clamped) in [(-1, 0), (i64::MAX, PLACED_AT_MS_MAX)] {
        let state = RecordState::Queued { epoch: Epoch(1) };
        let buyer = BuyerId::new(1).unwrap();
        let record = RequestRecord { buyer, quantity: 1, placed_at_ms, state };
        assert_eq!(RequestRecord::unpack(&packed(&record)).unwrap().placed_at_ms, clamped);
    }
}

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
        prop_assert_eq!(&bytes[..QUEUED_BYTES], packed(&RequestRecord::queued(&intent)));
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
