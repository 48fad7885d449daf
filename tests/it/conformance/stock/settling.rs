//! Settling orders and releasing refused requests.

use std::sync::Arc;

use floodgate::domain::{
    BuyerId, Counting, Failure, Order, OrderIntent, OrderState, PayBy, RecordState, Refusal,
    RequestRecord, Verdict,
};
use floodgate::stock::MemoryStock;

use super::{Backend, FIRST_LOAD, Memory, PLACED_AT_MS, Shop, sku};
use crate::support::offers::{ANY, ONE, order_of, quota, request, run};

pub async fn an_order_settles_its_request_once(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let [a, b] = [shop.reservation(1, 1, 2), shop.reservation(2, 2, 1)];
    shop.take(&[a, b]).await;
    for _ in 0..2 {
        shop.settle(&[a]).await;
        let counts = shop.counts(0).await;
        assert_eq!((counts.num_unsettled, counts.num_ordered, counts.available), (1, 1, 7));
    }
    let waiting = shop.stock.unsettled(shop.key(0)).await.unwrap();
    assert_eq!(waiting, [backend.unsettled(&b)]);
    shop.settle(&[a, b, b]).await;
    assert_eq!(shop.stock.unsettled(shop.key(0)).await.unwrap(), []);
    assert_eq!(shop.record(&b).await, Some(ordered(&b)));
}

pub async fn a_refusal_gives_back_once(backend: &dyn Backend) {
    for (no, policy) in [(1, ONE), (2, quota(5)), (3, ANY)] {
        let shop = Shop { stock: backend.open().await, sku: sku(no, policy, 10, 1) };
        shop.load(FIRST_LOAD, 10, Vec::new(), Vec::new()).await;
        let reservation = shop.reservation(1, 1, 3);
        shop.take(&[reservation]).await;
        let refusal = Refusal::QuotaExceeded { owned: 5, limit: 5 };
        for _ in 0..3 {
            shop.release(&reservation, refusal).await;
            let counts = shop.counts(0).await;
            assert_eq!((counts.available, counts.released_units), (10, 3), "{policy:?}");
            assert_eq!((counts.num_unsettled, counts.num_failed, counts.num_buyers), (0, 1, 0));
        }
        let failed = Verdict::Repeat(released(&reservation, refusal));
        assert_eq!(shop.reserve(reservation).await, failed);
        shop.release(&shop.reservation(9, 9, 5), refusal).await;
        assert_eq!(
            shop.free().await,
            [10],
            "a request that was never accepted gives back no units"
        );
    }
}

pub async fn a_refusal_gives_back_only_what_the_ledger_still_has(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let [a, b] = [shop.reservation(1, 1, 3), shop.reservation(2, 2, 1)];
    shop.take(&[a, b]).await;
    let both = vec![
        failure(&a, Refusal::SoldOut),
        failure(&b, Refusal::AlreadyPurchased { first: request(9) }),
    ];
    shop.stock.release(shop.key(0), both).await.unwrap();
    let counts = shop.counts(0).await;
    assert_eq!((counts.available, counts.released_units, counts.num_failed), (7, 1, 2));
}

pub async fn a_refusal_of_a_request_that_was_lost_is_entered(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let [ended, sold_out] = [1, 2].map(|no| shop.reservation(no, no, 2));
    for _ in 0..2 {
        shop.release(&ended, Refusal::Ended).await;
        shop.release(&sold_out, Refusal::SoldOut).await;
        let facts = shop.stock.facts(shop.sku.no).await.unwrap();
        assert_eq!((facts.left, facts.released_units), (10, 2));
        for (reservation, reason) in [(ended, Refusal::Ended), (sold_out, Refusal::SoldOut)] {
            let record = RequestRecord::failed(&failure(&reservation, reason));
            assert_eq!(shop.record(&reservation).await, Some(record));
            assert_eq!(shop.reserve(reservation).await, Verdict::Repeat(record));
        }
    }
}

pub async fn the_first_answer_of_the_ledger_stays(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let [sold, failed] = [shop.reservation(1, 1, 2), shop.reservation(2, 2, 2)];
    shop.take(&[sold, failed]).await;
    shop.settle(&[sold]).await;
    shop.release(&failed, Refusal::Ended).await;
    shop.release(&sold, Refusal::Ended).await;
    shop.settle(&[failed]).await;
    assert_eq!(shop.record(&sold).await, Some(ordered(&sold)));
    assert_eq!(shop.record(&failed).await, Some(released(&failed, Refusal::Ended)));
    let counts = shop.counts(0).await;
    assert_eq!((counts.available, counts.num_ordered, counts.num_failed), (8, 1, 1));
}

