//! Buckets are built from the ledger, by one loader at a time.

use floodgate::domain::{
    Epoch, Order, OrderState, Phase, Refusal, RequestStatus, Reservation, Verdict,
};
use floodgate::stock::{BucketHealth, Error, LoaderToken};

use super::{Backend, FIRST_LOAD, OPENING, Shop, failure, ordered, sku};
use crate::support::offers::{ANY, ONE, quota};

pub async fn what_nobody_loaded_is_not_sold(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    let condition = || shop.stock.condition(&shop.sku, Phase::Open, OPENING);
    assert_eq!(condition().await.unwrap(), BucketHealth::Missing);
    let ask = shop.ask(1, 1, 1);
    let not_loaded = Err(Error::NotLoaded(shop.sku.no));
    assert_eq!(shop.stock.reserve(shop.home(&ask), vec![ask]).await, not_loaded);
    assert_eq!(shop.stock.facts(shop.sku.no).await.unwrap(), None);

    let mut loading = shop.stock.load(shop.sku.clone(), 1, FIRST_LOAD).await.unwrap();
    loading.orders(vec![shop.order(&shop.ask(9, 9, 1))]).await.unwrap();
    assert_eq!(condition().await.unwrap(), BucketHealth::Missing, "until it is published");
    assert_eq!(shop.stock.reserve(shop.home(&ask), vec![ask]).await, not_loaded);
    loading.publish(9, Phase::Open, OPENING).await.unwrap();
    assert_eq!(condition().await.unwrap(), BucketHealth::Ready);
    assert_eq!(shop.reserve(ask).await, Verdict::Reserved);
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
    let asks: Vec<_> = (1..=6).map(|no| shop.ask(no, no, 2)).collect();
    let of = |at: usize, state| Order { state, ..shop.order(&asks[at]) };
    let orders = vec![
        of(0, OrderState::PendingPayment),
        of(1, OrderState::Paid),
        of(2, OrderState::Cancelled),
        of(3, OrderState::TimedOut),
    ];
    let first = asks[0].request;
    let failures = vec![
        failure(&asks[4], Refusal::AlreadyPurchased { first }),
        failure(&asks[5], Refusal::SoldOut),
    ];
    shop.load(FIRST_LOAD, 96, orders, failures).await;

    for (ask, state) in asks.iter().zip([OrderState::PendingPayment, OrderState::Paid]) {
        let standing = RequestStatus::Ordered { quantity: 2, placed_at_ms: ask.asked_at_ms, state };
        assert_eq!(shop.reserve(*ask).await, Verdict::Repeat(standing));
        let other = shop.ask(ask.request.get(), ask.buyer.get(), 1);
        assert_eq!(shop.reserve(other).await, Verdict::Refused(Refusal::RequestIdReused));
    }
    for buyer in [3, 4, 5, 6] {
        shop.take(&[shop.ask(100 + buyer, buyer, 1)]).await;
    }
    let failed = RequestStatus::Failed(Refusal::AlreadyPurchased { first });
    assert_eq!(shop.standing(&asks[4]).await, Some(failed));
    assert_eq!(
        shop.reserve(asks[5]).await,
        Verdict::Repeat(RequestStatus::Failed(Refusal::SoldOut))
    );
    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (92, 4, 4));
    assert_eq!(facts.released_units, 2, "the sold-out one had nothing to give back");
}

pub async fn units_of_a_quota_add_up(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, quota(5), 100, 1) };
    let mut orders: Vec<_> = (1..=4).map(|no| shop.order(&shop.ask(no, 7, 1))).collect();
    orders[3].state = OrderState::Refunded;
    orders.push(shop.order(&shop.ask(5, 8, 5)));
    // A ledger is read in pieces.
    let mut loading = shop.stock.load(shop.sku.clone(), 5, FIRST_LOAD).await.unwrap();
    for order in orders {
        loading.orders(vec![order]).await.unwrap();
    }
    loading.publish(92, Phase::Open, OPENING).await.unwrap();

    let over = |owned| Verdict::Refused(Refusal::QuotaExceeded { owned, limit: 5 });
    assert_eq!(shop.reserve(shop.ask(10, 7, 3)).await, over(3));
    assert_eq!(shop.reserve(shop.ask(11, 8, 1)).await, over(5));
    assert_eq!(shop.reserve(shop.ask(12, 7, 2)).await, Verdict::Reserved);
}

