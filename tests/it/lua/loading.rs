//! A bucket is built from the ledger by one loader at a time.

use floodgate::domain::{Epoch, OrderState, Phase, Refusal, RequestStatus, Verdict};
use floodgate::redis::scripts::find::Find;
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::record::{RequestRecord, RequestStage};
use floodgate::redis::scripts::settle::SettleOutcome;
use floodgate::redis::scripts::{BucketFence, Error, OpenBucket};
use floodgate::stock::LoaderToken;

use super::rig::{KINDS, Shop, Wire, refused, sku};
use crate::support::offers::{ONE, buyer, quota, request};
use crate::support::servers::redis::Redis;

const FIRST: LoaderToken = LoaderToken(1);
const SECOND: LoaderToken = LoaderToken(2);

fn record(buyer_no: u64, stage: RequestStage) -> RequestRecord {
    RequestRecord { buyer: buyer(buyer_no), quantity: 2, placed_at_ms: 5, stage }
}

fn ordered(request_no: u64, buyer_no: u64) -> LoadRow {
    LoadRow::Request(request(request_no), record(buyer_no, RequestStage::Ordered(OrderState::Paid)))
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
    let failed = RequestStage::Failed(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let mut rows: Vec<LoadRow> = (1..=500).map(|no| ordered(no, no)).collect();
    rows.extend((1..=500).map(|no| LoadRow::Units(buyer(no), 4)));
    rows.push(LoadRow::Request(request(501), record(501, failed)));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &rows), Ok(()));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &rows), Ok(()), "again");
    assert_eq!(open(&shop, &mut wire, FIRST, 7), Ok(true));
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_requests, counts.num_buyers, counts.left.stock), (501, 500, 7));
    assert_eq!((counts.epoch, counts.phase), (Epoch(1), Phase::Open));
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let batch = [shop.ask(501, 501, 2), shop.ask(600, 7, 2), shop.ask(601, 7, 1)];
    let answers = shop.reserve(&mut wire, 0, &batch);
    let known =
        Verdict::Repeat(RequestStatus::Failed(Refusal::QuotaExceeded { owned: 4, limit: 5 }));
    assert_eq!(answers, [known, over, Verdict::Reserved]);
    let wanted = [request(601), request(999), request(1), request(601)];
    let find = Find { requests: &wanted, ..shop.find(0) };
    let found = find.parse(wire.send(&find.call()).unwrap()).unwrap();
    let stages: Vec<_> = found.iter().map(|record| record.map(|record| record.stage)).collect();
    let paid = Some(RequestStage::Ordered(OrderState::Paid));
    assert_eq!(stages, [Some(RequestStage::Queued), None, paid, Some(RequestStage::Queued)]);
}

#[test]
fn nobody_is_sold_anything_while_a_bucket_is_loaded() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let batch = [shop.ask(1, 1, 1)];
    let door = shop.reserving(0, &batch);
    let refused = |wire: &mut Wire| {
        assert_eq!(door.parse(wire.send(&door.call()).unwrap()), Err(Error::NotReady));
    };
    shop.hold(&mut wire, 0, FIRST).unwrap();
    refused(&mut wire);
    shop.clear(&mut wire, 0, FIRST).unwrap();
    refused(&mut wire);
    shop.load_rows(&mut wire, 0, FIRST, &[ordered(2, 2)]).unwrap();
    refused(&mut wire);
    open(&shop, &mut wire, FIRST, 3).unwrap();
    assert_eq!(shop.reserve(&mut wire, 0, &batch), [Verdict::Reserved]);
}

#[test]
fn a_later_loader_ends_the_one_before() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, ONE, 20));
    assert_eq!(shop.hold(&mut wire, 0, FIRST), Ok(true));
    assert_eq!(shop.clear(&mut wire, 0, FIRST), Ok(Vec::new()));
    shop.load_rows(&mut wire, 0, FIRST, &[ordered(1, 1)]).unwrap();
    assert_eq!(shop.hold(&mut wire, 0, FIRST), Ok(false), "held before");
    assert_eq!(shop.load_begin(&mut wire, 0, SECOND), Ok(Vec::new()));
    let rows = [ordered(2, 2)];
    assert_eq!(shop.load_rows(&mut wire, 0, SECOND, &rows), Ok(()));
    let before = wire.digest();
    assert_eq!(shop.hold(&mut wire, 0, FIRST), Err(Error::OldLoader));
    assert_eq!(shop.clear(&mut wire, 0, FIRST), Err(Error::OldLoader));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &[ordered(1, 1)]), Err(Error::OldLoader));
    assert_eq!(open(&shop, &mut wire, FIRST, 9), Err(Error::OldLoader));
    assert_eq!(wire.digest(), before);
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(true));
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_requests, counts.left.stock), (1, 8));
}

