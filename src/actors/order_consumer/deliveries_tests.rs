use proptest::prelude::*;

use super::*;
use crate::domain::order::WINDOW_SLACK_MS;
use crate::domain::{BucketNo, BuyerId, Epoch, OrderIntent, Policy, RequestId, TraceId, samples};
use crate::redis::scripts::intent::{IntentKey, pack, pack_into};

const OURS: &str = "0badcafe";
const SENT_AT_MS: i64 = 1_800_000_000_020;
const STARTS_MS: i64 = 1_800_000_000_000;
const ENDS_MS: i64 = STARTS_MS + 10_000;

fn sku(policy: Policy, buckets: u16) -> Arc<Sku> {
    let sample = samples::sku();
    Arc::new(Sku { no: SkuNo(7), price: 250, initial: 100, policy, buckets, ..sample })
}

fn intent(sku: &Sku, request: u64, buyer: u64, quantity: u32) -> OrderIntent {
    let (request, buyer) = (RequestId::new(request).unwrap(), BuyerId::new(buyer).unwrap());
    let placed = sku.intent(request, buyer, Epoch(2), quantity, 1_800_000_000_000);
    OrderIntent { trace: TraceId(9), ..placed }
}

fn reader() -> EnvelopeReader {
    EnvelopeReader { installation: OURS.into(), key: IntentKey::new(&[7; 32]) }
}

fn delivery(intents: &[OrderIntent]) -> Delivery {
    let mut body = Vec::new();
    for intent in intents {
        pack_into(intent, &reader().key, &mut body);
    }
    let headers = envelope::headers(&body, OURS, SENT_AT_MS);
    Delivery { tag: 1, headers, routing_key: "0".to_owned(), num_previous: 0, body: body.into() }
}

/// Validates with a catalog that has this SKU, in epoch 3; `None`: it needs a fresh catalog.
fn validated(sku: &Arc<Sku>, delivery: &Delivery, is_fresh: bool) -> Option<DecodedIntents> {
    let (starts_at_ms, ends_at_ms, epoch) = (STARTS_MS, ENDS_MS, Epoch(3));
    let sale = Arc::new(Sale { starts_at_ms, ends_at_ms, epoch, ..samples::sale() });
    let lookup = |no| (no == sku.no).then(|| (Arc::clone(&sale), Arc::clone(sku)));
    validate(delivery, &reader(), is_fresh, lookup).expect("no intent of it is decoded")
}

/// The flaw of a delivery of this intent alone.
fn flaw(sku: &Arc<Sku>, intent: &OrderIntent) -> MalformedEnvelope {
    let mut intents = validated(sku, &delivery(&[*intent]), true).unwrap();
    assert_eq!(intents.len(), 1);
    intents.remove(0).unwrap_err()
}

proptest! {
    #[test]
    fn intents_of_a_gate_are_valid(
        (request, buyer) in (1..u64::MAX >> 1, 1..u64::MAX >> 1),
        quantity in 1..=5_u32,
        buckets in 1..=256_u16,
        policy in prop_oneof![
            Just(Policy::OnePerBuyer { max_quantity: 5 }),
            Just(Policy::Unlimited { max_quantity: 5 }),
            Just(Policy::Quota { limit: 20, max_quantity: 5 }),
        ],
    ) {
        let sku = sku(policy, buckets);
        let intent = intent(&sku, request, buyer, quantity);
        let intents = validated(&sku, &delivery(&[intent]), false).unwrap();
        prop_assert_eq!(intents, [Ok(OrderIntent { published_at_ms: Some(SENT_AT_MS), ..intent })]);
    }
}

