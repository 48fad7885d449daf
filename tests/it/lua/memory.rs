//! Bytes for each accepted buyer, against the usual pair of a set member and one key per request.

use std::collections::HashSet;

use floodgate::domain::{Policy, Reservation};
use floodgate::redis::scripts::{OutboxArgs, ReserveBatch};

use super::rig::{OUTBOXES, Shop, Wire, sku};
use super::scenarios::policies;
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

const BUYERS: u32 = 50_000;
const BATCH: usize = 256;

/// More bytes for each accepted order that waits for the broker fail.
const BACKLOG_MAX: f64 = 150.0;

/// More than this share of the usual layout fails.
const RATIO_MAX: f64 = 0.40;

/// Random ids of 18 and 19 digits, no two the same.
fn ids(count: u32, random: &mut fastrand::Rng) -> Vec<u64> {
    let mut ids = HashSet::new();
    while ids.len() < count as usize {
        ids.insert(random.u64(100_000_000_000_000_000..1 << 63));
    }
    ids.into_iter().collect()
}

/// Bytes that the server uses for `fill`, for each buyer.
fn bytes_per_buyer(fill: impl FnOnce(&Redis, &mut Wire)) -> f64 {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let used = || redis.info("used_memory").parse::<f64>().unwrap();
    let before = used();
    fill(&redis, &mut wire);
    (used() - before) / f64::from(BUYERS)
}

/// `SADD` and `SET .. EX`: what idempotency and a limit usually cost.
fn usual(wire: &mut Wire, wishes: &[(u64, u64)]) {
    for batch in wishes.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for (request, buyer) in batch {
            pipe.cmd("SADD").arg("seckill:users:1").arg(*buyer);
            pipe.cmd("SET").arg(format!("seckill:req:{request}")).arg("1").arg("EX").arg("600");
        }
        wire.pipe(&pipe);
    }
}

/// A whole sale: reserved and settled.
fn gate(redis: &Redis, wire: &mut Wire, wishes: &[(u64, u64)]) {
    let shop = Shop::open(redis, wire, sku(1, ONE, 2 * BUYERS), BUYERS);
    let asks: Vec<Reservation> =
        wishes.iter().map(|(request, buyer)| shop.ask(*request, *buyer, 1)).collect();
    for batch in asks.chunks(BATCH) {
        shop.reserve(wire, 0, batch);
        let orders: Vec<_> = batch.iter().map(|ask| shop.order(ask)).collect();
        shop.settle(wire, 0, &orders);
    }
    let counts = shop.counts(wire, 0);
    let expected = (u64::from(BUYERS), 0, 0);
    let seen = (counts.num_requests, counts.num_unsettled(), counts.left.stock);
    assert_eq!(seen, expected);
}

#[test]
fn a_buyer_takes_two_fifths_of_a_set_member_and_a_key_at_most() {
    let mut random = fastrand::Rng::with_seed(15);
    let (requests, buyers) = (ids(BUYERS, &mut random), ids(BUYERS, &mut random));
    let wishes: Vec<_> = requests.into_iter().zip(buyers).collect();
    let usual = bytes_per_buyer(|_, wire| usual(wire, &wishes));
    let ours = bytes_per_buyer(|redis, wire| gate(redis, wire, &wishes));
    let ratio = ours / usual;
    println!("bytes per buyer: {ours:.1} of {usual:.1}, {ratio:.2}");
    assert!(ratio <= RATIO_MAX, "{ours:.1} bytes of {usual:.1}: {ratio:.2}");
}

/// A sale whose orders all wait in the outbox.
fn backlog(
    redis: &Redis,
    wire: &mut Wire,
    policy: Policy,
    outbox: OutboxArgs,
    wishes: &[(u64, u64)],
) {
    let shop = Shop::open(redis, wire, sku(1, policy, 2 * BUYERS), BUYERS);
    let asks: Vec<Reservation> =
        wishes.iter().map(|(request, buyer)| shop.ask(*request, *buyer, 1)).collect();
    for batch in asks.chunks(BATCH) {
        let door = ReserveBatch { outbox, ..shop.reserving(0, batch) };
        door.parse(wire.send(&door.call()).unwrap()).unwrap();
    }
    let counts = shop.counts(wire, 0);
    assert_eq!((counts.num_queued, counts.left.stock), (u64::from(BUYERS), 0));
}

#[test]
fn an_order_that_waits_for_the_broker_takes_150_bytes_at_most() {
    let mut random = fastrand::Rng::with_seed(16);
    let (requests, buyers) = (ids(BUYERS, &mut random), ids(BUYERS, &mut random));
    let wishes: Vec<_> = requests.into_iter().zip(buyers).collect();
    for policy in policies() {
        for outbox in OUTBOXES {
            let bytes =
                bytes_per_buyer(|redis, wire| backlog(redis, wire, policy, outbox, &wishes));
            println!("bytes per waiting order: {bytes:.1}, {policy:?}, {outbox:?}");
            assert!(bytes <= BACKLOG_MAX, "{policy:?}, {outbox:?}: {bytes:.1} bytes");
        }
    }
}
