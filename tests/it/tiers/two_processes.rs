//! Two servers that share Redis and a ledger sell one sale, as a single server would.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::config::Tier;
use serde_json::json;

use crate::support::admin::until_open;
use crate::support::app::{TestApp, fresh_settings, sale_body};
use crate::support::crowd::{History, Purchase, send};
use crate::support::gate::assert_holds_at_rest;
use crate::support::orders::orders_in;
use crate::support::wait::until;

const STOCK: u32 = 100;
const BUYERS: u64 = 1_500;
const REQUESTS: usize = 6_000;

/// Every purchase is sent about four times, to either server.
fn sell_to_crowd(policy: serde_json::Value) {
    let (mut settings, _stores) = fresh_settings(Tier::Gate);
    settings.maintenance.every_ms = 50;
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings.clone())];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (purchases, history) = runtime.block_on(async {
        apps[0].open_sale("sale", policy.clone(), STOCK, 4).await;
        until_open(apps[1].public).await;
        let mut purchases = Vec::new();
        for buyer in 1..=BUYERS {
            let derived = policy["kind"] == "one_per_buyer";
            let issuer = &apps[usize::from(buyer % 2 == 0)];
            let request_id =
                if derived { None } else { Some(issuer.request_id("sale", buyer).await) };
            purchases.push(Purchase { buyer, request_id, quantity: 1 });
        }
        let purchases = Arc::new(purchases);
        let mut sample = || -> Arc<Vec<usize>> {
            (0..REQUESTS / 2).map(|_| random.usize(0..purchases.len())).collect::<Vec<_>>().into()
        };
        let (one, other) = (sample(), sample());
        let (mut history, more) = tokio::join!(
            send(apps[0].public, "sale", purchases.clone(), one, 50),
            send(apps[1].public, "sale", purchases.clone(), other, 50),
        );
        history.absorb(more);
        (purchases, history)
    });
    runtime.block_on(async {
        for app in &apps {
            until("quiescence", async || (app.stage("sale", "unsettled").await == 0).then_some(()))
                .await;
            assert_holds_at_rest(app.internal).await;
            assert_eq!(app.stage("sale", "left").await, 0);
        }
        each_order_is_read_everywhere(&apps, &history, &purchases).await;
    });
    let orders = runtime.block_on(orders_in(&settings));
    history.check(seed, &orders, u64::from(STOCK)).assert_clean();
    assert_eq!(orders.units, u64::from(STOCK));
    let fresh = history.purchases.iter().filter(|h| h.status == Some(200) && !h.replayed).count();
    assert_eq!(fresh, STOCK as usize, "every other success is marked as a repeat");
}

async fn each_order_is_read_everywhere(
    apps: &[TestApp; 2],
    history: &History,
    purchases: &[Purchase],
) {
    let refusals = ["sold-out", "quota-exceeded"];
    for attempt in &history.purchases {
        let code = attempt.code.as_deref();
        let is_allowed =
            attempt.status == Some(200) || code.is_some_and(|code| refusals.contains(&code));
        // While the last units are in transfer between buckets, both servers may request them.
        assert!(is_allowed || code == Some("busy"), "{attempt:?}");
    }
    let successes = history.promised_by_purchase();
    assert_eq!(successes.len(), STOCK as usize);
    let mut documents = BTreeSet::new();
    for (purchase, ids) in successes.iter().take(20) {
        assert_eq!(ids.len(), 1);
        let path = format!("/v1/requests/{}", ids.first().unwrap());
        for app in apps {
            let (status, request) = app.get(&path, purchases[*purchase].buyer).await;
            assert_eq!((status.as_u16(), &request["state"]), (200, &json!("success")), "{request}");
            documents.insert(request.to_string());
        }
    }
    assert_eq!(documents.len(), 20, "both servers return the same document");
}

#[test]
fn one_per_buyer_by_two_servers() {
    sell_to_crowd(json!({"kind": "one_per_buyer"}));
}