#[test]
fn an_intent_that_contradicts_its_sale_is_poison_with_the_reason() {
    let sku = sku(Policy::Quota { limit: 6, max_quantity: 5 }, 4);
    let valid = intent(&sku, 1, 2, 3);
    let other_bucket = BucketNo((valid.bucket.0 + 1) % 4);
    for (bad, reason) in [
        (OrderIntent { quantity: 6, ..valid }, "quantity 6 is more than 5"),
        (OrderIntent { quantity: u32::MAX, ..valid }, "quantity 16777215 is more than 5"),
        (OrderIntent { epoch: Epoch(0), ..valid }, "epoch 0 is none of 1 to 3"),
        (OrderIntent { epoch: Epoch(4), ..valid }, "epoch 4 is none of 1 to 3"),
        (OrderIntent { epoch: Epoch(-1), ..valid }, "epoch -1 is none of 1 to 3"),
        (OrderIntent { bucket: other_bucket, ..valid }, "bucket"),
        (OrderIntent { slot: 0, ..valid }, "slot 0, the policy's is 1"),
        (OrderIntent { quota: None, ..valid }, "quota none, the policy's is 6"),
        (OrderIntent { quota: Some(7), ..valid }, "quota 7, the policy's is 6"),
        (OrderIntent { amount: -750, ..valid }, "amount -750, price times quantity is 750"),
        (OrderIntent { payment_window_s: 1, ..valid }, "payment within 1 s"),
    ] {
        let malformed = flaw(&sku, &bad);
        assert_eq!(malformed.flaw, EnvelopeFlaw::Content, "{malformed}");
        assert!(malformed.what.starts_with(reason), "{malformed}");
    }
    let unknown = flaw(&sku, &OrderIntent { sku: SkuNo(-3), ..valid });
    assert_eq!((unknown.flaw, unknown.what.as_str()), (EnvelopeFlaw::Sku, "no sale has sku -3"));
}

#[test]
fn an_unknown_sku_or_epoch_is_poison_only_after_a_catalog_refresh() {
    let sku = sku(Policy::Unlimited { max_quantity: 5 }, 4);
    let valid = intent(&sku, 1, 2, 3);
    for unknown in
        [OrderIntent { sku: SkuNo(8), ..valid }, OrderIntent { epoch: Epoch(4), ..valid }]
    {
        let both = delivery(&[valid, unknown]);
        assert_eq!(validated(&sku, &both, false), None);
        let intents = validated(&sku, &both, true).unwrap();
        assert!(matches!(&intents[..], [Ok(_), Err(_)]), "{intents:?}");
    }
}

#[test]
fn an_intent_outside_the_window_is_poison_after_a_catalog_refresh_and_a_drain() {
    let sku = sku(Policy::Unlimited { max_quantity: 5 }, 4);
    let at = |placed_at_ms| OrderIntent { placed_at_ms, ..intent(&sku, 1, 2, 3) };
    for (inside, is_read_again) in [
        (STARTS_MS, false),
        (ENDS_MS - 1, false),
        (ENDS_MS, true),
        (ENDS_MS + WINDOW_SLACK_MS - 1, true),
        (STARTS_MS - WINDOW_SLACK_MS, true),
    ] {
        let delivery = delivery(&[at(inside)]);
        assert_eq!(validated(&sku, &delivery, false).is_none(), is_read_again, "{inside}");
        assert!(validated(&sku, &delivery, true).unwrap()[0].is_ok(), "{inside}");
    }
    for outside in [ENDS_MS + WINDOW_SLACK_MS, STARTS_MS - WINDOW_SLACK_MS - 1, 0] {
        let malformed = flaw(&sku, &at(outside));
        assert_eq!(malformed.flaw, EnvelopeFlaw::Window, "{malformed}");
        let side = if outside < STARTS_MS { "before the window" } else { "after the window" };
        assert!(malformed.what.contains(side), "{malformed}");
    }
}

#[test]
fn a_forged_intent_is_poison_and_its_neighbours_are_valid() {
    let sku = sku(Policy::Unlimited { max_quantity: 5 }, 4);
    let (valid, forged) = (intent(&sku, 1, 2, 3), intent(&sku, 2, 3, 3));
    let forged = pack(&forged, &IntentKey::new(b"another key"));
    let body = [pack(&valid, &reader().key), forged, pack(&valid, &reader().key)].concat();
    let delivery = Delivery { body: body.into(), ..delivery(&[valid]) };
    let intents = validated(&sku, &delivery, false).unwrap();
    let flaws: Vec<_> = intents.iter().map(|it| it.as_ref().err().map(|err| err.flaw)).collect();
    assert_eq!(flaws, [None, Some(EnvelopeFlaw::Forged), None]);
}
