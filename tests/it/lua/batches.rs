//! A batch whose last item meets corrupt data writes nothing, although its first items are valid.
//! (`tidy/lua_writes.rs` also checks in the text of the scripts that no script refuses after a
//! write.)

use floodgate::domain::{Policy, Refusal};
use floodgate::redis::scripts::{Error, OutboxArgs, Release, ReserveBatch, ScriptCall, Settle};

use super::harness::{Fixture, KINDS, ScriptClient, refused};
use super::scenarios::{State, enter, fixture, policies};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

type Read = fn(&Fixture, redis::Value) -> Result<(), Error>;

/// Valid calls whose last item is request 2 of buyer 2, which the bucket holds; each with its name
/// and the parser of its answer.
fn batches(fixture: &Fixture) -> Vec<(String, ScriptCall, Read)> {
    let (keys, fence, policy) = (&fixture.buckets[0], &fixture.fence, fixture.sku.policy);
    let (known, last, new) = (
        fixture.reservation(1, 1, 2),
        fixture.reservation(2, 2, 1),
        fixture.reservation(30, 30, 1),
    );
    let mut batches: Vec<(String, ScriptCall, Read)> = Vec::new();
    let reservations = [fixture.reservation(10, 10, 1), new, last];
    for outbox in KINDS {
        let call = ReserveBatch { outbox, ..fixture.reserving(0, &reservations) }.call();
        batches.push((format!("reserve {outbox:?}"), call, |fixture, value| {
            let batch = vec![fixture.reservation(1, 1, 1); 3];
            let outbox = OutboxArgs::None;
            ReserveBatch { outbox, ..fixture.reserving(0, &batch) }.parse(value).map(drop)
        }));
    }
    for first in [known, new] {
        let orders = [fixture.order(&first), fixture.order(&last)];
        let call = Settle { keys, fence, policy, orders: &orders }.call();
        batches.push((format!("settle after {}", first.request), call, |fixture, value| {
            let orders = [
                fixture.order(&fixture.reservation(1, 1, 2)),
                fixture.order(&fixture.reservation(2, 2, 1)),
            ];
            let (keys, fence, policy) = (&fixture.buckets[0], &fixture.fence, fixture.sku.policy);
            Settle { keys, fence, policy, orders: &orders }.parse(value).map(drop)
        }));
    }
    let refusals = [refused(&known, Refusal::SoldOut), refused(&last, Refusal::Ended)];
    let call = Release { keys, fence, policy, refused: &refusals }.call();
    batches.push(("release".to_owned(), call, |fixture, value| {
        let reasons = [1, 2].map(|no| refused(&fixture.reservation(no, no, 1), Refusal::Ended));
        let (keys, fence, policy) = (&fixture.buckets[0], &fixture.fence, fixture.sku.policy);
        Release { keys, fence, policy, refused: &reasons }.parse(value).map(drop)
    }));
    batches
}

/// Corruptions that affect only the last item: key, field, value.
fn corruptions(fixture: &Fixture, name: &str) -> Vec<(String, &'static str, &'static str)> {
    let keys = &fixture.buckets[0];
    let mut corruptions = vec![(keys.requests(keys.page_of(2)), "2", "short")];
    // Repeats and settles of accepted requests do not read the buyer's row.
    if name == "release" && matches!(fixture.sku.policy, Policy::Quota { .. }) {
        corruptions.push((keys.buyers(keys.page_of(2)), "2", "many"));
    }
    corruptions
}

#[test]
fn a_batch_with_damage_at_its_end_writes_nothing_of_its_beginning() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for policy in policies() {
        let fixture = fixture(&redis, policy);
        for (name, call, read) in batches(&fixture) {
            enter(&fixture, &mut client, State::Selling);
            let before = client.digest();
            let answer = client.send(&call).unwrap();
            assert!(
                read(&fixture, answer).is_ok(),
                "{name} {policy:?}: an intact bucket accepts the batch"
            );
            assert_ne!(client.digest(), before, "{name} {policy:?}: an accepted batch writes");
            for (key, field, value) in corruptions(&fixture, &name) {
                enter(&fixture, &mut client, State::Selling);
                client.cmd(&["HSET", &key, field, value]);
                let before = client.digest();
                let answer = client.send(&call).unwrap();
                let read = read(&fixture, answer);
                assert!(matches!(read, Err(Error::Corrupt { .. })), "{name} {policy:?}: {read:?}");
                assert_eq!(client.digest(), before, "{name} {policy:?} {key}");
            }
        }
    }
}

#[test]
fn a_planted_script_that_writes_as_it_goes_is_found() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = fixture(&redis, ONE);
    for (name, call, read) in batches(&fixture) {
        let text = call.script().text();
        let loop_head = "for i = 1, size do\n";
        let planted =
            text.replacen(loop_head, &format!("{loop_head}  call('HSET', KEYS[1], 'n', i)\n"), 1);
        assert_ne!(planted, text, "{name} has a loop over its items");
        enter(&fixture, &mut client, State::Selling);
        let (key, field, value) = corruptions(&fixture, &name).remove(0);
        client.cmd(&["HSET", &key, field, value]);
        let before = client.digest();
        let mut eval = redis::cmd("EVAL");
        eval.arg(&planted).arg(call.keys().len());
        for argument in call.keys().chain(call.args()) {
            eval.arg(argument);
        }
        let answer = client.query(&eval);
        assert!(matches!(read(&fixture, answer), Err(Error::Corrupt { .. })), "{name}");
        assert_ne!(client.digest(), before, "{name}");
    }
}
