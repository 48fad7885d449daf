//! Reading requests and units, from the store and from the cache of a process.

use floodgate::domain::{
    LoaderToken, OrderIntent, Phase, RecordState, Refusal, RequestRecord, Verdict,
};

use super::{Backend, OPENING, Shop, ordered};
use crate::support::offers::{ANY, ONE, buyer, order_of, quota, request};

pub async fn a_request_is_shown_to_its_owner_only(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 10, 1).await;
    let reservation = shop.reservation(7, 1, 3);
    shop.take(&[reservation]).await;
    let found = RequestRecord::queued(&reservation);
    let read = |owner| shop.stock.record(shop.key(0), reservation.request, Some(buyer(owner)));
    assert_eq!(read(1).await.unwrap(), Some(found));
    assert_eq!(read(2).await.unwrap(), None);
    assert_eq!(
        shop.stock.record(shop.key(0), reservation.request, None).await.unwrap(),
        Some(found)
    );
    assert_eq!(shop.stock.record(shop.key(0), request(8), None).await.unwrap(), None);
    assert_eq!(shop.stock.record(shop.key(0), request(8), Some(buyer(1))).await.unwrap(), None);
}

pub async fn many_statuses_come_in_the_order_of_the_requests(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 3_000, 4).await;
    let reservations: Vec<_> = (1..=1_500).map(|no| shop.reservation(no, no, 1)).collect();
    for bucket in 0..4 {
        let own: Vec<_> = reservations
            .iter()
            .filter(|reservation| reservation.bucket.0 == bucket)
            .copied()
            .collect();
        shop.decide(&own).await;
    }
    shop.settle(&reservations[..500]).await;
    for reservation in &reservations[500..510] {
        shop.release(reservation, Refusal::Ended).await;
    }
    let mut requests: Vec<_> =
        reservations.iter().map(|reservation| (reservation.request, reservation.buyer)).collect();
    requests.push((request(1), buyer(2)));
    requests.push((request(9_999), buyer(1)));
    requests.push(requests[0]);
    let records = shop.stock.records(shop.sku.no, requests).await.unwrap();
    assert_eq!(records.len(), 1_503);
    assert!(
        reservations[..500]
            .iter()
            .zip(&records)
            .all(|(reservation, found)| *found == Some(ordered(reservation)))
    );
    let states: Vec<_> = records.iter().map(|record| record.map(|record| record.state)).collect();
    let failed = Some(RecordState::Failed(Refusal::Ended));
    assert!(states[500..510].iter().all(|found| *found == failed));
    let queued = Some(RecordState::Queued { epoch: OPENING });
    assert!(states[510..1_500].iter().all(|found| *found == queued));
    assert_eq!(records[1_500..], [None, None, Some(ordered(&reservations[0]))]);
}

/// Whether the cache of the process cannot rule out that the request was accepted.
fn may_have_accepted(shop: &Shop, reservation: &OrderIntent) -> bool {
    shop.stock.may_have_accepted(shop.key_of(reservation), reservation.request)
}

pub async fn a_request_that_a_bucket_may_hold_is_never_denied(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 3, 2).await;
    let there = here.in_other_process(backend).await;
    for shop in [&here, &there] {
        shop.refresh().await;
    }
    let reservations = (1..1_000)
        .map(|no| here.reservation(no, no, 1))
        .filter(|reservation| reservation.bucket.0 == 0);
    let reservations: Vec<_> = reservations.take(2).chain([last_of_bucket_1(&here)]).collect();
    for (at, reservation) in reservations.iter().enumerate() {
        here.take(&[*reservation]).await;
        assert!(may_have_accepted(&here, reservation), "a process caches its own requests at once");
        there.refresh().await;
        for known in &reservations[..=at] {
            assert!(
                may_have_accepted(&here, known) && may_have_accepted(&there, known),
                "{known:?}"
            );
        }
    }
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
        assert!(reservations.iter().all(|reservation| may_have_accepted(shop, reservation)));
        shop.settle(&reservations[..1]).await;
        shop.refresh().await;
        assert!(reservations.iter().all(|reservation| may_have_accepted(shop, reservation)));
    }
    // A process that has just started has an empty cache and rules out no request.
    let started = here.in_other_process(backend).await;
    assert!(reservations.iter().all(|reservation| may_have_accepted(&started, reservation)));
    started.refresh().await;
    assert!(reservations.iter().all(|reservation| may_have_accepted(&started, reservation)));
    started.set_phase(Phase::Paused, OPENING).await;
    assert!(reservations.iter().all(|reservation| may_have_accepted(&started, reservation)));
}

fn last_of_bucket_1(shop: &Shop) -> OrderIntent {
    (1..1_000)
        .map(|no| shop.reservation(no, no, 1))
        .find(|reservation| reservation.bucket.0 == 1)
        .unwrap()
}

