//! Transfers of units between buckets: each unit counts once despite repeats, delays and aborts.

use floodgate::domain::{BucketNo, Loan};
use futures_util::future::join_all;

use super::{Backend, Shop};
use crate::support::offers::ANY;

impl Shop {
    async fn lend(&self, from: u16, to: u16, want: u32) -> Option<Loan> {
        self.stock.lend(self.key(from), BucketNo(to), want).await.unwrap()
    }

    async fn borrow(&self, from: u16, to: u16, loan: Loan) -> u32 {
        self.stock.borrow(self.key(from), BucketNo(to), loan).await.unwrap()
    }
}

pub async fn a_loan_moves_its_units_once(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 20, 2).await;
    let there = here.in_other_process(backend).await;
    let loan = here.lend(0, 1, 3).await.unwrap();
    assert_eq!(loan.units, 5, "half of what is free");
    assert_eq!(here.free().await, [5, 10], "the lent units are in transfer");
    assert_eq!((here.units().await, there.units().await), (20, 20));
    assert_eq!(there.borrow(0, 1, loan).await, 5);
    // Late duplicates from either process.
    for shop in [&here, &there, &here] {
        assert_eq!(shop.borrow(0, 1, loan).await, 0);
        assert_eq!(shop.free().await, [5, 15]);
    }
    let next = here.lend(0, 1, 1).await.unwrap();
    assert!(next.no > loan.no, "{next:?}");
    assert_eq!(there.borrow(0, 1, loan).await, 0, "another loan is open");
    assert_eq!(there.borrow(0, 1, next).await, 2);
    assert_eq!(here.borrow(0, 1, loan).await, 0);
    assert_eq!((here.free().await, here.units().await), (vec![3, 17], 20));
}

pub async fn an_open_loan_is_the_answer_again(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 40, 4).await;
    let to_1 = shop.lend(0, 1, 2).await;
    assert_eq!(shop.lend(0, 1, 9).await, to_1);
    let to_2 = shop.lend(0, 2, 1).await;
    assert_ne!(to_1.unwrap().no, to_2.unwrap().no);
    assert_eq!(shop.lend(0, 1, 1).await, to_1);
    let from_3 = shop.lend(3, 1, 10).await.unwrap();
    assert_eq!(from_3.units, 10);
    assert_eq!(shop.borrow(3, 1, from_3).await, 10, "each lender numbers its own loans");
    assert_eq!(shop.borrow(0, 1, to_1.unwrap()).await, to_1.unwrap().units);
    assert_ne!(shop.lend(0, 1, 1).await, to_1, "the first loan is closed");
    assert_eq!(shop.units().await, 40);
}

pub async fn a_lender_gives_half_or_what_is_wanted(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 80, 8).await;
    let units = async |to, want| shop.lend(0, to, want).await.map(|loan| loan.units);
    assert_eq!(units(1, 7).await, Some(7), "more than half, as requested");
    assert_eq!(units(2, 1).await, Some(1), "half of three");
    assert_eq!(units(3, 9).await, Some(2), "all free units");
    assert_eq!(units(4, 1).await, None);
    assert_eq!(units(1, 1).await, Some(7), "still open");
    assert_eq!(shop.units().await, 80);
}

pub async fn half_done_transfers_are_finished_once(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 40, 4).await;
    let loans = [(0, here.lend(0, 1, 4).await.unwrap()), (2, here.lend(2, 1, 6).await.unwrap())];
    here.lend(2, 3, 1).await.unwrap();
    let there = here.in_other_process(backend).await;
    assert_eq!(there.stock.finish_transfers(there.key(1)).await.unwrap(), 11);
    for shop in [&here, &there] {
        assert_eq!(shop.stock.finish_transfers(shop.key(1)).await.unwrap(), 0);
        for (from, loan) in loans {
            assert_eq!(shop.borrow(from, 1, loan).await, 0);
        }
    }
    assert_eq!(here.free().await, [5, 21, 2, 10]);
    assert_eq!(here.stock.finish_transfers(here.key(3)).await.unwrap(), 2);
    assert_eq!(here.units().await, 40);
}

pub async fn units_under_way_are_not_sold_out(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 2, 2).await;
    shop.take(&[reservation_in(&shop, 1, 1)]).await;
    let loan = shop.lend(0, 1, 1).await.unwrap();
    assert_eq!(shop.free().await, [0, 0]);
    for _ in 0..2 {
        assert!(!shop.is_sold_out());
        assert_eq!(shop.stock.left(shop.sku.no), 1);
        // A poll finishes an open loan that it finds for the second time.
        shop.refresh().await;
    }
    shop.borrow(0, 1, loan).await;
    assert_eq!(shop.free().await, [0, 1]);
    shop.take(&[reservation_in(&shop, 1, 2)]).await;
    shop.refresh().await;
    assert!(shop.is_sold_out());
    assert_eq!(shop.stock.left(shop.sku.no), 0);
}

/// A reservation of one unit by the `nth` buyer of a bucket.
fn reservation_in(shop: &Shop, bucket: u16, nth: usize) -> floodgate::domain::OrderIntent {
    let mut own = (1..1_000)
        .map(|no| shop.reservation(no, no, 1))
        .filter(|reservation| reservation.bucket.0 == bucket);
    own.nth(nth).unwrap()
}

pub async fn steps_in_any_order_keep_the_sum(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 300, 3).await;
    let mut random = fastrand::Rng::with_seed(11);
    let mut loans: Vec<(u16, u16, Loan)> = Vec::new();
    for step in 0..400 {
        let (from, to) = (random.u16(0..3), random.u16(0..3));
        match random.u8(0..8) {
            _ if from == to => {}
            0..3 => {
                let loan = shop.lend(from, to, random.u32(1..20)).await;
                loans.extend(loan.map(|loan| (from, to, loan)));
            }
            // Any earlier loan: most are closed by now.
            3..7 => {
                let Some((from, to, loan)) = random.choice(&loans).copied() else { continue };
                shop.borrow(from, to, loan).await;
            }
            _ => drop(shop.stock.finish_transfers(shop.key(to)).await.unwrap()),
        }
        assert_eq!(shop.units().await, 300, "after step {step}");
    }
    assert!(loans.iter().any(|(_, _, loan)| loan.no > 10), "too few loans: {loans:?}");
}

pub async fn many_movers_at_once_keep_the_sum(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 300, 3).await;
    let there = here.in_other_process(backend).await;
    let movers = (0..12_u16).map(|no| {
        let shop = if no % 2 == 0 { &here } else { &there };
        let (from, to) = (no % 3, (no + 1 + no / 6) % 3);
        async move {
            for _ in 0..20 {
                if let Some(loan) = shop.lend(from, to, 3).await {
                    shop.borrow(from, to, loan).await;
                }
                shop.stock.finish_transfers(shop.key(to)).await.unwrap();
            }
        }
    });
    join_all(movers).await;
    for bucket in 0..3 {
        here.stock.finish_transfers(here.key(bucket)).await.unwrap();
        assert_eq!(here.counts(bucket).await.lent_units, 0);
    }
    assert_eq!(here.free().await.iter().sum::<u32>(), 300);
}
