//! The contract of every stock, as one suite. A new backend implements [`Backend`] and adds a line
//! to `backends!`; no case depends on the backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use floodgate::config::{Settings, Tier};
use floodgate::domain::{
    BucketKey, BucketNo, BucketSnapshot, Counting, Epoch, Failure, LoaderToken, Order, OrderIntent,
    Phase, Policy, Refusal, RequestRecord, Sku, TraceId, Verdict,
};
use floodgate::redis::scripts::{Installation, OutboxArgs};
use floodgate::stock::redis::RedisStockOptions;
use floodgate::stock::{MemoryStock, RedisStock, Stock};
use floodgate::tier::connection_pool;

use crate::lua::harness::OUTBOXES;
use crate::support::intents;
use crate::support::offers::{self, buyer, order_of, request, run};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;

#[macro_use]
mod cases;
mod changing;
mod ending;
mod loading;
mod moving;
mod outbox;
mod reading;
mod reserving;
mod settling;
mod trust;

use settling::{failure, ordered, released};

/// A store that outlives the stocks opened on it; new for each case.
#[async_trait(?Send)]
pub trait Backend {
    /// Opens a stock as another process does. A store that processes cannot share returns the same
    /// stock each time.
    async fn open(&self) -> Arc<dyn Stock>;

    /// What `Stock::unsettled` returns of an accepted reservation.
    fn unsettled(&self, reservation: &OrderIntent) -> OrderIntent {
        *reservation
    }

    /// What a repeat reads of the queued request.
    fn kept(&self, intent: OrderIntent) -> Option<OrderIntent> {
        Some(intent)
    }
}

struct Memory {
    stock: Arc<MemoryStock>,
}

impl Memory {
    fn fresh() -> Self {
        Self { stock: Arc::new(MemoryStock::new(Counting::InStock)) }
    }
}

#[async_trait(?Send)]
impl Backend for Memory {
    async fn open(&self) -> Arc<dyn Stock> {
        self.stock.clone()
    }
}

struct SingleRedis {
    redis: Redis,
    outbox: OutboxArgs,
}

impl SingleRedis {
    fn fresh(outbox: OutboxArgs) -> Self {
        Self { redis: Redis::start(), outbox }
    }
}

#[async_trait(?Send)]
impl Backend for SingleRedis {
    async fn open(&self) -> Arc<dyn Stock> {
        on_redis(&self.redis.url(), "test", self.outbox)
    }

    fn unsettled(&self, reservation: &OrderIntent) -> OrderIntent {
        // Only the outbox entry has the trace.
        self.kept(*reservation).unwrap_or(OrderIntent { trace: TraceId(0), ..*reservation })
    }

    fn kept(&self, intent: OrderIntent) -> Option<OrderIntent> {
        Some(intent).filter(|_| self.outbox == OutboxArgs::None)
    }
}

/// A cluster of three masters, with the buckets of a SKU on several of them. All cases share one
/// cluster, because it starts slowly; each case has its own namespace.
struct ClusteredRedis<'a> {
    cluster: &'a Cluster,
    case: &'static str,
}

#[async_trait(?Send)]
impl Backend for ClusteredRedis<'_> {
    async fn open(&self) -> Arc<dyn Stock> {
        on_redis(&self.cluster.url(&[0, 1]), self.case, OutboxArgs::None)
    }
}

fn on_redis(url: &str, namespace: &str, outbox: OutboxArgs) -> Arc<dyn Stock> {
    let mut settings = Settings::with_ledger("sqlite://unused.db");
    settings.tier = Tier::Gate;
    url.clone_into(&mut settings.redis.url);
    settings.redis.command_timeout_ms = 10_000;
    Arc::new(RedisStock::new(RedisStockOptions {
        pool: connection_pool(&settings).unwrap(),
        namespace: namespace.to_owned(),
        installation: Installation(0xf100_d6a7),
        outbox,
        intents: intents::key(),
        replicated: false,
        // Every poll is a full recount.
        sold_out_refresh: Duration::ZERO,
    }))
}

const FIRST_LOAD: LoaderToken = LoaderToken(1);
const OPENING: Epoch = Epoch(1);
const PLACED_AT_MS: i64 = 1_790_000_000_000;

/// One SKU and the stock of one process.
struct Shop {
    stock: Arc<dyn Stock>,
    sku: Arc<Sku>,
}

fn sku(no: i32, policy: Policy, initial: u32, buckets: u16) -> Arc<Sku> {
    Arc::new(Sku { buckets, ..offers::sku(no, policy, initial) })
}

impl Shop {
    /// Opens and loads a SKU without orders.
    async fn open(backend: &dyn Backend, policy: Policy, initial: u32, buckets: u16) -> Self {
        let shop = Self { stock: backend.open().await, sku: sku(1, policy, initial, buckets) };
        shop.load(FIRST_LOAD, initial, Vec::new(), Vec::new()).await;
        shop
    }

    async fn in_other_process(&self, backend: &dyn Backend) -> Self {
        let other = Self { stock: backend.open().await, sku: self.sku.clone() };
        other.stock.health(&other.sku, Phase::Open, OPENING).await.unwrap();
        other
    }