#[test]
fn a_step_that_comes_after_the_opening_changes_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, ONE, 20));
    assert_eq!(shop.load_begin(&mut wire, 0, SECOND), Ok(Vec::new()));
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(true));
    shop.reserve(&mut wire, 0, &[shop.ask(1, 1, 1)]);
    let before = wire.digest();
    assert_eq!(open(&shop, &mut wire, SECOND, 8), Ok(false), "again");
    for late in [FIRST, SECOND] {
        assert_eq!(shop.hold(&mut wire, 0, late), Err(Error::OldLoader));
        assert_eq!(shop.clear(&mut wire, 0, late), Err(Error::OldLoader));
        assert_eq!(shop.load_rows(&mut wire, 0, late, &[ordered(1, 1)]), Err(Error::OldLoader));
    }
    assert_eq!(open(&shop, &mut wire, FIRST, 8), Err(Error::OldLoader));
    assert_eq!(wire.digest(), before);
}

#[test]
fn what_was_accepted_outlives_every_load_that_ends_early() {
    for outbox in KINDS {
        let redis = Redis::start();
        let mut wire = Wire::new(&redis);
        let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
        let [a, b, c] = [1, 2, 3].map(|no| shop.ask(no, no, 2));
        shop.reserve_into(&mut wire, outbox, &[a, b, c]);
        shop.settle(&mut wire, 0, &[shop.order(&c)]);
        let rows = [LoadRow::Request(c.request, RequestRecord::ordered(&shop.order(&c)))];
        // Every loader crashes one step later than the one before.
        shop.hold(&mut wire, 0, LoaderToken(1)).unwrap();
        shop.hold(&mut wire, 0, LoaderToken(2)).unwrap();
        assert_eq!(shop.clear(&mut wire, 0, LoaderToken(2)), Ok(vec![1, 2]));
        shop.hold(&mut wire, 0, LoaderToken(3)).unwrap();
        assert_eq!(shop.clear(&mut wire, 0, LoaderToken(3)), Ok(vec![1, 2]));
        shop.load_rows(&mut wire, 0, LoaderToken(3), &rows).unwrap();
        shop.hold(&mut wire, 0, LoaderToken(4)).unwrap();
        assert_eq!(shop.clear(&mut wire, 0, LoaderToken(4)), Ok(vec![1, 2]));
        shop.load_rows(&mut wire, 0, LoaderToken(4), &rows).unwrap();
        let opening = OpenBucket { num_queued: 2, ..shop.opening(0, LoaderToken(4), 4) };
        assert_eq!(opening.parse(wire.send(&opening.call()).unwrap()), Ok(true));

        let counts = shop.counts(&mut wire, 0);
        assert_eq!((counts.num_queued, counts.num_requests), (2, 3));
        let answers = shop.reserve(&mut wire, 0, &[a, b]);
        assert_eq!(answers, [Verdict::Repeat(RequestStatus::Queued); 2]);
        // The ledger takes one and refuses the other; each has its units.
        assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [SettleOutcome::Now]);
        let notes = shop.release(&mut wire, 0, &[refused(&b, Refusal::Ended)]);
        assert_eq!((notes.items, notes.left.stock), (vec![SettleOutcome::Now], 6));
        let counts = shop.counts(&mut wire, 0);
        assert_eq!(counts.num_unsettled(), 0);
    }
}

#[test]
fn what_the_ledger_decided_of_requests_that_were_lost_is_entered() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let [a, b, c] = [1, 2, 3].map(|no| shop.ask(no, no, 2));
    assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [SettleOutcome::Adopted]);
    let refusals = [refused(&b, Refusal::Ended), refused(&c, Refusal::SoldOut)];
    for noted in [SettleOutcome::Unknown, SettleOutcome::Repeat] {
        assert_eq!(shop.release(&mut wire, 0, &refusals).items, [noted; 2]);
        let counts = shop.counts(&mut wire, 0);
        assert_eq!((counts.left.stock, counts.num_queued), (8, 0));
        // Of the one that was sold out the ledger has no units to give back.
        assert_eq!((counts.num_failed, counts.released_units), (2, 2));
    }
    let answers = shop.reserve(&mut wire, 0, &[b, c]);
    let failed = |reason| Verdict::Repeat(RequestStatus::Failed(reason));
    assert_eq!(answers, [failed(Refusal::Ended), failed(Refusal::SoldOut)]);
    let find = Find { requests: &[b.request], ..shop.find(0) };
    let found = find.parse(wire.send(&find.call()).unwrap()).unwrap();
    assert_eq!(found[0].unwrap().placed_at_ms, b.asked_at_ms + 5, "when it was recorded");
}

