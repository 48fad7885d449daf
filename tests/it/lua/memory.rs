//! Redis memory per accepted buyer, compared with the usual layout: a set member per buyer and a
//! key per request.

use std::collections::HashSet;

use floodgate::domain::{OrderIntent, Policy};
use floodgate::redis::scripts::OutboxArgs;

use super::harness::{Fixture, OUTBOXES, ScriptClient, sku};
use super::scenarios::policies;
use crate::support::offers::ONE;
use crate::support::offers::order_of;
use crate::support::servers::redis::Redis;

const BUYERS: u32 = 50_000;
const BATCH: usize = 256;

/// Limit of bytes per accepted order that waits for the broker.
const BACKLOG_MAX: f64 = 150.0;

/// Limit of our bytes as a share of the usual layout's.
const RATIO_MAX: f64 = 0.40;

/// Distinct random ids of 18 and 19 digits.
fn ids(count: u32, random: &mut fastrand::Rng) -> Vec<u64> {
    let mut ids = HashSet::new();
    while ids.len() < count as usize {
        ids.insert(random.u64(100_000_000_000_000_000..1 << 63));
    }
    ids.into_iter().collect()
}

/// Bytes per buyer that `fill` adds to the server's `used_memory`, without the histogram of 24 KiB
/// that Redis has for the latency of each command that was ever sent to it.
fn bytes_per_buyer(fill: impl FnOnce(&Redis, &mut ScriptClient)) -> f64 {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    client.cmd(&["CONFIG", "SET", "latency-tracking", "no"]);
    let used = || redis.info("used_memory").parse::<f64>().unwrap();
    let before = used();
    fill(&redis, &mut client);
    (used() - before) / f64::from(BUYERS)
}

/// The usual layout: `SADD` for the purchase limit, `SET .. EX` for idempotency.
fn usual(client: &mut ScriptClient, purchases: &[(u64, u64)]) {
    for batch in purchases.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for (request, buyer) in batch {
            pipe.cmd("SADD").arg("seckill:users:1").arg(*buyer);
            pipe.cmd("SET").arg(format!("seckill:req:{request}")).arg("1").arg("EX").arg("600");
        }
        client.pipe(&pipe);
    }
}

/// Reserves and settles every purchase.
fn gate(redis: &Redis, client: &mut ScriptClient, purchases: &[(u64, u64)]) {
    let fixture = Fixture::open(redis, client, sku(1, ONE, 2 * BUYERS), BUYERS);
    let reservations: Vec<OrderIntent> =
        purchases.iter().map(|(request, buyer)| fixture.reservation(*request, *buyer, 1)).collect();
    for batch in reservations.chunks(BATCH) {
        fixture.reserve(client, 0, batch);
        let orders: Vec<_> = batch.iter().map(order_of).collect();
        fixture.settle(client, 0, &orders);
    }
    let counts = fixture.counts(client, 0);
    let expected = (u64::from(BUYERS), 0, 0);
    let found = (counts.num_requests, counts.num_unsettled(), counts.left.stock);
    assert_eq!(found, expected);
}

#[test]
fn a_buyer_takes_two_fifths_of_a_set_member_and_a_key_at_most() {
    let mut random = fastrand::Rng::with_seed(15);
    let (requests, buyers) = (ids(BUYERS, &mut random), ids(BUYERS, &mut random));
    let purchases: Vec<_> = requests.into_iter().zip(buyers).collect();
    let usual = bytes_per_buyer(|_, client| usual(client, &purchases));
    let ours = bytes_per_buyer(|redis, client| gate(redis, client, &purchases));
    let ratio = ours / usual;
    println!("bytes per buyer: {ours:.1} of {usual:.1}, {ratio:.2}");
    assert!(ratio <= RATIO_MAX, "{ours:.1} bytes of {usual:.1}: {ratio:.2}");
}

/// Reserves every purchase; all orders wait in the outbox.
fn backlog(
    redis: &Redis,
    client: &mut ScriptClient,
    policy: Policy,
    outbox: OutboxArgs,
    purchases: &[(u64, u64)],
) {
    let fixture = Fixture::open(redis, client, sku(1, policy, 2 * BUYERS), BUYERS);
    let reservations: Vec<OrderIntent> =
        purchases.iter().map(|(request, buyer)| fixture.reservation(*request, *buyer, 1)).collect();
    for batch in reservations.chunks(BATCH) {
        fixture.run(client, &fixture.reserving(0, outbox, batch)).unwrap();
    }
    let counts = fixture.counts(client, 0);
    assert_eq!((counts.num_queued, counts.left.stock), (u64::from(BUYERS), 0));
}

#[test]
fn an_order_that_waits_for_the_broker_takes_150_bytes_at_most() {
    let mut random = fastrand::Rng::with_seed(16);
    let (requests, buyers) = (ids(BUYERS, &mut random), ids(BUYERS, &mut random));
    let purchases: Vec<_> = requests.into_iter().zip(buyers).collect();
    for policy in policies() {
        for outbox in OUTBOXES {
            let bytes =
                bytes_per_buyer(|redis, client| backlog(redis, client, policy, outbox, &purchases));
            println!("bytes per waiting order: {bytes:.1}, {policy:?}, {outbox:?}");
            assert!(bytes <= BACKLOG_MAX, "{policy:?}, {outbox:?}: {bytes:.1} bytes");
        }
    }
}