pub async fn what_waits_for_an_operator_keeps_its_units(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 10, 2) };
    let [waits, landed, failed] = [1, 2, 3].map(|no| shop.ask(no, no, 2));
    // Its buyer has an order by another request.
    let (second, first) = (shop.ask(4, 4, 1), shop.ask(9, 4, 1));
    let mut loading = shop.stock.load(shop.sku.clone(), 5, FIRST_LOAD).await.unwrap();
    let queued = [waits, landed, failed, second].map(|ask| ask.intent(&shop.sku));
    loading.queued(queued.to_vec()).await.unwrap();
    loading.orders(vec![shop.order(&landed), shop.order(&first)]).await.unwrap();
    loading.failures(vec![failure(&failed, Refusal::SoldOut)]).await.unwrap();
    loading.publish(7, Phase::Open, OPENING).await.unwrap();

    assert_eq!(shop.units().await, 4, "three are not for sale");
    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
    assert_eq!((facts.num_ordered, facts.num_unsettled), (2, 2));
    for (ask, standing) in [
        (waits, RequestStatus::Queued),
        (landed, ordered(&landed)),
        (failed, RequestStatus::Failed(Refusal::SoldOut)),
        (second, RequestStatus::Queued),
    ] {
        assert_eq!(shop.reserve(ask).await, Verdict::Repeat(standing));
    }
    assert_eq!(shop.reserve(shop.ask(23, 3, 1)).await, Verdict::Reserved);

    shop.settle(&[waits]).await;
    assert_eq!(shop.standing(&waits).await, Some(ordered(&waits)));
    shop.release(&second, Refusal::AlreadyPurchased { first: first.request }).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (4, 3, 1));
}

pub async fn what_waits_for_an_operator_counts_for_a_quota(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, quota(5), 10, 1) };
    let [order, waits] = [1, 2].map(|no| shop.ask(no, 7, 2));
    let mut loading = shop.stock.load(shop.sku.clone(), 2, FIRST_LOAD).await.unwrap();
    loading.queued([order, waits].map(|ask| ask.intent(&shop.sku)).to_vec()).await.unwrap();
    loading.orders(vec![shop.order(&order)]).await.unwrap();
    loading.publish(8, Phase::Open, OPENING).await.unwrap();
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    assert_eq!(shop.reserve(shop.ask(3, 7, 2)).await, over);
    assert_eq!(shop.reserve(shop.ask(4, 7, 1)).await, Verdict::Reserved);
    assert_eq!(shop.units().await, 5);
}

pub async fn what_was_accepted_stays_queued_through_a_load(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let [waits, landed, failed, settled] = [1, 2, 3, 4].map(|no| shop.ask(no, no, 2));
    shop.take(&[waits, landed, failed, settled]).await;
    shop.settle(&[settled]).await;
    // The ledger decided two of them while the bucket took no results.
    let orders = vec![shop.order(&settled), shop.order(&landed)];
    shop.load(LoaderToken(2), 6, orders, vec![failure(&failed, Refusal::Ended)]).await;

    assert_eq!(shop.units().await, 4, "two are not for sale");
    for (ask, standing) in [
        (waits, RequestStatus::Queued),
        (landed, ordered(&landed)),
        (failed, RequestStatus::Failed(Refusal::Ended)),
        (settled, ordered(&settled)),
    ] {
        assert_eq!(shop.reserve(ask).await, Verdict::Repeat(standing));
        assert_eq!(shop.standing(&ask).await, Some(standing));
    }
    assert_eq!(shop.reserve(shop.ask(23, 23, 1)).await, Verdict::Reserved);
    let mut unsettled = Vec::new();
    for bucket in 0..2 {
        unsettled.extend(shop.stock.unsettled(shop.key(bucket), i64::MAX).await.unwrap());
    }
    assert!(unsettled.iter().any(|intent| intent.request == waits.request), "{unsettled:?}");

    // What was decided meanwhile is told once more, by whoever submits it again.
    shop.settle(&[landed]).await;
    shop.release(&failed, Refusal::Ended).await;
    shop.release(&waits, Refusal::Ended).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled), (5, 2, 1));
}

