//! A sale in tier `pipeline` with a unit for every buyer, and the responses to its buyers.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinHandle;

use super::admin::open_sale;
use super::crowd::{Attempt, History, Purchase, Verdict, send};
use super::gate::{purchases, retry_until};
use super::pipeline::PipelineFixture;

const CONNECTIONS: usize = 32;
const BUCKETS: u16 = 4;

/// One sale; each buyer buys one unit.
pub struct Shop {
    stock: u32,
    num_buyers: u64,
    pub history: History,
}

/// Buyers whose purchases are in flight.
pub struct Crowd {
    purchases: Arc<Vec<Purchase>>,
    load: JoinHandle<History>,
}

impl Shop {
    pub async fn open(internal: SocketAddr, stock: u32) -> Self {
        open_sale(internal, "sale", json!({"kind": "one_per_buyer"}), stock, BUCKETS).await;
        Self { stock, num_buyers: 0, history: History::default() }
    }

    fn buyers(&mut self, count: u64) -> Arc<Vec<Purchase>> {
        let first = self.num_buyers + 1;
        self.num_buyers += count;
        assert!(self.num_buyers <= u64::from(self.stock), "the test has more buyers than units");
        Arc::new(purchases(first..first + count))
    }

    /// Sends the purchases of `count` new buyers until each is promised a unit.
    pub async fn sell(&mut self, public: SocketAddr, count: u64) {
        let buyers = self.buyers(count);
        self.retry_until_answered(public, buyers).await;
    }

    async fn retry_until_answered(&mut self, public: SocketAddr, buyers: Arc<Vec<Purchase>>) {
        let sent =
            retry_until(public, buyers, CONNECTIONS, |attempt: &Attempt| attempt.is_promise())
                .await;
        self.history.absorb(sent);
    }

    /// Sends two attempts of each of `count` new buyers in the background.
    pub fn crowd(&mut self, public: SocketAddr, count: u64) -> Crowd {
        let purchases = self.buyers(count);
        let attempts: Vec<usize> = (0..purchases.len()).chain(0..purchases.len()).collect();
        let load = send_all(public, purchases.clone(), attempts);
        Crowd { purchases, load: tokio::runtime::Handle::current().spawn(load) }
    }

    /// Awaits the background attempts, then repeats each purchase until it is promised.
    pub async fn settle(&mut self, public: SocketAddr, crowd: Crowd) {
        self.history.absorb(crowd.load.await.unwrap());
        self.retry_until_answered(public, crowd.purchases).await;
    }

    /// Sends one attempt of each of `count` new buyers, without retries.
    pub async fn ask_once(&mut self, public: SocketAddr, count: u64) -> Vec<Attempt> {
        let purchases = self.buyers(count);
        let sent =
            send_all(public, purchases, (0..usize::try_from(count).unwrap()).collect()).await;
        let attempts = sent.purchases.clone();
        self.history.absorb(sent);
        attempts
    }

    /// Waits until every accepted request has its outcome, and asserts that every promise became an
    /// order.
    pub async fn check(&self, fixture: &PipelineFixture, internal: SocketAddr) -> Verdict {
        let verdict = fixture.check(0, internal, &self.history, self.stock.into()).await;
        assert_eq!((verdict.failed, verdict.dead), (0, 0), "{verdict}");
        assert!(verdict.ok >= verdict.acknowledged, "{verdict}");
        verdict
    }
}

async fn send_all(
    public: SocketAddr,
    purchases: Arc<Vec<Purchase>>,
    attempts: Vec<usize>,
) -> History {
    send(public, "sale", purchases, attempts.into(), CONNECTIONS).await
}
