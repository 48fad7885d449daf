//! A repeated call has no second effect, and ids of 19 digits are stored unchanged.

use floodgate::domain::ids::ID_MAX;
use floodgate::domain::{Epoch, Phase, Refusal, Verdict};
use floodgate::redis::scripts::intent;
use floodgate::redis::scripts::reserve_settle::{SettleOutcome, reserve};
use redis::{Value, from_redis_value};

use super::harness::{Fixture, KINDS, ScriptClient, refused, sku};
use super::scenarios::{self, Ended, State, enter, policies};
use crate::support::intents::key;
use crate::support::offers::{ANY, ONE, order_of};
use crate::support::servers::redis::Redis;

fn fixture(redis: &Redis, client: &mut ScriptClient) -> Fixture {
    Fixture::open(redis, client, sku(1, ONE, 200), 100)
}

#[test]
fn every_script_twice_is_every_script_once() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for policy in policies() {
        let fixture = scenarios::fixture(&redis, policy);
        for scenario in scenarios::all(&fixture) {
            enter(&fixture, &mut client, scenario.state);
            let before = client.digest();
            let mut digests = Vec::new();
            for _ in 0..3 {
                let answer = client.send(&scenario.call);
                let ended = scenario.ended(answer);
                // The repeat of `open` has another answer, which also counts as accepted.
                let accepted = matches!(ended, Ended::Accepted);
                assert!(accepted, "{}: {ended:?}", scenario.name);
                digests.push(client.digest());
            }
            assert_eq!(digests[0], digests[1], "{}", scenario.name);
            assert_eq!(digests[0], digests[2], "{}", scenario.name);
            let reads =
                ["snapshot", "find", "find a buyer", "queued"].contains(&scenario.name.as_str());
            assert_eq!(digests[0] == before, reads, "{}", scenario.name);
        }
    }
}

#[test]
fn only_a_touch_writes_when_nothing_is_accepted() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = fixture(&redis, &mut client);
    let batch = [fixture.reservation(1, 1, 1)];
    // `WAIT` waits for the replication of writes, which the server counts as changes.
    let changes = |redis: &Redis| redis.info("rdb_changes_since_last_save").parse::<u64>().unwrap();
    for (touch, writes) in [(false, true), (false, false), (true, true), (true, true)] {
        let (keys, key) = (&fixture.buckets[0], key());
        let call = reserve(keys, &fixture.sku, fixture.outbox, touch, &batch, &key);
        let before = changes(&redis);
        fixture.run(&mut client, &call).unwrap();
        assert_eq!(changes(&redis) > before, writes, "touch {touch}");
    }
}

#[test]
fn without_an_outbox_each_intent_waits_under_its_request() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = fixture(&redis, &mut client);
    let batch =
        [fixture.reservation(1, 1, 2), fixture.reservation(2, 2, 3), fixture.reservation(1, 3, 2)];
    fixture.reserve(&mut client, 0, &batch);
    let waiting = client.cmd(&["HGETALL", &fixture.buckets[0].unsettled()]);
    let mut waiting: Vec<(u64, Vec<u8>)> = from_redis_value(waiting).unwrap();
    waiting.sort_unstable();
    for ((number, packed), reservation) in waiting.iter().zip(&batch) {
        assert_eq!(*number, reservation.request.get());
        assert_eq!(intent::unpack(packed), Ok(*reservation));
    }
    assert_eq!(waiting.len(), 2);
    fixture.settle(&mut client, 0, &[order_of(&batch[1])]);
    fixture.release(&mut client, 0, &[refused(&batch[0], Refusal::Ended)]);
    assert_eq!(client.cmd(&["EXISTS", &fixture.buckets[0].unsettled()]), Value::Int(0));
}

