//! Redis dies and comes back, with its data or without, under load: C14.
//!
//! Covers the crash point `loading`: whatever was loaded when Redis went away is loaded anew.

use std::sync::Arc;

use serde_json::json;

use crate::support::TestApp;
use crate::support::crowd::{History, send_until};
use crate::support::gate::{GateGround, insist, metric, wishes};
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};

const STOCK: u32 = 2_000;
const BUYERS: u64 = 3_000;

/// Sends the buyers twice each, strikes after the first of them were served, and goes on until each
/// has heard how it ended.
async fn load_and(app: &TestApp, strike: impl Future<Output = ()>) -> History {
    let wishes = Arc::new(wishes(1..1 + BUYERS));
    let attempts: Vec<_> = (0..wishes.len()).chain(0..wishes.len()).collect();
    let mut history =
        send_until(app.public, "sale", wishes.clone(), attempts.into(), 64, strike).await;
    history.heard.extend(insist(app.public, wishes, 64).await.heard);
    history
}

/// After so many orders.
async fn landed(app: &TestApp, orders: u64) {
    crate::support::wait::until("the first orders", async || {
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
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 4).await;
        let strike = async {
            landed(&app, 300).await;
            ground.redis.kill();
            ground.redis.restart();
        };
        let history = load_and(&app, strike).await;
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, STOCK as usize, "the rest was sold");
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
