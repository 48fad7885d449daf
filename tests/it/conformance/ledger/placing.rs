//! The blind insert and the examination after a conflict.

use futures_util::future::join_all;

use floodgate::db::{ErrorClass, Ledger};
use floodgate::domain::{
    Examination, Failure, Order, OrderIntent, PlaceOutcome, Refusal, Sku, SkuNo, TraceId,
};

use super::{Backend, NOW_MS};
use crate::support::offers::{ANY, ONE, buyer, intent, offer, orders, quota, request};

pub async fn a_clean_batch_becomes_orders(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ONE, 10).await;
    // Large ids, out of order, with distinct values in neighbouring fields.
    let batch: Vec<OrderIntent> = [(i64::MAX as u64, 3, 1), (5, i64::MAX as u64, 2), (6, 1, 4)]
        .map(|(request, buyer, quantity)| intent(&sku, request, buyer, quantity))
        .into();

    assert!(ledger.place(batch.clone()).await.unwrap().is_some());

    let mut expected: Vec<Order> = batch.iter().map(|intent| intent.order(NOW_MS)).collect();
    expected.sort_by_key(|order| order.buyer);
    assert_eq!(orders(&*ledger, sku.no).await, expected);
    assert_eq!(ledger.available(sku.no).await.unwrap(), 3);
}

/// Doubles (and so JavaScript) round such numbers; a ledger must not.
pub async fn ids_of_nineteen_digits_travel_unchanged(backend: &dyn Backend) {
    const MAX: u64 = i64::MAX as u64;
    let ids: [u64; 10] = [
        MAX,
        MAX - 1,
        MAX - 2,
        9_007_199_254_740_993,
        9_007_199_254_740_995,
        123_456_789_012_345_678,
        999_999_999_999_999_999,
        1_000_000_000_000_000_001,
        4_611_686_018_427_387_905,
        9_223_372_036_854_775_001,
    ];
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", quota(3), 100).await;
    // Each id once as a buyer and once as a request.
    let mut batch = Vec::new();
    for (at, request) in ids.into_iter().enumerate() {
        batch.push(intent(&sku, request, ids[(at + 3) % ids.len()], 1));
    }
    assert!(ledger.place(batch.clone()).await.unwrap().is_some());

    let mut expected: Vec<Order> = batch.iter().map(|intent| intent.order(NOW_MS)).collect();
    expected.sort_by_key(|order| order.buyer);
    assert_eq!(orders(&*ledger, sku.no).await, expected);
    let seen = ledger.examine(batch.clone()).await.unwrap();
    for intent in &batch {
        let order = intent.order(NOW_MS);
        assert_eq!(
            ledger.order_timeline(intent.request).await.unwrap().map(|it| it.order),
            Some(order)
        );
        assert_eq!(ledger.orders_of(intent.buyer, None, 9).await.unwrap(), [order]);
        assert_eq!(seen.orders.get(&intent.request), Some(&order));
        assert_eq!(seen.owned.get(&(sku.no, intent.buyer)), Some(&1));
    }
    let failed = request(MAX - 7);
    let failure = Failure { request: failed, ..failure(&sku, MAX, Refusal::Ended) };
    ledger.record_failures(vec![failure]).await.unwrap();
    assert_eq!(ledger.failure(failed).await.unwrap(), Some(failure));
}

pub async fn nothing_to_place_is_no_conflict(backend: &dyn Backend) {
    let ledger = backend.open().await;
    assert!(ledger.place(Vec::new()).await.unwrap().is_some());
    assert_eq!(ledger.examine(Vec::new()).await.unwrap(), Examination::default());
}