pub async fn loaders_that_end_early_lose_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let [a, b, c] = [1, 2, 3].map(|no| shop.ask(no, no, 2));
    shop.take(&[a, b, c]).await;
    shop.settle(&[c]).await;
    let begin = |no| shop.stock.load(shop.sku.clone(), 0, LoaderToken(no));
    drop(begin(2).await.unwrap());
    begin(3).await.unwrap().clear().await.unwrap();
    let mut loading = begin(4).await.unwrap();
    loading.clear().await.unwrap();
    loading.orders(vec![shop.order(&c)]).await.unwrap();
    drop(loading);
    shop.load(LoaderToken(5), 8, vec![shop.order(&c)], Vec::new()).await;

    assert_eq!(shop.units().await, 4);
    for ask in [a, b] {
        assert_eq!(shop.reserve(ask).await, Verdict::Repeat(RequestStatus::Queued));
    }
    shop.settle(&[a, b]).await;
    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
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
    let order = shop.ask(1, 1, 2);
    shop.load(FIRST_LOAD, 8, vec![shop.order(&order)], Vec::new()).await;
    let other = Shop { stock: backend.open().await, sku: shop.sku.clone() };
    let condition = other.stock.condition(&other.sku, Phase::Open, OPENING).await.unwrap();
    assert_eq!(condition, BucketHealth::Ready);
    assert_eq!(other.reserve(order).await, Verdict::Repeat(ordered(&order)));
    let ask = shop.ask(2, 2, 1);
    other.take(&[ask]).await;
    assert_eq!(shop.reserve(ask).await, Verdict::Repeat(RequestStatus::Queued));
    assert_eq!(shop.units().await, 7);
}

pub async fn a_later_load_replaces_the_one_before(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let (kept, gone) = (shop.ask(1, 1, 2), shop.ask(2, 2, 2));
    shop.take(&[kept, gone]).await;
    shop.settle(&[kept, gone]).await;
    let paid = Order { state: OrderState::Paid, ..shop.order(&kept) };
    shop.load(LoaderToken(2), 7, vec![paid], Vec::new()).await;

    assert_eq!(shop.units().await, 7);
    assert_eq!(shop.standing(&gone).await, None);
    let standing = RequestStatus::Ordered {
        quantity: 2,
        placed_at_ms: kept.asked_at_ms,
        state: OrderState::Paid,
    };
    assert_eq!(shop.standing(&kept).await, Some(standing));
    assert_eq!(shop.reserve(gone).await, Verdict::Reserved, "its buyer was let go");
    assert_eq!(shop.units().await, 5);
}

pub async fn a_loader_with_a_smaller_token_changes_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let begin = |no| shop.stock.load(shop.sku.clone(), 0, LoaderToken(no));
    let fenced = |error: &Error| matches!(error, Error::Fenced { .. });

    let mut late = begin(5).await.unwrap();
    late.orders(vec![shop.order(&shop.ask(1, 1, 2))]).await.unwrap();
    let good = begin(6).await.unwrap();
    assert!(late.publish(1, Phase::Open, OPENING).await.is_err_and(|e| fenced(&e)), "ended");
    assert!(begin(4).await.is_err_and(|e| fenced(&e)), "too late to begin");
    good.publish(10, Phase::Open, OPENING).await.unwrap();
    for no in [4, 5, 6] {
        assert!(begin(no).await.is_err_and(|e| fenced(&e)), "{no} is over");
    }
    assert_eq!(shop.free().await, [5, 5]);
    assert_eq!(shop.standing(&shop.ask(1, 1, 2)).await, None);
    shop.take(&[shop.ask(2, 1, 1)]).await;
}