#[test]
fn a_request_belongs_to_one_buyer_and_one_number_of_units() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ANY, 200), 100);
    let reservation = fixture.reservation(1, 1, 2);
    let (other_buyer, other_units) = (fixture.reservation(1, 2, 2), fixture.reservation(1, 1, 3));
    fixture.reserve(&mut client, 0, &[reservation]);
    let reused = Verdict::Refused(Refusal::RequestIdReused);
    assert_eq!(fixture.reserve(&mut client, 0, &[other_buyer, other_units]), [reused; 2]);
    let before = client.digest();
    for reuse in [other_buyer, other_units] {
        assert_eq!(fixture.settle(&mut client, 0, &[order_of(&reuse)]), [SettleOutcome::Mismatch]);
        let refusal = refused(&reuse, Refusal::Ended);
        assert_eq!(fixture.release(&mut client, 0, &[refusal]).0, [SettleOutcome::Mismatch]);
    }
    assert_eq!(client.digest(), before);
}

/// Adjacent ids that are equal as doubles, and the largest valid id.
const LONG_IDS: [u64; 10] = [
    100_000_000_000_000_001,
    900_719_925_474_099_301,
    900_719_925_474_099_302,
    900_719_925_474_099_303,
    999_999_999_999_999_999,
    1_000_000_000_000_000_001,
    9_007_199_254_740_993_001,
    9_007_199_254_740_993_002,
    ID_MAX - 1,
    ID_MAX,
];

#[test]
fn ids_of_eighteen_and_nineteen_digits_are_not_changed() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = fixture(&redis, &mut client);
    let reservations = LONG_IDS.map(|id| fixture.reservation(id, id, 1));
    assert_eq!(
        fixture.reserve(&mut client, 0, &reservations),
        [Verdict::Reserved; 10],
        "ten distinct ids"
    );
    let keys = &fixture.buckets[0];
    let mut stored: Vec<String> = Vec::new();
    for page in fixture.pages().all() {
        let fields = client.cmd(&["HKEYS", &keys.requests(page)]);
        stored.extend(from_redis_value::<Vec<String>>(fields).unwrap());
    }
    stored.sort_by_key(|id| id.parse::<u64>().unwrap());
    assert_eq!(stored, LONG_IDS.map(|id| id.to_string()));
    let waiting = client.cmd(&["HVALS", &keys.unsettled()]);
    let waiting: Vec<Vec<u8>> = from_redis_value(waiting).unwrap();
    let mut intents: Vec<_> =
        waiting.iter().map(|packed| intent::unpack(packed).unwrap()).collect();
    intents.sort_by_key(|intent| intent.request);
    assert_eq!(intents, reservations);
    let refusals: Vec<_> =
        reservations[5..].iter().map(|reservation| refused(reservation, Refusal::Ended)).collect();
    assert_eq!(fixture.release(&mut client, 0, &refusals).0, [SettleOutcome::Now; 5]);
    let orders: Vec<_> = reservations[..5].iter().map(order_of).collect();
    assert_eq!(fixture.settle(&mut client, 0, &orders), [SettleOutcome::Now; 5]);
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.num_requests, counts.num_failed, counts.left.stock), (10, 5, 95));
}

#[test]
fn an_answer_that_takes_no_units_writes_nothing() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for policy in policies() {
        let fixture = scenarios::fixture(&redis, policy);
        let batch = [
            fixture.reservation(1, 1, 2),
            fixture.reservation(1, 1, 1),
            fixture.reservation(1, 2, 2),
            fixture.reservation(40, 40, 1_000),
            fixture.reservation(50, 50, 1),
        ];
        let phases = [Phase::Open, Phase::Paused, Phase::Closed, Phase::Draft];
        for (phase, outbox) in
            phases.into_iter().flat_map(|phase| KINDS.map(|outbox| (phase, outbox)))
        {
            enter(&fixture, &mut client, State::Selling);
            for epoch in [Epoch(2), Epoch(7)] {
                let mut batch = batch.to_vec();
                if (phase, epoch) != (Phase::Open, Epoch(2)) {
                    batch.push(fixture.reservation(41, 41, 1));
                }
                assert!(fixture.set_phase(&mut client, 0, phase, Epoch(2)));
                let before = client.digest();
                for reservation in &mut batch {
                    reservation.epoch = epoch;
                }
                let decided =
                    fixture.run(&mut client, &fixture.reserving(0, outbox, &batch)).unwrap();
                assert!(!decided.0.contains(&Verdict::Reserved), "{decided:?}");
                assert_eq!(client.digest(), before, "{policy:?} {phase:?} {decided:?}");
            }
        }
    }
}