#[test]
fn unlimited_by_two_servers() {
    sell_to_crowd(json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn a_quota_by_two_servers() {
    sell_to_crowd(json!({"kind": "quota", "limit": 1, "max_quantity": 1}));
}

/// The other server reads the sales of the ledger once an hour by itself.
#[test]
fn a_server_denies_no_request_of_a_sale_that_it_has_not_read_yet() {
    let (mut settings, stores) = fresh_settings(Tier::Gate);
    let seller = TestApp::start(settings.clone());
    settings.maintenance.every_ms = 3_600_000;
    let other = TestApp::start(settings);
    let mariadb = stores.mariadb.as_ref().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        let sold = async |sale: &str| {
            seller.open_sale(sale, policy.clone(), 10, 2).await;
            let body = json!({"sku_id": "sku", "quantity": 1});
            let (status, bought) = seller.buy_json(sale, 1, body).await;
            assert_eq!(status, 200, "{bought}");
            format!("/v1/requests/{}", bought["request_id"].as_str().unwrap())
        };
        sold("first").await;
        let (_, listed) = other.get("/v1/orders", 1).await;
        assert_eq!(listed["orders"][0]["sale_id"], "first", "{listed}");
        let (status, request) = other.get(&sold("sale").await, 1).await;
        assert_eq!((status.as_u16(), &request["state"]), (200, &json!("success")), "{request}");
        assert_eq!(other.get("/v1/sales/none", 1).await.0, 404);

        let request = sold("next").await;
        mariadb.stop();
        for path in [&request, "/v1/sales/next", "/v1/sales/next/mine"] {
            let (status, problem) = other.get(path, 1).await;
            assert_eq!((status.as_u16(), &problem["code"]), (503, &json!("busy")), "{path}");
        }
        mariadb.cont();
        until("the sale to be read", async || {
            (other.get(&request, 1).await.0 == 200).then_some(())
        })
        .await;
    });
}

#[test]
fn a_verb_that_one_server_carries_out_reaches_the_other() {
    let (mut settings, _stores) = fresh_settings(Tier::Gate);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        apps[0].admin("/sales", Some(sale_body("sale", policy, 10, 2))).await;
        let mut buyer = 0;
        for (verb, status) in [("open", 200), ("pause", 403), ("open", 200), ("close", 410)] {
            let server = &apps[usize::from(verb == "pause")];
            until("the verb to succeed", async || {
                let url = format!("http://{}/admin/v1/sales/sale/{verb}", server.internal);
                let call = server.client.post(url).json(&json!({}));
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
            // Both servers answer accepted requests, after the close too.
            for buyer in [1, 2, 5, 6] {
                let again = app.buy("sale", buyer, json!({"sku_id": "sku", "quantity": 1})).await;
                assert_eq!(again.status(), 200, "buyer {buyer}");
                assert_eq!(again.headers()["idempotent-replayed"], "true");
            }
            assert_holds_at_rest(app.internal).await;
        }
    });
}

/// Opens and pauses the sale [`VERBS`] times. A verb that conflicts with the other operator's is
/// refused with 409, and no other error is allowed.
async fn operate(app: &TestApp, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..VERBS {
        let verb = if random.bool() { "open" } else { "pause" };
        let status = send_verb(app, verb).await;
        assert!(matches!(status, 200 | 409), "{verb}: {status}, seed {seed}");
    }
}

/// Sends a verb and returns the status code.
async fn send_verb(app: &TestApp, verb: &str) -> u16 {
    let url = format!("http://{}/admin/v1/sales/sale/{verb}", app.internal);
    app.client.post(url).json(&json!({})).send().await.unwrap().status().as_u16()
}

/// Verbs that each of the two operators sends.
const VERBS: usize = 25;

#[test]
fn two_operators_at_two_servers_end_at_the_phase_of_the_ledger() {
    let (mut settings, _stores) = fresh_settings(Tier::Gate);
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (20, 20);
    let apps = [TestApp::start(settings.clone()), TestApp::start(settings)];
    let seed = fastrand::u64(..);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        apps[0].open_sale("sale", policy, 100_000, 2).await;
        until_open(apps[1].public).await;
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

        // One operator closes while the other opens: in either order the sale ends closed.
        let (closed, opened) =
            tokio::join!(send_verb(&apps[0], "close"), send_verb(&apps[1], "open"));
        assert!(closed == 200 && matches!(opened, 200 | 409), "{closed} {opened}, seed {seed}");
        for (app, buyer) in apps.iter().zip([2_000_000, 3_000_000]) {
            until("the closed sale", async || {
                let (_, sale) = app.get("/v1/sales/sale", 1).await;
                (sale["phase"] == "closed").then_some(())
            })
            .await;
            let body = json!({"sku_id": "sku", "quantity": 1});
            assert_eq!(app.buy_json("sale", buyer, body).await.0, 410, "seed {seed}");
            until("quiescence", async || (app.stage("sale", "unsettled").await == 0).then_some(()))
                .await;
            assert_holds_at_rest(app.internal).await;
        }
    });
}
