//! A batch whose last item meets corrupt data writes nothing, although its first items are valid.
//! (`tidy/lua_writes.rs` also checks in the text of the scripts that no script refuses after a
//! write.)

use floodgate::domain::{Policy, Refusal};
use floodgate::redis::scripts::Error;
use floodgate::redis::scripts::reserve_settle::{release, settle};

use super::fenced_call::FencedCall;
use super::harness::{Fixture, KINDS, ScriptClient, refused};
use super::scenarios::{State, enter, fixture, policies};
use crate::support::offers::ONE;
use crate::support::offers::order_of;
use crate::support::servers::redis::Redis;

/// Valid calls whose last item is request 2 of buyer 2, which the bucket holds; each with its name.
fn batches(fixture: &Fixture) -> Vec<(String, FencedCall)> {
    let (keys, sku) = (&fixture.buckets[0], &fixture.sku);
    let (known, last, new) = (
        fixture.reservation(1, 1, 2),
        fixture.reservation(2, 2, 1),
        fixture.reservation(30, 30, 1),
    );
    let mut batches: Vec<(String, FencedCall)> = Vec::new();
    let reservations = [fixture.reservation(10, 10, 1), new, last];
    for outbox in KINDS {
        let call = fixture.reserving(0, outbox, &reservations);
        batches.push((format!("reserve {outbox:?}"), fixture.fenced(call)));
    }
    for first in [known, new] {
        let call = settle(keys, sku, &[order_of(&first), order_of(&last)]);
        batches.push((format!("settle after {}", first.request), fixture.fenced(call)));
    }
    let refusals = [refused(&known, Refusal::SoldOut), refused(&last, Refusal::Ended)];
    batches.push(("release".to_owned(), fixture.fenced(release(keys, sku, &refusals))));
    batches
}

/// Corruptions that affect only the last item: key, field, value.
fn corruptions(fixture: &Fixture, name: &str) -> Vec<(String, &'static str, &'static str)> {
    let keys = &fixture.buckets[0];
    let mut corruptions = vec![(keys.requests(fixture.pages().page_of(2)), "2", "short")];
    // Repeats and settles of accepted requests do not read the buyer's row.
    if name == "release" && matches!(fixture.sku.policy, Policy::Quota { .. }) {
        corruptions.push((keys.buyers(fixture.pages().page_of(2)), "2", "many"));
    }
    corruptions
}

#[test]
fn a_batch_with_damage_at_its_end_writes_nothing_of_its_beginning() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for policy in policies() {
        let fixture = fixture(&redis, policy);
        for (name, call) in batches(&fixture) {
            enter(&fixture, &mut client, State::Selling);
            let before = client.digest();
            let answer = client.send(&call).unwrap();
            assert!(
                call.parse(answer).is_ok(),
                "{name} {policy:?}: an intact bucket accepts the batch"
            );
            assert_ne!(client.digest(), before, "{name} {policy:?}: an accepted batch writes");
            for (key, field, value) in corruptions(&fixture, &name) {
                enter(&fixture, &mut client, State::Selling);
                client.cmd(&["HSET", &key, field, value]);
                let before = client.digest();
                let answer = client.send(&call).unwrap();
                let read = call.parse(answer);
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
    for (name, call) in batches(&fixture) {
        let text = call.script().text();
        let loop_head = "for i = 1, size do\n";
        let planted =
            text.replacen(loop_head, &format!("{loop_head}  call('HSET', KEYS[1], 'n', i)\n"), 1);
        assert_ne!(planted, text, "{name} has a loop over its items");
        enter(&fixture, &mut client, State::Selling);
        let (key, field, value) = corruptions(&fixture, &name).remove(0);
        client.cmd(&["HSET", &key, field, value]);
        let before = client.digest();
        let answer = client.query(&call.eval(&planted));
        assert!(matches!(call.parse(answer), Err(Error::Corrupt { .. })), "{name}");
        assert_ne!(client.digest(), before, "{name}");
    }
}
