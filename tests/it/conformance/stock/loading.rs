//! Loading buckets from the ledger, by one loader at a time.

use floodgate::domain::{
    Epoch, LoaderToken, Order, OrderIntent, OrderState, Phase, RecordState, Refusal, RequestRecord,
    Verdict,
};
use floodgate::stock::{BucketHealth, Error};

use super::{Backend, FIRST_LOAD, OPENING, Shop, failure, ordered, sku};
use crate::support::offers::{ANY, ONE, order_of, quota};

/// The answer to a repeat of a request with this record.
fn repeated(record: RequestRecord) -> Verdict {
    match record.state {
        RecordState::Queued { .. } => Verdict::Queued { intent: None },
        _ => Verdict::Repeat(record),
    }
}

pub async fn a_bucket_that_was_not_loaded_sells_nothing(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    let health = || shop.stock.health(&shop.sku, Phase::Open, OPENING);
    assert_eq!(health().await.unwrap(), BucketHealth::Missing);
    let reservation = shop.reservation(1, 1, 1);
    let not_loaded = Err(Error::NotLoaded(shop.sku.no));
    assert_eq!(shop.stock.reserve(shop.key_of(&reservation), vec![reservation]).await, not_loaded);
    assert_eq!(shop.stock.facts(shop.sku.no).await, Err(Error::NotLoaded(shop.sku.no)));

    let mut loading = shop.stock.load(shop.sku.clone(), FIRST_LOAD).await.unwrap();
    loading.orders(vec![order_of(&shop.reservation(9, 9, 1))]).await.unwrap();
    assert_eq!(
        health().await.unwrap(),
        BucketHealth::Missing,
        "the bucket is missing until it is published"
    );
    assert_eq!(shop.stock.reserve(shop.key_of(&reservation), vec![reservation]).await, not_loaded);
    loading.publish(9, Phase::Open, OPENING).await.unwrap();
    assert_eq!(health().await.unwrap(), BucketHealth::Ready);
    assert_eq!(shop.reserve(reservation).await, Verdict::Reserved);
}

pub async fn units_are_dealt_out_evenly(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 4).await;
    assert_eq!(shop.free().await, [3, 3, 2, 2]);
    shop.refresh().await;
    assert_eq!(shop.stock.left(shop.sku.no), 10);
    assert!(!shop.is_sold_out());
}

pub async fn orders_and_failures_are_remembered(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 100, 2) };
    let reservations: Vec<_> = (1..=6).map(|no| shop.reservation(no, no, 2)).collect();
    let of = |at: usize, state| Order { state, ..order_of(&reservations[at]) };
    let orders = vec![
        of(0, OrderState::PendingPayment),
        of(1, OrderState::Paid),
        of(2, OrderState::Cancelled),
        of(3, OrderState::TimedOut),
    ];
    let first = reservations[0].request;
    let failures = vec![
        failure(&reservations[4], Refusal::AlreadyPurchased { first }),
        failure(&reservations[5], Refusal::SoldOut),
    ];
    let [failed, sold_out] = [0, 1].map(|at| RequestRecord::failed(&failures[at]));
    shop.load(FIRST_LOAD, 96, orders, failures).await;

    for (reservation, state) in
        reservations.iter().zip([OrderState::PendingPayment, OrderState::Paid])
    {
        let record = RequestRecord::ordered(&Order { state, ..order_of(reservation) });
        assert_eq!(shop.reserve(*reservation).await, Verdict::Repeat(record));
        let other = shop.reservation(reservation.request.get(), reservation.buyer.get(), 1);
        assert_eq!(shop.reserve(other).await, Verdict::Refused(Refusal::RequestIdReused));
    }
    for buyer in [3, 4, 5, 6] {
        shop.take(&[shop.reservation(100 + buyer, buyer, 1)]).await;
    }
    assert_eq!(shop.record(&reservations[4]).await, Some(failed));
    assert_eq!(shop.reserve(reservations[5]).await, Verdict::Repeat(sold_out));
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (92, 4, 4));
    assert_eq!(facts.released_units, 2, "the sold-out failure gives back no units");
}