#[test]
fn a_load_replaces_what_nobody_wrote() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    shop.reserve(&mut wire, 0, &[shop.ask(1, 1, 2)]);
    let keys = shop.buckets[0].clone();
    let damaged = [keys.bucket(), keys.moves(), keys.unsettled(), keys.buyers(0)];
    for (token, key) in (1..).map(LoaderToken).zip(damaged) {
        wire.replace(&key, &["SADD", "strange"]);
        assert_eq!(shop.load_begin(&mut wire, 0, token), Ok(vec![1]), "{key}");
        open(&shop, &mut wire, token, 8).unwrap();
        assert_eq!(shop.counts(&mut wire, 0).left.stock, 8, "{key}");
    }
    let page = keys.requests(0);
    wire.cmd(&["HSET", &page, "77", "no record"]);
    assert_eq!(shop.load_begin(&mut wire, 0, LoaderToken(10)), Ok(vec![1]));
    assert_eq!(wire.cmd(&["HLEN", &page]), redis::Value::Int(1));
    wire.replace(&page, &["SET", "text"]);
    assert_eq!(shop.load_begin(&mut wire, 0, LoaderToken(11)), Ok(Vec::new()));
    // A number that nobody can read is in no loader's way; another ledger's bucket is.
    wire.cmd(&["HSET", &keys.bucket(), "loading", "f100d6a7.x", "loaded", "f100d6a7.-1"]);
    assert_eq!(shop.load_begin(&mut wire, 0, LoaderToken(12)), Ok(Vec::new()));
    wire.cmd(&["HSET", &keys.bucket(), "loading", "00000000.1"]);
    for token in [1, 99].map(LoaderToken) {
        assert_eq!(shop.hold(&mut wire, 0, token), Err(Error::Foreign));
        assert_eq!(shop.clear(&mut wire, 0, token), Err(Error::Foreign));
    }
}

#[test]
fn a_load_on_another_server_keeps_what_was_accepted_and_the_opening() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    shop.reserve(&mut wire, 0, &[shop.ask(1, 1, 2)]);
    shop.turn(&mut wire, 0, Phase::Paused, Epoch(3));
    shop.hold(&mut wire, 0, FIRST).unwrap();
    // The server is replaced between the steps.
    let server = "0".repeat(40).into();
    let there = Shop { fence: BucketFence { server, ..shop.fence.clone() }, ..shop.clone() };
    assert_eq!(there.clear(&mut wire, 0, FIRST), Ok(vec![1]));
    assert_eq!(shop.load_rows(&mut wire, 0, FIRST, &[ordered(2, 2)]), Err(Error::Fenced));
    assert_eq!(there.load_rows(&mut wire, 0, FIRST, &[ordered(2, 2)]), Ok(()));
    let fields = ["HMGET", &shop.buckets[0].bucket(), "epoch", "phase", "stock"];
    let pair: Vec<Option<String>> = redis::from_redis_value(wire.cmd(&fields)).unwrap();
    assert_eq!(pair, [Some("f100d6a7.3".to_owned()), Some("2".to_owned()), None]);
    // Nothing is cleared that nobody holds.
    let opening = there.opening(0, FIRST, 8);
    assert_eq!(opening.parse(wire.send(&opening.call()).unwrap()), Ok(true));
    wire.cmd(&["DEL", &shop.buckets[0].bucket()]);
    assert_eq!(there.clear(&mut wire, 0, FIRST), Err(Error::NotReady));
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
    let failed = record(2, RequestStage::Failed(Refusal::Ended));
    let rows = [
        LoadRow::Request(a.request, RequestRecord::ordered(&shop.order(&a))),
        LoadRow::Request(b.request, failed),
    ];
    shop.load_rows(&mut wire, 0, FIRST, &rows).unwrap();
    open(&shop, &mut wire, FIRST, 8).unwrap();
    assert_eq!(shop.counts(&mut wire, 0).num_unsettled(), 2);
    assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [SettleOutcome::Repeat]);
    assert_eq!(
        shop.release(&mut wire, 0, &[refused(&b, Refusal::Ended)]).items,
        [SettleOutcome::Repeat]
    );
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_unsettled(), counts.left.stock, counts.num_failed), (0, 8, 0));
}

#[test]
fn a_bucket_that_is_held_sells_nothing_and_tells_what_it_accepted() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let [a, b] = [shop.ask(1, 1, 1), shop.ask(2, 2, 1)];
    shop.reserve(&mut wire, 0, &[a, b]);
    let bucket = shop.buckets[0].bucket();
    wire.cmd(&["HSET", &bucket, "loading", "f100d6a7.7"]);
    let batch = [shop.ask(3, 3, 1)];
    let door = shop.reserving(0, &batch);
    assert_eq!(door.parse(wire.send(&door.call()).unwrap()), Err(Error::NotReady));
    assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&a)]), [SettleOutcome::Now]);
    assert_eq!(
        shop.release(&mut wire, 0, &[refused(&b, Refusal::Ended)]).items,
        [SettleOutcome::Now]
    );
    let wanted = [a.request];
    let find = Find { requests: &wanted, ..shop.find(0) };
    let found = find.parse(wire.send(&find.call()).unwrap()).unwrap();
    assert_eq!(found, [Some(RequestRecord::ordered(&shop.order(&a)))]);
    // Once it is cleared, nothing would be a lie.
    wire.cmd(&["HDEL", &bucket, "loaded"]);
    assert_eq!(find.parse(wire.send(&find.call()).unwrap()), Err(Error::NotReady));
}
