//! Units that hop between buckets: each counts once, whatever is repeated, late or left undone.

use floodgate::domain::{BucketNo, Loan};

use super::rig::{LOADER, Shop, Wire, sku};
use crate::support::offers::ANY;
use crate::support::servers::redis::Redis;
use floodgate::stock::LoaderToken;

fn shop(stock: u32) -> (Redis, Wire, Shop) {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ANY, 2 * stock), stock);
    (redis, wire, shop)
}

/// Units over both buckets and the way between them. A loan that the borrower has counts there.
fn total(shop: &Shop, wire: &mut Wire) -> u64 {
    let counts: Vec<_> = (0..2).map(|bucket| shop.counts(wire, bucket)).collect();
    let mut total = 0;
    for (no, lender) in counts.iter().enumerate() {
        total += u64::from(lender.left.stock);
        let lent: u32 = lender.loans.iter().map(|(_, loan)| loan.units).sum();
        assert_eq!(lent, lender.left.lent, "the sum of the loans");
        for (to, loan) in &lender.loans {
            let arrived = &counts[usize::from(to.0)].borrowed;
            let lender = BucketNo(u16::try_from(no).unwrap());
            let last = arrived.iter().find(|(from, _)| *from == lender).map_or(0, |(_, no)| *no);
            total += u64::from(if loan.no > last { loan.units } else { 0 });
        }
    }
    total
}

#[test]
fn a_loan_moves_its_units_once_in_three_steps() {
    let (_redis, mut wire, shop) = shop(10);
    let loan = shop.lend(&mut wire, 0, 1, 3);
    assert_eq!(loan, Some(Loan { no: 1, units: 5 }), "half of what is free");
    assert_eq!(shop.lend(&mut wire, 0, 1, 9), loan, "while it is open, it is the answer");
    assert_eq!(total(&shop, &mut wire), 20);
    let loan = loan.unwrap();
    assert_eq!(shop.borrow(&mut wire, 0, 1, loan), 5);
    assert_eq!(total(&shop, &mut wire), 20);
    assert_eq!(shop.borrow(&mut wire, 0, 1, loan), 0);
    assert!(shop.clear_loan(&mut wire, 0, 1, loan.no));
    assert!(!shop.clear_loan(&mut wire, 0, 1, loan.no));
    assert_eq!(shop.borrow(&mut wire, 0, 1, loan), 0, "late");
    assert_eq!(total(&shop, &mut wire), 20);
    assert_eq!(shop.lend(&mut wire, 0, 1, 9), Some(Loan { no: 2, units: 5 }), "all that is left");
    assert!(!shop.clear_loan(&mut wire, 0, 1, loan.no), "another loan is open now");
    assert_eq!(shop.lend(&mut wire, 0, 5, 1), None, "nothing is free");
    assert_eq!(total(&shop, &mut wire), 20);
}

#[test]
fn steps_in_any_order_keep_the_sum() {
    let (_redis, mut wire, shop) = shop(1_000);
    let mut random = fastrand::Rng::with_seed(7);
    let mut loans: Vec<(u16, Loan)> = Vec::new();
    for _ in 0..2_000 {
        let lender = random.u16(0..2);
        let (from, to) = (usize::from(lender), usize::from(1 - lender));
        match random.u8(0..3) {
            0 => {
                let loan = shop.lend(&mut wire, from, 1 - lender, random.u32(1..20));
                loans.extend(loan.map(|loan| (lender, loan)));
            }
            // Any loan of all time: most are late.
            step => {
                let Some((lender, loan)) = random.choice(&loans).copied() else { continue };
                let (from, to) = if usize::from(lender) == from { (from, to) } else { (to, from) };
                shop.borrow(&mut wire, lender, to, loan);
                if step == 2 {
                    shop.clear_loan(&mut wire, from, 1 - lender, loan.no);
                }
            }
        }
        assert_eq!(total(&shop, &mut wire), 2_000);
    }
    assert!(loans.last().unwrap().1.no > 10, "it was worth it: {loans:?}");
}

#[test]
fn whoever_comes_next_finishes_what_is_on_record() {
    let (_redis, mut wire, shop) = shop(10);
    shop.lend(&mut wire, 0, 1, 4).unwrap();
    // The lender's process died: the next one reads the loan from its bucket.
    for arrives in [5, 0] {
        let loans = shop.counts(&mut wire, 0).loans;
        let [(BucketNo(1), loan)] = loans[..] else { panic!("{loans:?}") };
        assert_eq!(shop.borrow(&mut wire, 0, 1, loan), arrives, "then died before it was cleared");
    }
    assert!(shop.clear_loan(&mut wire, 0, 1, 1));
    assert_eq!(shop.counts(&mut wire, 0).loans, []);
    assert_eq!(total(&shop, &mut wire), 20);
}

#[test]
fn a_loan_from_before_a_load_never_arrives() {
    let (_redis, mut wire, shop) = shop(10);
    let old = shop.lend(&mut wire, 0, 1, 5).unwrap();
    let next = LoaderToken(LOADER.0 + 1);
    for bucket in 0..2 {
        shop.load_begin(&mut wire, bucket, next).unwrap();
        let open = shop.opening(bucket, next, 10);
        assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
    }
    assert_eq!(shop.borrow(&mut wire, 0, 1, old), 0);
    let new = shop.lend(&mut wire, 0, 1, 5).unwrap();
    assert!(new.no > old.no, "{new:?}");
    assert!(!shop.clear_loan(&mut wire, 0, 1, old.no));
    assert_eq!(shop.borrow(&mut wire, 0, 1, new), 5);
    assert_eq!(shop.borrow(&mut wire, 0, 1, old), 0);
    assert_eq!(total(&shop, &mut wire), 20);
}
