//! Request ids that the server derives from their buyer: ids that look expired, and the ids of
//! buyers who have cancelled many requests.

use std::iter::successors;

use floodgate::config::{Settings, Tier};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, OrderWriter};
use floodgate::domain::{Failure, Refusal, RequestId, SaleId, Sku};
use floodgate::http::buyers::request_ids::RequestIds;
use floodgate::runtime::clock::{now_monotonic, wall_ms};
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::app::{Stores, fresh_settings};
use crate::support::offers::{ONE, buyer, open_offer};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

/// Failed requests that one read follows.
const FOLLOWED_MAX: usize = 32;

/// An open sale, `sale`, in the ledger of a server that has not started yet.
struct Offered {
    stores: (Settings, Stores),
    ledger: SqliteLedger,
    sale: SaleId,
    sku: Sku,
    ids: RequestIds,
}

impl Offered {
    async fn new() -> Self {
        Self::on(fresh_settings(Tier::Memory)).await
    }

    async fn on(stores: (Settings, Stores)) -> Self {
        let file = stores.0.ledger.url.strip_prefix("sqlite://").unwrap();
        let ledger = SqliteLedger::open(&OpenOptions::new(file)).unwrap();
        let sku = open_offer(&ledger, "sale", ONE, 5).await;
        let key = ledger.secret("request-ids").await.unwrap();
        let ids = RequestIds::new(&key, 0, stores.0.auth.request_id_ttl_s * 1000);
        Self { stores, ledger, sale: "sale".parse().unwrap(), sku, ids }
    }

    /// The numbers of a buyer's requests: each follows the one before, which has failed.
    fn numbers(&self, of: u64) -> impl Iterator<Item = RequestId> {
        let (sale, sku, of) = (&self.sale, self.sku.no, buyer(of));
        let first = self.ids.derive(sale, sku, of);
        successors(Some(first), move |ended| Some(self.ids.next(*ended, sale, sku, of)))
    }

    /// The signed id of a buyer's request, counted from 0.
    fn id(&self, of: u64, position: usize) -> String {
        let number = self.numbers(of).nth(position).unwrap();
        self.ids.sign(number, &self.sale, self.sku.no, buyer(of))
    }

    /// Records that the buyer has cancelled as many requests.
    async fn cancelled(&self, of: u64, count: usize) {
        let failure = |request| Failure {
            request,
            sku: self.sku.no,
            buyer: buyer(of),
            quantity: 1,
            reason: Refusal::CancelledByBuyer,
            recorded_at_ms: wall_ms(),
        };
        let failures = self.numbers(of).take(count).map(failure).collect();
        self.ledger.record_failures(failures).await.unwrap();
    }

    async fn start(self) -> TestApp {
        self.ledger.close().await;
        TestApp::on(self.stores)
    }
}

#[tokio::test]
async fn a_read_follows_a_limited_number_of_cancelled_requests() {
    let offered = Offered::new().await;
    offered.cancelled(1, FOLLOWED_MAX).await;
    offered.cancelled(2, FOLLOWED_MAX + 1).await;
    let expected = [(1, Json::Null), (2, json!("failed"))];
    let expected = expected.map(|(of, state)| (of, offered.id(of, FOLLOWED_MAX), state));
    let app = offered.start().await;
    for (of, id, state) in expected {
        let (_, mine) = app.get("/v1/sales/sale/mine", of).await;
        let sku = &mine["skus"][0];
        assert_eq!((&sku["request_id"], &sku["state"]), (&json!(id), &state), "{mine}");
    }
}

/// Scripts that Redis has run.
fn num_scripts(redis: &Redis) -> u64 {
    let stats = redis.text(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.unwrap().split_once(',').unwrap().0.parse().unwrap()
}

#[tokio::test]
async fn many_cancelled_requests_are_read_by_few_scripts() {
    const READS: u64 = 100;
    let mut stores = fresh_settings(Tier::Memory);
    stores.0.tier = Tier::Gate;
    stores.0.redis.url = stores.1.redis.insert(Redis::start()).url();
    let offered = Offered::on(stores).await;
    offered.cancelled(1, FOLLOWED_MAX).await;
    let id = offered.id(1, FOLLOWED_MAX);
    let app = offered.start().await;
    let read = || async {
        let (status, mine) = app.get("/v1/sales/sale/mine", 1).await;
        (status == 200).then(|| mine["skus"][0]["request_id"].clone())
    };
    assert_eq!(until("the loaded buckets", read).await, json!(id));
    let (before, begun) = (num_scripts(app.redis()), now_monotonic());
    for _ in 0..READS {
        assert_eq!(read().await, Some(json!(id)));
    }
    let scripts = num_scripts(app.redis()) - before;
    // Some thirty a second are periodic.
    let most = 5 * READS + 40 * (begun.elapsed().as_secs() + 1);
    assert!(scripts < most, "{scripts} scripts for {READS} reads");
}

#[tokio::test]
async fn a_derived_id_buys_also_if_it_looks_like_an_expired_one() {
    let offered = Offered::new().await;
    let looks_expired = |of: &u64| {
        let number = offered.numbers(*of).next().unwrap();
        offered.ids.expires_at_ms(number) < wall_ms()
    };
    let of = (1..100_000).find(looks_expired).unwrap();
    let id = offered.id(of, 0);
    let app = offered.start().await;
    let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    assert_eq!(app.bought("sale", of, purchase).await["request_id"], json!(id));
}
