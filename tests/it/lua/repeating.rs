//! Whatever is sent twice is done once, and ids go through as they are.

use floodgate::domain::ids::ID_MAX;
use floodgate::domain::{Epoch, Phase, Refusal, Verdict};
use floodgate::redis::scripts::settle::SettleOutcome;
use floodgate::redis::scripts::{ReserveBatch, intent};
use redis::{Value, from_redis_value};

use super::rig::{KINDS, Shop, Wire, refused, sku};
use super::scenarios::{self, Ended, State, enter, policies};
use crate::support::offers::{ANY, ONE};
use crate::support::servers::redis::Redis;

fn shop(redis: &Redis, wire: &mut Wire) -> Shop {
    Shop::open(redis, wire, sku(1, ONE, 200), 100)
}

#[test]
fn every_script_twice_is_every_script_once() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for policy in policies() {
        let shop = scenarios::shop(&redis, policy);
        for scenario in scenarios::all(&shop) {
            enter(&shop, &mut wire, scenario.state);
            let before = wire.digest();
            let mut digests = Vec::new();
            for _ in 0..3 {
                let answer = wire.send(&scenario.call);
                let ended = scenario.ended(&shop, answer);
                // Only a loader that has finished gets another answer the second time.
                let accepted = matches!(ended, Ended::Accepted);
                assert!(accepted, "{}: {ended:?}", scenario.name);
                digests.push(wire.digest());
            }
            assert_eq!(digests[0], digests[1], "{}", scenario.name);
            assert_eq!(digests[0], digests[2], "{}", scenario.name);
            let reads = ["snapshot", "find", "queued"].contains(&scenario.name.as_str());
            assert_eq!(digests[0] == before, reads, "{}", scenario.name);
        }
    }
}

#[test]
fn only_a_touch_writes_when_nothing_is_accepted() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = shop(&redis, &mut wire);
    let batch = [shop.ask(1, 1, 1)];
    // What `WAIT` waits for is what the server counts as changes.
    let changes = |redis: &Redis| redis.info("rdb_changes_since_last_save").parse::<u64>().unwrap();
    for (touch, writes) in [(false, true), (false, false), (true, true), (true, true)] {
        let door = ReserveBatch { touch, ..shop.reserving(0, &batch) };
        let before = changes(&redis);
        door.parse(wire.send(&door.call()).unwrap()).unwrap();
        assert_eq!(changes(&redis) > before, writes, "touch {touch}");
    }
}

#[test]
fn without_an_outbox_each_intent_waits_under_its_request() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = shop(&redis, &mut wire);
    let batch = [shop.ask(1, 1, 2), shop.ask(2, 2, 3), shop.ask(1, 3, 2)];
    shop.reserve(&mut wire, 0, &batch);
    let waiting = wire.cmd(&["HGETALL", &shop.buckets[0].unsettled()]);
    let mut waiting: Vec<(u64, Vec<u8>)> = from_redis_value(waiting).unwrap();
    waiting.sort_unstable();
    for ((number, packed), ask) in waiting.iter().zip(&batch) {
        assert_eq!(*number, ask.request.get());
        assert_eq!(intent::unpack(packed), Ok(ask.intent(&shop.sku)));
    }
    assert_eq!(waiting.len(), 2);
    shop.settle(&mut wire, 0, &[shop.order(&batch[1])]);
    shop.release(&mut wire, 0, &[refused(&batch[0], Refusal::Ended)]);
    assert_eq!(wire.cmd(&["EXISTS", &shop.buckets[0].unsettled()]), Value::Int(0));
}

#[test]
fn a_request_belongs_to_one_buyer_and_one_number_of_units() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ANY, 200), 100);
    let ask = shop.ask(1, 1, 2);
    let (other_buyer, other_units) = (shop.ask(1, 2, 2), shop.ask(1, 1, 3));
    shop.reserve(&mut wire, 0, &[ask]);
    let reused = Verdict::Refused(Refusal::RequestIdReused);
    assert_eq!(shop.reserve(&mut wire, 0, &[other_buyer, other_units]), [reused; 2]);
    let before = wire.digest();
    for wrong in [other_buyer, other_units] {
        assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&wrong)]), [SettleOutcome::Mismatch]);
        let refusal = refused(&wrong, Refusal::Ended);
        assert_eq!(shop.release(&mut wire, 0, &[refusal]).items, [SettleOutcome::Mismatch]);
    }
    assert_eq!(wire.digest(), before);
}

/// Neighbours that a double cannot tell apart, and the largest id there is.
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
    let mut wire = Wire::new(&redis);
    let shop = shop(&redis, &mut wire);
    let asks = LONG_IDS.map(|id| shop.ask(id, id, 1));
    assert_eq!(shop.reserve(&mut wire, 0, &asks), [Verdict::Reserved; 10], "ten ids, not fewer");
    let keys = &shop.buckets[0];
    let mut stored: Vec<String> = Vec::new();
    for page in 0..keys.pages() {
        let fields = wire.cmd(&["HKEYS", &keys.requests(page)]);
        stored.extend(from_redis_value::<Vec<String>>(fields).unwrap());
    }
    stored.sort_by_key(|id| id.parse::<u64>().unwrap());
    assert_eq!(stored, LONG_IDS.map(|id| id.to_string()));
    let waiting = wire.cmd(&["HVALS", &keys.unsettled()]);
    let waiting: Vec<Vec<u8>> = from_redis_value(waiting).unwrap();
    let mut intents: Vec<_> = waiting.iter().map(|one| intent::unpack(one).unwrap()).collect();
    intents.sort_by_key(|intent| intent.request);
    assert_eq!(intents, asks.map(|ask| ask.intent(&shop.sku)));
    let refusals: Vec<_> = asks[5..].iter().map(|ask| refused(ask, Refusal::Ended)).collect();
    assert_eq!(shop.release(&mut wire, 0, &refusals).items, [SettleOutcome::Now; 5]);
    let orders: Vec<_> = asks[..5].iter().map(|ask| shop.order(ask)).collect();
    assert_eq!(shop.settle(&mut wire, 0, &orders), [SettleOutcome::Now; 5]);
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.num_requests, counts.num_failed, counts.left.stock), (10, 5, 95));
}

#[test]
fn an_answer_that_takes_no_units_writes_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for policy in policies() {
        let shop = scenarios::shop(&redis, policy);
        let batch = [
            shop.ask(1, 1, 2),
            shop.ask(1, 1, 1),
            shop.ask(1, 2, 2),
            shop.ask(40, 40, 1_000),
            shop.ask(50, 50, 1),
        ];
        let turns = [Phase::Open, Phase::Paused, Phase::Closed, Phase::Draft];
        for (phase, outbox) in
            turns.into_iter().flat_map(|phase| KINDS.map(|outbox| (phase, outbox)))
        {
            enter(&shop, &mut wire, State::Selling);
            for epoch in [Epoch(2), Epoch(7)] {
                let mut batch = batch.to_vec();
                if (phase, epoch) != (Phase::Open, Epoch(2)) {
                    batch.push(shop.ask(41, 41, 1));
                }
                assert!(shop.turn(&mut wire, 0, phase, Epoch(2)));
                let before = wire.digest();
                let door = ReserveBatch { outbox, epoch, ..shop.reserving(0, &batch) };
                let decided = door.parse(wire.send(&door.call()).unwrap()).unwrap();
                assert!(!decided.verdicts.contains(&Verdict::Reserved), "{decided:?}");
                assert_eq!(wire.digest(), before, "{policy:?} {phase:?} {decided:?}");
            }
        }
    }
}
