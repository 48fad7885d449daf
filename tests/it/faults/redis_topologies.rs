//! Tier `gate` on more than one Redis: masters that are replaced, rightly or wrongly, and a cluster
//! of which a part is lost.

use std::sync::Arc;

use floodgate::domain::{InvariantId, Phase};
use floodgate::services::sales::SalesError;
use serde_json::json;

use crate::support::TestApp;
use crate::support::crowd::{History, send_until};
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::gate::{
    GateGround, assert_holds_at_rest, audit_at_rest, buy_for_sure, insist, metric, wishes,
};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::orders::orders_in;
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, in_system};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::servers::sentinel::Watched;
use crate::support::wait::{until, until_true};

const STOCK: u32 = 300;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(test)
}

/// Strikes under load, after the first orders; then everybody insists.
async fn struck(app: &TestApp, strike: impl AsyncFnOnce()) -> History {
    let wishes = Arc::new(wishes(1..600));
    let attempts: Vec<_> = (0..500).flat_map(|_| 0..wishes.len()).collect();
    let striking = async {
        until("the first orders", async || {
            let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
            (placed >= 50).then_some(())
        })
        .await;
        strike().await;
    };
    let mut history =
        send_until(app.public, "sale", wishes.clone(), attempts.into(), 16, striking).await;
    history.absorb(insist(app.public, wishes, 16).await);
    history
}

async fn opened(app: &TestApp, buckets: u16) {
    app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, buckets).await;
}

#[test]
fn a_sale_goes_on_at_the_master_that_the_sentinels_chose() {
    let set = Watched::start(&[]);
    let ground = GateGround::new();
    let app = ground.app(&[("redis.url", &set.url())]);
    run(async {
        opened(&app, 4).await;
        let history = struck(&app, async || {
            let old = set.master().expect("they agree");
            old.kill();
            set.until_not_master(old);
        })
        .await;
        assert_eq!(ground.judge(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn a_cluster_that_lost_the_data_of_a_third_sells_on() {
    let cluster = Cluster::start(&[]);
    let ground = GateGround::new();
    let app = ground.app(&[("redis.url", &cluster.url(&[0, 1, 2]))]);
    run(async {
        opened(&app, 8).await;
        let sizes: Vec<_> = cluster.nodes.iter().map(|node| node.text(&["DBSIZE"])).collect();
        assert!(sizes.iter().all(|size| size != "0"), "buckets on each node: {sizes:?}");
        let history = struck(&app, async || {
            cluster.nodes[1].kill();
            cluster.nodes[1].restart();
        })
        .await;
        assert_eq!(ground.judge(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

/// One bucket is missing and another one's server is silent: a load could not hold that one.
#[test]
fn a_load_that_cannot_hold_every_bucket_holds_none() {
    let cluster = Cluster::start(&["cluster-require-full-coverage no"]);
    let ground = GateGround::new();
    let settings = ground.settings(&[("redis.url", &cluster.url(&[0, 1]))]);
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let rig = Rig::start_on_redis(&settings, ledger).await;
        rig.create(Offer { policy: ONE_PER_BUYER, stock: 80, buckets: 8 }, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        let bucket_on = |node: &Redis| {
            let names: Vec<String> =
                redis::from_redis_value(node.cmd(&["KEYS", "*:bucket"])).unwrap();
            names.into_iter().next().expect("a bucket on each node")
        };
        let [healthy, missing, _] = &cluster.nodes[..] else { panic!("three nodes") };
        let (healthy_bucket, missing_bucket) = (bucket_on(healthy), bucket_on(missing));
        cluster.nodes[2].stop();
        missing.cmd(&["DEL", &missing_bucket]);
        // Whoever asks notices.
        rig.backends.stock.ping().await.ok();
        let looked = rig.desk.look().await;
        assert!(matches!(looked, Err(SalesError::Stock(_))), "{looked:?}");
        let held = healthy.cmd(&["HEXISTS", &healthy_bucket, "loading"]);
        assert_eq!(held, redis::Value::Int(0), "it sells on");

        cluster.nodes[2].cont();
        until("a load", async || rig.desk.look().await.ok()).await;
        assert_eq!(rig.free().await.iter().sum::<u32>(), 80);
    });
}

#[test]
fn a_stale_replica_that_becomes_master_sells_nothing_twice() {
    let Replicated { master, replicas } = Replicated::start(1);
    let ground = GateGround::on(master);
    let app = ground.app(&[]);
    run(async {
        opened(&app, 4).await;
        // From here on it hears nothing: to it, nothing was sold.
        until_true("a copy of the buckets", || replicas[0].text(&["DBSIZE"]) != "0");
        replicas[0].stop();
        let history = struck(&app, async || {
            ground.redis.kill();
            replicas[0].cont();
            replicas[0].replica_of_no_one();
            ground.proxy.lead_to(replicas[0].addr());
        })
        .await;
        assert_eq!(ground.judge(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

/// Leads a proxy, and every connection through it, somewhere else.
fn lead(proxy: &FaultProxy, to: &Redis) {
    proxy.lead_to(to.addr());
    proxy.set(Mode::Reset);
    until_true("no connection to be left", || proxy.open() == 0);
    proxy.heal();
}

#[test]
fn two_masters_at_once_and_the_ledger_decides() {
    let Replicated { master, replicas } = Replicated::start(1);
    let ground = GateGround::on(master);
    let other_way = FaultProxy::start(ground.redis.addr());
    let url = format!("redis://{}", other_way.addr());
    let (here, there) = (ground.app(&[]), ground.app(&[("redis.url", &url)]));
    run(async {
        opened(&here, 4).await;
        buy_for_sure(here.public, 1).await;
        buy_for_sure(there.public, 2).await;
        // One server goes on with the old master, the other with the new one.
        replicas[0].replica_of_no_one();
        lead(&other_way, &replicas[0]);
        let (mut history, more) = tokio::join!(
            insist(here.public, wishes(1..401).into(), 16),
            insist(there.public, wishes(201..601).into(), 16),
        );
        history.absorb(more);
        let orders = orders_in(&ground.settings(&[])).await;
        history.judge(0, &orders, STOCK.into()).assert_clean_among_two_masters();
        assert_eq!(orders.units, u64::from(STOCK));

        // The old one is gone; the new one knows nothing of what was sold there, and the audit says
        // so, and nothing else.
        lead(&ground.proxy, &replicas[0]);
        ground.redis.kill();
        let report = audit_at_rest(here.internal).await;
        let conserved = serde_json::to_value(InvariantId::StockConserved).unwrap();
        let violations = report["violations"].as_array().unwrap();
        assert!(!violations.is_empty() && violations.iter().all(|v| v["invariant"] == conserved));
        // What helps is to load the buckets anew.
        replicas[0].cmd(&["FLUSHALL"]);
        until("buckets", async || (replicas[0].text(&["DBSIZE"]) != "0").then_some(())).await;
        buy_for_sure(here.public, 1).await;
        assert_holds_at_rest(there.internal).await;
    });
}
