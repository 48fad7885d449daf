//! One buyer against its own limit: hundreds of purchases at once, by every way there is.

use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::json;

use crate::support::app::{TestApp, fresh_settings};
use crate::support::crowd::{History, Wish, issue_ids, send};
use crate::support::gate::assert_holds_at_rest;
use crate::support::orders::orders_in;
use crate::support::wait::until;

const LIMIT: u64 = 7;
const PURCHASES: usize = 300;

fn contended(tier: Tier, servers: usize) {
    let (mut settings, _stores) = fresh_settings(tier);
    settings.maintenance.every_ms = 20;
    let apps: Vec<_> = (0..servers).map(|_| TestApp::start(settings.clone())).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "quota", "limit": LIMIT, "max_quantity": 3});
        apps[0].open_sale("sale", policy, 1_000, 4).await;
        let ids = issue_ids(apps[0].public, "sale", vec![7; PURCHASES]).await;
        let wish = |(place, id)| {
            let quantity = 1 + u32::try_from(place % 3).unwrap();
            Wish { buyer: 7, request_id: Some(id), quantity }
        };
        let wishes: Vec<Wish> = ids.into_iter().enumerate().map(wish).collect();
        let wishes = Arc::new(wishes);
        // Every purchase at every server.
        let attempts: Arc<Vec<usize>> = (0..PURCHASES).collect::<Vec<_>>().into();
        let crowds =
            apps.iter().map(|app| until_open_and_sent(app, wishes.clone(), attempts.clone()));
        let mut history = History::default();
        for part in futures_util::future::join_all(crowds).await {
            history.absorb(part);
        }
        let first = &apps[0];
        until("rest", async || (first.stage("sale", "unsettled").await == 0).then_some(())).await;
        assert_holds_at_rest(first.internal).await;
        let verdict = history.judge(0, &orders_in(&settings).await, LIMIT);
        verdict.assert_clean();
        assert_eq!(verdict.units, LIMIT, "one unit more would not fit, one less was wanted");
        let refused = history.heard.iter().filter(|heard| heard.status == Some(409));
        assert!(refused.clone().count() > 0);
        assert!(refused.clone().all(|heard| heard.code.as_deref() == Some("quota-exceeded")));
    });
}

async fn until_open_and_sent(
    app: &TestApp,
    wishes: Arc<Vec<Wish>>,
    attempts: Arc<Vec<usize>>,
) -> History {
    until("the sale to be open here", async || {
        let (status, sale) = app.get("/v1/sales/sale", 7).await;
        (status == 200 && sale["phase"] == "open").then_some(())
    })
    .await;
    send(app.public, "sale", wishes, attempts, 50).await
}

#[test]
fn in_memory_a_buyer_gets_exactly_its_limit() {
    contended(Tier::Memory, 1);
}

#[test]
fn in_the_ledger_a_buyer_gets_exactly_its_limit() {
    contended(Tier::Ledger, 1);
}

#[test]
fn at_two_servers_a_buyer_gets_exactly_its_limit() {
    contended(Tier::Gate, 2);
}
