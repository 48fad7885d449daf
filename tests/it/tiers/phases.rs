//! An operator pauses, opens and closes a sale under load: an accepted request stays accepted at
//! every moment and in every process.

use floodgate::config::Tier;
use serde_json::json;

use crate::support::admin::until_open;
use crate::support::app::{TestApp, fresh_settings};
use crate::support::crowd::{STEADY, check_promises, send_until};
use crate::support::gate::{assert_holds_at_rest, metric};
use crate::support::orders::orders_in;
use crate::support::quota_load;
use crate::support::wait::until;

const STOCK: u32 = 3_000;
const BUYERS: u64 = 1_500;
const CYCLES: usize = 4;

async fn sold(app: &TestApp) -> u64 {
    metric(app.internal, "floodgate_orders_placed_total", "").await
}

async fn refused(app: &TestApp) -> u64 {
    metric(app.internal, "floodgate_buy_total", "outcome=\"paused\"").await
}

/// Pauses and opens the sale [`CYCLES`] times at the first server, each time after the last server
/// has sold more than 20 orders, and until it has refused a purchase; then closes the sale.
async fn cycle_phases(apps: &[TestApp]) {
    let (operator_server, selling_server) = (&apps[0], apps.last().unwrap());
    for _ in 0..CYCLES {
        let before = sold(selling_server).await;
        until("some sales", async || (sold(selling_server).await > before + 20).then_some(()))
            .await;
        let before = refused(selling_server).await;
        operator_server.admin("/sales/sale/pause", Some(json!({}))).await;
        until("a refusal", async || (refused(selling_server).await > before).then_some(())).await;
        operator_server.admin("/sales/sale/open", Some(json!({}))).await;
    }
    operator_server.admin("/sales/sale/close", Some(json!({}))).await;
}

fn check_phases_under_load(tier: Tier, servers: usize) {
    let (mut settings, _stores) = fresh_settings(tier);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps: Vec<_> = (0..servers).map(|_| TestApp::start(settings.clone())).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        apps[0].open_sale("sale", quota_load::quota(), STOCK, 4).await;
        let mut random = fastrand::Rng::new();
        let (first, last) = (&apps[0], apps.last().unwrap());
        until_open(last.public).await;
        let purchases = quota_load::purchases(first.public, 1..1 + BUYERS, &mut random).await;
        let attempts = quota_load::shuffled(&purchases, 500, &mut random);
        let crowd =
            |end| send_until(last.public, "sale", purchases.clone(), attempts, (32, STEADY), end);
        let mut history = crowd(cycle_phases(&apps)).await;
        for app in &apps {
            let checked = check_promises(app.public, "sale", purchases.clone(), &history, 32).await;
            history.checked.extend(checked);
        }
        until("quiescence", async || (first.stage("sale", "unsettled").await == 0).then_some(()))
            .await;
        assert_holds_at_rest(first.internal).await;
        let orders = orders_in(&settings).await;
        let verdict = history.check(0, &orders, STOCK.into());
        verdict.assert_clean();
        assert!(verdict.ok > 20 * CYCLES, "{verdict}");
        assert!(
            history.purchases.iter().any(|attempt| attempt.status == Some(403)),
            "a purchase was refused while the sale was paused"
        );
    });
}

#[test]
fn a_sale_turned_under_load_in_memory_denies_nothing() {
    check_phases_under_load(Tier::Memory, 1);
}

#[test]
fn a_sale_turned_under_load_at_another_server_denies_nothing() {
    check_phases_under_load(Tier::Gate, 2);
}
