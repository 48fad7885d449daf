//! Redis is killed under load and restarts, with its data or without: C14.
//!
//! Covers the crash points `cleared` and `rows_entered`: a load that the kill interrupted starts
//! again.

use crate::support::TestApp;
use crate::support::crowd::{History, STEADY, send_until};
use crate::support::gate::{GateFixture, metric, retry_until_answered};
use crate::support::quota_load;
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};
use crate::support::wait::until;

/// Fewer units than the buyers ask for.
const STOCK: u32 = 3_000;
const BUYERS: u64 = 1_500;
/// Each purchase is sent so often that the load lasts longer than the fault.
const TIMES: usize = 100;

/// Injects the fault under load, retries until every buyer has an answer, and sells the remaining
/// units.
async fn load_and(app: &TestApp, fault: impl Future<Output = ()>) -> History {
    let mut random = fastrand::Rng::new();
    let purchases = quota_load::purchases(app.public, 1..1 + BUYERS, &mut random).await;
    let attempts = quota_load::shuffled(&purchases, TIMES, &mut random);
    let mut history =
        send_until(app.public, "sale", purchases.clone(), attempts, (64, STEADY), fault).await;
    history.absorb(retry_until_answered(app.public, purchases, 64).await);
    quota_load::sell_rest(app.public, app.internal, &mut history).await;
    history
}

/// Waits for this number of orders.
async fn until_placed(app: &TestApp, orders: u64) {
    until("the first orders", async || {
        let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
        (placed >= orders).then_some(())
    })
    .await;
}

fn killed_and_started_again(redis: Redis) {
    let fixture = GateFixture::on(redis);
    let app = fixture.app(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        app.open_sale("sale", quota_load::quota(), STOCK, 4).await;
        let fault = async {
            until_placed(&app, 300).await;
            fixture.redis.kill();
            fixture.redis.restart();
        };
        let history = load_and(&app, fault).await;
        let verdict = fixture.check(app.internal, &history, STOCK.into()).await;
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
fn a_redis_killed_again_during_its_load_loses_no_order() {
    let fixture = GateFixture::on(Redis::start());
    let app = fixture.app(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        app.open_sale("sale", quota_load::quota(), STOCK, 4).await;
        let fault = async {
            until_placed(&app, 300).await;
            for _ in 0..5 {
                fixture.redis.kill();
                fixture.redis.restart();
                // The next kill loses at least the first bucket that was loaded again.
                until("a bucket", async || (fixture.redis.text(&["DBSIZE"]) != "0").then_some(()))
                    .await;
            }
        };
        let history = load_and(&app, fault).await;
        let verdict = fixture.check(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.units, u64::from(STOCK), "every unit was sold");
    });
}
