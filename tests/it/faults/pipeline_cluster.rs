//! Tier `pipeline` on a Redis Cluster whose nodes are killed one after the other under load, while
//! nothing is published and while everything is. Each comes back with its data, one of each round
//! only after the others have gone on selling.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::support::admin::open_sale;
use crate::support::crowd::{History, send, send_until};
use crate::support::gate::insist_until;
use crate::support::greed;
use crate::support::pipeline::PipelineGround;
use crate::support::random::number_from_env;
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::AOF_ALWAYS;
use crate::support::wait::until;

const NODES: usize = 3;
/// Some on each node.
const BUCKETS: u16 = 12;
/// More than all buyers may have: no bucket is sold out, and every refusal is one of the quota.
const STOCK: u32 = 20_000;
/// Buyers under way while a node is killed.
const BUYERS: u64 = 150;
/// Each purchase is sent so often that the load lasts longer than the fault.
const TIMES: usize = 200;
/// Buyers who come while a node stays away, two thirds of them to the other nodes.
const LATE_BUYERS: u64 = 60;
/// Purchases that the other nodes must accept before the node comes back.
const SOLD_MEANWHILE: usize = 30;

/// Kills a node while a crowd buys; whoever was not answered asks again when it is back.
async fn without_node(
    cluster: &Cluster,
    node: usize,
    stays_away: bool,
    public: SocketAddr,
    buyers: Range<u64>,
    random: &mut Rng,
) -> History {
    let crowd = greed::wishes(public, buyers.start..buyers.start + BUYERS, random).await;
    let late = greed::wishes(public, buyers.start + BUYERS..buyers.end, random).await;
    let attempts = greed::shuffled(&crowd, TIMES, random);
    let (over, is_over) = oneshot::channel::<()>();
    let (end, wishes) = (is_over.map(drop), crowd.clone());
    let load = send_until(public, "sale", wishes, attempts, 16, end);
    let fault = async {
        cluster.nodes[node].kill();
        let mut history = History::default();
        if stays_away {
            until("sales of the other nodes", async || {
                let once: Arc<Vec<usize>> = Arc::new((0..late.len()).collect());
                history.absorb(send(public, "sale", late.clone(), once, 16).await);
                (history.acknowledged().len() >= SOLD_MEANWHILE).then_some(())
            })
            .await;
        }
        cluster.nodes[node].restart();
        until("a whole cluster", async || cluster.is_whole().then_some(())).await;
        over.send(()).unwrap_or_default();
        history
    };
    let (heard, mut history) = tokio::join!(load, fault);
    history.absorb(heard);
    for wishes in [crowd, late] {
        history.absorb(insist_until(public, wishes, 16, greed::is_final).await);
    }
    history
}

fn nodes_are_killed(outbox: &str) {
    let seed = number_from_env("FLOODGATE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed={seed}");
    let mut random = Rng::with_seed(seed);
    let cluster = Cluster::start(&[AOF_ALWAYS, &["cluster-require-full-coverage no"]].concat());
    let url = cluster.url(&[0, 1, 2]);
    let ground = PipelineGround::new(outbox).with("redis.url", &url);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [keeper, api, _consumer] =
            ["maintenance", "api", "consumer"].map(|role| ground.server(role, &[]));
        open_sale(keeper.internal, "sale", greed::quota(), STOCK, BUCKETS).await;
        let mut history = History::default();
        let mut relay = None;
        let mut next_buyer = 1;
        for is_published in [false, true] {
            if is_published {
                relay = Some(ground.server("relay", &[]));
            }
            let away = random.usize(..NODES);
            for node in 0..NODES {
                println!("node={node} is_published={is_published} stays_away={}", node == away);
                let buyers = next_buyer..next_buyer + BUYERS + LATE_BUYERS;
                next_buyer = buyers.end;
                let stays_away = node == away;
                let heard =
                    without_node(&cluster, node, stays_away, api.public, buyers, &mut random);
                history.absorb(heard.await);
            }
        }
        let verdict = ground.judge(seed, keeper.internal, &history, STOCK.into()).await;
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
