//! Loaders build a bucket from the ledger, one loader at a time.

use floodgate::domain::{
    BucketNo, Epoch, LoaderToken, Loan, Phase, RecordState, Refusal, RequestRecord, Verdict,
};
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::lookup;
use floodgate::redis::scripts::reserve_settle::SettleOutcome;
use floodgate::redis::scripts::snapshot::snapshot;
use floodgate::redis::scripts::{BucketFence, Error, OpenBucket};

use super::harness::{Fixture, KINDS, PAID, ScriptClient, opening, refused, sku};
use crate::support::offers::{ONE, buyer, order_of, quota, request};
use crate::support::servers::redis::Redis;

const FIRST: LoaderToken = LoaderToken(1);
const SECOND: LoaderToken = LoaderToken(2);

fn record(buyer_no: u64, state: RecordState) -> RequestRecord {
    RequestRecord { buyer: buyer(buyer_no), quantity: 2, placed_at_ms: 5, state }
}

fn ordered(request_no: u64, buyer_no: u64) -> LoadRow {
    LoadRow::Request(request(request_no), record(buyer_no, PAID))
}

/// Opens bucket 0.
fn open(
    fixture: &Fixture,
    client: &mut ScriptClient,
    loader: LoaderToken,
    stock: u32,
) -> Result<bool, Error> {
    let open = opening(loader, stock);
    fixture.run(client, &open.call(&fixture.buckets[0]))
}

#[test]
fn loaded_rows_are_answered_as_they_were() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::new(&redis, sku(1, quota(5), 2_000));
    fixture.load_begin(&mut client, 0, FIRST).unwrap();
    let failed = RecordState::Failed(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let mut rows: Vec<LoadRow> = (1..=500).map(|no| ordered(no, no)).collect();
    rows.extend((1..=500).map(|no| LoadRow::Units(buyer(no), 4)));
    rows.push(LoadRow::Request(request(501), record(501, failed)));
    assert_eq!(fixture.load_rows(&mut client, 0, FIRST, &rows), Ok(()));
    assert_eq!(fixture.load_rows(&mut client, 0, FIRST, &rows), Ok(()), "a repeated page of rows");
    assert_eq!(open(&fixture, &mut client, FIRST, 7), Ok(true));
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.num_requests, counts.num_buyers, counts.left.stock), (501, 500, 7));
    assert_eq!((counts.epoch, counts.phase), (Epoch(1), Phase::Open));
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 4, limit: 5 });
    let batch = [
        fixture.reservation(501, 501, 2),
        fixture.reservation(600, 7, 2),
        fixture.reservation(601, 7, 1),
    ];
    let answers = fixture.reserve(&mut client, 0, &batch);
    let known = Verdict::Repeat(record(501, failed));
    assert_eq!(answers, [known, over, Verdict::Reserved]);
    let wanted = [request(601), request(999), request(1), request(601)];
    let find = lookup::find(&fixture.buckets[0], &fixture.sku, &wanted);
    let found = fixture.run(&mut client, &find).unwrap();
    let states: Vec<_> = found.iter().map(|record| record.map(|record| record.state)).collect();
    let paid = Some(PAID);
    let queued = Some(RecordState::Queued { epoch: Epoch(1) });
    assert_eq!(states, [queued, None, paid, queued]);
}

#[test]
fn a_bucket_sells_nothing_while_it_is_loaded() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    let batch = [fixture.reservation(1, 1, 1)];
    let call = fixture.reserving(0, fixture.outbox, &batch);
    let refused = |client: &mut ScriptClient| {
        assert_eq!(fixture.run(client, &call), Err(Error::NotReady));
    };
    fixture.hold(&mut client, 0, FIRST).unwrap();
    refused(&mut client);
    fixture.clear(&mut client, 0, FIRST).unwrap();
    refused(&mut client);
    fixture.load_rows(&mut client, 0, FIRST, &[ordered(2, 2)]).unwrap();
    refused(&mut client);
    open(&fixture, &mut client, FIRST, 3).unwrap();
    assert_eq!(fixture.reserve(&mut client, 0, &batch), [Verdict::Reserved]);
}

