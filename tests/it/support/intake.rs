//! An engine whose orders come from a broker in memory.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use actix::Arbiter;
use async_trait::async_trait;
use floodgate::actors::OrderConsumer;
use floodgate::actors::order_consumer::{CatalogSync, ConsumerDeps, ConsumerLimits};
use floodgate::actors::supervisor::ChildSpec;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::broker::Headers;
use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::domain::{BucketNo, OrderIntent, RequestStatus, Verdict};
use floodgate::messages::Stop;
use floodgate::messages::envelope;
use floodgate::observe::metrics::Metrics;
use floodgate::redis::scripts::intent::pack_into;
use floodgate::runtime::clock::ManualClock;
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::stock::BucketKey;
use floodgate::tier::Backends;
use floodgate::watermark::{self, Watermarks};
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::fake_broker::FakeBroker;
use super::faulty_ledger::FaultyLedger;
use super::faulty_stock::FaultyStock;
use super::lying_ledger::{Lie, LyingLedger};
use super::offers::{ANY, intent, open_offer};
use super::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, settings};
use super::wait::until;

/// Whose messages are ours.
pub const INSTALLATION: &str = "0badcafe";

/// What consumers announced, oldest first.
#[derive(Debug, Default)]
pub struct Announced(Mutex<Vec<i64>>);

impl Announced {
    pub fn all(&self) -> Vec<i64> {
        self.0.lock().clone()
    }
}

#[async_trait]
impl Watermarks for Announced {
    async fn announce(&self, _: u16, _: &str, watermark_ms: i64) -> Result<(), watermark::Error> {
        self.0.lock().push(watermark_ms);
        Ok(())
    }

    async fn of_queue(&self, _: u16) -> Result<Option<i64>, watermark::Error> {
        Ok(self.all().pop())
    }
}

/// See the module.
pub struct IntakeRig {
    pub rig: Rig,
    pub broker: FakeBroker,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
    pub metrics: Arc<Metrics>,
    pub watermarks: Arc<Announced>,
    pub intake: Address<OrderConsumer>,
    /// How often the catalog was refreshed.
    pub refreshed: Arc<AtomicU32>,
}

/// Settings whose waits are moments.
pub fn quick() -> Settings {
    let mut settings = settings(Tier::Memory);
    settings.consumer.retry_backoff_min_ms = 1;
    settings.consumer.retry_backoff_max_ms = 10;
    settings.consumer.attempts_max = 2;
    settings.consumer.prefetch = 16;
    settings.amqp.reconnect_min_ms = 1;
    settings.amqp.reconnect_max_ms = 10;
    settings.supervisor.restarts_max = 100_000;
    settings
}

impl IntakeRig {
    pub async fn open() -> Self {
        Self::open_with(&quick()).await
    }

    pub async fn open_with(settings: &Settings) -> Self {
        Self::open_on(settings, Arc::new(LyingLedger::new(Lie::Honest))).await
    }

    /// Opens a sale of 1000 units in 4 buckets, one for each buyer.
    pub async fn open_on(settings: &Settings, ledger: Arc<dyn Ledger>) -> Self {
        let ledger = Arc::new(FaultyLedger::new(ledger));
        let clock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::embedded(settings.tier, ledger.clone(), &(clock.clone() as _));
        let stock = Arc::new(FaultyStock::new(backends.stock));
        backends.stock = stock.clone();
        let rig = Rig::on(settings, backends, clock);
        rig.create(Offer { policy: ONE_PER_BUYER, stock: 1000, buckets: 4 }, START_MS - 1000).await;
        rig.turn(floodgate::domain::Phase::Open).await;
        // A gate that starts submits what it finds; here only the intake may.
        rig.gates_begun().await;
        let broker = FakeBroker::default();
        let metrics = Arc::new(Metrics::new());
        let watermarks = Arc::<Announced>::default();
        let refreshed = Arc::new(AtomicU32::new(0));
        let parts = ConsumerDeps {
            queue: 0,
            subscriber: Arc::new(broker.clone()),
            publisher: Arc::new(broker.clone()),
            orders: rig.actors.orders().clone(),
            catalog: rig.catalog.clone(),
            refresh: refresh(&rig, &refreshed),
            ledger: rig.backends.ledger.clone(),
            breaker: rig.actors.breaker().clone(),
            watermarks: watermarks.clone(),
            installation: INSTALLATION.into(),
            limits: ConsumerLimits::of(settings),
            clock: rig.clock.clone(),
            metrics: metrics.clone(),
        };
        let strikes = settings.faults.panic_in.iter().any(|kind| kind == "order_consumer");
        let intake = rig.actors.supervisor().start(ChildSpec {
            name: "order_consumer/0".to_owned(),
            kind: "order_consumer",
            arbiter: Arbiter::current(),
            mailbox: 16,
            drill: FaultInjector::new(if strikes { settings.faults.panic_percent } else { 0.0 }),
            factory: Arc::new(move |life| OrderConsumer::new(life, parts.clone())),
        });
        Self { rig, broker, ledger, stock, metrics, watermarks, intake, refreshed }
    }

