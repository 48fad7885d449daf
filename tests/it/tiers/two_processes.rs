//! Two servers that share Redis and a ledger sell one sale together, as one would.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::json;

use crate::support::app::{TestApp, fresh_settings, sale_body};
use crate::support::crowd::{History, Wish, send};
use crate::support::gate::assert_holds_at_rest;
use crate::support::orders::orders_in;
use crate::support::wait::until;

const STOCK: u32 = 100;
const BUYERS: u64 = 1_500;
const REQUESTS: usize = 6_000;

/// Every wish is sent about four times, to either server.
fn stampede(policy: serde_json::Value) {
    let (mut settings, _ground) = fresh_settings(Tier::Gate);
    settings.maintenance.every_ms = 50;
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings.clone())];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (wishes, history) = runtime.block_on(async {
        apps[0].open_sale("sale", policy.clone(), STOCK, 4).await;
        until_open(&apps[1]).await;
        let mut wishes = Vec::new();
        for buyer in 1..=BUYERS {
            let derived = policy["kind"] == "one_per_buyer";
            let issuer = &apps[usize::from(buyer % 2 == 0)];
            let request_id =
                if derived { None } else { Some(issuer.request_id("sale", buyer).await) };
            wishes.push(Wish { buyer, request_id, quantity: 1 });
        }
        let wishes = Arc::new(wishes);
        let mut some = || -> Arc<Vec<usize>> {
            (0..REQUESTS / 2).map(|_| random.usize(0..wishes.len())).collect::<Vec<_>>().into()
        };
        let (one, other) = (some(), some());
        let (mut history, more) = tokio::join!(
            send(apps[0].public, "sale", wishes.clone(), one, 50),
            send(apps[1].public, "sale", wishes.clone(), other, 50),
        );
        history.absorb(more);
        (wishes, history)
    });
    runtime.block_on(async {
        for app in &apps {
            until("rest", async || (app.stage("sale", "unsettled").await == 0).then_some(())).await;
            assert_holds_at_rest(app.internal).await;
            assert_eq!(app.stage("sale", "left").await, 0);
        }
        each_order_is_read_everywhere(&apps, &history, &wishes).await;
    });
    let orders = runtime.block_on(orders_in(&settings));
    history.judge(seed, &orders, u64::from(STOCK)).assert_clean();
    assert_eq!(orders.units, u64::from(STOCK));
    let fresh = history.heard.iter().filter(|h| h.status == Some(200) && !h.replayed).count();
    assert_eq!(fresh, STOCK as usize, "every other success is marked as a repeat");
}

async fn until_open(app: &TestApp) {
    until("the other server to know", async || {
        let (status, sale) = app.get("/v1/sales/sale", 1).await;
        (status == 200 && sale["phase"] == "open").then_some(())
    })
    .await;
}

async fn each_order_is_read_everywhere(apps: &[TestApp; 2], history: &History, wishes: &[Wish]) {
    let refusals = ["sold-out", "quota-exceeded"];
    for heard in &history.heard {
        let code = heard.code.as_deref();
        let fine = heard.status == Some(200) || code.is_some_and(|code| refusals.contains(&code));
        // While the last units hop between buckets, both servers may be after the same ones.
        assert!(fine || code == Some("busy"), "{heard:?}");
    }
    let successes = history.promised_by_wish();
    assert_eq!(successes.len(), STOCK as usize);
    let mut documents = BTreeSet::new();
    for (wish, ids) in successes.iter().take(20) {
        assert_eq!(ids.len(), 1);
        let path = format!("/v1/requests/{}", ids.first().unwrap());
        for app in apps {
            let (status, told) = app.get(&path, wishes[*wish].buyer).await;
            assert_eq!((status.as_u16(), &told["state"]), (200, &json!("success")), "{told}");
            documents.insert(told.to_string());
        }
    }
    assert_eq!(documents.len(), 20, "the same everywhere");
}

