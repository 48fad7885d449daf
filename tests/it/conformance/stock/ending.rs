//! Changes of orders: what ends gives its units back, once, in whatever order its changes arrive.

use floodgate::domain::{
    LoaderToken, Order, OrderIntent, OrderState, Phase, RecordState, Refusal, RequestRecord,
    Verdict,
};
use floodgate::stock::Error;

use super::{Backend, FIRST_LOAD, OPENING, Shop, released, sku};
use crate::support::offers::{ANY, ONE, order_of, quota};

/// The order of a reservation in this state and version; an ended one does not count for the limit.
pub(super) fn changed(reservation: &OrderIntent, state: OrderState, version: u16) -> Order {
    let counts_for_limit = state.is_live();
    Order { state, version, counts_for_limit, ..order_of(reservation) }
}

impl Shop {
    pub(super) async fn settle_orders(&self, orders: &[Order]) -> Result<(), Error> {
        let home =
            |order: &Order| floodgate::domain::BucketNo::home_of(order.buyer, self.sku.buckets);
        self.stock.settle(orders.iter().map(|order| (home(order), *order)).collect()).await
    }

    /// Free units, units that ended orders gave back, and buyers with units.
    async fn returned(&self) -> (u32, u64, usize) {
        let counts = self.counts(0).await;
        (counts.available, counts.returned_units, counts.num_buyers)
    }
}

fn state_of(record: Option<RequestRecord>) -> Option<(OrderState, Option<i64>)> {
    match record?.state {
        RecordState::Ordered { state, pay_by, .. } => Some((state, pay_by.ms())),
        _ => None,
    }
}

pub async fn an_order_that_ends_gives_its_units_back_once(backend: &dyn Backend) {
    for (no, policy) in [(1, ONE), (2, quota(5)), (3, ANY)] {
        let shop = Shop { stock: backend.open().await, sku: sku(no, policy, 10, 1) };
        shop.load(FIRST_LOAD, 10, Vec::new(), Vec::new()).await;
        let reservation = shop.reservation(1, 1, 3);
        let num_buyers = usize::from(policy.quota().is_some());
        shop.take(&[reservation]).await;
        shop.settle(&[reservation]).await;
        let pay_by_ms = order_of(&reservation).pay_by_ms.map(|ms| ms - ms % 1_000);
        assert!(pay_by_ms.is_some(), "the SKU has a payment window");
        for (version, state) in [(1, OrderState::Paying), (2, OrderState::PendingPayment)] {
            shop.settle_orders(&[changed(&reservation, state, version)]).await.unwrap();
            assert_eq!(state_of(shop.record(&reservation).await), Some((state, pay_by_ms)));
            assert_eq!(shop.returned().await, (7, 0, num_buyers), "{policy:?}");
        }
        let ended = changed(&reservation, OrderState::TimedOut, 3);
        for _ in 0..3 {
            shop.settle_orders(&[ended, ended]).await.unwrap();
            assert_eq!(shop.returned().await, (10, 3, 0), "{policy:?}");
        }
        // Late answers about the same order.
        for (version, state) in [(0, OrderState::PendingPayment), (2, OrderState::Paying)] {
            shop.settle_orders(&[changed(&reservation, state, version)]).await.unwrap();
            assert_eq!(shop.returned().await, (10, 3, 0), "{policy:?}");
        }
        let record = shop.record(&reservation).await;
        assert_eq!(state_of(record), Some((OrderState::TimedOut, pay_by_ms)));
        assert_eq!(shop.reserve(reservation).await, Verdict::Repeat(record.unwrap()));
        // The next request of the buyer is another record.
        shop.take(&[shop.reservation(2, 1, 5)]).await;
        assert_eq!(shop.returned().await, (5, 3, num_buyers));
    }
}

pub async fn an_order_that_ended_before_it_was_settled_gives_back_too(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(5), 10, 1).await;
    let [a, b] = [shop.reservation(1, 1, 3), shop.reservation(2, 2, 4)];
    shop.take(&[a, b]).await;
    let [first, last] = [(OrderState::PendingPayment, 0), (OrderState::Cancelled, 1)]
        .map(|(state, version)| changed(&a, state, version));
    // In one call, in the wrong order.
    shop.settle_orders(&[last, first, last]).await.unwrap();
    let counts = shop.counts(0).await;
    assert_eq!((counts.num_unsettled, counts.num_ordered, counts.num_buyers), (1, 1, 1));
    assert_eq!((counts.available, counts.returned_units), (6, 3));
    assert_eq!(shop.stock.num_unsettled(shop.sku.no).await, Ok(1));
}

pub async fn an_ended_order_of_an_unknown_request_moves_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(5), 10, 1).await;
    let (freed, counted) = (shop.reservation(1, 1, 3), shop.reservation(2, 2, 4));
    let ended = [
        changed(&freed, OrderState::Cancelled, 1),
        Order { counts_for_limit: true, ..changed(&counted, OrderState::TimedOut, 1) },
    ];
    for _ in 0..2 {
        shop.settle_orders(&ended).await.unwrap();
        assert_eq!(shop.returned().await, (10, 7, 1));
        shop.settle(&[freed, counted]).await;
        assert_eq!(shop.returned().await, (10, 7, 1), "the placement arrived after the end");
    }
    assert_eq!(state_of(shop.record(&freed).await).unwrap().0, OrderState::Cancelled);
    shop.take(&[shop.reservation(3, 1, 5)]).await;
}

