//! The way to Redis breaks under load, in every way a network or a frozen server does; then it
//! heals, and everything that was accepted is an order.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::TestApp;
use crate::support::crowd::send_until;
use crate::support::fault_proxy::{Mode, Way};
use crate::support::gate::{
    GateGround, assert_holds_at_rest, buy, buy_for_sure, insist, metric, wishes,
};
use crate::support::wait::{until, until_true};

/// More than there are buyers: each of them reaches Redis again and again.
const STOCK: u32 = 10_000;
const BUYERS: usize = 600;

/// Strikes under load, until buyers or gates have noticed; heals; and judges.
fn struck(strike: impl Fn(&GateGround), heal: impl Fn(&GateGround)) {
    let ground = GateGround::new();
    let app = ground.app(&[]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 4).await;
        let wishes = Arc::new(wishes(1..1 + BUYERS as u64));
        // Every wish many times: the load lasts as long as the fault.
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..wishes.len()).collect();
        let fault = async {
            noticed(&app, "floodgate_orders_placed_total", 50).await;
            strike(&ground);
            noticed(&app, "floodgate_stock_errors_total", 3).await;
            heal(&ground);
        };
        let mut history =
            send_until(app.public, "sale", wishes.clone(), attempts.into(), 32, fault).await;
        history.absorb(insist(app.public, wishes, 32).await);
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, BUYERS, "each buyer has one");
    });
}

async fn noticed(app: &TestApp, name: &str, times: u64) {
    until(name, async || (metric(app.internal, name, "").await >= times).then_some(())).await;
}

#[test]
fn a_frozen_redis_that_goes_on_loses_nothing() {
    struck(|ground| ground.redis.stop(), |ground| ground.redis.cont());
}

/// What was lost stays lost: TCP gives such connections up, and never delivers what came after.
fn give_up_and_heal(ground: &GateGround) {
    ground.proxy.set(Mode::Reset);
    until_true("no connection to be left", || ground.proxy.open() == 0);
    ground.proxy.heal();
}

#[test]
fn a_black_hole_loses_nothing() {
    struck(|ground| ground.proxy.set(Mode::Lose(None)), give_up_and_heal);
}

#[test]
fn answers_that_get_lost_lose_nothing() {
    let lose = Mode::Lose(Some(Way::ToClient));
    struck(|ground| ground.proxy.set(lose), give_up_and_heal);
}

#[test]
fn a_partition_that_heals_loses_nothing() {
    struck(|ground| ground.proxy.set(Mode::Hold(None)), |ground| ground.proxy.heal());
}

#[test]
fn connections_that_are_reset_lose_nothing() {
    struck(|ground| ground.proxy.set(Mode::Reset), |ground| ground.proxy.heal());
}

#[test]
fn a_server_that_starts_without_redis_is_busy_until_it_is_there() {
    let ground = GateGround::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = ground.app(&[]);
    runtime.block_on(app.open_sale("sale", json!({"kind": "one_per_buyer"}), 2, 2));
    app.stop();

    ground.proxy.set(Mode::Reset);
    let app = ground.app(&[]);
    runtime.block_on(async {
        let (status, body) = buy(app.public, 1).await.unwrap();
        assert_eq!((status, &body["code"]), (503, &json!("busy")), "it has started, and is open");
        let (status, _) = app.get("/v1/sales/sale", 1).await;
        assert_eq!(status, 200, "the sale is shown all the same");
        ground.proxy.heal();
        buy_for_sure(app.public, 1).await;
        buy_for_sure(app.public, 2).await;
        until("sold out", async || {
            let (status, body) = buy(app.public, 3).await?;
            (status == 409 && body["code"] == "sold-out").then_some(())
        })
        .await;
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn a_slow_redis_only_takes_longer() {
    let ground = GateGround::new();
    let app = ground.app(&[("redis.command_timeout_ms", "5000")]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 30, 4).await;
        ground.proxy.set(Mode::Delay(Duration::from_millis(5)));
        let history = insist(app.public, Arc::new(wishes(1..60)), 8).await;
        let told = |status| history.heard.iter().filter(|h| h.status == Some(status)).count();
        assert_eq!((told(200), told(409)), (30, 29), "everybody at once");
        ground.proxy.heal();
        ground.judge(app.internal, &history, 30).await;
    });
}