#[test]
fn a_later_loader_ends_the_one_before() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::new(&redis, sku(1, ONE, 20));
    assert_eq!(fixture.hold(&mut client, 0, FIRST), Ok(true));
    assert_eq!(fixture.clear(&mut client, 0, FIRST), Ok(Vec::new()));
    fixture.load_rows(&mut client, 0, FIRST, &[ordered(1, 1)]).unwrap();
    assert_eq!(fixture.hold(&mut client, 0, FIRST), Ok(false), "held already");
    assert_eq!(fixture.load_begin(&mut client, 0, SECOND), Ok(Vec::new()));
    let rows = [ordered(2, 2)];
    assert_eq!(fixture.load_rows(&mut client, 0, SECOND, &rows), Ok(()));
    let before = client.digest();
    assert_eq!(fixture.hold(&mut client, 0, FIRST), Err(Error::OldLoader));
    assert_eq!(fixture.clear(&mut client, 0, FIRST), Err(Error::OldLoader));
    assert_eq!(fixture.load_rows(&mut client, 0, FIRST, &[ordered(1, 1)]), Err(Error::OldLoader));
    assert_eq!(open(&fixture, &mut client, FIRST, 9), Err(Error::OldLoader));
    assert_eq!(client.digest(), before);
    assert_eq!(open(&fixture, &mut client, SECOND, 8), Ok(true));
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.num_requests, counts.left.stock), (1, 8));
}

#[test]
fn a_step_that_comes_after_the_opening_changes_nothing() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::new(&redis, sku(1, ONE, 20));
    assert_eq!(fixture.load_begin(&mut client, 0, SECOND), Ok(Vec::new()));
    assert_eq!(open(&fixture, &mut client, SECOND, 8), Ok(true));
    fixture.reserve(&mut client, 0, &[fixture.reservation(1, 1, 1)]);
    let before = client.digest();
    assert_eq!(open(&fixture, &mut client, SECOND, 8), Ok(false), "a repeated opening");
    for late in [FIRST, SECOND] {
        assert_eq!(fixture.hold(&mut client, 0, late), Err(Error::OldLoader));
        assert_eq!(fixture.clear(&mut client, 0, late), Err(Error::OldLoader));
        assert_eq!(
            fixture.load_rows(&mut client, 0, late, &[ordered(1, 1)]),
            Err(Error::OldLoader)
        );
    }
    assert_eq!(open(&fixture, &mut client, FIRST, 8), Err(Error::OldLoader));
    assert_eq!(client.digest(), before);
}

/// The counts of a bucket begin with the token of its load.
#[test]
fn counts_of_sixteen_digits_are_read_as_long_as_they_are_exact() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::new(&redis, sku(1, ONE, 20));
    let loader = LoaderToken(10_000_000);
    fixture.load_begin(&mut client, 0, loader).unwrap();
    assert_eq!(open(&fixture, &mut client, loader, 8), Ok(true));
    let batch = [fixture.reservation(1, 1, 1)];
    assert_eq!(fixture.reserve(&mut client, 0, &batch), [Verdict::Reserved]);
    let loan = Loan { no: 1_000_000_000_000_001, units: 3 };
    assert_eq!(fixture.lend(&mut client, 0, 1, 3), Some(loan));
    let counts = fixture.counts(&mut client, 0);
    assert_eq!(counts.left.changes, 1_000_000_000_000_001);
    assert_eq!(counts.loans, [(BucketNo(1), loan)]);
    // A double does not tell 2^53 from the next number.
    let keys = &fixture.buckets[0];
    for (changes, is_read) in [("9007199254740991", true), ("9007199254740992", false)] {
        client.cmd(&["HSET", &keys.bucket(), "changes", changes]);
        let read = fixture.run(&mut client, &snapshot(keys, 0..0));
        assert_eq!(read.is_ok(), is_read, "{changes}: {read:?}");
    }
}