    /// Loads the buckets from these rows and publishes them as open.
    async fn load(
        &self,
        loader: LoaderToken,
        available: u32,
        orders: Vec<Order>,
        failures: Vec<Failure>,
    ) {
        let mut loading = self.stock.load(self.sku.clone(), loader).await.unwrap();
        loading.clear().await.unwrap();
        loading.orders(orders).await.unwrap();
        loading.failures(failures).await.unwrap();
        loading.publish(available, Phase::Open, OPENING).await.unwrap();
    }

    fn key(&self, bucket: u16) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: BucketNo(bucket) }
    }

    fn key_of(&self, reservation: &OrderIntent) -> BucketKey {
        self.key(reservation.bucket.0)
    }

    fn reservation(&self, request_no: u64, buyer_no: u64, quantity: u32) -> OrderIntent {
        let (request, buyer) = (request(request_no), buyer(buyer_no));
        let placed = self.sku.intent(request, buyer, OPENING, quantity, PLACED_AT_MS);
        OrderIntent { trace: TraceId(u128::from(request_no) << 64 | 7), ..placed }
    }

    async fn decide(&self, batch: &[OrderIntent]) -> Vec<Verdict> {
        let decided = self.stock.reserve(self.key_of(&batch[0]), batch.to_vec()).await;
        decided.unwrap().into_iter().map(offers::without_intent).collect()
    }

    async fn reserve(&self, reservation: OrderIntent) -> Verdict {
        self.decide(&[reservation]).await[0]
    }

    /// Reserves units and requires every reservation to be accepted.
    async fn take(&self, reservations: &[OrderIntent]) {
        for reservation in reservations {
            assert_eq!(self.reserve(*reservation).await, Verdict::Reserved, "{reservation:?}");
        }
    }

    async fn settle(&self, reservations: &[OrderIntent]) {
        let orders = reservations
            .iter()
            .map(|reservation| (reservation.bucket, order_of(reservation)))
            .collect();
        self.stock.settle(orders).await.unwrap();
    }

    async fn release(&self, reservation: &OrderIntent, reason: Refusal) {
        self.stock
            .release(self.key_of(reservation), vec![failure(reservation, reason)])
            .await
            .unwrap();
    }

    async fn set_phase(&self, phase: Phase, epoch: Epoch) {
        self.stock.set_phase(&self.sku, phase, epoch).await.unwrap();
    }

    async fn counts(&self, bucket: u16) -> BucketSnapshot {
        self.stock.snapshot(self.key(bucket)).await.unwrap()
    }

    /// The free units of each bucket.
    async fn free(&self) -> Vec<u32> {
        let mut free = Vec::new();
        for bucket in 0..self.sku.buckets {
            free.push(self.counts(bucket).await.available);
        }
        free
    }

    /// Free units and units lent between buckets.
    async fn units(&self) -> u64 {
        self.stock.facts(self.sku.no).await.unwrap().left
    }

    async fn refresh(&self) {
        self.stock.refresh(self.sku.no).await.unwrap();
    }

    fn is_sold_out(&self) -> bool {
        self.stock.is_sold_out(self.sku.no)
    }

    async fn record(&self, reservation: &OrderIntent) -> Option<RequestRecord> {
        let (key, owner) = (self.key_of(reservation), Some(reservation.buyer));
        self.stock.record(key, reservation.request, owner).await.unwrap()
    }
}

macro_rules! as_tests {
    ($fresh:expr; $($module:ident: $($case:ident)+;)+) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                use crate::conformance::stock::*;

                run(async {
                    crate::conformance::stock::$module::$case(&$fresh).await;
                });
            })+
        })+
    };
}

macro_rules! backends {
    ($cases:ident! $($backend:ident: $fresh:expr;)+) => {
        $(mod $backend {
            $cases! { as_tests! $fresh; }
        })+
    };
}

backends! { all_cases!
    memory: Memory::fresh();
    redis: SingleRedis::fresh(OutboxArgs::None);
    redis_with_list: SingleRedis::fresh(OUTBOXES[0]);
    redis_with_stream: SingleRedis::fresh(OUTBOXES[1]);
}

mod again {
    backends! { loaded_again!
        redis: SingleRedis::fresh(OutboxArgs::None);
        redis_with_list: SingleRedis::fresh(OUTBOXES[0]);
        redis_with_stream: SingleRedis::fresh(OUTBOXES[1]);
    }
}

macro_rules! one_by_one {
    ($cluster:expr; $($module:ident: $($case:ident)+;)+) => {
        $($({
            let case = concat!(stringify!($module), "::", stringify!($case));
            println!("{case}");
            $module::$case(&ClusteredRedis { cluster: $cluster, case }).await;
        })+)+
    };
}

#[test]
fn a_cluster_keeps_every_promise() {
    let cluster = Cluster::start(&[]);
    run(async {
        all_cases! { one_by_one! &cluster; }
        loaded_again! { one_by_one! &cluster; }
    });
}