pub async fn one_bad_intent_keeps_the_whole_batch_out(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let one = offer(&*ledger, "one", ONE, 5).await;
    let any = offer(&*ledger, "any", ANY, 5).await;
    let some = offer(&*ledger, "quota", quota(2), 5).await;
    let existing = vec![intent(&one, 1, 1, 1), intent(&any, 2, 1, 1), intent(&some, 3, 1, 1)];
    assert!(ledger.place(existing).await.unwrap().is_some());
    let unknown_sku = Sku { no: SkuNo(999), ..any.clone() };
    let before = full_state(&*ledger, &[&one, &any, &some]).await;

    for (why, bad) in [
        ("same request, same order", intent(&one, 1, 1, 1)),
        ("same request, other SKU", intent(&any, 3, 8, 1)),
        ("second order of one buyer", intent(&one, 10, 1, 1)),
        ("over the quota", intent(&some, 10, 1, 2)),
        ("over the quota in one request", intent(&some, 10, 9, 3)),
        ("more than the free units", intent(&any, 10, 1, 3)),
        ("more than the initial stock", intent(&any, 10, 1, 1_000_000)),
        ("unknown SKU", intent(&unknown_sku, 10, 1, 1)),
    ] {
        for position in 0..3 {
            let mut batch =
                vec![intent(&any, 20, 2, 1), intent(&some, 21, 2, 1), intent(&any, 22, 4, 1)];
            batch.insert(position, bad);
            assert!(ledger.place(batch).await.unwrap().is_none(), "{why}");
            assert_eq!(full_state(&*ledger, &[&one, &any, &some]).await, before, "{why}");
        }
    }
    let twice = vec![intent(&any, 30, 2, 1), intent(&any, 30, 2, 1)];
    assert!(ledger.place(twice).await.unwrap().is_none());
    assert_eq!(full_state(&*ledger, &[&one, &any, &some]).await, before);

    let error = ledger.place(vec![intent(&any, 40, 2, 0)]).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Bug, "no units: {error}");
    assert_eq!(full_state(&*ledger, &[&one, &any, &some]).await, before);
    assert!(ledger.place(vec![intent(&any, 41, 2, 1)]).await.unwrap().is_some());
}

/// The orders, free units and examination of each SKU.
async fn full_state(ledger: &dyn Ledger, skus: &[&Sku]) -> Vec<(Vec<Order>, u32, Examination)> {
    let mut all = Vec::new();
    for sku in skus {
        let buyers: Vec<_> = (1..10).map(|number| intent(sku, number, number, 1)).collect();
        let seen = ledger.examine(buyers).await.unwrap();
        all.push((orders(ledger, sku.no).await, ledger.available(sku.no).await.unwrap(), seen));
    }
    all
}

pub async fn a_batch_of_several_skus_takes_from_each(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let one = offer(&*ledger, "one", ONE, 5).await;
    let any = offer(&*ledger, "any", ANY, 5).await;
    let batch = vec![
        intent(&any, 1, 1, 2),
        intent(&one, 2, 1, 1),
        intent(&any, 3, 1, 3),
        intent(&one, 4, 2, 1),
    ];
    assert!(ledger.place(batch).await.unwrap().is_some());
    assert_eq!(ledger.available(any.no).await.unwrap(), 0);
    assert_eq!(ledger.available(one.no).await.unwrap(), 3);
}

pub async fn a_quota_counts_over_batches_and_within_one(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", quota(5), 100).await;
    let both = vec![intent(&sku, 1, 1, 2), intent(&sku, 2, 1, 2), intent(&sku, 3, 2, 5)];
    assert!(ledger.place(both).await.unwrap().is_some());
    assert!(ledger.place(vec![intent(&sku, 4, 1, 2)]).await.unwrap().is_none());
    assert!(ledger.place(vec![intent(&sku, 5, 1, 1)]).await.unwrap().is_some());
    assert!(ledger.place(vec![intent(&sku, 6, 1, 1)]).await.unwrap().is_none());
    let seen = ledger.examine(vec![intent(&sku, 6, 1, 1), intent(&sku, 7, 3, 1)]).await.unwrap();
    assert_eq!(seen.owned.get(&(sku.no, buyer(1))), Some(&5));
    assert_eq!(seen.owned.get(&(sku.no, buyer(3))), None);
}

pub async fn the_last_unit_is_sold_and_no_more(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 3).await;
    assert!(ledger.place(vec![intent(&sku, 1, 1, 3)]).await.unwrap().is_some());
    assert!(ledger.place(vec![intent(&sku, 2, 2, 1)]).await.unwrap().is_none());
    assert_eq!(ledger.available(sku.no).await.unwrap(), 0);
    assert_eq!(orders(&*ledger, sku.no).await.len(), 1);
}

pub async fn a_failed_request_never_becomes_an_order(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 1_000).await;
    ledger.record_failures(vec![failure(&sku, 700, Refusal::SoldOut)]).await.unwrap();
    // The failed request is last in a batch that needs more than one IN list.
    let batch: Vec<_> = (1..=700).map(|number| intent(&sku, number, number, 1)).collect();
    assert!(ledger.place(batch.clone()).await.unwrap().is_none());
    assert_eq!(orders(&*ledger, sku.no).await, []);
    let seen = ledger.examine(batch.clone()).await.unwrap();
    assert_eq!(seen.failures, [(request(700), Refusal::SoldOut)].into());
    assert!(ledger.place(batch[..699].to_vec()).await.unwrap().is_some());
}