#[test]
fn an_accepted_request_survives_every_load_that_ends_early() {
    for outbox in KINDS {
        let redis = Redis::start();
        let mut client = ScriptClient::new(&redis);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
        let [a, b, c] = [1, 2, 3].map(|no| fixture.reservation(no, no, 2));
        fixture.reserve_into(&mut client, outbox, &[a, b, c]);
        fixture.settle(&mut client, 0, &[order_of(&c)]);
        let rows = [LoadRow::Request(c.request, RequestRecord::ordered(&order_of(&c)))];
        // Each loader crashes one step later than its predecessor.
        fixture.hold(&mut client, 0, LoaderToken(1)).unwrap();
        fixture.hold(&mut client, 0, LoaderToken(2)).unwrap();
        assert_eq!(fixture.clear(&mut client, 0, LoaderToken(2)), Ok(vec![1, 2]));
        fixture.hold(&mut client, 0, LoaderToken(3)).unwrap();
        assert_eq!(fixture.clear(&mut client, 0, LoaderToken(3)), Ok(vec![1, 2]));
        fixture.load_rows(&mut client, 0, LoaderToken(3), &rows).unwrap();
        fixture.hold(&mut client, 0, LoaderToken(4)).unwrap();
        assert_eq!(fixture.clear(&mut client, 0, LoaderToken(4)), Ok(vec![1, 2]));
        fixture.load_rows(&mut client, 0, LoaderToken(4), &rows).unwrap();
        let opening = OpenBucket { num_queued: 2, ..opening(LoaderToken(4), 4) };
        assert_eq!(fixture.run(&mut client, &opening.call(&fixture.buckets[0])), Ok(true));

        let counts = fixture.counts(&mut client, 0);
        assert_eq!((counts.num_queued, counts.num_requests), (2, 3));
        let answers = fixture.reserve(&mut client, 0, &[a, b]);
        assert_eq!(answers, [Verdict::Queued { intent: None }; 2]);
        // The ledger commits one order and refuses the other.
        assert_eq!(fixture.settle(&mut client, 0, &[order_of(&a)]), [SettleOutcome::Now]);
        let outcomes = fixture.release(&mut client, 0, &[refused(&b, Refusal::Ended)]);
        assert_eq!((outcomes.0, outcomes.1.stock), (vec![SettleOutcome::Now], 6));
        let counts = fixture.counts(&mut client, 0);
        assert_eq!(counts.num_unsettled(), 0);
    }
}

#[test]
fn decisions_on_lost_requests_are_recorded() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    let [a, b, c] = [1, 2, 3].map(|no| fixture.reservation(no, no, 2));
    assert_eq!(fixture.settle(&mut client, 0, &[order_of(&a)]), [SettleOutcome::Adopted]);
    let refusals = [refused(&b, Refusal::Ended), refused(&c, Refusal::SoldOut)];
    for outcome in [SettleOutcome::Unknown, SettleOutcome::Repeat] {
        assert_eq!(fixture.release(&mut client, 0, &refusals).0, [outcome; 2]);
        let counts = fixture.counts(&mut client, 0);
        assert_eq!((counts.left.stock, counts.num_queued), (8, 0));
        // A refusal as sold out releases no units: the ledger never had them.
        assert_eq!((counts.num_failed, counts.released_units), (2, 2));
    }
    let answers = fixture.reserve(&mut client, 0, &[b, c]);
    assert_eq!(answers, refusals.map(|it| Verdict::Repeat(RequestRecord::failed(&it))));
    let find = lookup::find(&fixture.buckets[0], &fixture.sku, &[b.request]);
    let found = fixture.run(&mut client, &find).unwrap();
    assert_eq!(
        found[0].unwrap().placed_at_ms,
        b.placed_at_ms + 5,
        "the time of the refusal in the ledger"
    );
}

#[test]
fn a_load_replaces_invalid_values() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    fixture.reserve(&mut client, 0, &[fixture.reservation(1, 1, 2)]);
    let keys = fixture.buckets[0].clone();
    let damaged = [keys.bucket(), keys.moves(), keys.unsettled(), keys.buyers(0)];
    for (token, key) in (1..).map(LoaderToken).zip(damaged) {
        client.replace(&key, &["SADD", "member"]);
        assert_eq!(fixture.load_begin(&mut client, 0, token), Ok(vec![1]), "{key}");
        open(&fixture, &mut client, token, 8).unwrap();
        assert_eq!(fixture.counts(&mut client, 0).left.stock, 8, "{key}");
    }
    let page = keys.requests(0);
    client.cmd(&["HSET", &page, "77", "no record"]);
    assert_eq!(fixture.load_begin(&mut client, 0, LoaderToken(10)), Ok(vec![1]));
    assert_eq!(client.cmd(&["HLEN", &page]), redis::Value::Int(1));
    client.replace(&page, &["SET", "text"]);
    assert_eq!(fixture.load_begin(&mut client, 0, LoaderToken(11)), Ok(Vec::new()));
    // Invalid loader numbers do not block a load; the bucket of another installation does.
    client.cmd(&["HSET", &keys.bucket(), "loading", "f100d6a7.x", "loaded", "f100d6a7.-1"]);
    assert_eq!(fixture.load_begin(&mut client, 0, LoaderToken(12)), Ok(Vec::new()));
    client.cmd(&["HSET", &keys.bucket(), "loading", "00000000.1"]);
    for token in [1, 99].map(LoaderToken) {
        assert_eq!(fixture.hold(&mut client, 0, token), Err(Error::Foreign));
        assert_eq!(fixture.clear(&mut client, 0, token), Err(Error::Foreign));
    }
    // The doctor tells whether it is another ledger's, or was overwritten.
    let text = Error::Foreign.to_string();
    for part in ["`redis buckets` of `floodgate doctor`", "a `namespace` of its own"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_load_on_another_server_keeps_what_was_accepted_and_the_opening() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    fixture.reserve(&mut client, 0, &[fixture.reservation(1, 1, 2)]);
    fixture.set_phase(&mut client, 0, Phase::Paused, Epoch(3));
    fixture.hold(&mut client, 0, FIRST).unwrap();
    // The server is replaced between two steps of the load.
    let server = "0".repeat(40).into();
    let replaced =
        Fixture { fence: BucketFence { server, ..fixture.fence.clone() }, ..fixture.clone() };
    assert_eq!(replaced.clear(&mut client, 0, FIRST), Ok(vec![1]));
    assert_eq!(fixture.load_rows(&mut client, 0, FIRST, &[ordered(2, 2)]), Err(Error::Fenced));
    assert_eq!(replaced.load_rows(&mut client, 0, FIRST, &[ordered(2, 2)]), Ok(()));
    let fields = ["HMGET", &fixture.buckets[0].bucket(), "epoch", "phase", "stock"];
    let pair: Vec<Option<String>> = redis::from_redis_value(client.cmd(&fields)).unwrap();
    assert_eq!(pair, [Some("f100d6a7.3".to_owned()), Some("2".to_owned()), None]);
    // A bucket that is not held cannot be cleared.
    let opening = opening(FIRST, 8);
    assert_eq!(replaced.run(&mut client, &opening.call(&fixture.buckets[0])), Ok(true));
    client.cmd(&["DEL", &fixture.buckets[0].bucket()]);
    assert_eq!(replaced.clear(&mut client, 0, FIRST), Err(Error::NotReady));
}

