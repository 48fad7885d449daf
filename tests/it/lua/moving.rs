//! Transfers between buckets: each unit counts once, even when steps are repeated, late or missing.

use floodgate::domain::{BucketNo, LoaderToken, Loan};

use super::harness::{Fixture, LOADER, ScriptClient, opening, sku};
use crate::support::offers::ANY;
use crate::support::servers::redis::Redis;

fn fixture(stock: u32) -> (Redis, ScriptClient, Fixture) {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ANY, 2 * stock), stock);
    (redis, client, fixture)
}

/// Units in both buckets and in transfer. A loan that the borrower has added counts there only.
fn total(fixture: &Fixture, client: &mut ScriptClient) -> u64 {
    let counts: Vec<_> = (0..2).map(|bucket| fixture.counts(client, bucket)).collect();
    let mut total = 0;
    for (no, lender) in counts.iter().enumerate() {
        total += u64::from(lender.left.stock);
        let lent: u32 = lender.loans.iter().map(|(_, loan)| loan.units).sum();
        assert_eq!(lent, lender.left.lent, "`lent` is the sum of the open loans");
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
    let (_redis, mut client, fixture) = fixture(10);
    let loan = fixture.lend(&mut client, 0, 1, 3);
    assert_eq!(loan, Some(Loan { no: 1, units: 5 }), "half of the free units");
    assert_eq!(fixture.lend(&mut client, 0, 1, 9), loan, "an open loan is returned again");
    assert_eq!(total(&fixture, &mut client), 20);
    let loan = loan.unwrap();
    assert_eq!(fixture.borrow(&mut client, 0, 1, loan), 5);
    assert_eq!(total(&fixture, &mut client), 20);
    assert_eq!(fixture.borrow(&mut client, 0, 1, loan), 0);
    assert!(fixture.clear_loan(&mut client, 0, 1, loan.no));
    assert!(!fixture.clear_loan(&mut client, 0, 1, loan.no));
    assert_eq!(fixture.borrow(&mut client, 0, 1, loan), 0, "a late repeat adds nothing");
    assert_eq!(total(&fixture, &mut client), 20);
    assert_eq!(
        fixture.lend(&mut client, 0, 1, 9),
        Some(Loan { no: 2, units: 5 }),
        "all remaining units"
    );
    assert!(!fixture.clear_loan(&mut client, 0, 1, loan.no), "loan 2 is open, not loan 1");
    assert_eq!(fixture.lend(&mut client, 0, 5, 1), None, "no unit is free");
    assert_eq!(total(&fixture, &mut client), 20);
}

#[test]
fn steps_in_any_order_keep_the_sum() {
    let (_redis, mut client, fixture) = fixture(1_000);
    let mut random = fastrand::Rng::with_seed(7);
    let mut loans: Vec<(u16, Loan)> = Vec::new();
    for _ in 0..2_000 {
        let lender = random.u16(0..2);
        let (from, to) = (usize::from(lender), usize::from(1 - lender));
        match random.u8(0..3) {
            0 => {
                let loan = fixture.lend(&mut client, from, 1 - lender, random.u32(1..20));
                loans.extend(loan.map(|loan| (lender, loan)));
            }
            // Any earlier loan: most are already cleared.
            step => {
                let Some((lender, loan)) = random.choice(&loans).copied() else { continue };
                let (from, to) = if usize::from(lender) == from { (from, to) } else { (to, from) };
                fixture.borrow(&mut client, lender, to, loan);
                if step == 2 {
                    fixture.clear_loan(&mut client, from, 1 - lender, loan.no);
                }
            }
        }
        assert_eq!(total(&fixture, &mut client), 2_000);
    }
    assert!(loans.last().unwrap().1.no > 10, "too few loans were made: {loans:?}");
}

#[test]
fn the_next_process_finishes_a_recorded_transfer() {
    let (_redis, mut client, fixture) = fixture(10);
    fixture.lend(&mut client, 0, 1, 4).unwrap();
    // The lender's process crashed: its successor reads the loan from the bucket.
    for added in [5, 0] {
        let loans = fixture.counts(&mut client, 0).loans;
        let [(BucketNo(1), loan)] = loans[..] else { panic!("{loans:?}") };
        assert_eq!(
            fixture.borrow(&mut client, 0, 1, loan),
            added,
            "the lender crashes before it clears the loan"
        );
    }
    assert!(fixture.clear_loan(&mut client, 0, 1, 1));
    assert_eq!(fixture.counts(&mut client, 0).loans, []);
    assert_eq!(total(&fixture, &mut client), 20);
}

#[test]
fn a_loan_from_before_a_load_never_arrives() {
    let (_redis, mut client, fixture) = fixture(10);
    let old = fixture.lend(&mut client, 0, 1, 5).unwrap();
    let next = LoaderToken(LOADER.0 + 1);
    for bucket in 0..2 {
        fixture.load_begin(&mut client, bucket, next).unwrap();
        let open = opening(next, 10);
        assert_eq!(fixture.run(&mut client, &open.call(&fixture.buckets[bucket])), Ok(true));
    }
    assert_eq!(fixture.borrow(&mut client, 0, 1, old), 0);
    let new = fixture.lend(&mut client, 0, 1, 5).unwrap();
    assert!(new.no > old.no, "{new:?}");
    assert!(!fixture.clear_loan(&mut client, 0, 1, old.no));
    assert_eq!(fixture.borrow(&mut client, 0, 1, new), 5);
    assert_eq!(fixture.borrow(&mut client, 0, 1, old), 0);
    assert_eq!(total(&fixture, &mut client), 20);
}
