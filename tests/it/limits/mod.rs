//! Limits that processes share: on a real Redis, by two servers, and without Redis.

use std::time::Duration;

use floodgate::limits::{Counted, Rate, SharedLimits};
use floodgate::runtime::clock::now_monotonic;
use serde_json::json;

use crate::support::TestApp;
use crate::support::admin::until_open;
use crate::support::fault_proxy::Mode;
use crate::support::gate::GateFixture;
use crate::support::redis_connections::{connection_pool, run};
use crate::support::servers::redis::Redis;
use crate::support::wait::DEADLINE;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(count: u32, window: Duration) -> Rate {
    Rate { count, window }
}

/// Requires that the first rate is exceeded, and returns the wait.
fn exceeded(counted: Counted) -> Duration {
    match counted {
        Counted::Exceeded { rate: 0, wait } => wait,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_processes_count_one_key_by_the_clock_of_redis() {
    let redis = Redis::start();
    run(async {
        let [one, two] = [(); 2].map(|()| SharedLimits::new(connection_pool(&redis.url()), "shop"));
        let three = [rate(3, HOUR)];
        for limits in [&one, &two, &one] {
            assert_eq!(limits.take("buy:buyer:7", &three).await, Ok(Counted::Passed));
        }
        for limits in [&one, &two] {
            let wait = exceeded(limits.take("buy:buyer:7", &three).await.unwrap());
            assert!((HOUR / 4..=HOUR / 3).contains(&wait), "{wait:?}");
        }
        assert_eq!(two.take("buy:buyer:8", &three).await, Ok(Counted::Passed), "another key");
        let ttl: u64 = redis.text(&["PTTL", "shop:limit:buy:buyer:8"]).parse().unwrap();
        assert!((1..=1_200_000).contains(&ttl), "the key expires with its one count: {ttl}");

        // The second rate holds beside the first, and what it refuses is not counted by the first.
        let both = [rate(1_000, HOUR), rate(1, HOUR)];
        assert_eq!(one.take("b", &both).await, Ok(Counted::Passed));
        let held = redis.text(&["GET", "shop:limit:b"]);
        let refused = two.take("b", &both).await.unwrap();
        assert!(matches!(refused, Counted::Exceeded { rate: 1, .. }), "{refused:?}");
        assert_eq!(redis.text(&["GET", "shop:limit:b"]), held);

        // A clock that was set back has left a time far ahead: the key starts afresh.
        redis.cmd(&["SET", "shop:limit:c", "9000000000000000"]);
        assert_eq!(one.take("c", &three).await, Ok(Counted::Passed));
        redis.cmd(&["LPUSH", "shop:limit:d", "x"]);
        let error = one.take("d", &three).await.unwrap_err().to_string();
        assert!(error.contains("shop:limit:d"), "{error}");
    });
}

/// How many of `num` calls for a request id pass, sent to the servers in turn.
async fn passed(apps: &[&TestApp], buyer: u64, num: usize) -> u64 {
    let mut passed = 0;
    for app in apps.iter().cycle().take(num) {
        let call = app.client.post(app.url("/v1/sales/sale/request-ids"));
        let call = call.header("x-buyer-id", buyer.to_string()).json(&json!({"sku_id": "sku"}));
        let answer = call.send().await.unwrap();
        match answer.status().as_u16() {
            200 => passed += 1,
            429 => {
                let policy = answer.headers()["ratelimit-policy"].to_str().unwrap();
                assert_eq!(policy, "\"buyer-minute\";q=6;w=60");
                let limit = answer.headers()["ratelimit"].to_str().unwrap();
                assert!(limit.starts_with("\"buyer-minute\";r=0;t="), "{limit}");
                let after = answer.headers()["retry-after"].to_str().unwrap();
                assert!((1..=20).contains(&after.parse::<u64>().unwrap()), "{after}");
            }
            other => panic!("{other}"),
        }
    }
    passed
}

async fn not_shared(app: &TestApp) -> u64 {
    let answer = app.client.get(format!("http://{}/metrics", app.internal)).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("floodgate_limits_not_shared_total"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn the_sum_of_two_processes_holds_and_without_redis_each_limits_on_its_own() {
    let fixture = GateFixture::new();
    let keys = [
        ("limits.shared", "true"),
        ("limits.buyer_per_second", "0"),
        ("limits.buyer_per_minute", "6"),
        ("redis.connect_timeout_ms", "600000"),
        ("redis.command_timeout_ms", "600000"),
    ];
    let apps = [fixture.app(&keys), fixture.app(&keys)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        apps[0].open_sale("sale", json!({"kind": "unlimited"}), 50, 2).await;
        until_open(apps[1].public).await;
        let both = [&apps[0], &apps[1]];
        let begun = now_monotonic();
        let passed_shared = passed(&both, 1, 24).await;
        // One more each ten seconds.
        let most = 6 + begun.elapsed().as_secs() / 10 + 1;
        let counted = [not_shared(&apps[0]).await, not_shared(&apps[1]).await];
        assert!((6..=most + counted[0] + counted[1]).contains(&passed_shared), "{passed_shared}");
        assert!(passed(&both, 2, 1).await == 1, "another buyer");

        // A Redis that hangs delays no call until its own time-out.
        fixture.proxy.set(Mode::Hold(None));
        let delayed = tokio::time::timeout(DEADLINE, passed(&both[..1], 4, 1));
        assert_eq!(delayed.await, Ok(1));
        fixture.proxy.heal();

        fixture.proxy.set(Mode::Reset);
        let begun = now_monotonic();
        let passed_alone = passed(&both, 3, 24).await;
        let most = 12 + 2 * (begun.elapsed().as_secs() / 10 + 1);
        assert!((12..=most).contains(&passed_alone), "{passed_alone}");
        for app in both {
            assert!(not_shared(app).await >= 6);
        }
        fixture.proxy.heal();
    });
}