#[test]
fn an_intent_goes_with_the_loaded_answer_of_its_request() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    let [a, b, c] = [1, 2, 3].map(|no| fixture.reservation(no, no, 2));
    fixture.reserve(&mut client, 0, &[a, b, c]);
    // The bucket is loaded after the ledger decided two, and before the results reach Redis.
    fixture.load_begin(&mut client, 0, FIRST).unwrap();
    let failed = record(2, RecordState::Failed(Refusal::Ended));
    let rows = [
        LoadRow::Request(a.request, RequestRecord::ordered(&order_of(&a))),
        LoadRow::Request(b.request, failed),
    ];
    fixture.load_rows(&mut client, 0, FIRST, &rows).unwrap();
    let opening = OpenBucket { num_queued: 1, ..opening(FIRST, 6) };
    fixture.run(&mut client, &opening.call(&fixture.buckets[0])).unwrap();
    assert_eq!(fixture.counts(&mut client, 0).num_kept, 1, "that of the third");
    assert_eq!(fixture.settle(&mut client, 0, &[order_of(&a)]), [SettleOutcome::Repeat]);
    assert_eq!(
        fixture.release(&mut client, 0, &[refused(&b, Refusal::Ended)]).0,
        [SettleOutcome::Repeat]
    );
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.num_unsettled(), counts.left.stock, counts.num_failed), (1, 6, 0));
}

#[test]
fn a_held_bucket_sells_nothing_and_lists_what_it_accepted() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    let [a, b] = [fixture.reservation(1, 1, 1), fixture.reservation(2, 2, 1)];
    fixture.reserve(&mut client, 0, &[a, b]);
    let bucket = fixture.buckets[0].bucket();
    client.cmd(&["HSET", &bucket, "loading", "f100d6a7.7"]);
    let batch = [fixture.reservation(3, 3, 1)];
    let call = fixture.reserving(0, fixture.outbox, &batch);
    assert_eq!(fixture.run(&mut client, &call), Err(Error::NotReady));
    assert_eq!(fixture.settle(&mut client, 0, &[order_of(&a)]), [SettleOutcome::Now]);
    assert_eq!(
        fixture.release(&mut client, 0, &[refused(&b, Refusal::Ended)]).0,
        [SettleOutcome::Now]
    );
    let wanted = [a.request];
    let find = lookup::find(&fixture.buckets[0], &fixture.sku, &wanted);
    let found = fixture.run(&mut client, &find).unwrap();
    assert_eq!(found, [Some(RequestRecord::ordered(&order_of(&a)))]);
    // After a clear the script must not answer "not found".
    client.cmd(&["HDEL", &bucket, "loaded"]);
    assert_eq!(fixture.run(&mut client, &find), Err(Error::NotReady));
}
