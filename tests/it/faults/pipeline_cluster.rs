//! Tier `pipeline` on a Redis Cluster whose nodes are killed one after the other under load, first
//! without a relay, then with one. Each node restarts with its data; one node of each pass stays
//! down until the other nodes have sold units.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::support::admin::{open_sale, until_open};
use crate::support::crowd::{History, STEADY, send, send_until};
use crate::support::gate::retry_until;
use crate::support::pipeline::PipelineFixture;
use crate::support::quota_load;
use crate::support::random::number_from_env;
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::AOF_ALWAYS;
use crate::support::wait::until;

const NODES: usize = 3;
/// Enough for some on each node.
const BUCKETS: u16 = 12;
/// More than the quotas of all buyers: no bucket sells out, and the quota is the only refusal.
const STOCK: u32 = 20_000;
/// Buyers under way while a node is killed.
const BUYERS: u64 = 150;
/// Each purchase is sent so often that the load lasts longer than the fault.
const TIMES: usize = 200;
/// Buyers who come while a node stays down, two thirds of them at the other nodes.
const LATE_BUYERS: u64 = 60;
/// Purchases that the other nodes must accept before the node restarts.
const SOLD_MEANWHILE: usize = 30;

/// Kills a node while a crowd buys. Buyers without a final answer retry after its restart.
async fn without_node(
    cluster: &Cluster,
    node: usize,
    stays_down: bool,
    public: SocketAddr,
    buyers: Range<u64>,
    random: &mut Rng,
) -> History {
    let crowd = quota_load::purchases(public, buyers.start..buyers.start + BUYERS, random).await;
    let late = quota_load::purchases(public, buyers.start + BUYERS..buyers.end, random).await;
    let attempts = quota_load::shuffled(&crowd, TIMES, random);
    let (stop_load, load_stopped) = oneshot::channel::<()>();
    let (end, purchases) = (load_stopped.map(drop), crowd.clone());
    let load = send_until(public, "sale", purchases, attempts, (16, STEADY), end);
    let fault = async {
        cluster.nodes[node].kill();
        let mut history = History::default();
        if stays_down {
            until("sales of the other nodes", async || {
                let once: Arc<Vec<usize>> = Arc::new((0..late.len()).collect());
                history.absorb(send(public, "sale", late.clone(), once, 16).await);
                (history.acknowledged().len() >= SOLD_MEANWHILE).then_some(())
            })
            .await;
        }
        cluster.nodes[node].restart();
        until("a complete cluster", async || cluster.is_whole().then_some(())).await;
        stop_load.send(()).unwrap_or_default();
        history
    };
    let (sent, mut history) = tokio::join!(load, fault);
    history.absorb(sent);
    for purchases in [crowd, late] {
        history.absorb(retry_until(public, purchases, 16, quota_load::is_final).await);
    }
    history
}

fn nodes_are_killed(outbox: &str) {
    let seed = number_from_env("FLOODGATE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed={seed}");
    let mut random = Rng::with_seed(seed);
    let cluster = Cluster::start(&[AOF_ALWAYS, &["cluster-require-full-coverage no"]].concat());
    let url = cluster.url(&[0, 1, 2]);
    let fixture = PipelineFixture::new(outbox).with("redis.url", &url);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [maintenance, api, _consumer] =
            ["maintenance", "api", "consumer"].map(|role| fixture.server(role, &[]));
        open_sale(maintenance.internal, "sale", quota_load::quota(), STOCK, BUCKETS).await;
        until_open(api.public).await;
        let mut history = History::default();
        let mut relay = None;
        let mut next_buyer = 1;
        for with_relay in [false, true] {
            if with_relay {
                relay = Some(fixture.server("relay", &[]));
            }
            let down_node = random.usize(..NODES);
            for node in 0..NODES {
                println!("node={node} with_relay={with_relay} stays_down={}", node == down_node);
                let buyers = next_buyer..next_buyer + BUYERS + LATE_BUYERS;
                next_buyer = buyers.end;
                let stays_down = node == down_node;
                let sent =
                    without_node(&cluster, node, stays_down, api.public, buyers, &mut random);
                history.absorb(sent.await);
            }
        }
        let verdict = fixture.check(seed, maintenance.internal, &history, STOCK.into()).await;
        assert_eq!((verdict.failed, verdict.dead), (0, 0), "{verdict}");
        assert!(verdict.ok >= verdict.acknowledged, "{verdict}");
        drop(relay);
    });
}

#[test]
fn nodes_of_a_cluster_that_are_killed_lose_nothing_from_a_list() {
    nodes_are_killed("list");
}

#[test]
fn nodes_of_a_cluster_that_are_killed_lose_nothing_from_a_stream() {
    nodes_are_killed("stream");
}
