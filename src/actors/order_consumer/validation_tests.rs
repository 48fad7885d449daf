use proptest::prelude::*;

use super::*;
use crate::broker::Headers;
use crate::domain::{BuyerId, Policy, RequestId, Reservation, TraceId, samples};
use crate::redis::scripts::intent::{INTENT_BYTES, pack_into};

const OURS: &str = "0badcafe";
const SENT_AT_MS: i64 = 1_800_000_000_020;

fn sku(policy: Policy, buckets: u16) -> Arc<Sku> {
    let sample = samples::sku();
    Arc::new(Sku { no: SkuNo(7), price: 250, initial: 100, policy, buckets, ..sample })
}

fn intent(sku: &Sku, request: u64, buyer: u64, quantity: u32) -> OrderIntent {
    let buyer = BuyerId::new(buyer).unwrap();
    let asked = Reservation {
        request: RequestId::new(request).unwrap(),
        sku: sku.no,
        bucket: BucketNo::home_of(buyer, sku.buckets),
        epoch: Epoch(2),
        buyer,
        quantity,
        asked_at_ms: 1_800_000_000_000,
        trace: TraceId(9),
    };
    asked.intent(sku)
}

fn delivery(intents: &[OrderIntent]) -> Delivery {
    let mut body = Vec::new();
    for intent in intents {
        pack_into(intent, &mut body);
    }
    let headers = envelope::headers(&body, OURS, SENT_AT_MS).unwrap();
    Delivery { tag: 1, headers, routing_key: "0".to_owned(), num_before: 0, body: body.into() }
}

/// Judges by a catalog that knows this SKU in its third opening.
fn judged(sku: &Arc<Sku>, delivery: &Delivery, is_fresh: bool) -> Validation {
    judge(delivery, OURS, is_fresh, |no| (no == sku.no).then(|| (Arc::clone(sku), Epoch(3))))
}

/// What is wrong with this intent alone.
fn flaw(sku: &Arc<Sku>, intent: &OrderIntent) -> MalformedEnvelope {
    match judged(sku, &delivery(&[*intent]), true) {
        Validation::Parts { good, mut poison } if good.is_empty() => poison.remove(0).1,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn whatever_a_gate_accepts_is_good(
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
        let Validation::Parts { good, poison } = judged(&sku, &delivery(&[intent]), false) else {
            panic!("not judged")
        };
        let sent = OrderIntent { published_at_ms: Some(SENT_AT_MS), ..intent };
        prop_assert_eq!(good.into_iter().map(|(_, intent)| intent).collect::<Vec<_>>(), [sent]);
        prop_assert!(poison.is_empty());
    }
}

#[test]
fn whatever_contradicts_the_sale_is_poison_and_said_so() {
    let sku = sku(Policy::Quota { limit: 6, max_quantity: 5 }, 4);
    let fine = intent(&sku, 1, 2, 3);
    let elsewhere = BucketNo((fine.bucket.0 + 1) % 4);
    let none = Epoch(0);
    for (bad, says) in [
        (OrderIntent { quantity: 6, ..fine }, "quantity 6 is more than 5"),
        (OrderIntent { quantity: u32::MAX, ..fine }, "quantity 4294967295 is more than 5"),
        (OrderIntent { epoch: none, ..fine }, "epoch 0 is none of 1 to 3"),
        (OrderIntent { epoch: Epoch(4), ..fine }, "epoch 4 is none of 1 to 3"),
        (OrderIntent { epoch: Epoch(-1), ..fine }, "epoch -1 is none of 1 to 3"),
        (OrderIntent { bucket: elsewhere, ..fine }, "bucket"),
        (OrderIntent { slot: 0, ..fine }, "slot 0, the policy's is 1"),
        (OrderIntent { quota: None, ..fine }, "quota None, the policy's is Some(6)"),
        (OrderIntent { quota: Some(7), ..fine }, "quota Some(7), the policy's is Some(6)"),
        (OrderIntent { amount: -750, ..fine }, "amount -750, price times quantity is 750"),
        (OrderIntent { pay_by_ms: 0, ..fine }, "payment by 0"),
    ] {
        let malformed = flaw(&sku, &bad);
        assert_eq!(malformed.flaw, EnvelopeFlaw::Content, "{malformed}");
        assert!(malformed.what.starts_with(says), "{malformed}");
    }
    let strange = flaw(&sku, &OrderIntent { sku: SkuNo(-3), ..fine });
    assert_eq!((strange.flaw, strange.what.as_str()), (EnvelopeFlaw::Sku, "no sale has sku -3"));
}

#[test]
fn a_sku_or_an_opening_that_is_not_known_is_looked_up_before_it_is_poison() {
    let sku = sku(Policy::Unlimited { max_quantity: 5 }, 4);
    let fine = intent(&sku, 1, 2, 3);
    for stranger in [OrderIntent { sku: SkuNo(8), ..fine }, OrderIntent { epoch: Epoch(4), ..fine }]
    {
        let both = delivery(&[fine, stranger]);
        assert_eq!(judged(&sku, &both, false), Validation::Stranger);
        let Validation::Parts { good, poison } = judged(&sku, &both, true) else {
            panic!("not judged")
        };
        assert_eq!((good.len(), poison.len()), (1, 1));
        assert_eq!(&good[0].0[..], &both.body[..INTENT_BYTES]);
        assert_eq!(&poison[0].0[..], &both.body[INTENT_BYTES..]);
    }
}

#[test]
fn a_message_of_somebody_else_is_poison_as_a_whole() {
    let sku = sku(Policy::Unlimited { max_quantity: 5 }, 4);
    let mut foreign = delivery(&[intent(&sku, 1, 2, 3)]);
    foreign.headers = Headers::default();
    let Validation::Poison(malformed) = judged(&sku, &foreign, false) else { panic!("taken") };
    assert_eq!(malformed.flaw, EnvelopeFlaw::Foreign);
}