pub async fn an_order_that_was_never_accepted_here_takes_its_units(backend: &dyn Backend) {
    for (no, policy) in [(1, ONE), (2, quota(5)), (3, ANY)] {
        let shop = Shop { stock: backend.open().await, sku: sku(no, policy, 10, 1) };
        shop.load(FIRST_LOAD, 5, Vec::new(), Vec::new()).await;
        let [a, b] = [shop.reservation(1, 1, 4), shop.reservation(2, 2, 3)];
        for _ in 0..2 {
            shop.settle(&[a]).await;
            assert_eq!(shop.free().await, [1], "{policy:?}");
        }
        assert_eq!(shop.reserve(a).await, Verdict::Repeat(ordered(&a)));
        let refusal = match policy {
            ONE | ANY => Refusal::RequestIdReused,
            _ => Refusal::QuotaExceeded { owned: 4, limit: 5 },
        };
        let again = if policy.quota().is_none() {
            shop.reservation(1, 1, 1)
        } else {
            shop.reservation(3, 1, 2)
        };
        assert_eq!(shop.reserve(again).await, Verdict::Refused(refusal));
        // More units than are free: they were sold twice, and the ledger will refuse one request.
        shop.settle(&[b]).await;
        assert_eq!(shop.free().await, [0]);
    }
}

pub async fn an_order_that_ended_takes_no_units(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let reservation = shop.reservation(1, 1, 4);
    let order = Order { state: OrderState::Cancelled, ..order_of(&reservation) };
    shop.stock.settle(vec![(reservation.bucket, order)]).await.unwrap();
    let counts = shop.counts(0).await;
    assert_eq!((counts.available, counts.num_ordered), (10, 1));
    shop.take(&[shop.reservation(2, 1, 1)]).await;
}

pub async fn orders_of_many_buckets_and_skus_settle_together(backend: &dyn Backend) {
    let one = Shop::open(backend, ONE, 4_000, 4).await;
    let other = Shop { stock: one.stock.clone(), sku: sku(2, ANY, 4_000, 2) };
    other.load(FIRST_LOAD, 4_000, Vec::new(), Vec::new()).await;
    let mut orders = Vec::new();
    for shop in [&one, &other] {
        let reservations: Vec<_> = (1..=2_000).map(|no| shop.reservation(no, no, 1)).collect();
        for bucket in 0..shop.sku.buckets {
            let own: Vec<_> = reservations
                .iter()
                .filter(|reservation| reservation.bucket.0 == bucket)
                .copied()
                .collect();
            assert!(shop.decide(&own).await.iter().all(|verdict| *verdict == Verdict::Reserved));
        }
        orders.extend(
            reservations.iter().map(|reservation| (reservation.bucket, order_of(reservation))),
        );
    }
    fastrand::Rng::with_seed(3).shuffle(&mut orders);
    one.stock.settle(orders).await.unwrap();
    for shop in [&one, &other] {
        let facts = shop.stock.facts(shop.sku.no).await.unwrap();
        assert_eq!((facts.num_unsettled, facts.num_ordered, facts.left), (0, 2_000, 2_000));
    }
    one.stock.settle(Vec::new()).await.unwrap();
}

pub async fn a_buyer_who_was_let_go_may_buy_again(backend: &dyn Backend) {
    let some = Shop::open(backend, quota(5), 10, 1).await;
    let (kept, released) = (some.reservation(1, 1, 2), some.reservation(2, 1, 3));
    some.take(&[kept, released]).await;
    some.release(&released, Refusal::Ended).await;
    let over = Refusal::QuotaExceeded { owned: 2, limit: 5 };
    assert_eq!(some.reserve(some.reservation(3, 1, 4)).await, Verdict::Refused(over));
    some.take(&[some.reservation(4, 1, 3)]).await;
}

