//! Reserving units, and the answers to repeats.

use floodgate::domain::{Epoch, OrderIntent, Phase, Policy, Refusal, Sku, TraceId, Verdict};
use futures_util::future::join_all;

use super::{Backend, OPENING, Shop, ordered, released};
use crate::support::offers::{ANY, ONE, quota};

const QUEUED: Verdict = Verdict::Queued { intent: None };

fn refused(refusal: Refusal) -> Verdict {
    Verdict::Refused(refusal)
}

pub async fn the_policies_hold(backend: &dyn Backend) {
    let one = Shop::open(backend, ONE, 10, 1).await;
    one.take(&[one.reservation(1, 1, 2)]).await;
    // Under one_per_buyer a buyer has one request id, which is the limit.
    assert_eq!(one.reserve(one.reservation(1, 1, 2)).await, QUEUED);
    assert_eq!(one.reserve(one.reservation(1, 1, 1)).await, refused(Refusal::RequestIdReused));
    one.take(&[one.reservation(3, 2, 1)]).await;
    assert_eq!(one.free().await, [7]);

    let some = Shop { stock: one.stock.clone(), sku: super::sku(2, quota(5), 10, 1) };
    some.load(super::FIRST_LOAD, 10, Vec::new(), Vec::new()).await;
    some.take(&[some.reservation(1, 1, 2), some.reservation(2, 1, 2)]).await;
    let over = Refusal::QuotaExceeded { owned: 4, limit: 5 };
    assert_eq!(some.reserve(some.reservation(3, 1, 2)).await, refused(over));
    some.take(&[some.reservation(4, 1, 1), some.reservation(5, 2, 5)]).await;
    assert_eq!(some.free().await, [0]);

    let any = Shop { stock: one.stock.clone(), sku: super::sku(3, ANY, 10, 1) };
    any.load(super::FIRST_LOAD, 10, Vec::new(), Vec::new()).await;
    any.take(&[any.reservation(1, 1, 3), any.reservation(2, 1, 3), any.reservation(3, 1, 3)]).await;
    assert_eq!(any.free().await, [1]);
    assert_eq!(one.free().await, [7], "each SKU has its own units");
}

pub async fn a_repeat_reads_what_was_accepted(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 10, 1).await;
    let first = shop.reservation(1, 1, 2);
    shop.take(&[first]).await;
    shop.stock.set_phase(&shop.sku, Phase::Open, Epoch(2)).await.unwrap();
    let dearer = Sku { price: shop.sku.price + 1, ..(*shop.sku).clone() };
    let at_ms = first.placed_at_ms + 1;
    let repeat = dearer.intent(first.request, first.buyer, Epoch(2), first.quantity, at_ms);
    let repeat = OrderIntent { trace: TraceId(9), ..repeat };
    let verdicts = shop.stock.reserve(shop.key_of(&repeat), vec![repeat]).await.unwrap();
    assert_eq!(verdicts, [Verdict::Queued { intent: backend.kept(first) }]);
}

pub async fn a_repeat_reads_the_status_of_its_request(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let [a, b] = [shop.reservation(1, 1, 2), shop.reservation(2, 2, 1)];
    shop.take(&[a, b]).await;
    assert_eq!(shop.decide(&[a, b]).await, [QUEUED, QUEUED]);
    shop.settle(&[a]).await;
    shop.release(&b, Refusal::Ended).await;
    // A repeat may arrive much later.
    let late = |reservation: OrderIntent| OrderIntent {
        placed_at_ms: reservation.placed_at_ms + 9_000,
        ..reservation
    };
    for _ in 0..2 {
        let expected = [ordered(&a), released(&b, Refusal::Ended)].map(Verdict::Repeat);
        assert_eq!(shop.decide(&[late(a), late(b)]).await, expected);
    }
    assert_eq!(shop.free().await, [8]);
}

pub async fn a_repeat_is_answered_in_every_phase_and_of_every_opening(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let known = shop.reservation(1, 1, 2);
    shop.take(&[known]).await;
    let mut fresh = shop.reservation(2, 2, 1);
    for (phase, epoch, answer) in [
        (Phase::Paused, OPENING, refused(Refusal::NotStarted)),
        (Phase::Open, Epoch(2), Verdict::StaleEpoch),
        (Phase::Closed, OPENING, Verdict::StaleEpoch),
    ] {
        shop.set_phase(phase, epoch).await;
        assert_eq!(shop.decide(&[known, fresh]).await, [QUEUED, answer], "{phase:?}");
    }
    shop.set_phase(Phase::Closed, Epoch(2)).await;
    fresh.epoch = Epoch(2);
    assert_eq!(shop.decide(&[known]).await, [QUEUED]);
    assert_eq!(shop.reserve(fresh).await, refused(Refusal::Ended));
    assert_eq!(shop.free().await, [8]);
}

pub async fn a_sold_out_bucket_still_answers_repeats(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 3, 1).await;
    let [a, b] = [shop.reservation(1, 1, 2), shop.reservation(2, 2, 1)];
    shop.take(&[a, b]).await;
    let batch = [shop.reservation(3, 3, 1), a, b];
    assert_eq!(shop.decide(&batch).await, [Verdict::Short, QUEUED, QUEUED]);
}

pub async fn the_same_id_with_other_content_is_refused(backend: &dyn Backend) {
    for policy in [ONE, ANY, quota(5)] {
        let shop =
            Shop { stock: backend.open().await, sku: super::sku(policy_no(policy), policy, 9, 1) };
        shop.load(super::FIRST_LOAD, 9, Vec::new(), Vec::new()).await;
        shop.take(&[shop.reservation(1, 1, 2)]).await;
        let reused = refused(Refusal::RequestIdReused);
        assert_eq!(shop.reserve(shop.reservation(1, 1, 3)).await, reused, "another quantity");
        assert_eq!(shop.reserve(shop.reservation(1, 2, 2)).await, reused, "another buyer");
        shop.settle(&[shop.reservation(1, 1, 2)]).await;
        assert_eq!(shop.reserve(shop.reservation(1, 1, 3)).await, reused);
        assert_eq!(shop.free().await, [7], "{policy:?}");
    }
}

