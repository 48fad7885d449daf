//! `kill -9` of the server in tier `gate` under load, again and again on the same ledger: Redis
//! lives on, or dies with it, and keeps its file, or keeps nothing.
//!
//! Covers the crash points `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered`, `recorded_not_released`, `turned_not_told` and `loading`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::admin::open_sale;
use crate::support::crowd::{Attempt, History, send, send_until};
use crate::support::gate::{
    GateGround, buy, buy_for_sure, insist, insist_until, try_stage, wishes,
};
use crate::support::greed;
use crate::support::random::number_from_env;
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};
use crate::support::wait::until;

const ROUNDS: u64 = 4;
const BUYERS_PER_ROUND: u64 = 1_000;
/// Fewer units than its buyers want.
const STOCK_PER_ROUND: u64 = 2_000;

/// What dies with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    Nothing,
    /// Redis, too, at the same moment.
    Redis,
}

fn kill_rounds(redis: Redis, dies: Dies) {
    let ground = GateGround::on(redis);
    let rounds = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    let stock = rounds * STOCK_PER_ROUND;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed={seed}");
    let (mut history, mut unanswered) = (History::default(), Vec::new());
    for round in 0..rounds {
        let server = ground.server(&[]);
        if round == 0 {
            let stock = u32::try_from(stock).unwrap();
            runtime.block_on(open_sale(server.internal, "sale", greed::quota(), stock, 4));
        }
        let first = 1 + round * BUYERS_PER_ROUND;
        let buyers = first..first + BUYERS_PER_ROUND;
        let wishes = runtime.block_on(greed::wishes(server.public, buyers, &mut random));
        let attempts = greed::shuffled(&wishes, 2, &mut random);
        let after = Duration::from_millis(random.u64(20..250));
        let redis_first = random.bool();
        let public = server.public;
        let killing = async {
            // Not a wait for a condition: the moment of death is meant to be arbitrary.
            tokio::time::sleep(after).await;
            if dies == Dies::Redis && redis_first {
                ground.redis.kill();
            }
            server.kill();
            if dies == Dies::Redis {
                ground.redis.kill();
                ground.redis.restart();
            }
        };
        let loading = send_until(public, "sale", wishes.clone(), attempts, 64, killing);
        history.absorb(runtime.block_on(loading));
        unanswered.push(wishes);
    }
    let server = ground.server(&[]);
    runtime.block_on(async {
        // Whoever was not answered asks again; the rest is sold.
        for wishes in unanswered {
            let is_final = |heard: &Attempt| matches!(heard.status, Some(200 | 409));
            history.absorb(insist_until(server.public, wishes, 64, is_final).await);
        }
        greed::sell_rest(server.public, server.internal, &mut history).await;
        let verdict = ground.judge(server.internal, &history, stock).await;
        assert_eq!(verdict.units, stock, "{}", server.log());
    });
}

#[test]
fn what_was_only_accepted_outlives_the_server_redis_and_the_database() {
    let ground = GateGround::on(Redis::start_with(AOF_ALWAYS));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = ground.server(&[("http.answer_deadline_ms", "100")]);
    runtime.block_on(async {
        open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), 10, 2).await;
        ground.mariadb.kill();
        for buyer in 1..=3 {
            let (status, body) = buy(server.public, buyer).await.unwrap();
            // After the first one the breaker may be open.
            assert!(status == 202 || (status == 503 && buyer > 1), "{status} {body}");
        }
        // Who gives up so soon may be gone before the gate decides.
        until("a reservation", async || {
            (try_stage(server.internal, "unsettled").await? > 0).then_some(())
        })
        .await;
    });
    server.kill();
    ground.redis.kill();
    ground.redis.restart();
    ground.mariadb.restart();
    let server = ground.server(&[]);
    runtime.block_on(async {
        // Nobody asks again.
        until("an order", async || (try_stage(server.internal, "landed").await? > 0).then_some(()))
            .await;
        ground.judge(server.internal, &History::default(), 10).await;
        assert_eq!(buy_for_sure(server.public, 1).await["order"]["buyer_id"], "1");
    });
}

#[test]
fn a_server_that_dies_leaves_its_work_to_the_other() {
    let ground = GateGround::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let survivor = ground.server(&[]);
    let mut history = History::default();
    runtime.block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(survivor.internal, "sale", policy, 600, 4).await;
        for round in 0..3 {
            let mortal = ground.server(&[]);
            let first = 1 + round * 300;
            let all = Arc::new(wishes(first..first + 300));
            let attempts: Arc<Vec<usize>> = Arc::new((0..20).flat_map(|_| 0..300).collect());
            let (here, there) = (survivor.public, mortal.public);
            let killing = async {
                // The moment of death is meant to be arbitrary.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(10..100))).await;
                mortal.kill();
            };
            let staying = send(here, "sale", all.clone(), (0..300).collect::<Vec<_>>().into(), 16);
            let dying = send_until(there, "sale", all.clone(), attempts, 32, killing);
            let (stayed, died) = tokio::join!(staying, dying);
            history.absorb(stayed);
            history.absorb(died);
            ground.judge(survivor.internal, &history, 600).await;
        }
        history.absorb(insist(survivor.public, wishes(1..901).into(), 32).await);
        assert_eq!(ground.judge(survivor.internal, &history, 600).await.ok, 600);
    });
}

#[test]
fn a_server_killed_while_redis_lives_on_loses_nothing() {
    kill_rounds(Redis::start(), Dies::Nothing);
}

#[test]
fn a_server_killed_together_with_its_redis_loses_nothing() {
    kill_rounds(Redis::start_with(AOF_EVERYSEC), Dies::Redis);
}

#[test]
fn a_server_killed_together_with_a_redis_that_keeps_nothing_loses_nothing() {
    kill_rounds(Redis::start(), Dies::Redis);
}
