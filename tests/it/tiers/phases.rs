//! An operator who pauses, opens and closes a sale under load: what was accepted stays accepted, at
//! every moment and in every process.

use floodgate::config::Tier;
use serde_json::json;

use crate::support::app::{TestApp, fresh_settings};
use crate::support::crowd::{check_promises, send_until};
use crate::support::gate::{assert_holds_at_rest, metric};
use crate::support::greed;
use crate::support::orders::orders_in;
use crate::support::wait::until;

const STOCK: u32 = 3_000;
const BUYERS: u64 = 1_500;
const TURNS: usize = 4;

async fn sold(app: &TestApp) -> u64 {
    metric(app.internal, "floodgate_orders_placed_total", "").await
}

/// Turns the sale at the first server, again and again, each time after the last one has sold some;
/// then closes it.
async fn turn(apps: &[TestApp]) {
    let (operated, selling) = (&apps[0], apps.last().unwrap());
    for _ in 0..TURNS {
        let before = sold(selling).await;
        until("some sales", async || (sold(selling).await > before + 20).then_some(())).await;
        operated.admin("/sales/sale/pause", Some(json!({}))).await;
        operated.admin("/sales/sale/open", Some(json!({}))).await;
    }
    operated.admin("/sales/sale/close", Some(json!({}))).await;
}

fn turned_under_load(tier: Tier, servers: usize) {
    let (mut settings, _stores) = fresh_settings(tier);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps: Vec<_> = (0..servers).map(|_| TestApp::start(settings.clone())).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        apps[0].open_sale("sale", greed::quota(), STOCK, 4).await;
        let mut random = fastrand::Rng::new();
        let (first, last) = (&apps[0], apps.last().unwrap());
        let wishes = greed::wishes(first.public, 1..1 + BUYERS, &mut random).await;
        let attempts = greed::shuffled(&wishes, 500, &mut random);
        let crowd = |end| send_until(last.public, "sale", wishes.clone(), attempts, 32, end);
        let mut history = crowd(turn(&apps)).await;
        for app in &apps {
            let checked = check_promises(app.public, "sale", wishes.clone(), &history, 32).await;
            history.checked.extend(checked);
        }
        until("rest", async || (first.stage("sale", "unsettled").await == 0).then_some(())).await;
        assert_holds_at_rest(first.internal).await;
        let orders = orders_in(&settings).await;
        let verdict = history.judge(0, &orders, STOCK.into());
        verdict.assert_clean();
        assert!(verdict.ok > 20 * TURNS, "{verdict}");
        assert!(history.heard.iter().any(|heard| heard.status == Some(403)), "it was paused");
    });
}

#[test]
fn a_sale_turned_under_load_in_memory_denies_nothing() {
    turned_under_load(Tier::Memory, 1);
}

#[test]
fn a_sale_turned_under_load_at_another_server_denies_nothing() {
    turned_under_load(Tier::Gate, 2);
}