fn policy_no(policy: Policy) -> i32 {
    1 + i32::try_from(policy.kind().len()).unwrap()
}

pub async fn requests_of_one_batch_see_each_other(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    let a = shop.reservation(1, 1, 2);
    let batch =
        [a, a, shop.reservation(1, 1, 3), shop.reservation(3, 2, 8), shop.reservation(4, 3, 1)];
    let expected = [
        Verdict::Reserved,
        QUEUED,
        refused(Refusal::RequestIdReused),
        Verdict::Reserved,
        Verdict::Short,
    ];
    assert_eq!(shop.decide(&batch).await, expected);

    let some = Shop { stock: shop.stock.clone(), sku: super::sku(2, quota(5), 10, 1) };
    some.load(super::FIRST_LOAD, 10, Vec::new(), Vec::new()).await;
    let batch = [
        some.reservation(1, 1, 3),
        some.reservation(2, 1, 3),
        some.reservation(3, 1, 2),
        some.reservation(4, 1, 1),
    ];
    let expected = [
        Verdict::Reserved,
        refused(Refusal::QuotaExceeded { owned: 3, limit: 5 }),
        Verdict::Reserved,
        refused(Refusal::QuotaExceeded { owned: 5, limit: 5 }),
    ];
    assert_eq!(some.decide(&batch).await, expected);
}

pub async fn a_batch_larger_than_one_call_is_decided_in_order(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 2_000, 1).await;
    let mut batch: Vec<_> = (1..=2_500).map(|no| shop.reservation(no, no, 1)).collect();
    batch.push(batch[0]);
    let verdicts = shop.decide(&batch).await;
    assert_eq!(verdicts.len(), 2_501);
    assert!(verdicts[..2_000].iter().all(|verdict| *verdict == Verdict::Reserved));
    assert!(verdicts[2_000..2_500].iter().all(|verdict| *verdict == Verdict::Short));
    assert_eq!(verdicts[2_500], QUEUED);
    let empty = shop.stock.reserve(shop.key(0), Vec::new()).await;
    assert_eq!(empty, Ok(Vec::new()));
}

pub async fn a_batch_of_several_openings_is_decided_one_by_one(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    shop.set_phase(Phase::Open, Epoch(2)).await;
    let of = |no, epoch| OrderIntent { epoch: Epoch(epoch), ..shop.reservation(no, no, 1) };
    let batch = [of(1, 1), of(2, 2), of(3, 1), of(4, 3), of(5, 2)];
    let (stale, reserved) = (Verdict::StaleEpoch, Verdict::Reserved);
    assert_eq!(shop.decide(&batch).await, [stale, reserved, stale, stale, reserved]);
}

pub async fn reservations_of_more_than_is_left_take_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 5, 1).await;
    let batch = [
        shop.reservation(1, 1, 6),
        shop.reservation(2, 1, 4),
        shop.reservation(3, 1, 2),
        shop.reservation(4, 1, 1),
    ];
    let (reserved, short) = (Verdict::Reserved, Verdict::Short);
    assert_eq!(shop.decide(&batch).await, [short, reserved, short, reserved]);
    assert_eq!(shop.record(&batch[0]).await, None, "a reservation without units is not stored");
    assert_eq!(shop.counts(0).await.num_unsettled, 2);
}

pub async fn ids_of_nineteen_digits_stay_apart(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 100, 1).await;
    let top = i64::MAX as u64;
    // Neighbours that a double cannot distinguish.
    let reservations: Vec<_> = (0..8).map(|n| shop.reservation(top - n, top - 20 - n, 1)).collect();
    let reservations: Vec<_> = reservations
        .into_iter()
        .chain((0..8).map(|n| shop.reservation((1 << 53) + n, (1 << 53) + n, 1)))
        .collect();
    assert_eq!(shop.decide(&reservations).await, vec![Verdict::Reserved; 16]);
    assert_eq!(shop.decide(&reservations).await, vec![QUEUED; 16]);
    let mut found = shop.stock.unsettled(shop.key(0)).await.unwrap();
    found.sort_by_key(|intent| intent.request);
    let mut expected: Vec<_> =
        reservations.iter().map(|reservation| backend.unsettled(reservation)).collect();
    expected.sort_by_key(|intent| intent.request);
    assert_eq!(found, expected);
    shop.settle(&reservations).await;
    for reservation in &reservations {
        assert_eq!(shop.record(reservation).await, Some(ordered(reservation)));
    }
    assert_eq!(shop.free().await, [84]);
}

pub async fn many_at_once_get_exactly_the_stock(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 100, 1).await;
    let there = here.in_other_process(backend).await;
    let batches = (0..20).map(|no| {
        let shop = if no % 2 == 0 { &here } else { &there };
        // Both processes send every request.
        let first = (no / 2) * 30;
        async move {
            let reservations: Vec<_> =
                (1..=30).map(|no| shop.reservation(first + no, first + no, 1)).collect();
            shop.decide(&reservations).await
        }
    });
    let verdicts: Vec<_> = join_all(batches).await.into_iter().flatten().collect();
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    assert_eq!((count(Verdict::Reserved), count(QUEUED)), (100, 100));
    assert_eq!(count(Verdict::Short), 400);
    assert_eq!(here.free().await, [0]);
}