    /// An accepted request: units are taken, and nobody has told the ledger.
    pub async fn accept(&self, request: u64, buyer: u64) -> OrderIntent {
        let asked = self.rig.ask(request, buyer, 1);
        let key = BucketKey { sku: asked.sku, bucket: asked.bucket };
        let verdicts = self.rig.backends.stock.reserve(key, vec![asked]).await.unwrap();
        assert_eq!(verdicts, [Verdict::Reserved]);
        self.intent(request, buyer)
    }

    /// Many of them, of buyers with the numbers of their requests.
    pub async fn accept_all(&self, requests: impl IntoIterator<Item = u64>) -> Vec<OrderIntent> {
        let mut intents = Vec::new();
        for request in requests {
            intents.push(self.accept(request, request).await);
        }
        intents
    }

    /// An intent that no bucket knows of.
    pub fn intent(&self, request: u64, buyer: u64) -> OrderIntent {
        let listed = self.rig.catalog.sale("sale").unwrap();
        self.rig.ask(request, buyer, 1).intent(listed.sku("sku").unwrap())
    }

    /// Puts one envelope into the queue.
    pub fn put(&self, intents: &[OrderIntent]) {
        let (headers, body) = envelope(intents);
        self.broker.put(headers, "0", body);
    }

    /// Puts each of these requests into the queue, accepted, in an envelope of its own.
    pub async fn put_each(&self, requests: impl IntoIterator<Item = u64>) {
        for intent in self.accept_all(requests).await {
            self.put(&[intent]);
        }
    }

    /// Puts a request that was accepted before into the queue once more.
    pub fn put_repeat(&self, request: u64) {
        self.put(&[self.intent(request, request)]);
    }

    /// Intents of a sale that another process created, opened and sells from.
    pub async fn create_elsewhere(&self, requests: RangeInclusive<u64>) -> Vec<OrderIntent> {
        let ledger = self.ledger.as_ref();
        let sku = open_offer(ledger, "elsewhere", ANY, 100).await;
        let home = |buyer| BucketNo::home_of(buyer, sku.buckets);
        let intents = requests.map(|number| intent(&sku, number, number, 1));
        intents
            .map(|intent| OrderIntent {
                bucket: home(intent.buyer),
                pay_by_ms: sku.pay_by_ms(intent.placed_at_ms),
                ..intent
            })
            .collect()
    }

    /// Ends the intake as a crash would: nothing is finished, nobody is told.
    pub async fn kill(&self) {
        let restarts = self.restarts();
        self.intake.wait_up().await.try_send(Stop).unwrap();
        until("the end of the intake", || async { (self.restarts() > restarts).then_some(()) })
            .await;
    }

    fn restarts(&self) -> u64 {
        let reports = self.rig.actors.supervisor().report();
        reports.iter().filter(|r| r.kind == "order_consumer").map(|r| r.restarts).sum()
    }

    /// Waits until everything was acknowledged.
    pub async fn until_empty(&self) {
        until("an empty queue", || async { self.broker.is_empty().then_some(()) }).await;
    }

    /// Whether the stock knows the order of this request, whose buyer has its number.
    pub async fn is_settled(&self, request: u64) -> bool {
        let asked = self.rig.ask(request, request, 1);
        let key = BucketKey { sku: asked.sku, bucket: asked.bucket };
        let found = self.rig.backends.stock.find(key, asked.request).await.unwrap();
        matches!(found.map(|it| it.standing), Some(RequestStatus::Ordered { .. }))
    }

    /// Waits until exactly these requests are orders, the stock knows it, and everything holds.
    pub async fn assert_orders(&self, requests: impl IntoIterator<Item = u64>) {
        let mut expected: Vec<u64> = requests.into_iter().collect();
        expected.sort_unstable();
        until("orders", || async { (self.rig.num_orders().await == expected.len()).then_some(()) })
            .await;
        for request in &expected {
            let id = floodgate::domain::RequestId::new(*request).unwrap();
            let order = self.rig.backends.ledger.journey(id).await.unwrap().map(|it| it.order);
            assert!(order.is_some(), "{request} is no order");
        }
        // A row is there before its result is in the stock.
        until("an audit at rest", || async { self.rig.audit(0).await.could_tell.then_some(()) })
            .await;
        self.rig.assert_holds().await;
    }

    /// The value of a counter or gauge, by name and labels.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.exposition();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }
}

/// An envelope as a relay makes it.
pub fn envelope(intents: &[OrderIntent]) -> (Headers, Vec<u8>) {
    let mut body = Vec::new();
    for intent in intents {
        pack_into(intent, &mut body);
    }
    (envelope::headers(&body, INSTALLATION, START_MS).unwrap(), body)
}

fn refresh(rig: &Rig, refreshed: &Arc<AtomicU32>) -> CatalogSync {
    let (desk, refreshed) = (rig.desk.clone(), refreshed.clone());
    Arc::new(move || {
        let desk = desk.clone();
        refreshed.fetch_add(1, Ordering::SeqCst);
        async move { desk.learn().await.map(drop).map_err(|error| error.to_string()) }.boxed()
    })
}