pub async fn units_of_a_quota_add_up(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, quota(5), 100, 1) };
    let mut orders: Vec<_> = (1..=4).map(|no| order_of(&shop.reservation(no, 7, 1))).collect();
    (orders[3].state, orders[3].counts_for_limit) = (OrderState::Refunded, false);
    orders.push(order_of(&shop.reservation(5, 8, 5)));
    // The ledger is read in chunks.
    let mut loading = shop.stock.load(shop.sku.clone(), FIRST_LOAD).await.unwrap();
    for order in orders {
        loading.orders(vec![order]).await.unwrap();
    }
    loading.publish(92, Phase::Open, OPENING).await.unwrap();

    let over = |owned| Verdict::Refused(Refusal::QuotaExceeded { owned, limit: 5 });
    assert_eq!(shop.reserve(shop.reservation(10, 7, 3)).await, over(3));
    assert_eq!(shop.reserve(shop.reservation(11, 8, 1)).await, over(5));
    assert_eq!(shop.reserve(shop.reservation(12, 7, 2)).await, Verdict::Reserved);
}

pub async fn queued_requests_of_a_load_keep_their_units(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    let [waiting, committed, failed] = [1, 2, 3].map(|no| shop.reservation(no, no, 2));
    // The buyer of `second` has an order by another request.
    let (second, first) = (shop.reservation(4, 4, 1), shop.reservation(9, 4, 1));
    let mut loading = shop.stock.load(shop.sku.clone(), FIRST_LOAD).await.unwrap();
    loading.queued(vec![waiting, committed, failed, second]).await.unwrap();
    loading.orders(vec![order_of(&committed), order_of(&first)]).await.unwrap();
    loading.failures(vec![failure(&failed, Refusal::SoldOut)]).await.unwrap();
    loading.publish(7, Phase::Open, OPENING).await.unwrap();

    assert_eq!(shop.units().await, 4, "three units are held by waiting requests");
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.num_ordered, facts.num_unsettled), (2, 2));
    for (reservation, record) in [
        (waiting, RequestRecord::queued(&waiting)),
        (committed, ordered(&committed)),
        (failed, RequestRecord::failed(&failure(&failed, Refusal::SoldOut))),
        (second, RequestRecord::queued(&second)),
    ] {
        assert_eq!(shop.reserve(reservation).await, repeated(record));
    }
    assert_eq!(shop.reserve(shop.reservation(23, 3, 1)).await, Verdict::Reserved);

    shop.settle(&[waiting]).await;
    assert_eq!(shop.record(&waiting).await, Some(ordered(&waiting)));
    shop.release(&second, Refusal::AlreadyPurchased { first: first.request }).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (4, 3, 1));
}

pub async fn queued_requests_of_a_load_count_for_a_quota(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, quota(5), 10, 1) };
    let [order, waiting] = [1, 2].map(|no| shop.reservation(no, 7, 2));
    let mut loading = shop.stock.load(shop.sku.clone(), FIRST_LOAD).await.unwrap();
    loading.queued(vec![order, waiting]).await.unwrap();
    loading.orders(vec![order_of(&order)]).await.unwrap();
    loading.publish(8, Phase::Open, OPENING).await.unwrap();
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    assert_eq!(shop.reserve(shop.reservation(3, 7, 2)).await, over);
    assert_eq!(shop.reserve(shop.reservation(4, 7, 1)).await, Verdict::Reserved);
    assert_eq!(shop.units().await, 5);
}

pub async fn an_accepted_request_stays_queued_through_a_load(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let [waiting, committed, failed, settled] = [1, 2, 3, 4].map(|no| shop.reservation(no, no, 2));
    shop.take(&[waiting, committed, failed, settled]).await;
    shop.settle(&[settled]).await;
    // The ledger decided two of the requests while the bucket accepted no results.
    let orders = vec![order_of(&settled), order_of(&committed)];
    shop.load(LoaderToken(2), 6, orders, vec![failure(&failed, Refusal::Ended)]).await;

    assert_eq!(shop.units().await, 4, "the waiting request holds two units");
    for (reservation, record) in [
        (waiting, RequestRecord::queued(&waiting)),
        (committed, ordered(&committed)),
        (failed, RequestRecord::failed(&failure(&failed, Refusal::Ended))),
        (settled, ordered(&settled)),
    ] {
        assert_eq!(shop.reserve(reservation).await, repeated(record));
        assert_eq!(shop.record(&reservation).await, Some(record));
    }
    assert_eq!(shop.reserve(shop.reservation(23, 23, 1)).await, Verdict::Reserved);
    let mut unsettled = Vec::new();
    for bucket in 0..2 {
        unsettled.extend(shop.stock.unsettled(shop.key(bucket)).await.unwrap());
    }
    assert!(unsettled.iter().any(|intent| intent.request == waiting.request), "{unsettled:?}");

    // The results that the ledger decided meanwhile are delivered again by a resubmission.
    shop.settle(&[committed]).await;
    shop.release(&failed, Refusal::Ended).await;
    shop.release(&waiting, Refusal::Ended).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (5, 2, 1));
}

