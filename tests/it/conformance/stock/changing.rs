//! Changes of a stock: units enter once and in order, and leave only while no buyer can take them.

use floodgate::domain::{Phase, StockChange, Verdict, Withdrawal};
use floodgate::stock::{BucketHealth, Error};

use super::{Backend, FIRST_LOAD, LoaderToken, OPENING, Shop, ordered, sku};
use crate::support::offers::ANY;

impl Shop {
    async fn change(&self, no: i32, units: i32) {
        let change = StockChange { sku: self.sku.no, no, wanted: units, units };
        self.stock.change_stock(&self.sku, change).await.unwrap();
    }

    async fn withdraw(&self, units: u32) -> Withdrawal {
        self.stock.withdraw(self.sku.no, units).await.unwrap()
    }

    async fn end(&self, withdrawal: &Withdrawal, is_recorded: bool) {
        self.stock.end_withdrawal(self.sku.no, withdrawal, is_recorded).await.unwrap();
    }

    /// The health for a ledger whose last change of the stock is this one.
    async fn health_at(&self, change_no: i32) -> BucketHealth {
        let mut sku = sku(1, ANY, self.sku.initial, self.sku.buckets).as_ref().clone();
        sku.history.change_no = change_no;
        self.stock.health(&sku.into(), Phase::Open, OPENING).await.unwrap()
    }
}

pub async fn units_are_added_once_and_in_order(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 4, 2).await;
    let there = here.in_other_process(backend).await;
    assert_eq!(here.health_at(0).await, BucketHealth::Ready);
    assert_eq!(here.health_at(2).await, BucketHealth::OtherStock { change_no: 0 });
    // An earlier change is missing: nothing is added.
    here.change(2, 10).await;
    assert_eq!(here.free().await, [2, 2]);
    for shop in [&here, &there, &here] {
        shop.change(1, 5).await;
        assert_eq!(shop.free().await, [5, 4]);
    }
    assert_eq!(there.health_at(2).await, BucketHealth::OtherStock { change_no: 1 });
    there.change(2, 10).await;
    // Units that were taken out have left before.
    here.change(3, -3).await;
    assert_eq!(here.free().await, [10, 9]);
    for shop in [&here, &there] {
        assert_eq!(shop.health_at(3).await, BucketHealth::Ready);
    }
    assert_eq!(here.counts(0).await.change_no, 3);
}

pub async fn a_load_contains_the_changes_of_its_rows(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 4, 2).await;
    shop.change(1, 6).await;
    let mut loading = shop.stock.load(shop.sku.clone(), LoaderToken(2)).await.unwrap();
    loading.clear().await.unwrap();
    loading.stock_change(2);
    loading.publish(30, Phase::Open, OPENING).await.unwrap();
    for no in [1, 2] {
        shop.change(no, 20).await;
        assert_eq!(shop.units().await, 30, "change {no} is among the rows");
    }
    shop.change(3, 1).await;
    assert_eq!(shop.units().await, 31);
}

pub async fn a_sold_out_sku_sells_again(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 2, 2).await;
    let there = here.in_other_process(backend).await;
    let sold = [here.reservation(1, 1, 1), here.reservation(2, 2, 1)];
    // Both buyers have the same home bucket or each its own.
    for reservation in &sold {
        if here.reserve(*reservation).await == Verdict::Short {
            here.stock
                .lend(here.key(1 - reservation.bucket.0), reservation.bucket, 1)
                .await
                .unwrap();
            here.stock.finish_transfers(here.key_of(reservation)).await.unwrap();
            here.take(&[*reservation]).await;
        }
    }
    here.settle(&sold).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    here.change(1, 4).await;
    assert!(!here.is_sold_out(), "the process that adds units sells them at once");
    there.refresh().await;
    assert!(!there.is_sold_out());
    there.take(&[there.reservation(3, 3, 1)]).await;
    assert_eq!(there.record(&sold[0]).await, Some(ordered(&sold[0])));
}

pub async fn withdrawn_units_are_not_sold(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 20, 2).await;
    let there = here.in_other_process(backend).await;
    here.take(&[here.reservation(1, 1, 1)]).await;
    let withdrawal = here.withdraw(9).await;
    assert_eq!(withdrawal.units, 9);
    assert_eq!(withdrawal.loans.len(), 2, "in proportion");
    let free = there.free().await;
    assert_eq!(free.iter().sum::<u32>(), 10);
    assert_eq!(there.units().await, 19, "until the ledger has recorded it");
    let again = there.stock.withdraw(there.sku.no, 1).await;
    assert!(matches!(again, Err(Error::Unavailable { .. })), "{again:?}");
    for _ in 0..2 {
        there.end(&withdrawal, true).await;
        assert_eq!((here.free().await, here.units().await), (free.clone(), 10));
    }
    let refused = there.withdraw(4).await;
    for _ in 0..2 {
        here.end(&refused, false).await;
        assert_eq!(here.units().await, 10, "the ledger did not record it");
    }
    assert_eq!(here.withdraw(99).await.units, 10, "no more than are free");
}

pub async fn units_that_leave_an_unsold_sku_are_left_nowhere(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 20, 2).await;
    let there = here.in_other_process(backend).await;
    for units in [9, 11] {
        for shop in [&here, &there] {
            shop.refresh().await;
        }
        let before = there.stock.left(there.sku.no);
        let withdrawal = here.withdraw(units).await;
        here.end(&withdrawal, true).await;
        there.refresh().await;
        assert_eq!(there.stock.left(there.sku.no), before - units);
    }
    assert!(there.is_sold_out());
}

pub async fn a_load_frees_withdrawn_units(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 20, 2).await;
    let withdrawal = shop.withdraw(5).await;
    let token = withdrawal.load.unwrap_or(FIRST_LOAD);
    assert_eq!(token, FIRST_LOAD, "the load that the ledger compares");
    shop.load(LoaderToken(2), 20, Vec::new(), Vec::new()).await;
    assert_eq!(shop.free().await, [10, 10]);
    // Too late for both.
    shop.end(&withdrawal, false).await;
    shop.end(&withdrawal, true).await;
    assert_eq!(shop.units().await, 20);
}
