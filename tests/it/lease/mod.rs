//! Leases on a real Redis, held by processes that run, are delayed, or are cut off from Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floodgate::lease::{Lease, LeaseGrant, RedisLease};
use floodgate::redis::transport::ConnectionPool;
use floodgate::runtime::clock::{Clock, ManualClock, SystemClock, now_monotonic};

use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::redis_connections::{connection_pool, options, run, short_timeout_options};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

const LONG: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(200);

/// The lease client of one process.
fn process(url: &str) -> RedisLease {
    RedisLease::new(connection_pool(url), "shop", SystemClock::shared())
}

fn taken(by: &str) -> LeaseGrant {
    LeaseGrant::Taken { by: by.to_owned() }
}

async fn until_held(lease: &RedisLease, holder: &str, ttl: Duration) -> Instant {
    until("the lease", async || match lease.hold("loader", holder, ttl).await {
        Ok(LeaseGrant::Held { until }) => Some(until),
        Ok(LeaseGrant::Taken { .. }) | Err(_) => None,
    })
    .await
}

#[test]
fn one_of_two_holds_it_until_it_is_released() {
    let redis = Redis::start();
    run(async {
        let (one, two) = (process(&redis.url()), process(&redis.url()));
        assert!(one.hold("loader", "one", LONG).await.unwrap().is_held(now_monotonic()));
        assert_eq!(two.hold("loader", "two", LONG).await.unwrap(), taken("one"));
        assert!(two.hold("sweeper", "two", LONG).await.unwrap().is_held(now_monotonic()));
        assert!(one.hold("loader", "one", LONG).await.unwrap().is_held(now_monotonic()));

        two.release("loader", "two").await.unwrap();
        assert_eq!(
            two.hold("loader", "two", LONG).await.unwrap(),
            taken("one"),
            "only the holder can release a lease"
        );
        one.release("loader", "one").await.unwrap();
        assert!(two.hold("loader", "two", LONG).await.unwrap().is_held(now_monotonic()));
        assert_eq!(redis.text(&["GET", "shop:lease:loader"]), "two");
    });
}

#[test]
fn a_renewal_moves_the_end() {
    let redis = Redis::start();
    run(async {
        let one = process(&redis.url());
        until_held(&one, "one", SHORT).await;
        until_held(&one, "one", LONG).await;
        let left: i64 = redis.text(&["PTTL", "shop:lease:loader"]).parse().unwrap();
        assert!(left > i64::try_from(LONG.as_millis()).unwrap() / 2, "{left}");
    });
}

#[test]
fn a_holder_that_does_not_renew_knows_the_end_before_another_begins() {
    let redis = Redis::start();
    run(async {
        let (one, two) = (process(&redis.url()), process(&redis.url()));
        let end = until_held(&one, "one", SHORT).await;
        until_held(&two, "two", LONG).await;
        assert!(now_monotonic() >= end, "two holders at once");
        assert_eq!(one.hold("loader", "one", LONG).await.unwrap(), taken("two"));
    });
}

#[test]
fn a_renewal_that_arrives_late_takes_nothing_away() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let mut patient = options(&format!("redis://{}", proxy.addr()));
        patient.command_timeout = LONG;
        let patient = ConnectionPool::new(patient).unwrap();
        let one = RedisLease::new(patient, "shop", SystemClock::shared());
        let two = process(&redis.url());
        let end = until_held(&one, "one", SHORT).await;
        proxy.set(Mode::Hold(None));
        let late = one.hold("loader", "one", LONG);
        let other = async {
            until_held(&two, "two", LONG).await;
            assert!(now_monotonic() >= end, "two holders at once");
            proxy.heal();
        };
        let (late, ()) = futures_util::future::join(late, other).await;
        assert_eq!(late.unwrap(), taken("two"));
    });
}

#[test]
fn a_lease_whose_answer_came_after_its_end_is_not_held() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let clock = Arc::new(ManualClock::new(0));
        let pool = connection_pool(&format!("redis://{}", proxy.addr()));
        let one = RedisLease::new(pool, "shop", clock.clone());
        proxy.set(Mode::Hold(None));
        let delayed = async {
            clock.advance(LONG);
            proxy.heal();
        };
        let held = one.hold("loader", "one", LONG);
        let (granted, ()) = futures_util::future::join(held, delayed).await;
        let Ok(LeaseGrant::Held { until }) = granted else { panic!("{granted:?}") };
        assert!(until <= clock.now(), "two holders at once");
    });
}

#[test]
fn without_redis_no_lease_is_granted() {
    let redis = Redis::start();
    run(async {
        let short_timeout_options =
            ConnectionPool::new(short_timeout_options(&redis.url())).unwrap();
        let one = RedisLease::new(short_timeout_options, "shop", SystemClock::shared());
        until_held(&one, "one", LONG).await;
        redis.stop();
        assert!(one.hold("loader", "one", LONG).await.is_err());
        redis.kill();
        assert!(one.hold("loader", "one", LONG).await.is_err());
        assert!(one.release("loader", "one").await.is_err());
        // Redis persists nothing: after the restart the lease is free. A fencing counter in Redis
        // would be lost, too.
        redis.restart();
        let two = process(&redis.url());
        until_held(&two, "two", LONG).await;
        let other = until("an answer", async || one.hold("loader", "one", LONG).await.ok()).await;
        assert_eq!(other, taken("two"));
    });
}

#[test]
fn a_full_redis_still_passes_a_lease_on() {
    let redis = Redis::start();
    run(async {
        let (one, two) = (process(&redis.url()), process(&redis.url()));
        until_held(&one, "one", LONG).await;
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        one.release("loader", "one").await.unwrap();
        assert!(two.hold("loader", "two", LONG).await.unwrap().is_held(now_monotonic()));
    });
}

#[test]
fn foreign_data_under_the_key_is_no_lease() {
    let redis = Redis::start();
    run(async {
        redis.cmd(&["LPUSH", "shop:lease:loader", "x"]);
        let held = process(&redis.url()).hold("loader", "one", LONG).await;
        let error = held.unwrap_err().to_string();
        assert!(error.contains("shop:lease:loader: WRONGTYPE"), "{error}");
    });
}

#[test]
fn a_lease_is_held_until_its_ttl_is_over() {
    let start = now_monotonic();
    let until = start + SHORT;
    let held = LeaseGrant::Held { until };
    assert!(held.is_held(start) && !held.is_held(until));
    assert!(!taken("two").is_held(start));
}
