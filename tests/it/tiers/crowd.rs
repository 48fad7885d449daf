//! A crowd: far more requests than units, repeats included, for each policy on each tier.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::{Value as Json, json};

use crate::support::app::TestApp;
use crate::support::crowd::{History, Purchase, send};
use crate::support::orders::orders_in;
use crate::support::wait::until;

const STOCK: u32 = 100;
const BUYERS: u64 = 1_250;
const REQUESTS: usize = 5_000;
const CONNECTIONS: usize = 200;

/// About four requests per buyer: repeats of one purchase, or of two purchases if the policy allows
/// more than one.
async fn purchases(app: &TestApp, policy: &Json, seed: u64) -> (Vec<Purchase>, Vec<usize>) {
    let mut random = fastrand::Rng::with_seed(seed);
    if policy["kind"] == "one_per_buyer" {
        let purchases: Vec<_> = (1..=BUYERS).map(Purchase::of).collect();
        let attempts = (0..REQUESTS).map(|_| random.usize(0..purchases.len())).collect();
        return (purchases, attempts);
    }
    // Two purchases per buyer, each sent about twice.
    let mut purchases = Vec::new();
    for buyer in 1..=BUYERS {
        for _ in 0..2 {
            let request_id = Some(app.request_id("sale", buyer).await);
            purchases.push(Purchase { buyer, request_id, quantity: 1 });
        }
    }
    let attempts = (0..REQUESTS).map(|_| random.usize(0..purchases.len())).collect();
    (purchases, attempts)
}

fn sell_to_crowd(tier: Tier, policy: Json) {
    let app = TestApp::fresh(tier);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let history = runtime.block_on(async {
        app.open_sale("sale", policy.clone(), STOCK, 4).await;
        let (purchases, attempts) = purchases(&app, &policy, seed).await;
        send(app.public, "sale", Arc::new(purchases), Arc::new(attempts), CONNECTIONS).await
    });
    runtime.block_on(async {
        until("an order for each unit", async || {
            (app.stage("sale", "committed").await == u64::from(STOCK)).then_some(())
        })
        .await;
        assert_eq!(app.stage("sale", "left").await, 0);
        app.assert_audit_holds().await;
    });
    let settings = app.settings.clone();
    let orders = runtime.block_on(orders_in(&settings));
    assert_answers_fit(&history, &policy);
    history.check(seed, &orders, u64::from(STOCK)).assert_clean();
    assert_eq!(orders.units, u64::from(STOCK));
}

/// Every request is accepted or gets a final refusal; every repeat gets the first answer.
fn assert_answers_fit(history: &History, policy: &Json) {
    assert_eq!(history.purchases.len(), REQUESTS);
    let allowed: &[&str] = match policy["kind"].as_str().unwrap() {
        "quota" => &["sold-out", "quota-exceeded"],
        _ => &["sold-out"],
    };
    for attempt in &history.purchases {
        match attempt.status {
            _ if attempt.is_promise() => {}
            Some(409) => {
                assert!(allowed.contains(&attempt.code.as_deref().unwrap()), "{attempt:?}");
            }
            _ => panic!("{attempt:?}"),
        }
    }
    let by_purchase = history.promised_by_purchase();
    assert_eq!(by_purchase.len(), STOCK as usize, "one accepted purchase per unit");
    assert!(by_purchase.values().all(|ids| ids.len() == 1), "one request id per purchase");
    let ids: BTreeSet<_> = by_purchase.values().flatten().collect();
    assert_eq!(ids.len(), STOCK as usize);
    let fresh = history.purchases.iter().filter(|h| h.is_promise() && !h.replayed).count();
    assert_eq!(fresh, STOCK as usize, "every other success is marked as a repeat");
}

#[test]
fn one_per_buyer_in_memory() {
    sell_to_crowd(Tier::Memory, json!({"kind": "one_per_buyer"}));
}

#[test]
fn one_per_buyer_in_the_ledger() {
    sell_to_crowd(Tier::Ledger, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_in_memory() {
    sell_to_crowd(Tier::Memory, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn unlimited_in_the_ledger() {
    sell_to_crowd(Tier::Ledger, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_in_memory() {
    sell_to_crowd(Tier::Memory, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}

#[test]
fn quota_in_the_ledger() {
    sell_to_crowd(Tier::Ledger, json!({"kind": "quota", "limit": 1, "max_quantity": 1}));
}

#[test]
fn one_per_buyer_in_redis() {
    sell_to_crowd(Tier::Gate, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_in_redis() {
    sell_to_crowd(Tier::Gate, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_in_redis() {
    sell_to_crowd(Tier::Gate, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}

#[test]
fn one_per_buyer_through_the_pipeline() {
    sell_to_crowd(Tier::Pipeline, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_through_the_pipeline() {
    sell_to_crowd(Tier::Pipeline, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_through_the_pipeline() {
    sell_to_crowd(Tier::Pipeline, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}
