//! Redis dies and comes back, with its data or without, under load: C14.
//!
//! Covers the crash points `cleared` and `rows_entered`: whatever was loaded when Redis went away
//! is loaded anew.

use crate::support::TestApp;
use crate::support::crowd::{History, send_until};
use crate::support::gate::{GateGround, insist, metric};
use crate::support::greed;
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};
use crate::support::wait::until;

/// Fewer units than the buyers want.
const STOCK: u32 = 3_000;
const BUYERS: u64 = 1_500;
/// Each purchase is sent so often that the load lasts longer than the fault.
const TIMES: usize = 100;

/// Strikes after the first buyers were served, while they go on asking, and goes on until each has
/// heard how it ended.
async fn load_and(app: &TestApp, strike: impl Future<Output = ()>) -> History {
    let mut random = fastrand::Rng::new();
    let wishes = greed::wishes(app.public, 1..1 + BUYERS, &mut random).await;
    let attempts = greed::shuffled(&wishes, TIMES, &mut random);
    let mut history = send_until(app.public, "sale", wishes.clone(), attempts, 64, strike).await;
    history.absorb(insist(app.public, wishes, 64).await);
    greed::sell_rest(app.public, app.internal, &mut history).await;
    history
}

/// After so many orders.
async fn landed(app: &TestApp, orders: u64) {
    until("the first orders", async || {
        let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
        (placed >= orders).then_some(())
    })
    .await;
}

fn killed_and_started_again(redis: Redis) {
    let ground = GateGround::on(redis);
    let app = ground.app(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        app.open_sale("sale", greed::quota(), STOCK, 4).await;
        let strike = async {
            landed(&app, 300).await;
            ground.redis.kill();
            ground.redis.restart();
        };
        let history = load_and(&app, strike).await;
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.units, u64::from(STOCK), "every unit was sold");
        assert!(metric(app.internal, "floodgate_stock_errors_total", "").await > 0);
    });
}

#[test]
fn a_redis_that_lost_at_most_a_second_loses_no_order() {
    killed_and_started_again(Redis::start_with(AOF_EVERYSEC));
}

#[test]
fn a_redis_that_loses_nothing_loses_no_order() {
    killed_and_started_again(Redis::start_with(AOF_ALWAYS));
}

#[test]
fn a_redis_that_comes_back_empty_is_filled_from_the_ledger() {
    killed_and_started_again(Redis::start());
}

#[test]
fn a_redis_that_dies_again_while_it_is_being_loaded_loses_no_order() {
    let ground = GateGround::on(Redis::start());
    let app = ground.app(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        app.open_sale("sale", greed::quota(), STOCK, 4).await;
        let strike = async {
            landed(&app, 300).await;
            for _ in 0..5 {
                ground.redis.kill();
                ground.redis.restart();
                // The first bucket that is loaded again, if not all of them, goes with it.
                until("a bucket", async || (ground.redis.text(&["DBSIZE"]) != "0").then_some(()))
                    .await;
            }
        };
        let history = load_and(&app, strike).await;
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.units, u64::from(STOCK), "every unit was sold");
    });
}
