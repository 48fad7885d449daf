//! Random operations on the embedded gate's books, compared with the reference model.

use std::collections::HashSet;
use std::sync::Arc;

use floodgate::domain::{
    Book, BucketSnapshot, BuyerId, Counting, Epoch, Order, OrderIntent, OrderState, Phase, Policy,
    RecordState, Refusal, RequestId, RequestRecord, Sku, SkuHistory, SkuNo, SlotReturns, Verdict,
};
use proptest::prelude::*;

use crate::support::oracle::{Model, ModelAnswer};
use crate::support::random::num_cases;

/// One purchase: buyer, request, units, and how many changes its order has at once; the last of
/// three ends it.
type Operation = (u64, u64, u32, u16);

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::OnePerBuyer { max_quantity: 3 }),
        Just(Policy::Unlimited { max_quantity: 3 }),
        (1..6_u32).prop_map(|limit| Policy::Quota { limit, max_quantity: 3 }),
    ]
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec((1..12_u64, 1..30_u64, 1..4_u32, 0..4_u16), 1..60)
}

fn sku(policy: Policy, initial: u32) -> Arc<Sku> {
    Arc::new(Sku {
        no: SkuNo(1),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 1,
        initial,
        policy,
        buckets: 1,
        payment_window_s: 1,
        bar_lapsed: false,
        slot_returns: SlotReturns::default(),
        ends_max: 3,
        queue_timeout_s: 0,
        history: SkuHistory::default(),
    })
}

fn reservation(policy: Policy, request: u64, buyer: u64, quantity: u32) -> OrderIntent {
    let (request, buyer) = (RequestId::new(request).unwrap(), BuyerId::new(buyer).unwrap());
    sku(policy, 0).intent(request, buyer, Epoch(1), quantity, 0)
}

/// The model's answer that corresponds to a gate's verdict.
fn answer_of(verdict: Verdict) -> ModelAnswer {
    match verdict {
        Verdict::Reserved => ModelAnswer::Yes,
        Verdict::Repeat(RequestRecord { state: RecordState::Failed(refusal), .. })
        | Verdict::Refused(refusal) => ModelAnswer::No(refusal),
        Verdict::Queued { .. } | Verdict::Repeat(_) => ModelAnswer::Again,
        Verdict::Short => ModelAnswer::No(Refusal::SoldOut),
        Verdict::StaleEpoch => panic!("the test has one epoch only"),
        Verdict::Full => panic!("the test has no outbox"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: num_cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_book_agrees_with_the_model(
        policy in policies(),
        initial in 0..20_u32,
        operations in operations(),
    ) {
        let mut model = Model::new(policy, initial);
        let mut book = Book::new(sku(policy, initial), Counting::InStock);
        book.set_available(initial);
        book.set_phase(Phase::Open, Epoch(1));
        let mut ended = HashSet::new();
        for (buyer, request, quantity, num_versions) in operations {
            // Under one_per_buyer the request id is derived from the buyer.
            let request = if policy.derives_request_id() { buyer } else { request };
            let reservation = reservation(policy, request, buyer, quantity);
            // A repeat of an ended request reads its order.
            if ended.contains(&reservation.request) {
                let answers_end = match book.reserve(&reservation) {
                    Verdict::Repeat(record) => matches!(
                        record.state,
                        RecordState::Ordered { state: OrderState::TimedOut, .. }
                    ),
                    verdict => verdict == Verdict::Refused(Refusal::RequestIdReused),
                };
                prop_assert!(answers_end);
                continue;
            }
            let verdict = book.reserve(&reservation);
            let expected = model.buy(reservation.request, reservation.buyer, quantity);
            prop_assert_eq!(answer_of(verdict), expected);
            if num_versions > 0 && verdict == Verdict::Reserved {
                let order = reservation.order(reservation.placed_at_ms);
                for version in 0..num_versions {
                    let is_end = version == 2;
                    let (state, counts_for_limit) =
                        if is_end { (OrderState::TimedOut, false) } else { (order.state, true) };
                    let order = Order { state, version, counts_for_limit, ..order };
                    prop_assert!(book.settle(&order), "the first settle is new");
                    prop_assert!(!book.settle(&order), "a repeated settle is not");
                    if is_end {
                        model.end(reservation.request);
                        ended.insert(reservation.request);
                    }
                }
                prop_assert!(!book.settle(&order), "a late settle is not");
            }
            prop_assert_eq!(book.snapshot().available, model.available());
        }
        for (request, buyer, quantity) in model.orders() {
            let record = book.record(request, Some(buyer)).unwrap();
            prop_assert_eq!(record.quantity, quantity);
        }
        let counted = model.orders().filter(|_| policy.quota().is_some());
        let buyers: HashSet<_> = counted.map(|(_, buyer, _)| buyer).collect();
        prop_assert_eq!(book.snapshot().num_buyers, buyers.len());
    }

    #[test]
    fn refusals_of_a_ledger_that_counts_leave_no_record(
        policy in policies(),
        initial in 1..20_u32,
        operations in operations(),
    ) {
        let mut book = Book::new(sku(policy, initial), Counting::InLedger);
        book.set_phase(Phase::Open, Epoch(1));
        for (buyer, request, quantity, _) in operations {
            let before = book.snapshot();
            let reservation = reservation(policy, request, buyer, quantity);
            if book.reserve(&reservation) == Verdict::Reserved {
                for _ in 0..2 {
                    prop_assert_eq!(book.release(reservation.request, Refusal::SoldOut), 0);
                    prop_assert_eq!(book.snapshot(), before);
                    prop_assert!(!book.has_record(reservation.request));
                }
                prop_assert_eq!(book.reserve(&reservation), Verdict::Reserved);
                if quantity.is_multiple_of(2) {
                    continue;
                }
                // The ledger records what ended without its decision, and so does the book.
                let state = RecordState::Failed(Refusal::CancelledByBuyer);
                let cancelled = RequestRecord { state, ..RequestRecord::queued(&reservation) };
                for _ in 0..2 {
                    book.release(reservation.request, Refusal::CancelledByBuyer);
                    prop_assert_eq!(book.reserve(&reservation), Verdict::Repeat(cancelled));
                    let after = book.snapshot();
                    let released_units = before.released_units + u64::from(quantity);
                    let num_failed = before.num_failed + 1;
                    let expected = BucketSnapshot { num_failed, released_units, ..before };
                    prop_assert_eq!(after, expected);
                }
            }
        }
    }
}