fn failure(sku: &Sku, number: u64, reason: Refusal) -> Failure {
    Failure {
        request: request(number),
        sku: sku.no,
        buyer: buyer(number),
        quantity: 1,
        reason,
        recorded_at_ms: 9,
    }
}

pub async fn many_writers_sell_exactly_the_stock(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", quota(2), 50).await;
    // 40 batches of three one-unit orders: 16 fit, and no batch is placed in part.
    let batches = (0..40_u64).map(|batch| {
        let intents = (1..=3).map(|n| intent(&sku, batch * 3 + n, batch * 3 + n, 1)).collect();
        ledger.place(intents)
    });
    let placed = join_all(batches).await;
    let all = placed.into_iter().filter(|placed| placed.as_ref().unwrap().is_some());
    assert_eq!(all.count(), 16);
    assert_eq!(orders(&*ledger, sku.no).await.len(), 48);
    assert_eq!(ledger.available(sku.no).await.unwrap(), 2);
}

pub async fn a_large_batch_is_examined_whole(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let one = offer(&*ledger, "one", ONE, 2_000).await;
    let some = offer(&*ledger, "quota", quota(3), 2_000).await;
    let batch: Vec<_> = (1..=600)
        .map(|number| intent(&one, number, number, 1))
        .chain((601..=1_200).map(|number| intent(&some, number, number, 2)))
        .collect();
    assert!(ledger.place(batch.clone()).await.unwrap().is_some());

    let seen = ledger.examine(batch.clone()).await.unwrap();
    let expected = Examination {
        orders: batch.iter().map(|intent| (intent.request, intent.order(NOW_MS))).collect(),
        failures: [].into(),
        first_requests: (1..=600).map(|n| ((one.no, buyer(n)), request(n))).collect(),
        owned: (601..=1_200).map(|n| ((some.no, buyer(n)), 2)).collect(),
        available: [(one.no, 1_400), (some.no, 800)].into(),
        barred: [].into(),
    };
    assert_eq!(seen, expected);
}

pub async fn an_examination_has_the_reason_of_each_refusal(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let one = offer(&*ledger, "one", ONE, 3).await;
    let some = offer(&*ledger, "quota", quota(2), 5).await;
    let existing = vec![intent(&one, 1, 1, 1), intent(&some, 2, 1, 2)];
    assert!(ledger.place(existing.clone()).await.unwrap().is_some());
    ledger.record_failures(vec![failure(&one, 3, Refusal::Ended)]).await.unwrap();

    let refused = |reason| Some(PlaceOutcome::Refused(reason));
    let first = request(1);
    let cases = [
        (existing[0], Some(PlaceOutcome::Repeat(existing[0].order(NOW_MS)))),
        // A repeat may carry another trace.
        (
            OrderIntent { trace: TraceId(0), ..existing[1] },
            Some(PlaceOutcome::Repeat(existing[1].order(NOW_MS))),
        ),
        (intent(&one, 1, 1, 2), refused(Refusal::RequestIdReused)),
        (intent(&some, 2, 2, 1), refused(Refusal::RequestIdReused)),
        (intent(&one, 3, 3, 1), refused(Refusal::Ended)),
        (intent(&one, 4, 1, 1), refused(Refusal::AlreadyPurchased { first })),
        (intent(&some, 5, 1, 1), refused(Refusal::QuotaExceeded { owned: 2, limit: 2 })),
        (intent(&one, 6, 2, 3), refused(Refusal::SoldOut)),
        (intent(&one, 7, 2, 2), None),
        (intent(&one, 8, 3, 1), refused(Refusal::SoldOut)),
    ];
    let batch = cases.iter().map(|(intent, _)| *intent).collect();
    let mut seen = ledger.examine(batch).await.unwrap();
    for (intent, expected) in cases {
        assert_eq!(seen.admit(&intent), expected, "{intent:?}");
    }
}

pub async fn orders_survive_a_restart(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", quota(2), 9).await;
    let batch = vec![intent(&sku, 1, 1, 2), intent(&sku, 2, 2, 1)];
    assert!(ledger.place(batch.clone()).await.unwrap().is_some());
    ledger.close().await;

    let ledger = backend.open().await;
    assert!(ledger.place(batch).await.unwrap().is_none());
    assert!(ledger.place(vec![intent(&sku, 3, 1, 1)]).await.unwrap().is_none());
    assert!(ledger.place(vec![intent(&sku, 4, 2, 1)]).await.unwrap().is_some());
    assert_eq!(ledger.available(sku.no).await.unwrap(), 5);
}
