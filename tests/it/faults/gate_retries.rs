//! Concurrent repeats of each request, while connections are cut during answers of Redis and during
//! answers to buyers: C02.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use floodgate::redis::scripts::Script;
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::crowd::{History, Purchase, send};
use crate::support::fault_proxy::{FaultProxy, Way};
use crate::support::gate::{GateFixture, assert_holds_at_rest, retry_until_answered};

const BUYERS: u64 = 150;
const STOCK: u32 = 200;
/// The least number of Redis connections that are cut.
const CUTS: usize = 10;
const SEED: u64 = 20_261_002;

async fn purchases_of(app: &TestApp, policy: &Json) -> Arc<Vec<Purchase>> {
    let mut purchases = Vec::new();
    for buyer in 1..=BUYERS {
        let derived = policy["kind"] == "one_per_buyer";
        let request_id = if derived { None } else { Some(app.request_id("sale", buyer).await) };
        purchases.push(Purchase { buyer, request_id, quantity: 1 });
    }
    purchases.into()
}

/// Each purchase 2 to 10 times, its attempts close together.
fn attempts(random: &mut fastrand::Rng, purchases: usize) -> Vec<usize> {
    let mut attempts: Vec<(usize, usize)> = Vec::new();
    for purchase in 0..purchases {
        for _ in 0..random.usize(2..=10) {
            attempts.push((purchase + random.usize(0..8), purchase));
        }
    }
    attempts.sort_unstable();
    attempts.into_iter().map(|(_, purchase)| purchase).collect()
}

/// Arms one cut after the other until the storm ends. A cut that was not triggered in one round of
/// the storm is replaced in the next.
async fn cut(
    fixture: &GateFixture,
    http: &FaultProxy,
    rounds: &Cell<u32>,
    storm: impl Future<Output = History>,
) -> History {
    let (reserve, settle) = (fixture.sha_of(Script::Reserve), fixture.sha_of(Script::Settle));
    let mut random = fastrand::Rng::with_seed(SEED);
    let progress = || (fixture.proxy.cuts(), http.cuts(), rounds.get());
    let cutting = async {
        loop {
            match random.u8(0..6) {
                // Redis has run the script; its answer never arrives.
                0..3 => fixture.proxy.cut_reply(&reserve),
                3 => fixture.proxy.cut_reply(&settle),
                4 => fixture.proxy.cut_after(Way::ToClient, random.usize(1..200)),
                _ => http.cut_after(Way::ToClient, random.usize(1..2_000)),
            }
            let before = progress();
            while progress() == before {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::select! {
        history = storm => history,
        never = cutting => never,
    }
}

fn storm(policy: Json) {
    let fixture = GateFixture::new();
    let app = fixture.app(&[]);
    let http = FaultProxy::start(app.public);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (purchases, history) = runtime.block_on(async {
        app.open_sale("sale", policy.clone(), STOCK, 4).await;
        let purchases = purchases_of(&app, &policy).await;
        let attempts = attempts(&mut fastrand::Rng::with_seed(SEED), purchases.len());
        let attempts: Arc<Vec<usize>> = attempts.into();
        let rounds = Cell::new(0);
        let storm = async {
            let mut history = History::default();
            // A fast machine may finish before enough cuts: another round follows.
            while fixture.proxy.cuts() < CUTS || http.cuts() < 2 {
                let (purchases, attempts) = (purchases.clone(), attempts.clone());
                let sent = send(http.addr(), "sale", purchases, attempts, 24).await;
                history.absorb(sent);
                rounds.set(rounds.get() + 1);
            }
            history
        };
        let mut history = cut(&fixture, &http, &rounds, storm).await;
        fixture.proxy.heal();
        http.heal();
        history.absorb(retry_until_answered(app.public, purchases.clone(), 16).await);
        (purchases, history)
    });
    assert_own_answers(&history, &purchases);
    runtime.block_on(async {
        let verdict = fixture.check(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, purchases.len(), "one order for each request");
        other_content_is_refused(&app, &purchases, &history).await;
    });
}

/// Each success names the purchase's own request, and no purchase is refused.
fn assert_own_answers(history: &History, purchases: &[Purchase]) {
    let mut ids: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for attempt in &history.purchases {
        assert!(matches!(attempt.status, None | Some(200 | 202 | 503)), "{attempt:?}");
        ids.entry(attempt.purchase).or_default().extend(attempt.request_id.as_deref());
        if let Some(own) = purchases[attempt.purchase].request_id.as_deref() {
            assert!(attempt.request_id.as_deref().is_none_or(|id| id == own), "{attempt:?}");
        }
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let successes = history.promised_by_purchase();
    assert_eq!(successes.len(), purchases.len());
}

async fn other_content_is_refused(app: &TestApp, purchases: &[Purchase], history: &History) {
    let successes = history.promised_by_purchase();
    for (at, purchase) in purchases.iter().enumerate().take(10) {
        let id = successes[&at].first().unwrap();
        let body = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
        let (status, answer) = app.buy_json("sale", purchase.buyer, body).await;
        assert_eq!((status.as_u16(), &answer["code"]), (422, &json!("request-id-reused")));
    }
    assert_holds_at_rest(app.internal).await;
}

#[test]
fn a_storm_of_repeats_with_cut_answers_is_one_order_for_each_request() {
    storm(json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn a_retry_is_never_refused_for_its_own_purchase() {
    storm(json!({"kind": "one_per_buyer", "max_quantity": 2}));
}

#[test]
fn a_storm_under_a_quota_counts_each_request_once() {
    storm(json!({"kind": "quota", "limit": 2, "max_quantity": 2}));
}