pub async fn loaders_that_end_early_lose_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let [a, b, c] = [1, 2, 3].map(|no| shop.reservation(no, no, 2));
    shop.take(&[a, b, c]).await;
    shop.settle(&[c]).await;
    let begin = |no| shop.stock.load(shop.sku.clone(), LoaderToken(no));
    drop(begin(2).await.unwrap());
    begin(3).await.unwrap().clear().await.unwrap();
    let mut loading = begin(4).await.unwrap();
    loading.clear().await.unwrap();
    loading.orders(vec![order_of(&c)]).await.unwrap();
    drop(loading);
    shop.load(LoaderToken(5), 8, vec![order_of(&c)], Vec::new()).await;

    assert_eq!(shop.units().await, 4);
    for reservation in [a, b] {
        assert_eq!(shop.reserve(reservation).await, repeated(RequestRecord::queued(&reservation)));
    }
    shop.settle(&[a, b]).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (4, 3, 0));
}

pub async fn a_load_without_units_is_sold_out(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    shop.load(FIRST_LOAD, 0, Vec::new(), Vec::new()).await;
    shop.refresh().await;
    assert!(shop.is_sold_out());
    assert_eq!(shop.stock.left(shop.sku.no), 0);
}

pub async fn another_process_finds_what_was_loaded(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    let order = shop.reservation(1, 1, 2);
    shop.load(FIRST_LOAD, 8, vec![order_of(&order)], Vec::new()).await;
    let other = Shop { stock: backend.open().await, sku: shop.sku.clone() };
    let health = other.stock.health(&other.sku, Phase::Open, OPENING).await.unwrap();
    assert_eq!(health, BucketHealth::Ready);
    assert_eq!(other.reserve(order).await, Verdict::Repeat(ordered(&order)));
    let reservation = shop.reservation(2, 2, 1);
    other.take(&[reservation]).await;
    assert_eq!(shop.reserve(reservation).await, repeated(RequestRecord::queued(&reservation)));
    assert_eq!(shop.units().await, 7);
}

pub async fn a_later_load_replaces_the_one_before(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let (kept, lost) = (shop.reservation(1, 1, 2), shop.reservation(2, 2, 2));
    shop.take(&[kept, lost]).await;
    shop.settle(&[kept, lost]).await;
    let paid = Order { state: OrderState::Paid, ..order_of(&kept) };
    shop.load(LoaderToken(2), 7, vec![paid], Vec::new()).await;

    assert_eq!(shop.units().await, 7);
    assert_eq!(shop.record(&lost).await, None);
    assert_eq!(shop.record(&kept).await, Some(RequestRecord::ordered(&paid)));
    assert_eq!(shop.reserve(lost).await, Verdict::Reserved, "the load released the buyer");
    assert_eq!(shop.units().await, 5);
}

pub async fn a_loader_with_a_smaller_token_changes_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let begin = |no| shop.stock.load(shop.sku.clone(), LoaderToken(no));
    let fenced = |error: &Error| matches!(error, Error::Fenced { .. });

    let mut late = begin(5).await.unwrap();
    late.orders(vec![order_of(&shop.reservation(1, 1, 2))]).await.unwrap();
    let good = begin(6).await.unwrap();
    assert!(
        late.publish(1, Phase::Open, OPENING).await.is_err_and(|e| fenced(&e)),
        "ended by a newer loader"
    );
    assert!(begin(4).await.is_err_and(|e| fenced(&e)), "a newer loader has begun");
    good.publish(10, Phase::Open, OPENING).await.unwrap();
    for no in [4, 5, 6] {
        assert!(begin(no).await.is_err_and(|e| fenced(&e)), "token {no} is fenced");
    }
    assert_eq!(shop.free().await, [5, 5]);
    assert_eq!(shop.record(&shop.reservation(1, 1, 2)).await, None);
    shop.take(&[shop.reservation(2, 1, 1)]).await;
}

