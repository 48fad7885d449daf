//! Epoch and phase are one ordered pair that only grows, whoever writes it and when.

use floodgate::domain::{Epoch, Phase, Verdict};
use floodgate::redis::scripts::{BucketFence, Error, SetPhase};
use floodgate::stock::LoaderToken;

use super::rig::{Shop, Wire, sku};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

/// What two operators do to one sale, in the order of the ledger.
const PAIRS: [(Epoch, Phase); 5] = [
    (Epoch(1), Phase::Paused),
    (Epoch(2), Phase::Open),
    (Epoch(2), Phase::Paused),
    (Epoch(3), Phase::Open),
    (Epoch(3), Phase::Closed),
];

fn stands(shop: &Shop, wire: &mut Wire) -> (Epoch, Phase) {
    let counts = shop.counts(wire, 0);
    (counts.epoch, counts.phase)
}

/// Every order in which these many things can come.
fn orders(left: Vec<usize>) -> Vec<Vec<usize>> {
    if left.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..left.len() {
        let mut rest = left.clone();
        let first = rest.remove(at);
        all.extend(orders(rest).into_iter().map(|order| [&[first], &order[..]].concat()));
    }
    all
}

#[test]
fn late_repeated_and_crossed_writes_take_nothing_back() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for order in orders((0..PAIRS.len()).collect()) {
        wire.cmd(&["FLUSHALL"]);
        let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
        let mut furthest = (Epoch(1), Phase::Open);
        // Each write comes, and later once more.
        let writes = order.iter().chain(&order);
        for (epoch, phase) in writes.map(|at| PAIRS[*at]) {
            let is_on = (epoch, phase) >= furthest;
            furthest = furthest.max((epoch, phase));
            assert_eq!(shop.turn(&mut wire, 0, phase, epoch), is_on, "{order:?}");
            assert_eq!(stands(&shop, &mut wire), furthest, "{order:?}");
        }
    }
}

#[test]
fn what_is_set_while_a_bucket_is_loaded_is_published_with_it() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for (epoch, phase) in PAIRS {
        for known in PAIRS {
            wire.cmd(&["FLUSHALL"]);
            let shop = Shop::new(&redis, sku(1, ONE, 20));
            shop.load_begin(&mut wire, 0, LoaderToken(1)).unwrap();
            assert!(shop.turn(&mut wire, 0, phase, epoch));
            let mut open = shop.opening(0, LoaderToken(1), 10);
            (open.epoch, open.phase) = known;
            assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
            assert_eq!(stands(&shop, &mut wire), known.max((epoch, phase)));
        }
    }
}

#[test]
fn a_bucket_of_another_server_keeps_the_pair_for_its_loader() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
    let fence = BucketFence { server: "0".repeat(40).into(), ..shop.fence.clone() };
    let keys = &shop.buckets[0];
    let turn = SetPhase { keys, fence: &fence, epoch: Epoch(1), phase: Phase::Closed };
    assert_eq!(turn.parse(wire.send(&turn.call()).unwrap()), Ok(true));
    assert_eq!(stands(&shop, &mut wire), (Epoch(1), Phase::Closed));
}

#[test]
fn a_pair_that_nobody_wrote_stops_a_verb_and_no_loader() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for (field, value) in [("epoch", "f100d6a7.x"), ("phase", "many"), ("phase", "4")] {
        wire.cmd(&["FLUSHALL"]);
        let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 20), 10);
        let bucket = shop.buckets[0].bucket();
        wire.cmd(&["HSET", &bucket, field, value]);
        let fence = &shop.fence;
        let turn = SetPhase { keys: &shop.buckets[0], fence, epoch: Epoch(9), phase: Phase::Open };
        let corrupt = Err(Error::Corrupt { what: field.to_owned() });
        assert_eq!(turn.parse(wire.send(&turn.call()).unwrap()), corrupt);

        shop.load_begin(&mut wire, 0, LoaderToken(1)).unwrap();
        wire.cmd(&["HSET", &bucket, "epoch", "f100d6a7.1", "phase", "1", field, value]);
        let open = shop.opening(0, LoaderToken(1), 10);
        assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
        assert_eq!(stands(&shop, &mut wire), (Epoch(1), Phase::Open));
        assert_eq!(shop.reserve(&mut wire, 0, &[shop.ask(1, 1, 1)]), [Verdict::Reserved]);
    }
}

#[test]
fn nothing_is_kept_of_a_bucket_that_is_not_there() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::new(&redis, sku(1, ONE, 20));
    let (keys, fence) = (&shop.buckets[0], &shop.fence);
    let turn = SetPhase { keys, fence, epoch: Epoch(1), phase: Phase::Open };
    let before = wire.digest();
    assert_eq!(turn.parse(wire.send(&turn.call()).unwrap()), Err(Error::NotReady));
    assert_eq!(wire.digest(), before);
}
