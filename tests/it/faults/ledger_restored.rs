//! A ledger that was restored from an older backup while the buckets in Redis stayed: the buckets
//! are in a later epoch than the ledger.

use std::net::SocketAddr;
use std::sync::Arc;

use floodgate::config::Tier;
use floodgate::domain::{Epoch, Phase};
use floodgate::services::sales::SalesError;
use serde_json::{Value as Json, json};

use crate::support::admin;
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::gate::{GateFixture, PATIENT, assert_holds_at_rest, buy, buy_for_sure};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, in_system, is_placed, settings};
use crate::support::process::Server;
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::until;

/// Words of the warning and of the answers, which name the state and the remedy.
const BEHIND: &str = "older backup";
const REMEDY: &str = "floodgate sale open sale";

/// The state of one sale without orders, as a backup has it.
fn restore(mariadb: &MariaDb) {
    mariadb.sql(
        "DELETE FROM orders; DELETE FROM order_events; UPDATE skus SET available = initial_stock; \
         UPDATE sales SET phase = 1, epoch = 1; \
         UPDATE tokens SET token = 1 WHERE name = 'loader';",
    );
}

async fn post(internal: SocketAddr, path: &str) -> (u16, Json) {
    let url = format!("http://{internal}/admin/v1/sales/sale/{path}");
    let answer = reqwest::Client::new().post(url).json(&json!({})).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Of each warning about syncs, whether it is that of a restored ledger.
fn warnings(server: &Server) -> Vec<bool> {
    let log = server.log();
    let warnings = log.lines().filter(|line| line.contains("sale sync failed"));
    warnings.map(|line| line.contains(BEHIND)).collect()
}

/// Steps of the sale loader, of which each sync has two.
async fn sync_steps(internal: SocketAddr) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let actors = report["actors"].as_array()?;
    actors.iter().find(|one| one["kind"] == "sale_loader")?["steps"].as_u64()
}

#[test]
fn a_restored_ledger_is_named_and_an_opening_above_the_buckets_heals_it() {
    let fixture = GateFixture::new();
    let first = fixture.server(&PATIENT);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        admin::open_sale(first.internal, "sale", policy, 10, 2).await;
        for _ in 0..3 {
            for command in ["rebuild", "pause", "open"] {
                admin::call(first.internal, &format!("/sales/sale/{command}"), json!({})).await;
            }
        }
        buy_for_sure(first.public, 1).await;
        first.kill();
        restore(&fixture.mariadb);
        // Since the backup other SKUs were loaded more often.
        for bucket in fixture.names("fg:{*}:bucket") {
            let loaded = fixture.field(&bucket, "loaded").unwrap();
            let (installation, _) = loaded.split_once('.').unwrap();
            fixture.redis.cmd(&["HSET", &bucket, "loaded", &format!("{installation}.151")]);
        }

        let server = fixture.server(&PATIENT);
        until("the warning", async || warnings(&server).contains(&true).then_some(())).await;
        let (status, body) = buy(server.public, 2).await.unwrap();
        assert_eq!((status, &body["code"]), (503, &json!("busy")));
        let (status, body) = post(server.internal, "rebuild").await;
        assert_eq!(status, 409, "{body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(BEHIND) && detail.contains(REMEDY), "{detail}");
        let begun = sync_steps(server.internal).await.unwrap();
        until("further syncs", async || {
            (sync_steps(server.internal).await? > begun + 20).then_some(())
        })
        .await;
        let warnings = warnings(&server);
        let is_repeated = warnings.windows(2).any(|two| two == [true, true]);
        assert!(!is_repeated, "one warning for each change of state: {warnings:?}");

        let (status, body) = post(server.internal, "open").await;
        assert_eq!((status, &body["phase"]), (200, &json!("open")), "{body}");
        assert!(body["epoch"].as_i64().unwrap() > 4, "above the buckets: {body}");
        // The order of the first buyer is gone, and so is its record in the bucket.
        buy_for_sure(server.public, 1).await;
        buy_for_sure(server.public, 2).await;
        assert_holds_at_rest(server.internal).await;
        assert_eq!(fixture.mariadb.number("SELECT available FROM skus"), 8);
        let rebuilt = admin::call(server.internal, "/sales/sale/rebuild", json!({})).await;
        assert_eq!(rebuilt["skus"], json!(["sku"]));
    });
}

/// Two of four buckets ahead by hand, in the phase that the sale has: pausing heals them, too.
#[test]
fn buckets_in_a_later_opening_are_caught_up_with_by_every_change_of_phase() {
    let fixture = GateFixture::new();
    let server = fixture.server(&PATIENT);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        admin::open_sale(server.internal, "sale", policy, 10, 4).await;
        let buckets = fixture.names("fg:{*}:bucket");
        let epoch = fixture.field(&buckets[0], "epoch").unwrap();
        let (installation, _) = epoch.split_once('.').unwrap();
        for bucket in &buckets[..2] {
            fixture.redis.cmd(&["HSET", bucket, "epoch", &format!("{installation}.9")]);
        }
        until("the refusal", async || {
            (post(server.internal, "rebuild").await.0 == 409).then_some(())
        })
        .await;
        let (status, body) = post(server.internal, "pause").await;
        assert_eq!((status, &body["phase"]), (200, &json!("paused")), "{body}");
        let (status, body) = post(server.internal, "open").await;
        assert_eq!(status, 200, "{body}");
        assert!(body["epoch"].as_i64().unwrap() > 9, "{body}");
        for buyer in 1..=10 {
            buy_for_sure(server.public, buyer).await;
        }
        assert_holds_at_rest(server.internal).await;
    });
}

/// Books in memory, in front of a ledger that was replaced under the running process.
#[test]
fn books_ahead_of_their_ledger_are_named_and_an_opening_above_them_heals() {
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 2 };
        let harness = Harness::open(&settings(Tier::Memory), ledger, offer).await;
        let sku = harness.catalog.sale("sale").unwrap().skus[0].clone();
        harness.backends.stock.set_phase(&sku, Phase::Open, Epoch(9)).await.unwrap();
        for _ in 0..2 {
            let synced = harness.sync().await;
            let is_named =
                matches!(synced, Err(SalesError::LedgerBehind { buckets: 9, ledger: 1, .. }));
            assert!(is_named, "{synced:?}");
        }
        harness.set_phase(Phase::Open).await;
        assert!(harness.catalog.sale("sale").unwrap().epoch > Epoch(9));
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        harness.sync().await.unwrap();
        harness.assert_holds().await;
    });
}
