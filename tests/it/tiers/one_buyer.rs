//! One buyer against its own limit: hundreds of concurrent purchases at every server.

use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::json;

use crate::support::admin::until_open;
use crate::support::app::{TestApp, fresh_settings};
use crate::support::crowd::{History, Purchase, issue_ids, send};
use crate::support::gate::assert_holds_at_rest;
use crate::support::orders::orders_in;
use crate::support::wait::until;

const LIMIT: u64 = 7;
const PURCHASES: usize = 300;

fn exhaust_limit(tier: Tier, servers: usize) {
    let (mut settings, _stores) = fresh_settings(tier);
    settings.maintenance.every_ms = 20;
    let apps: Vec<_> = (0..servers).map(|_| TestApp::start(settings.clone())).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "quota", "limit": LIMIT, "max_quantity": 3});
        apps[0].open_sale("sale", policy, 1_000, 4).await;
        let ids = issue_ids(apps[0].public, "sale", vec![7; PURCHASES]).await;
        let purchase = |(index, id)| {
            let quantity = 1 + u32::try_from(index % 3).unwrap();
            Purchase { buyer: 7, request_id: Some(id), quantity }
        };
        let purchases: Vec<Purchase> = ids.into_iter().enumerate().map(purchase).collect();
        let purchases = Arc::new(purchases);
        // Every purchase is sent to every server.
        let attempts: Arc<Vec<usize>> = (0..PURCHASES).collect::<Vec<_>>().into();
        let crowds =
            apps.iter().map(|app| send_when_open(app, purchases.clone(), attempts.clone()));
        let mut history = History::default();
        for attempts_of_server in futures_util::future::join_all(crowds).await {
            history.absorb(attempts_of_server);
        }
        let first = &apps[0];
        until("quiescence", async || (first.stage("sale", "unsettled").await == 0).then_some(()))
            .await;
        assert_holds_at_rest(first.internal).await;
        let verdict = history.check(0, &orders_in(&settings).await, LIMIT);
        verdict.assert_clean();
        assert_eq!(verdict.units, LIMIT, "the buyer gets exactly the limit");
        let refused = history.purchases.iter().filter(|attempt| attempt.status == Some(409));
        assert!(refused.clone().count() > 0);
        assert!(refused.clone().all(|attempt| attempt.code.as_deref() == Some("quota-exceeded")));
    });
}

async fn send_when_open(
    app: &TestApp,
    purchases: Arc<Vec<Purchase>>,
    attempts: Arc<Vec<usize>>,
) -> History {
    until_open(app.public).await;
    send(app.public, "sale", purchases, attempts, 50).await
}

#[test]
fn in_memory_a_buyer_gets_exactly_its_limit() {
    exhaust_limit(Tier::Memory, 1);
}

#[test]
fn in_the_ledger_a_buyer_gets_exactly_its_limit() {
    exhaust_limit(Tier::Ledger, 1);
}

#[test]
fn at_two_servers_a_buyer_gets_exactly_its_limit() {
    exhaust_limit(Tier::Gate, 2);
}