pub async fn sold_out_is_known_and_forgotten_when_units_come_back(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 4, 1).await;
    let there = here.in_other_process(backend).await;
    let [a, b] = [here.reservation(1, 1, 3), here.reservation(2, 2, 1)];
    here.take(&[a]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(!shop.is_sold_out());
        assert_eq!(shop.stock.left(shop.sku.no), 1);
    }
    there.take(&[b]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
        assert_eq!(shop.stock.left(shop.sku.no), 0);
    }
    here.release(&a, Refusal::Ended).await;
    assert!(!here.is_sold_out(), "the releasing process updates its cache at once");
    assert_eq!(here.stock.left(here.sku.no), 3);
    there.refresh().await;
    assert!(!there.is_sold_out(), "another process updates its cache at the next poll");
    there.take(&[there.reservation(3, 3, 3)]).await;
}

/// A unit is released and sold again between two polls of another process. That process reads zero
/// units both times, and must not rule out the request that bought the unit.
pub async fn a_unit_that_was_sold_again_is_not_denied(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 2, 1).await;
    let there = here.in_other_process(backend).await;
    let [a, b, c] =
        [here.reservation(1, 1, 1), here.reservation(2, 2, 1), here.reservation(3, 3, 1)];
    here.take(&[a, b]).await;
    here.settle(&[a]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    here.release(&b, Refusal::AlreadyPurchased { first: a.request }).await;
    here.take(&[c]).await;
    there.refresh().await;
    assert!(may_have_accepted(&there, &c));
    here.refresh().await;
    assert!([a, b, c].iter().all(|reservation| may_have_accepted(&here, reservation)
        && may_have_accepted(&there, reservation)));
    // An order arrives for a request that was never reserved here, while no unit is free.
    let late = here.reservation(4, 4, 1);
    here.settle(&[late]).await;
    there.refresh().await;
    assert!(may_have_accepted(&there, &late) && may_have_accepted(&here, &late));
    assert!(there.is_sold_out());
}

/// The store loses a request, a load returns its unit, and another buyer takes it. The number of
/// requests is the same as before and no unit is free, but another process must drop its cache.
pub async fn a_load_that_lost_a_request_invalidates_the_cache(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 2, 1).await;
    let there = here.in_other_process(backend).await;
    let [a, b, c] =
        [here.reservation(1, 1, 1), here.reservation(2, 2, 1), here.reservation(3, 3, 1)];
    // Two changes, as many as after the load: the opening and one accepted request.
    here.take(&[a]).await;
    here.take(&[b]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    here.settle(&[a, b]).await;
    here.load(LoaderToken(2), 1, vec![order_of(&a)], Vec::new()).await;
    here.take(&[c]).await;
    there.refresh().await;
    assert!(there.is_sold_out());
    assert!(may_have_accepted(&there, &c) && may_have_accepted(&there, &a));
    assert_eq!(there.reserve(b).await, Verdict::Short, "the lost request is unknown to the store");
}

pub async fn the_facts_are_the_sum_of_the_buckets(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(3), 40, 4).await;
    let reservations: Vec<_> = (1..=20).map(|no| shop.reservation(no, 1 + no % 10, 1)).collect();
    shop.take(&reservations).await;
    shop.settle(&reservations[..8]).await;
    shop.release(&reservations[8], Refusal::SoldOut).await;
    shop.release(&reservations[9], Refusal::Ended).await;
    shop.stock.lend(shop.key(0), floodgate::domain::BucketNo(1), 1).await.unwrap();

    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    let mut sum = floodgate::domain::invariants::BucketFacts::default();
    let mut failed = 0;
    for bucket in 0..4 {
        let counts = shop.counts(bucket).await;
        sum.left += u64::from(counts.available) + u64::from(counts.lent_units);
        sum.num_unsettled += counts.num_unsettled as u64;
        sum.num_ordered += counts.num_ordered as u64;
        sum.released_units += counts.released_units;
        sum.num_buyers = Some(sum.num_buyers.unwrap_or(0) + counts.num_buyers as u64);
        failed += counts.num_failed;
    }
    (sum.counts_units, sum.oldest_unsettled_ms) = (true, Some(reservations[0].placed_at_ms));
    let (lender, loan) = facts.open_loan.expect("bucket 0 has lent a unit");
    assert_eq!((lender, loan.units), (floodgate::domain::BucketNo(0), 3));
    sum.open_loan = facts.open_loan;
    assert_eq!(facts, sum);
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled, failed), (21, 8, 10, 2));
    assert_eq!((facts.released_units, facts.num_buyers), (1, Some(10)));
    shop.stock.cache_left(shop.sku.no, 3);
    shop.refresh().await;
    assert_eq!(
        shop.stock.left(shop.sku.no),
        21,
        "this stock ignores the cached count of the ledger"
    );
}

pub async fn the_store_answers(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 3).await;
    shop.stock.ping().await.unwrap();
    let missing = shop.stock.snapshot(shop.key(3)).await;
    assert!(missing.is_err(), "the SKU has three buckets: {missing:?}");
    let reservation =
        OrderIntent { sku: floodgate::domain::SkuNo(99), ..shop.reservation(1, 1, 1) };
    let key = floodgate::domain::BucketKey { sku: reservation.sku, bucket: reservation.bucket };
    assert!(shop.stock.reserve(key, vec![reservation]).await.is_err());
    assert!(shop.stock.facts(reservation.sku).await.is_err());
    assert!(!shop.stock.is_sold_out(reservation.sku));
    assert_eq!(shop.reserve(shop.reservation(2, 2, 1)).await, Verdict::Reserved);
}