pub async fn buckets_that_stand_elsewhere_are_told_and_turned(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let condition = |phase, epoch| shop.stock.condition(&shop.sku, phase, epoch);
    assert_eq!(condition(Phase::Open, OPENING).await, Ok(BucketHealth::Ready));
    assert_eq!(condition(Phase::Paused, OPENING).await, Ok(BucketHealth::OtherPhase));
    assert_eq!(condition(Phase::Open, Epoch(2)).await, Ok(BucketHealth::OtherPhase));
    shop.turn(Phase::Paused, OPENING).await;
    assert_eq!(condition(Phase::Paused, OPENING).await, Ok(BucketHealth::Ready));
    shop.turn(Phase::Open, Epoch(2)).await;
    assert_eq!(condition(Phase::Open, Epoch(2)).await, Ok(BucketHealth::Ready));
    assert_eq!(shop.free().await, [5, 5]);
}

pub async fn an_older_opening_is_ignored(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 1).await;
    shop.turn(Phase::Open, Epoch(3)).await;
    shop.turn(Phase::Closed, Epoch(2)).await;
    let mut ask = shop.ask(1, 1, 1);
    assert_eq!(shop.reserve(ask).await, Verdict::StaleEpoch);
    ask.epoch = Epoch(3);
    assert_eq!(shop.reserve(ask).await, Verdict::Reserved, "still open");
    shop.turn(Phase::Paused, Epoch(3)).await;
    ask.request = crate::support::offers::request(2);
    assert_eq!(shop.reserve(ask).await, Verdict::Refused(Refusal::NotStarted));
    let any = Shop { stock: shop.stock.clone(), sku: sku(2, ANY, 1, 1) };
    assert_eq!(
        any.stock.turn(&any.sku, Phase::Open, OPENING).await,
        Err(Error::NotLoaded(any.sku.no)),
        "nobody loaded this one"
    );
}

pub async fn late_and_crossed_turns_take_nothing_back(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let there = shop.elsewhere(backend).await;
    // One process opens again and closes; what another one wrote before comes after it.
    for (phase, epoch) in [(Phase::Open, Epoch(2)), (Phase::Closed, Epoch(2))] {
        shop.turn(phase, epoch).await;
    }
    for (phase, epoch) in
        [(Phase::Open, Epoch(2)), (Phase::Paused, Epoch(2)), (Phase::Open, OPENING)]
    {
        there.turn(phase, epoch).await;
        for asker in [&shop, &there] {
            let condition = asker.stock.condition(&asker.sku, Phase::Closed, Epoch(2)).await;
            assert_eq!(condition, Ok(BucketHealth::Ready), "after {phase:?} {epoch:?}");
        }
        let ask = Reservation { epoch, ..shop.ask(1, 1, 1) };
        let refused =
            if epoch == OPENING { Verdict::StaleEpoch } else { Verdict::Refused(Refusal::Ended) };
        assert_eq!(shop.reserve(ask).await, refused);
    }
    assert_eq!(shop.free().await, [5, 5]);
}

pub async fn what_is_turned_during_a_load_is_published_with_it(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 2).await;
    let there = shop.elsewhere(backend).await;
    // The loader has read the sale while it was open.
    let loading = shop.stock.load(shop.sku.clone(), 0, LoaderToken(2)).await.unwrap();
    there.turn(Phase::Closed, OPENING).await;
    loading.publish(10, Phase::Open, OPENING).await.unwrap();
    let condition = there.stock.condition(&there.sku, Phase::Closed, OPENING).await;
    assert_eq!(condition, Ok(BucketHealth::Ready));
    assert_eq!(shop.reserve(shop.ask(1, 1, 1)).await, Verdict::Refused(Refusal::Ended));

    // A loader that knows the next opening publishes that one.
    let loading = shop.stock.load(shop.sku.clone(), 0, LoaderToken(3)).await.unwrap();
    loading.publish(10, Phase::Open, Epoch(2)).await.unwrap();
    let ask = Reservation { epoch: Epoch(2), ..shop.ask(1, 1, 1) };
    assert_eq!(shop.reserve(ask).await, Verdict::Reserved);
}
