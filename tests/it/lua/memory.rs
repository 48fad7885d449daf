//! Bytes for each accepted buyer, against the usual pair of a set member and one key per request.

use std::collections::HashSet;

use floodgate::domain::Reservation;

use super::rig::{Shop, Wire, sku};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

const BUYERS: u32 = 50_000;
const BATCH: usize = 256;

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
    let expected = (u64::from(BUYERS), u64::from(BUYERS), 0, 0);
    let seen = (counts.num_requests, counts.num_buyers, counts.num_unsettled, counts.left.stock);
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
