//! Epoch and phase form one ordered pair that only grows, in whatever order writes arrive.

use floodgate::domain::{Epoch, LoaderToken, Phase, Verdict};
use floodgate::redis::scripts::load::set_phase;
use floodgate::redis::scripts::{BucketFence, Error};

use super::harness::{Fixture, ScriptClient, opening, sku};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

/// The transitions of one sale by two operators, in ledger order.
const PAIRS: [(Epoch, Phase); 5] = [
    (Epoch(1), Phase::Paused),
    (Epoch(2), Phase::Open),
    (Epoch(2), Phase::Paused),
    (Epoch(3), Phase::Open),
    (Epoch(3), Phase::Closed),
];

fn epoch_and_phase(fixture: &Fixture, client: &mut ScriptClient) -> (Epoch, Phase) {
    let counts = fixture.counts(client, 0);
    (counts.epoch, counts.phase)
}

/// All permutations.
fn permutations(items: Vec<usize>) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.clone();
        let first = rest.remove(at);
        all.extend(permutations(rest).into_iter().map(|order| [&[first], &order[..]].concat()));
    }
    all
}

#[test]
fn late_repeated_and_crossed_writes_take_nothing_back() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for order in permutations((0..PAIRS.len()).collect()) {
        client.cmd(&["FLUSHALL"]);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
        let mut furthest = (Epoch(1), Phase::Open);
        // Each write arrives twice.
        let writes = order.iter().chain(&order);
        for (epoch, phase) in writes.map(|at| PAIRS[*at]) {
            let is_newer = (epoch, phase) >= furthest;
            furthest = furthest.max((epoch, phase));
            assert_eq!(fixture.set_phase(&mut client, 0, phase, epoch), is_newer, "{order:?}");
            assert_eq!(epoch_and_phase(&fixture, &mut client), furthest, "{order:?}");
        }
    }
}

#[test]
fn a_phase_set_while_a_bucket_is_loaded_is_published_with_it() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for (epoch, phase) in PAIRS {
        for known in PAIRS {
            client.cmd(&["FLUSHALL"]);
            let fixture = Fixture::new(&redis, sku(1, ONE, 20));
            fixture.load_begin(&mut client, 0, LoaderToken(1)).unwrap();
            assert!(fixture.set_phase(&mut client, 0, phase, epoch));
            let mut open = opening(LoaderToken(1), 10);
            (open.epoch, open.phase) = known;
            assert_eq!(fixture.run(&mut client, &open.call(&fixture.buckets[0])), Ok(true));
            assert_eq!(epoch_and_phase(&fixture, &mut client), known.max((epoch, phase)));
        }
    }
}

#[test]
fn a_bucket_of_another_server_keeps_the_pair_for_its_loader() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
    let fence = BucketFence { server: "0".repeat(40).into(), ..fixture.fence.clone() };
    let replaced = Fixture { fence, ..fixture.clone() };
    let set_phase = set_phase(&fixture.buckets[0], Epoch(1), Phase::Closed);
    assert_eq!(replaced.run(&mut client, &set_phase), Ok(true));
    assert_eq!(epoch_and_phase(&fixture, &mut client), (Epoch(1), Phase::Closed));
}

#[test]
fn an_invalid_epoch_and_phase_stops_a_verb_and_no_loader() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for (field, value) in [("epoch", "f100d6a7.x"), ("phase", "many"), ("phase", "4")] {
        client.cmd(&["FLUSHALL"]);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 20), 10);
        let bucket = fixture.buckets[0].bucket();
        client.cmd(&["HSET", &bucket, field, value]);
        let set_phase = set_phase(&fixture.buckets[0], Epoch(9), Phase::Open);
        let corrupt = Err(Error::Corrupt { what: field.to_owned() });
        assert_eq!(fixture.run(&mut client, &set_phase), corrupt);

        fixture.load_begin(&mut client, 0, LoaderToken(1)).unwrap();
        client.cmd(&["HSET", &bucket, "epoch", "f100d6a7.1", "phase", "1", field, value]);
        let open = opening(LoaderToken(1), 10);
        assert_eq!(fixture.run(&mut client, &open.call(&fixture.buckets[0])), Ok(true));
        assert_eq!(epoch_and_phase(&fixture, &mut client), (Epoch(1), Phase::Open));
        assert_eq!(
            fixture.reserve(&mut client, 0, &[fixture.reservation(1, 1, 1)]),
            [Verdict::Reserved]
        );
    }
}

#[test]
fn nothing_is_kept_of_a_bucket_that_is_not_there() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::new(&redis, sku(1, ONE, 20));
    let set_phase = set_phase(&fixture.buckets[0], Epoch(1), Phase::Open);
    let before = client.digest();
    assert_eq!(fixture.run(&mut client, &set_phase), Err(Error::NotReady));
    assert_eq!(client.digest(), before);
}
