//! The connection to Redis fails under load, in every way of a network or a frozen server. After it
//! heals, every accepted request is an order.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::TestApp;
use crate::support::crowd::{STEADY, send_until};
use crate::support::fault_proxy::{Mode, Way};
use crate::support::gate::{
    GateFixture, assert_holds_at_rest, buy, buy_for_sure, metric, purchases, retry_until_answered,
};
use crate::support::wait::{until, until_true};

/// More than the buyers need: each purchase reaches Redis again and again.
const STOCK: u32 = 10_000;
const BUYERS: usize = 600;

/// Injects the fault under load until errors are counted, heals it and checks all orders.
fn run_outage(fail: impl Fn(&GateFixture), heal: impl Fn(&GateFixture)) {
    let fixture = GateFixture::new();
    let app = fixture.app(&[]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 4).await;
        let purchases = Arc::new(purchases(1..1 + BUYERS as u64));
        // Every purchase many times: the load outlasts the fault.
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..purchases.len()).collect();
        let fault = async {
            until_counted(&app, "floodgate_orders_placed_total", 50).await;
            fail(&fixture);
            until_counted(&app, "floodgate_stock_errors_total", 3).await;
            heal(&fixture);
        };
        let mut history =
            send_until(app.public, "sale", purchases.clone(), attempts.into(), (32, STEADY), fault)
                .await;
        history.absorb(retry_until_answered(app.public, purchases, 32).await);
        let verdict = fixture.check(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, BUYERS, "one order for each buyer");
    });
}

async fn until_counted(app: &TestApp, name: &str, times: u64) {
    until(name, async || (metric(app.internal, name, "").await >= times).then_some(())).await;
}

#[test]
fn a_frozen_redis_that_goes_on_loses_nothing() {
    run_outage(|fixture| fixture.redis.stop(), |fixture| fixture.redis.cont());
}

/// Lost bytes stay lost: TCP drops such connections, and never delivers later bytes.
fn give_up_and_heal(fixture: &GateFixture) {
    fixture.proxy.set(Mode::Reset);
    until_true("all connections to be closed", || fixture.proxy.open() == 0);
    fixture.proxy.heal();
}

#[test]
fn a_black_hole_loses_nothing() {
    run_outage(|fixture| fixture.proxy.set(Mode::Lose(None)), give_up_and_heal);
}

#[test]
fn answers_that_get_lost_lose_nothing() {
    let lose = Mode::Lose(Some(Way::ToClient));
    run_outage(|fixture| fixture.proxy.set(lose), give_up_and_heal);
}

#[test]
fn a_partition_that_heals_loses_nothing() {
    run_outage(|fixture| fixture.proxy.set(Mode::Hold(None)), |fixture| fixture.proxy.heal());
}

#[test]
fn connections_that_are_reset_lose_nothing() {
    run_outage(|fixture| fixture.proxy.set(Mode::Reset), |fixture| fixture.proxy.heal());
}

#[test]
fn a_server_that_starts_without_redis_is_busy_until_it_is_there() {
    let fixture = GateFixture::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = fixture.app(&[]);
    runtime.block_on(app.open_sale("sale", json!({"kind": "one_per_buyer"}), 2, 2));
    app.stop();

    fixture.proxy.set(Mode::Reset);
    let app = fixture.app(&[]);
    runtime.block_on(async {
        let (status, body) = buy(app.public, 1).await.unwrap();
        assert_eq!(
            (status, &body["code"]),
            (503, &json!("busy")),
            "the server has started, and the sale is open"
        );
        let (status, _) = app.get("/v1/sales/sale", 1).await;
        assert_eq!(status, 200, "the sale is still shown");
        fixture.proxy.heal();
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
    let fixture = GateFixture::new();
    let app = fixture.app(&[("redis.command_timeout_ms", "5000")]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 30, 4).await;
        fixture.proxy.set(Mode::Delay(Duration::from_millis(5)));
        let history = retry_until_answered(app.public, Arc::new(purchases(1..60)), 8).await;
        let num_with =
            |status| history.purchases.iter().filter(|h| h.status == Some(status)).count();
        assert_eq!((num_with(200), num_with(409)), (30, 29), "every buyer has a final answer");
        fixture.proxy.heal();
        fixture.check(app.internal, &history, 30).await;
    });
}
