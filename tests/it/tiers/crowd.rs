//! A stampede: far more requests than units, repeats among them, for each policy on each tier.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::{Value as Json, json};

use crate::support::app::TestApp;
use crate::support::crowd::{History, Wish, send};
use crate::support::orders::orders_in;
use crate::support::wait::until;

const STOCK: u32 = 100;
const BUYERS: u64 = 5_000;
const REQUESTS: usize = 20_000;
const CONNECTIONS: usize = 200;

/// Buyers come about four times each: with the same wish again, or, where the policy lets them,
/// with another.
async fn wishes(app: &TestApp, policy: &Json, seed: u64) -> (Vec<Wish>, Vec<usize>) {
    let mut random = fastrand::Rng::with_seed(seed);
    if policy["kind"] == "one_per_buyer" {
        let wishes: Vec<_> = (1..=BUYERS).map(Wish::of).collect();
        let attempts = (0..REQUESTS).map(|_| random.usize(0..wishes.len())).collect();
        return (wishes, attempts);
    }
    // Two wishes per buyer, each sent about twice.
    let mut wishes = Vec::new();
    for buyer in 1..=BUYERS {
        for _ in 0..2 {
            let request_id = Some(app.request_id("sale", buyer).await);
            wishes.push(Wish { buyer, request_id, quantity: 1 });
        }
    }
    let attempts = (0..REQUESTS).map(|_| random.usize(0..wishes.len())).collect();
    (wishes, attempts)
}

fn stampede(tier: Tier, policy: Json) {
    let app = TestApp::fresh(tier);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let history = runtime.block_on(async {
        app.open_sale("sale", policy.clone(), STOCK, 4).await;
        let (wishes, attempts) = wishes(&app, &policy, seed).await;
        send(app.public, "sale", Arc::new(wishes), Arc::new(attempts), CONNECTIONS).await
    });
    runtime.block_on(async {
        until("an order for each unit", async || {
            (app.stage("sale", "landed").await == u64::from(STOCK)).then_some(())
        })
        .await;
        assert_eq!(app.stage("sale", "left").await, 0);
        app.assert_audit_holds().await;
    });
    let settings = app.settings.clone();
    let orders = runtime.block_on(orders_in(&settings));
    assert_answers_fit(&history, &policy);
    history.judge(seed, &orders, u64::from(STOCK)).assert_clean();
    assert_eq!(orders.units, u64::from(STOCK));
}

/// Every request got its definite answer, or a promise, and every repeat of one the same one.
fn assert_answers_fit(history: &History, policy: &Json) {
    assert_eq!(history.heard.len(), REQUESTS);
    let allowed: &[&str] = match policy["kind"].as_str().unwrap() {
        "quota" => &["sold-out", "quota-exceeded"],
        _ => &["sold-out"],
    };
    for heard in &history.heard {
        match heard.status {
            _ if heard.is_promise() => {}
            Some(409) => assert!(allowed.contains(&heard.code.as_deref().unwrap()), "{heard:?}"),
            _ => panic!("{heard:?}"),
        }
    }
    let by_wish = history.promised_by_wish();
    assert_eq!(by_wish.len(), STOCK as usize, "one promise per unit");
    assert!(by_wish.values().all(|ids| ids.len() == 1), "one request id per wish");
    let ids: BTreeSet<_> = by_wish.values().flatten().collect();
    assert_eq!(ids.len(), STOCK as usize);
    let fresh = history.heard.iter().filter(|h| h.is_promise() && !h.replayed).count();
    assert_eq!(fresh, STOCK as usize, "every other one is marked as a repeat");
}

#[test]
fn one_per_buyer_in_memory() {
    stampede(Tier::Memory, json!({"kind": "one_per_buyer"}));
}

#[test]
fn one_per_buyer_in_the_ledger() {
    stampede(Tier::Ledger, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_in_memory() {
    stampede(Tier::Memory, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn unlimited_in_the_ledger() {
    stampede(Tier::Ledger, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_in_memory() {
    stampede(Tier::Memory, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}

#[test]
fn quota_in_the_ledger() {
    stampede(Tier::Ledger, json!({"kind": "quota", "limit": 1, "max_quantity": 1}));
}

#[test]
fn one_per_buyer_in_redis() {
    stampede(Tier::Gate, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_in_redis() {
    stampede(Tier::Gate, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_in_redis() {
    stampede(Tier::Gate, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}

#[test]
fn one_per_buyer_through_the_pipeline() {
    stampede(Tier::Pipeline, json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_through_the_pipeline() {
    stampede(Tier::Pipeline, json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn quota_through_the_pipeline() {
    stampede(Tier::Pipeline, json!({"kind": "quota", "limit": 5, "max_quantity": 5}));
}