pub async fn buckets_in_another_phase_are_reported_and_set(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let health = |phase, epoch| shop.stock.health(&shop.sku, phase, epoch);
    assert_eq!(health(Phase::Open, OPENING).await, Ok(BucketHealth::Ready));
    let elsewhere = Ok(BucketHealth::OtherPhase { latest: (OPENING, Phase::Open) });
    assert_eq!(health(Phase::Paused, OPENING).await, elsewhere);
    assert_eq!(health(Phase::Open, Epoch(2)).await, elsewhere);
    shop.set_phase(Phase::Paused, OPENING).await;
    assert_eq!(health(Phase::Paused, OPENING).await, Ok(BucketHealth::Ready));
    shop.set_phase(Phase::Open, Epoch(2)).await;
    assert_eq!(health(Phase::Open, Epoch(2)).await, Ok(BucketHealth::Ready));
    assert_eq!(shop.free().await, [5, 5]);
}

pub async fn an_older_opening_is_ignored(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    shop.set_phase(Phase::Open, Epoch(3)).await;
    shop.set_phase(Phase::Closed, Epoch(2)).await;
    let mut reservation = shop.reservation(1, 1, 1);
    assert_eq!(shop.reserve(reservation).await, Verdict::StaleEpoch);
    reservation.epoch = Epoch(3);
    assert_eq!(shop.reserve(reservation).await, Verdict::Reserved, "still open");
    shop.set_phase(Phase::Paused, Epoch(3)).await;
    reservation.request = crate::support::offers::request(2);
    assert_eq!(shop.reserve(reservation).await, Verdict::Refused(Refusal::NotStarted));
    let any = Shop { stock: shop.stock.clone(), sku: sku(2, ANY, 1, 1) };
    assert_eq!(
        any.stock.set_phase(&any.sku, Phase::Open, OPENING).await,
        Err(Error::NotLoaded(any.sku.no)),
        "the SKU is not loaded"
    );
}

pub async fn late_and_crossed_phase_changes_take_nothing_back(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let there = shop.in_other_process(backend).await;
    // One process reopens and closes; older changes of another process arrive afterwards.
    for (phase, epoch) in [(Phase::Open, Epoch(2)), (Phase::Closed, Epoch(2))] {
        shop.set_phase(phase, epoch).await;
    }
    for (phase, epoch) in
        [(Phase::Open, Epoch(2)), (Phase::Paused, Epoch(2)), (Phase::Open, OPENING)]
    {
        there.set_phase(phase, epoch).await;
        for process in [&shop, &there] {
            let health = process.stock.health(&process.sku, Phase::Closed, Epoch(2)).await;
            assert_eq!(health, Ok(BucketHealth::Ready), "after {phase:?} {epoch:?}");
        }
        let reservation = OrderIntent { epoch, ..shop.reservation(1, 1, 1) };
        let refused =
            if epoch == OPENING { Verdict::StaleEpoch } else { Verdict::Refused(Refusal::Ended) };
        assert_eq!(shop.reserve(reservation).await, refused);
    }
    assert_eq!(shop.free().await, [5, 5]);
}

pub async fn a_phase_set_during_a_load_is_published_with_it(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let there = shop.in_other_process(backend).await;
    // The loader read the sale while it was open.
    let loading = shop.stock.load(shop.sku.clone(), LoaderToken(2)).await.unwrap();
    there.set_phase(Phase::Closed, OPENING).await;
    loading.publish(10, Phase::Open, OPENING).await.unwrap();
    let health = there.stock.health(&there.sku, Phase::Closed, OPENING).await;
    assert_eq!(health, Ok(BucketHealth::Ready));
    assert_eq!(shop.reserve(shop.reservation(1, 1, 1)).await, Verdict::Refused(Refusal::Ended));

    // A loader that has read the next opening publishes that opening.
    let loading = shop.stock.load(shop.sku.clone(), LoaderToken(3)).await.unwrap();
    loading.publish(10, Phase::Open, Epoch(2)).await.unwrap();
    let reservation = OrderIntent { epoch: Epoch(2), ..shop.reservation(1, 1, 1) };
    assert_eq!(shop.reserve(reservation).await, Verdict::Reserved);
}