#[test]
fn one_per_buyer_by_two_servers() {
    stampede(json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_by_two_servers() {
    stampede(json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn a_quota_by_two_servers() {
    stampede(json!({"kind": "quota", "limit": 1, "max_quantity": 1}));
}

#[test]
fn a_verb_that_one_server_carries_out_reaches_the_other() {
    let (mut settings, _ground) = fresh_settings(Tier::Gate);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        apps[0].admin("/sales", Some(sale_body("sale", policy, 10, 2))).await;
        let mut buyer = 0;
        for (verb, status) in [("open", 200), ("pause", 403), ("open", 200), ("close", 410)] {
            let told_to = &apps[usize::from(verb == "pause")];
            until("the server that is told", async || {
                let url = format!("http://{}/admin/v1/sales/sale/{verb}", told_to.internal);
                let call = told_to.client.post(url).json(&json!({}));
                call.send().await.unwrap().status().is_success().then_some(())
            })
            .await;
            for app in &apps {
                buyer += 1;
                until(verb, async || {
                    let body = json!({"sku_id": "sku", "quantity": 1});
                    (app.buy_json("sale", buyer, body).await.0 == status).then_some(())
                })
                .await;
            }
        }
        for app in &apps {
            // Whatever was accepted is answered wherever it is asked for, also after the end.
            for buyer in [1, 2, 5, 6] {
                let again = app.buy("sale", buyer, json!({"sku_id": "sku", "quantity": 1})).await;
                assert_eq!(again.status(), 200, "buyer {buyer}");
                assert_eq!(again.headers()["idempotent-replayed"], "true");
            }
            assert_holds_at_rest(app.internal).await;
        }
    });
}

/// Opens and pauses the sale again and again. A verb may find the sale where another operator has
/// moved it: that is a refusal, and no error.
async fn operate(app: &TestApp, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..VERBS {
        let verb = if random.bool() { "open" } else { "pause" };
        let status = tell(app, verb).await;
        assert!(matches!(status, 200 | 409), "{verb}: {status}, seed {seed}");
    }
}

/// The answer to a verb.
async fn tell(app: &TestApp, verb: &str) -> u16 {
    let url = format!("http://{}/admin/v1/sales/sale/{verb}", app.internal);
    app.client.post(url).json(&json!({})).send().await.unwrap().status().as_u16()
}

/// Verbs of each of two operators.
const VERBS: usize = 25;

#[test]
fn two_operators_at_two_servers_end_where_the_ledger_stands() {
    let (mut settings, _ground) = fresh_settings(Tier::Gate);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings)];
    let seed = fastrand::u64(..);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        apps[0].open_sale("sale", policy, 100_000, 2).await;
        until_open(&apps[1]).await;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let buy = async |app: &TestApp, first: u64| {
            let body = json!({"sku_id": "sku", "quantity": 1});
            let (mut buyer, mut sold) = (first, 0);
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                let (status, _) = app.buy_json("sale", buyer, body.clone()).await;
                assert!(matches!(status.as_u16(), 200 | 202 | 403 | 503), "{status}, seed {seed}");
                sold += u64::from(status == 200);
                buyer += 1;
            }
            sold
        };
        let operators = async {
            tokio::join!(operate(&apps[0], seed), operate(&apps[1], seed + 1));
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        };
        let (sold, more, ()) = tokio::join!(buy(&apps[0], 1), buy(&apps[1], 1_000_000), operators);
        println!("seed={seed} sold={}", sold + more);

        // One closes while the other opens: whichever comes first, the sale is over.
        let (closed, opened) = tokio::join!(tell(&apps[0], "close"), tell(&apps[1], "open"));
        assert!(closed == 200 && matches!(opened, 200 | 409), "{closed} {opened}, seed {seed}");
        for (app, buyer) in apps.iter().zip([2_000_000, 3_000_000]) {
            until("the end", async || {
                let (_, sale) = app.get("/v1/sales/sale", 1).await;
                (sale["phase"] == "closed").then_some(())
            })
            .await;
            let body = json!({"sku_id": "sku", "quantity": 1});
            assert_eq!(app.buy_json("sale", buyer, body).await.0, 410, "seed {seed}");
            until("rest", async || (app.stage("sale", "unsettled").await == 0).then_some(())).await;
            assert_holds_at_rest(app.internal).await;
        }
    });
}
