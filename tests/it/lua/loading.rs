//! A bucket is built from the ledger by one loader at a time.

use floodgate::domain::{Epoch, OrderState, Phase, Refusal, Standing, Verdict};
use floodgate::scripts::Error;
use floodgate::scripts::find::Find;
use floodgate::scripts::load::Row;
use floodgate::scripts::record::{Record, Stage};
use floodgate::scripts::settle::Noted;
use floodgate::stock::LoaderToken;

use super::rig::{Shop, Wire, refused, sku};
use crate::support::offers::{ONE, buyer, quota, request};
use crate::support::servers::redis::Redis;

const FIRST: LoaderToken = LoaderToken(1);
const SECOND: LoaderToken = LoaderToken(2);

fn record(buyer_no: u64, stage: Stage) -> Record {
    Record { buyer: buyer(buyer_no), quantity: 2, placed_at_ms: 5, stage }
}

fn ordered(request_no: u64, buyer_no: u64) -> Row {
    Row::Request(request(request_no), record(buyer_no, Stage::Ordered(OrderState::Paid)))
}

/// Publishes bucket 0.
fn open(shop: &Shop, wire: &mut Wire, loader: LoaderToken, stock: u32) -> Result<bool, Error> {
    let open = shop.opening(0, loader, stock);
    open.parse(wire.send(&open.call()).unwrap())
}

#[test]
fn what_was_loaded_is_what_is_answered() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, quota(5), 2_000));
    shop.load_begin(&mut wire, 0, FIRST).unwrap();
    let failed = Stage::Failed(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let mut rows: Vec<Row> = (1..=500).map(|no| ordered(no, no)).collect();
    rows.extend((1..=500).map(|no| Row::Units(buyer(no), 4)));
    rows.push(Row::Request(request(501), record(501, failed)));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &rows), Ok(()));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &rows), Ok(()), "again");
    assert_eq!(open(&shop, &mut wire, FIRST, 7), Ok(true));
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_requests, counts.num_buyers, counts.left.stock), (501, 500, 7));
    assert_eq!((counts.epoch, counts.phase), (Epoch(1), Phase::Open));
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let batch = [shop.ask(501, 501, 2), shop.ask(600, 7, 2), shop.ask(601, 7, 1)];
    let answers = shop.reserve(&mut wire, 0, &batch);
    let known = Verdict::Repeat(Standing::Failed(Refusal::QuotaExceeded { owned: 4, limit: 5 }));
    assert_eq!(answers, [known, over, Verdict::Reserved]);
    let wanted = [request(601), request(999), request(1), request(601)];
    let find = Find { requests: &wanted, ..shop.find(0) };
    let found = find.parse(wire.send(&find.call()).unwrap()).unwrap();
    let stages: Vec<_> = found.iter().map(|record| record.map(|record| record.stage)).collect();
    let paid = Some(Stage::Ordered(OrderState::Paid));
    assert_eq!(stages, [Some(Stage::Queued), None, paid, Some(Stage::Queued)]);
}

#[test]
fn nobody_is_sold_anything_while_a_bucket_is_loaded() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    shop.load_begin(&mut wire, 0, FIRST).unwrap();
    let batch = [shop.ask(1, 1, 1)];
    let door = shop.reserving(0, &batch);
    assert_eq!(door.parse(wire.send(&door.call()).unwrap()), Err(Error::NotReady));
    open(&shop, &mut wire, FIRST, 3).unwrap();
    assert_eq!(shop.reserve(&mut wire, 0, &batch), [Verdict::Reserved]);
}

#[test]
fn a_later_loader_ends_the_one_before() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, ONE, 20));
    assert_eq!(shop.load_begin(&mut wire, 0, FIRST), Ok(true));
    shop.load_rows(&mut wire, 0, FIRST, &[ordered(1, 1)]).unwrap();
    assert_eq!(shop.load_begin(&mut wire, 0, FIRST), Ok(false), "late: its rows stay");
    assert_eq!(shop.load_begin(&mut wire, 0, SECOND), Ok(true));
    let rows = [ordered(2, 2), Row::First(buyer(2), request(2))];
    assert_eq!(shop.load_rows(&mut wire, 0, SECOND, &rows), Ok(()));
    let before = wire.digest();
    assert_eq!(shop.load_begin(&mut wire, 0, FIRST), Err(Error::OldLoader));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &[ordered(1, 1)]), Err(Error::OldLoader));
    assert_eq!(open(&shop, &mut wire, FIRST, 9), Err(Error::OldLoader));
    assert_eq!(wire.digest(), before);
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(true));
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_requests, counts.num_buyers, counts.left.stock), (1, 1, 8));
}

#[test]
fn a_step_that_comes_after_the_opening_changes_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, ONE, 20));
    assert_eq!(shop.load_begin(&mut wire, 0, SECOND), Ok(true));
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(true));
    shop.reserve(&mut wire, 0, &[shop.ask(1, 1, 1)]);
    let before = wire.digest();
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(false), "again");
    for late in [FIRST, SECOND] {
        assert_eq!(shop.load_begin(&mut wire, 0, late), Err(Error::OldLoader));
        assert_eq!(shop.load_rows(&mut wire, 0, late, &[ordered(1, 1)]), Err(Error::OldLoader));
    }
    assert_eq!(open(&shop, &mut wire, FIRST, 8), Err(Error::OldLoader));
    assert_eq!(wire.digest(), before);
}

#[test]
fn intents_without_an_answer_outlive_a_load() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let [a, b] = [shop.ask(1, 1, 2), shop.ask(2, 2, 2)];
    shop.reserve(&mut wire, 0, &[a, b]);
    shop.load_begin(&mut wire, 0, FIRST).unwrap();
    open(&shop, &mut wire, FIRST, 10).unwrap();
    assert_eq!(shop.counts(&mut wire, 0).num_unsettled(), 2);
    // The ledger took one and refused the other: nothing was taken for it from the new stock.
    assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [Noted::Adopted]);
    let refusal = refused(&b, Refusal::Ended);
    assert_eq!(shop.release(&mut wire, 0, &[refusal]).items, [Noted::Unknown]);
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_unsettled(), counts.left.stock, counts.num_buyers), (0, 8, 1));
}

#[test]
fn an_intent_whose_answer_was_loaded_goes_with_its_repeat() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let [a, b] = [shop.ask(1, 1, 2), shop.ask(2, 2, 2)];
    shop.reserve(&mut wire, 0, &[a, b]);
    // The ledger answered, and the bucket was loaded before it was told.
    shop.load_begin(&mut wire, 0, FIRST).unwrap();
    let failed = record(2, Stage::Failed(Refusal::Ended));
    let rows = [
        Row::Request(a.request, Record::ordered(&shop.order(&a))),
        Row::First(a.buyer, a.request),
        Row::Request(b.request, failed),
    ];
    shop.load_rows(&mut wire, 0, FIRST, &rows).unwrap();
    open(&shop, &mut wire, FIRST, 8).unwrap();
    assert_eq!(shop.counts(&mut wire, 0).num_unsettled(), 2);
    assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [Noted::Repeat]);
    assert_eq!(shop.release(&mut wire, 0, &[refused(&b, Refusal::Ended)]).items, [Noted::Repeat]);
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_unsettled(), counts.left.stock, counts.num_buyers), (0, 8, 1));
}
