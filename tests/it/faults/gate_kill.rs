//! `kill -9` of the server in tier `gate` under load, repeatedly on the same ledger: Redis keeps
//! running, or is killed too and restarts with its file or empty.
//!
//! Covers the crash points `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered`, `recorded_not_released`, `phase_set_not_applied` and `loading`.

use std::sync::Arc;
use std::time::Duration;

use loadgen::Pace;
use serde_json::json;

use crate::support::admin::open_sale;
use crate::support::crowd::{Attempt, History, send, send_until};
use crate::support::gate::{
    GateFixture, buy, buy_for_sure, purchases, retry_until, retry_until_answered, try_stage,
};
use crate::support::quota_load;
use crate::support::random::number_from_env;
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};
use crate::support::wait::until;

const ROUNDS: u64 = 4;
const BUYERS_PER_ROUND: u64 = 1_000;
/// Fewer units than its buyers ask for.
const STOCK_PER_ROUND: u64 = 2_000;

/// Which store is killed together with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlsoKilled {
    Nothing,
    Redis,
}

fn kill_rounds(redis: Redis, also_killed: AlsoKilled) {
    let fixture = GateFixture::on(redis);
    let rounds = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    let stock = rounds * STOCK_PER_ROUND;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed={seed}");
    let (mut history, mut unanswered) = (History::default(), Vec::new());
    for round in 0..rounds {
        let server = fixture.server(&[]);
        if round == 0 {
            let stock = u32::try_from(stock).unwrap();
            runtime.block_on(open_sale(server.internal, "sale", quota_load::quota(), stock, 4));
        }
        let first = 1 + round * BUYERS_PER_ROUND;
        let buyers = first..first + BUYERS_PER_ROUND;
        let purchases = runtime.block_on(quota_load::purchases(server.public, buyers, &mut random));
        let attempts = quota_load::shuffled(&purchases, 2, &mut random);
        let after = Duration::from_millis(random.u64(20..250));
        let redis_first = random.bool();
        let public = server.public;
        let killing = async {
            // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
            tokio::time::sleep(after).await;
            if also_killed == AlsoKilled::Redis && redis_first {
                fixture.redis.kill();
            }
            server.kill();
            if also_killed == AlsoKilled::Redis {
                fixture.redis.kill();
                fixture.redis.restart();
            }
        };
        let loading =
            send_until(public, "sale", purchases.clone(), attempts, (64, Pace::Closed), killing);
        history.absorb(runtime.block_on(loading));
        unanswered.push(purchases);
    }
    let server = fixture.server(&[]);
    runtime.block_on(async {
        // Buyers without a final answer retry; then the remaining units are sold.
        for purchases in unanswered {
            let is_final = |attempt: &Attempt| matches!(attempt.status, Some(200 | 409));
            history.absorb(retry_until(server.public, purchases, 64, is_final).await);
        }
        quota_load::sell_rest(server.public, server.internal, &mut history).await;
        let verdict = fixture.check(server.internal, &history, stock).await;
        assert_eq!(verdict.units, stock, "{}", server.log());
    });
}

#[test]
fn accepted_requests_survive_the_server_redis_and_the_database() {
    let fixture = GateFixture::on(Redis::start_with(AOF_ALWAYS));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = fixture.server(&[]);
    runtime.block_on(async {
        open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), 10, 2).await;
        fixture.mariadb.kill();
        for buyer in 1..=3 {
            let (status, body) = buy(server.public, buyer).await.unwrap();
            // The breaker may be open after the first purchase.
            assert!(status == 202 || (status == 503 && buyer > 1), "{status} {body}");
        }
        until("a reservation", async || {
            (try_stage(server.internal, "unsettled").await? > 0).then_some(())
        })
        .await;
    });
    server.kill();
    fixture.redis.kill();
    fixture.redis.restart();
    fixture.mariadb.restart();
    let server = fixture.server(&[]);
    runtime.block_on(async {
        // No buyer retries.
        until("an order", async || {
            (try_stage(server.internal, "committed").await? > 0).then_some(())
        })
        .await;
        fixture.check(server.internal, &History::default(), 10).await;
        assert_eq!(buy_for_sure(server.public, 1).await["order"]["buyer_id"], "1");
    });
}

#[test]
fn a_killed_server_leaves_its_work_to_the_other() {
    let fixture = GateFixture::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let survivor = fixture.server(&[]);
    let mut history = History::default();
    runtime.block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(survivor.internal, "sale", policy, 600, 4).await;
        for round in 0..3 {
            let victim = fixture.server(&[]);
            let first = 1 + round * 300;
            let all = Arc::new(purchases(first..first + 300));
            let attempts: Arc<Vec<usize>> = Arc::new((0..20).flat_map(|_| 0..300).collect());
            let (here, there) = (survivor.public, victim.public);
            let killing = async {
                // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(10..100))).await;
                victim.kill();
            };
            let survivor_load =
                send(here, "sale", all.clone(), (0..300).collect::<Vec<_>>().into(), 16);
            let victim_load =
                send_until(there, "sale", all.clone(), attempts, (32, Pace::Closed), killing);
            let (survivor_history, victim_history) = tokio::join!(survivor_load, victim_load);
            history.absorb(survivor_history);
            history.absorb(victim_history);
            fixture.check(survivor.internal, &history, 600).await;
        }
        history.absorb(retry_until_answered(survivor.public, purchases(1..901).into(), 32).await);
        assert_eq!(fixture.check(survivor.internal, &history, 600).await.ok, 600);
    });
}

#[test]
fn a_server_killed_without_its_redis_loses_nothing() {
    kill_rounds(Redis::start(), AlsoKilled::Nothing);
}

#[test]
fn a_server_killed_together_with_its_redis_loses_nothing() {
    kill_rounds(Redis::start_with(AOF_EVERYSEC), AlsoKilled::Redis);
}

#[test]
fn a_server_killed_together_with_a_redis_that_keeps_nothing_loses_nothing() {
    kill_rounds(Redis::start(), AlsoKilled::Redis);
}
