//! Tier `gate` on several Redis servers: masters that are replaced, rightly or wrongly, and a
//! cluster that loses a part.

use std::sync::Arc;

use floodgate::domain::{InvariantId, Phase};
use floodgate::services::sales::SalesError;
use serde_json::json;

use crate::support::TestApp;
use crate::support::admin::until_open;
use crate::support::crowd::{History, STEADY, send_until};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::gate::{
    GateFixture, assert_holds_at_rest, audit_at_rest, buy_for_sure, metric, purchases,
    retry_until_answered,
};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, in_system};
use crate::support::orders::orders_in;
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::servers::sentinel::SentinelSet;
use crate::support::wait::{until, until_true};

const STOCK: u32 = 300;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(test)
}

/// Injects the fault under load, after the first orders; then every buyer retries until answered.
async fn with_fault(app: &TestApp, fault: impl AsyncFnOnce()) -> History {
    let purchases = Arc::new(purchases(1..600));
    let attempts: Vec<_> = (0..500).flat_map(|_| 0..purchases.len()).collect();
    let injecting = async {
        until("the first orders", async || {
            let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
            (placed >= 50).then_some(())
        })
        .await;
        fault().await;
    };
    let mut history =
        send_until(app.public, "sale", purchases.clone(), attempts.into(), (16, STEADY), injecting)
            .await;
    history.absorb(retry_until_answered(app.public, purchases, 16).await);
    history
}

async fn opened(app: &TestApp, buckets: u16) {
    app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, buckets).await;
}

