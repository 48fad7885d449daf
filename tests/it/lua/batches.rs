//! A batch whose first items are good and whose last one meets damage: nothing of it is written.
//! (That no script refuses after a write, whatever its shape, is also read off its text:
//! `tidy/lua_writes.rs`.)

use floodgate::domain::{Policy, Refusal};
use floodgate::redis::scripts::{Error, OutboxArgs, Release, ReserveBatch, ScriptCall, Settle};

use super::rig::{KINDS, Shop, Wire, refused};
use super::scenarios::{State, enter, policies, shop};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

type Read = fn(&Shop, redis::Value) -> Result<(), Error>;

/// Calls of which the last item is request 2 of buyer 2, which stands in the bucket, and all others
/// are good; with how to read the answer.
fn batches(shop: &Shop) -> Vec<(String, ScriptCall, Read)> {
    let (keys, fence, policy) = (&shop.buckets[0], &shop.fence, shop.sku.policy);
    let (known, last, new) = (shop.ask(1, 1, 2), shop.ask(2, 2, 1), shop.ask(30, 30, 1));
    let mut batches: Vec<(String, ScriptCall, Read)> = Vec::new();
    let asked = [shop.ask(10, 10, 1), new, last];
    for outbox in KINDS {
        let call = ReserveBatch { outbox, ..shop.reserving(0, &asked) }.call();
        batches.push((format!("reserve {outbox:?}"), call, |shop, value| {
            let batch = vec![shop.ask(1, 1, 1); 3];
            let outbox = OutboxArgs::None;
            ReserveBatch { outbox, ..shop.reserving(0, &batch) }.parse(value).map(drop)
        }));
    }
    for first in [known, new] {
        let orders = [shop.order(&first), shop.order(&last)];
        let call = Settle { keys, fence, policy, orders: &orders }.call();
        batches.push((format!("settle after {}", first.request), call, |shop, value| {
            let orders = [shop.order(&shop.ask(1, 1, 2)), shop.order(&shop.ask(2, 2, 1))];
            let (keys, fence, policy) = (&shop.buckets[0], &shop.fence, shop.sku.policy);
            Settle { keys, fence, policy, orders: &orders }.parse(value).map(drop)
        }));
    }
    let out = [refused(&known, Refusal::SoldOut), refused(&last, Refusal::Ended)];
    let call = Release { keys, fence, policy, refused: &out }.call();
    batches.push(("release".to_owned(), call, |shop, value| {
        let reasons = [1, 2].map(|no| refused(&shop.ask(no, no, 1), Refusal::Ended));
        let (keys, fence, policy) = (&shop.buckets[0], &shop.fence, shop.sku.policy);
        Release { keys, fence, policy, refused: &reasons }.parse(value).map(drop)
    }));
    batches
}

/// What can be damaged of the last item alone: key, field, value.
fn damages(shop: &Shop, name: &str) -> Vec<(String, &'static str, &'static str)> {
    let keys = &shop.buckets[0];
    let mut damages = vec![(keys.requests(keys.page_of(2)), "2", "short")];
    // A repeat is answered without a look at its buyer, an order that was accepted is settled so.
    if name == "release" && matches!(shop.sku.policy, Policy::Quota { .. }) {
        damages.push((keys.buyers(keys.page_of(2)), "2", "many"));
    }
    damages
}

#[test]
fn a_batch_with_damage_at_its_end_writes_nothing_of_its_beginning() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for policy in policies() {
        let shop = shop(&redis, policy);
        for (name, call, read) in batches(&shop) {
            enter(&shop, &mut wire, State::Selling);
            let before = wire.digest();
            let answer = wire.send(&call).unwrap();
            assert!(read(&shop, answer).is_ok(), "{name} {policy:?}: undamaged, it is accepted");
            assert_ne!(wire.digest(), before, "{name} {policy:?}: and writes");
            for (key, field, value) in damages(&shop, &name) {
                enter(&shop, &mut wire, State::Selling);
                wire.cmd(&["HSET", &key, field, value]);
                let before = wire.digest();
                let answer = wire.send(&call).unwrap();
                let read = read(&shop, answer);
                assert!(matches!(read, Err(Error::Corrupt { .. })), "{name} {policy:?}: {read:?}");
                assert_eq!(wire.digest(), before, "{name} {policy:?} {key}");
            }
        }
    }
}

#[test]
fn a_planted_script_that_writes_as_it_goes_is_found() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = shop(&redis, ONE);
    for (name, call, read) in batches(&shop) {
        let text = call.script().text();
        let step = "for i = 1, size do\n";
        let planted = text.replacen(step, &format!("{step}  call('HSET', KEYS[1], 'n', i)\n"), 1);
        assert_ne!(planted, text, "{name} has a step for each item");
        enter(&shop, &mut wire, State::Selling);
        let (key, field, value) = damages(&shop, &name).remove(0);
        wire.cmd(&["HSET", &key, field, value]);
        let before = wire.digest();
        let mut eval = redis::cmd("EVAL");
        eval.arg(&planted).arg(call.keys().len());
        for word in call.keys().chain(call.args()) {
            eval.arg(word);
        }
        let answer = wire.ask(&eval);
        assert!(matches!(read(&shop, answer), Err(Error::Corrupt { .. })), "{name}");
        assert_ne!(wire.digest(), before, "{name}");
    }
}
