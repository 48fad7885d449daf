//! A sale in tier `pipeline` with units for all buyers, and what these heard.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinHandle;

use super::admin::open_sale;
use super::crowd::{Attempt, History, Verdict, Wish, send};
use super::gate::{insist_until, wishes};
use super::pipeline::PipelineGround;

const CONNECTIONS: usize = 32;
const BUCKETS: u16 = 4;

/// One sale; each buyer buys one unit.
pub struct Shop {
    stock: u32,
    num_buyers: u64,
    pub history: History,
}

/// Buyers under way.
pub struct Crowd {
    wishes: Arc<Vec<Wish>>,
    load: JoinHandle<History>,
}

impl Shop {
    pub async fn open(internal: SocketAddr, stock: u32) -> Self {
        open_sale(internal, "sale", json!({"kind": "one_per_buyer"}), stock, BUCKETS).await;
        Self { stock, num_buyers: 0, history: History::default() }
    }

    fn buyers(&mut self, count: u64) -> Arc<Vec<Wish>> {
        let first = self.num_buyers + 1;
        self.num_buyers += count;
        assert!(self.num_buyers <= u64::from(self.stock), "there is a unit for everybody");
        Arc::new(wishes(first..first + count))
    }

    /// New buyers, until each was promised a unit.
    pub async fn sell(&mut self, public: SocketAddr, count: u64) {
        let buyers = self.buyers(count);
        self.insist(public, buyers).await;
    }

    async fn insist(&mut self, public: SocketAddr, buyers: Arc<Vec<Wish>>) {
        let told = insist_until(public, buyers, CONNECTIONS, Attempt::is_promise).await;
        self.history.absorb(told);
    }

    /// New buyers who ask twice each, meanwhile.
    pub fn crowd(&mut self, public: SocketAddr, count: u64) -> Crowd {
        let wishes = self.buyers(count);
        let attempts: Vec<usize> = (0..wishes.len()).chain(0..wishes.len()).collect();
        let load = send_all(public, wishes.clone(), attempts);
        Crowd { wishes, load: tokio::runtime::Handle::current().spawn(load) }
    }

    /// Whoever of them was not promised a unit asks again, until he was.
    pub async fn settle(&mut self, public: SocketAddr, crowd: Crowd) {
        self.history.absorb(crowd.load.await.unwrap());
        self.insist(public, crowd.wishes).await;
    }

    /// New buyers who ask once: what they heard. They are nobody's who gives up.
    pub async fn ask_once(&mut self, public: SocketAddr, count: u64) -> Vec<Attempt> {
        let wishes = self.buyers(count);
        let sent = send_all(public, wishes, (0..usize::try_from(count).unwrap()).collect()).await;
        let heard = sent.heard.clone();
        self.history.absorb(sent);
        heard
    }

    /// Waits until everything has ended, and requires an order for whoever was promised one.
    pub async fn judge(&self, ground: &PipelineGround, internal: SocketAddr) -> Verdict {
        let verdict = ground.judge(0, internal, &self.history, self.stock.into()).await;
        assert_eq!((verdict.failed, verdict.dead), (0, 0), "{verdict}");
        assert!(verdict.ok >= verdict.acknowledged, "{verdict}");
        verdict
    }
}

async fn send_all(public: SocketAddr, wishes: Arc<Vec<Wish>>, attempts: Vec<usize>) -> History {
    send(public, "sale", wishes, attempts.into(), CONNECTIONS).await
}