#[test]
fn a_sale_goes_on_at_the_master_that_the_sentinels_chose() {
    let set = SentinelSet::start(&[]);
    let fixture = GateFixture::new();
    let app = fixture.app(&[("redis.url", &set.url())]);
    run(async {
        opened(&app, 4).await;
        let history = with_fault(&app, async || {
            let old = set.master().expect("the sentinels agree");
            old.kill();
            set.until_demoted(old);
        })
        .await;
        assert_eq!(fixture.check(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn a_cluster_that_lost_the_data_of_a_third_sells_on() {
    let cluster = Cluster::start(&[]);
    let fixture = GateFixture::new();
    let app = fixture.app(&[("redis.url", &cluster.url(&[0, 1, 2]))]);
    run(async {
        opened(&app, 8).await;
        let sizes: Vec<_> = cluster.nodes.iter().map(|node| node.text(&["DBSIZE"])).collect();
        assert!(sizes.iter().all(|size| size != "0"), "buckets on each node: {sizes:?}");
        let history = with_fault(&app, async || {
            cluster.nodes[1].kill();
            cluster.nodes[1].restart();
        })
        .await;
        assert_eq!(fixture.check(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

/// One bucket is missing and the server of another answers nothing: no load can hold the latter.
#[test]
fn a_load_that_cannot_hold_every_bucket_holds_none() {
    let cluster = Cluster::start(&["cluster-require-full-coverage no"]);
    let fixture = GateFixture::new();
    // Time enough for a slow server, and no long wait for the silent one.
    let settings = fixture.settings(&[
        ("redis.url", &cluster.url(&[0, 1])),
        ("redis.connect_timeout_ms", "3000"),
        ("redis.command_timeout_ms", "3000"),
    ]);
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&settings, ledger).await;
        harness
            .create(Offer { policy: ONE_PER_BUYER, stock: 80, buckets: 8 }, START_MS - 1000)
            .await;
        harness.set_phase(Phase::Open).await;
        let buckets_on = |node: &Redis| -> Vec<String> {
            redis::from_redis_value(node.cmd(&["KEYS", "*:bucket"])).unwrap()
        };
        // The first bucket, which a load would hold first, is on a server that answers.
        let (healthy, others): (Vec<_>, Vec<_>) = cluster
            .nodes
            .iter()
            .partition(|node| buckets_on(node).iter().any(|bucket| bucket.ends_with(":0}:bucket")));
        let ([healthy], [missing, silent]) = (&healthy[..], &others[..]) else { panic!("3 nodes") };
        silent.stop();
        missing.cmd(&["DEL", &buckets_on(missing)[0]]);
        // The ping detects the failure.
        harness.backends.stock.ping().await.ok();
        let synced = harness.sync().await;
        assert!(matches!(synced, Err(SalesError::Stock(_))), "{synced:?}");
        let rebuilt = harness.sales.rebuild(&"sale".parse().unwrap(), None, None).await;
        assert!(matches!(rebuilt, Err(SalesError::Stock(_))), "{rebuilt:?}");
        for node in [healthy, missing] {
            for bucket in buckets_on(node) {
                let held = node.cmd(&["HEXISTS", &bucket, "loading"]);
                assert_eq!(held, redis::Value::Int(0), "{bucket} still sells");
            }
        }

        silent.cont();
        until("a load", async || harness.sync().await.ok()).await;
        assert_eq!(harness.free().await.iter().sum::<u32>(), 80);
    });
}

#[test]
fn a_stale_replica_that_becomes_master_sells_nothing_twice() {
    let Replicated { master, replicas } = Replicated::start(1);
    let fixture = GateFixture::on(master);
    let app = fixture.app(&[]);
    run(async {
        opened(&app, 4).await;
        // From here on the replica receives no update: its copy has no sales.
        until_true("a copy of the buckets", || replicas[0].text(&["DBSIZE"]) != "0");
        replicas[0].stop();
        let history = with_fault(&app, async || {
            fixture.redis.kill();
            replicas[0].cont();
            replicas[0].replica_of_no_one();
            fixture.proxy.lead_to(replicas[0].addr());
        })
        .await;
        assert_eq!(fixture.check(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

/// Redirects a proxy and closes all connections through it.
fn redirect(proxy: &FaultProxy, to: &Redis) {
    proxy.lead_to(to.addr());
    proxy.set(Mode::Reset);
    until_true("all connections to be closed", || proxy.open() == 0);
    proxy.heal();
}

#[test]
fn two_masters_at_once_and_the_ledger_decides() {
    let Replicated { master, replicas } = Replicated::start(1);
    let fixture = GateFixture::on(master);
    let other_proxy = FaultProxy::start(fixture.redis.addr());
    let url = format!("redis://{}", other_proxy.addr());
    let (here, there) = (fixture.app(&[]), fixture.app(&[("redis.url", &url)]));
    run(async {
        opened(&here, 4).await;
        until_open(there.public).await;
        buy_for_sure(here.public, 1).await;
        buy_for_sure(there.public, 2).await;
        // One server continues with the old master, the other with the new one.
        replicas[0].replica_of_no_one();
        redirect(&other_proxy, &replicas[0]);
        let (mut history, more) = tokio::join!(
            retry_until_answered(here.public, purchases(1..401).into(), 16),
            retry_until_answered(there.public, purchases(201..601).into(), 16),
        );
        history.absorb(more);
        let orders = orders_in(&fixture.settings(&[])).await;
        history.check(0, &orders, STOCK.into()).assert_clean_among_two_masters();
        assert_eq!(orders.units, u64::from(STOCK));

        // The old master is gone. The new one lacks its sales: the audit reports exactly that.
        redirect(&fixture.proxy, &replicas[0]);
        fixture.redis.kill();
        let report = audit_at_rest(here.internal).await;
        let conserved = serde_json::to_value(InvariantId::StockConserved).unwrap();
        let violations = report["violations"].as_array().unwrap();
        assert!(!violations.is_empty() && violations.iter().all(|v| v["invariant"] == conserved));
        // A new load of the buckets repairs it.
        replicas[0].cmd(&["FLUSHALL"]);
        until("buckets", async || (replicas[0].text(&["DBSIZE"]) != "0").then_some(())).await;
        buy_for_sure(here.public, 1).await;
        assert_holds_at_rest(there.internal).await;
    });
}