pub async fn unsettled_intents_come_back_word_for_word(backend: &dyn Backend) {
    let here = Shop::open(backend, quota(9), 2_000, 2).await;
    let there = here.in_other_process(backend).await;
    let reservations: Vec<_> = (1..=1_200_u64)
        .map(|no| {
            let quantity = 1 + u32::try_from(no % 3).unwrap();
            let of = here.reservation(no << 40 | 5, no, quantity);
            OrderIntent { placed_at_ms: PLACED_AT_MS + i64::try_from(no).unwrap(), ..of }
        })
        .filter(|reservation| reservation.bucket.0 == 1)
        .take(300)
        .collect();
    let size = reservations.len();
    assert_eq!(here.decide(&reservations).await, vec![Verdict::Reserved; size]);
    let mut expected: Vec<_> =
        reservations.iter().map(|reservation| backend.unsettled(reservation)).collect();
    expected.sort_by_key(|intent| intent.request);
    // A process without sales of its own also finds all of them.
    for shop in [&here, &there] {
        let mut found = shop.stock.unsettled(shop.key(1)).await.unwrap();
        found.sort_by_key(|intent| intent.request);
        assert_eq!(found, expected);
        assert_eq!(shop.stock.unsettled(shop.key(0)).await.unwrap(), []);
        assert_eq!(shop.stock.num_unsettled(shop.sku.no).await, Ok(size as u64));
    }
    assert_eq!(there.counts(1).await.oldest_unsettled_ms, Some(expected[0].placed_at_ms));
}

/// Even if the last poll of this process found no requests.
pub async fn a_request_accepted_after_a_read_is_unsettled(backend: &dyn Backend) {
    let here = Shop::open(backend, quota(9), 10, 1).await;
    let there = here.in_other_process(backend).await;
    there.stock.refresh(there.sku.no).await.unwrap();
    let reservation = here.reservation(1, 1, 1);
    here.take(&[reservation]).await;
    let found = there.stock.unsettled(there.key(0)).await.unwrap();
    assert_eq!(found, [backend.unsettled(&reservation)]);
}

pub async fn intents_are_unsettled_until_the_ledger_has_decided_them(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let [a, b, c, d] = [1, 2, 3, 4].map(|no| shop.reservation(no, no, 1));
    shop.take(&[a, b, c]).await;
    shop.refresh().await;
    let buyers = async || {
        let found = shop.stock.unsettled(shop.key(0)).await.unwrap();
        let mut buyers: Vec<_> = found.into_iter().map(|intent| intent.buyer).collect();
        buyers.sort();
        buyers.into_iter().map(BuyerId::get).collect::<Vec<_>>()
    };
    assert_eq!(buyers().await, [1, 2, 3]);
    shop.settle(&[a]).await;
    assert_eq!(buyers().await, [2, 3]);
    shop.settle(&[b, c]).await;
    shop.refresh().await;
    assert_eq!(buyers().await, [0; 0]);
    // Accepted after the last poll.
    shop.take(&[d]).await;
    assert_eq!(buyers().await, [4]);
    shop.refresh().await;
    assert_eq!(buyers().await, [4]);
}

/// It records no refusal, and decides a repeat again: units may have come back.
#[test]
fn a_refusal_of_a_ledger_that_counts_is_not_kept_however_often_it_arrives() {
    run(async {
        let stock = Arc::new(MemoryStock::new(Counting::InLedger));
        let shop = Shop::open(&Memory { stock }, ONE, 10, 1).await;
        let reservation = shop.reservation(1, 1, 1);
        shop.take(&[reservation]).await;
        for _ in 0..2 {
            shop.release(&reservation, Refusal::SoldOut).await;
            assert_eq!(shop.record(&reservation).await, None);
        }
        shop.take(&[reservation]).await;
    });
}

/// The record of a new order.
pub(super) fn ordered(reservation: &OrderIntent) -> RequestRecord {
    let OrderIntent { buyer, quantity, placed_at_ms, amount, .. } = *reservation;
    let pay_by = PayBy::from_ms(Some(placed_at_ms + 900_000));
    let state =
        RecordState::Ordered { state: OrderState::PendingPayment, version: 0, amount, pay_by };
    RequestRecord { buyer, quantity, placed_at_ms, state }
}

/// The record of an accepted request that was released for this reason.
pub(super) fn released(reservation: &OrderIntent, reason: Refusal) -> RequestRecord {
    let state = RecordState::Failed(reason);
    RequestRecord { state, ..RequestRecord::queued(reservation) }
}

/// The ledger's refusal of a reservation.
pub(super) fn failure(reservation: &OrderIntent, reason: Refusal) -> Failure {
    Failure {
        request: reservation.request,
        sku: reservation.sku,
        buyer: reservation.buyer,
        quantity: reservation.quantity,
        reason,
        recorded_at_ms: reservation.placed_at_ms + 5,
    }
}