pub async fn a_limit_that_does_not_return_stays_used(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(5), 10, 1).await;
    let reservation = shop.reservation(1, 1, 4);
    shop.take(&[reservation]).await;
    shop.settle(&[reservation]).await;
    let ended = changed(&reservation, OrderState::TimedOut, 1);
    shop.settle_orders(&[Order { counts_for_limit: true, ..ended }]).await.unwrap();
    assert_eq!(shop.returned().await, (10, 4, 1), "the units return, the limit does not");
    let over = Refusal::QuotaExceeded { owned: 4, limit: 5 };
    assert_eq!(shop.reserve(shop.reservation(2, 1, 2)).await, Verdict::Refused(over));
    shop.take(&[shop.reservation(3, 1, 1)]).await;
}

pub async fn ended_orders_are_loaded_without_their_units(backend: &dyn Backend) {
    let shop = Shop { stock: backend.open().await, sku: sku(1, quota(5), 10, 1) };
    let [paid, freed, counted] = [1, 2, 3].map(|no| shop.reservation(no, no, 3));
    let rows = vec![
        changed(&paid, OrderState::Paid, 2),
        changed(&freed, OrderState::Cancelled, 1),
        Order { counts_for_limit: true, ..changed(&counted, OrderState::TimedOut, 4) },
    ];
    shop.load(FIRST_LOAD, 7, rows.clone(), Vec::new()).await;
    assert_eq!(shop.returned().await, (7, 6, 2));
    // The events of the loaded rows, read again.
    shop.settle_orders(&rows).await.unwrap();
    assert_eq!(shop.returned().await, (7, 6, 2));
    shop.settle_orders(&[changed(&paid, OrderState::Refunded, 3)]).await.unwrap();
    assert_eq!(shop.returned().await, (10, 9, 1));
    let facts = shop.stock.facts(shop.sku.no).await.unwrap();
    assert_eq!((facts.returned_units, facts.num_ordered, facts.left), (9, 3, 10));
}

/// A change between the reading of the rows and the opening is refused, or is in the opened bucket.
pub async fn a_change_during_a_load_is_not_lost(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(5), 10, 1).await;
    let reservation = shop.reservation(1, 1, 4);
    shop.take(&[reservation]).await;
    shop.settle(&[reservation]).await;
    let mut loading = shop.stock.load(shop.sku.clone(), LoaderToken(2)).await.unwrap();
    loading.clear().await.unwrap();
    loading.orders(vec![order_of(&reservation)]).await.unwrap();
    let ended = changed(&reservation, OrderState::TimedOut, 1);
    let during = shop.settle_orders(&[ended]).await;
    loading.publish(6, Phase::Open, OPENING).await.unwrap();
    if let Err(error) = during {
        assert_eq!(error, Error::NotLoaded(shop.sku.no));
        assert_eq!(shop.returned().await, (6, 0, 1));
        shop.settle_orders(&[ended]).await.unwrap();
    }
    assert_eq!(shop.returned().await, (10, 4, 0));
    shop.refresh().await;
    assert_eq!(shop.stock.left(shop.sku.no), 10);
}

pub async fn a_unit_of_an_ended_order_is_on_sale_everywhere(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 4, 1).await;
    let there = here.in_other_process(backend).await;
    let reservation = here.reservation(1, 1, 4);
    here.take(&[reservation]).await;
    here.settle(&[reservation]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    let ended = changed(&reservation, OrderState::Cancelled, 1);
    here.settle_orders(&[ended]).await.unwrap();
    assert!(!here.is_sold_out(), "the returning process updates its cache at once");
    assert_eq!(here.stock.left(here.sku.no), 4);
    there.refresh().await;
    assert!(!there.is_sold_out(), "another process updates its cache at the next poll");
    there.take(&[there.reservation(2, 2, 4)]).await;
}

/// The opposite decision, another buyer and other units are contradictions: nothing moves.
pub async fn a_change_that_contradicts_moves_nothing(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(5), 10, 1).await;
    let [failed, sold] = [shop.reservation(1, 1, 3), shop.reservation(2, 2, 4)];
    shop.take(&[failed, sold]).await;
    shop.release(&failed, Refusal::Ended).await;
    shop.settle(&[sold]).await;
    let other = shop.reservation(2, 2, 5);
    let contradicting =
        [changed(&failed, OrderState::Cancelled, 1), changed(&other, OrderState::Cancelled, 1)];
    shop.settle_orders(&contradicting).await.unwrap();
    assert_eq!(shop.returned().await, (6, 0, 1));
    assert_eq!(shop.record(&failed).await, Some(released(&failed, Refusal::Ended)));
    assert_eq!(state_of(shop.record(&sold).await).unwrap().0, OrderState::PendingPayment);
}
