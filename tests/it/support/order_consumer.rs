//! A harness whose order consumer reads from an in-memory broker.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use actix::{Arbiter, Handler, Message};
use async_trait::async_trait;
use floodgate::actors::OrderConsumer;
use floodgate::actors::order_consumer::{CatalogSync, ConsumerDeps};
use floodgate::actors::supervisor::ChildSpec;
use floodgate::actors::supervisor::supervised::{Address, ExitReason, end};
use floodgate::broker::Headers;
use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::domain::{BucketKey, BucketNo, OrderIntent, RecordState, Verdict};
use floodgate::messages::envelope;
use floodgate::observe::metrics::Metrics;
use floodgate::redis::transport;
use floodgate::runtime::backoff::Backoff;
use floodgate::runtime::clock::ManualClock;
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::tier::Backends;
use floodgate::watermark::Watermarks;
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::defective_ledger::{DefectiveLedger, LedgerDefect};
use super::fake_broker::FakeBroker;
use super::faulty_ledger::FaultyLedger;
use super::faulty_stock::FaultyStock;
use super::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, settings};
use super::intents::{pack_into, reader};
use super::metrics::metric;
use super::offers::{ANY, intent, open_offer};
use super::wait::until;

/// The installation in the headers of this harness's messages.
pub const INSTALLATION: &str = "0badcafe";

/// Ends the consumer at once, without answers.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Kill;

impl Handler<Kill> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, _: Kill, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}

/// The announced watermarks, oldest first.
#[derive(Debug, Default)]
pub struct RecordedWatermarks(Mutex<Vec<i64>>);

impl RecordedWatermarks {
    pub fn all(&self) -> Vec<i64> {
        self.0.lock().clone()
    }
}

#[async_trait]
impl Watermarks for RecordedWatermarks {
    async fn announce(&self, _: u16, _: &str, watermark_ms: i64) -> Result<(), transport::Error> {
        self.0.lock().push(watermark_ms);
        Ok(())
    }

    async fn of_queue(&self, _: u16) -> Result<Option<i64>, transport::Error> {
        Ok(self.all().pop())
    }
}

/// See the module.
pub struct ConsumerHarness {
    pub harness: Harness,
    pub broker: FakeBroker,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
    pub metrics: Arc<Metrics>,
    pub watermarks: Arc<RecordedWatermarks>,
    pub consumer: Address<OrderConsumer>,
    /// Number of catalog refreshes.
    pub refreshed: Arc<AtomicU32>,
    /// Whether catalog refreshes fail.
    pub refresh_fails: Arc<AtomicBool>,
}

/// Settings with short delays.
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

impl ConsumerHarness {
    pub async fn open() -> Self {
        Self::open_with(&quick()).await
    }

    pub async fn open_with(settings: &Settings) -> Self {
        Self::open_on(settings, Arc::new(DefectiveLedger::new(LedgerDefect::None))).await
    }

    /// Opens a sale of 1000 units in 4 buckets, one for each buyer.
    pub async fn open_on(settings: &Settings, ledger: Arc<dyn Ledger>) -> Self {
        let ledger = Arc::new(FaultyLedger::new(ledger));
        let clock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::embedded(settings.tier, ledger.clone(), &(clock.clone() as _));
        let stock = Arc::new(FaultyStock::new(backends.stock));
        backends.stock = stock.clone();
        let harness = Harness::on(settings, backends, clock);
        harness
            .create(Offer { policy: ONE_PER_BUYER, stock: 1000, buckets: 4 }, START_MS - 1000)
            .await;
        harness.set_phase(floodgate::domain::Phase::Open).await;
        // A starting gate resubmits unsettled requests; in these tests only the consumer submits.
        harness.gates_begun().await;
        let broker = FakeBroker::default();
        let metrics = Arc::new(Metrics::default());
        let watermarks = Arc::<RecordedWatermarks>::default();
        let (refreshed, refresh_fails) = (Arc::default(), Arc::default());
        let deps = ConsumerDeps {
            queue: 0,
            subscriber: Arc::new(broker.clone()),
            publisher: Arc::new(broker.clone()),
            ledger_writer: harness.actors.ledger_writer.clone(),
            catalog: harness.catalog.clone(),
            refresh: refresh(&harness, &refreshed, &refresh_fails),
            ledger: harness.backends.ledger.clone(),
            breaker: harness.actors.breaker.clone(),
            watermarks: watermarks.clone(),
            reader: reader(INSTALLATION),
            settings: settings.consumer.clone(),
            confirm_window: settings.relay.confirm_window,
            reconnect: Backoff::new(settings.amqp.reconnect_min_ms, settings.amqp.reconnect_max_ms),
            clock: harness.clock.clone(),
            metrics: metrics.clone(),
        };
        let injects_panics = settings.faults.panic_in.iter().any(|kind| kind == "order_consumer");
        let consumer = harness.actors.supervisor.start(ChildSpec {
            name: "order_consumer/0".to_owned(),
            kind: "order_consumer",
            arbiter: Arbiter::current(),
            mailbox: 16,
            ends_with_last_address: false,
            fault_injector: FaultInjector::new(if injects_panics {
                settings.faults.panic_percent
            } else {
                0.0
            }),
            factory: Arc::new(move |incarnation| OrderConsumer::new(incarnation, deps.clone())),
        });
        Self {
            harness,
            broker,
            ledger,
            stock,
            metrics,
            watermarks,
            consumer,
            refreshed,
            refresh_fails,
        }
    }

    /// Reserves one unit for a request; the ledger has no order of it.
    pub async fn accept(&self, request: u64, buyer: u64) -> OrderIntent {
        let reservation = self.harness.ask(request, buyer, 1);
        let key = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        let verdicts = self.harness.backends.stock.reserve(key, vec![reservation]).await.unwrap();
        assert_eq!(verdicts, [Verdict::Reserved]);
        self.intent(request, buyer)
    }

    /// [`Self::accept`] for many requests; each buyer id equals the request id.
    pub async fn accept_all(&self, requests: impl IntoIterator<Item = u64>) -> Vec<OrderIntent> {
        let mut intents = Vec::new();
        for request in requests {
            intents.push(self.accept(request, request).await);
        }
        intents
    }

    /// An intent without a reservation.
    pub fn intent(&self, request: u64, buyer: u64) -> OrderIntent {
        self.harness.ask(request, buyer, 1)
    }

    /// Puts one envelope into the queue.
    pub fn put(&self, intents: &[OrderIntent]) {
        let (headers, body) = envelope(intents);
        self.broker.put(headers, "0", body);
    }

    /// Accepts each of these requests and puts each into the queue in its own envelope.
    pub async fn put_each(&self, requests: impl IntoIterator<Item = u64>) {
        for intent in self.accept_all(requests).await {
            self.put(&[intent]);
        }
    }

    /// Puts an already accepted request into the queue again.
    pub fn put_repeat(&self, request: u64) {
        self.put(&[self.intent(request, request)]);
    }

    /// Intents of a sale that another process created and opened.
    pub async fn create_elsewhere(&self, requests: RangeInclusive<u64>) -> Vec<OrderIntent> {
        let ledger = self.ledger.as_ref();
        let sku = open_offer(ledger, "elsewhere", ANY, 100).await;
        let home = |buyer| BucketNo::home_of(buyer, sku.buckets);
        let intents = requests.map(|number| intent(&sku, number, number, 1));
        intents
            .map(|intent| OrderIntent {
                bucket: home(intent.buyer),
                payment_window_s: sku.payment_window_s,
                ..intent
            })
            .collect()
    }

    /// Stops the consumer as a crash does: in-flight work is dropped without answers.
    pub async fn kill(&self) {
        let restarts = self.restarts();
        self.consumer.wait_up().await.try_send(Kill).unwrap();
        until("the restart of the consumer", || async {
            (self.restarts() > restarts).then_some(())
        })
        .await;
    }

    fn restarts(&self) -> u64 {
        let reports = self.harness.actors.supervisor.report();
        reports.iter().filter(|r| r.kind == "order_consumer").map(|r| r.restarts).sum()
    }

    /// Waits until every message is acknowledged.
    pub async fn until_empty(&self) {
        until("an empty queue", || async { self.broker.is_empty().then_some(()) }).await;
    }

    /// Whether the stock has the order of this request, whose buyer id equals the request id.
    pub async fn is_settled(&self, request: u64) -> bool {
        let reservation = self.harness.ask(request, request, 1);
        let key = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        let found =
            self.harness.backends.stock.record(key, reservation.request, None).await.unwrap();
        matches!(found.map(|record| record.state), Some(RecordState::Ordered { .. }))
    }

    /// Waits until exactly these requests are orders, in ledger and stock, then asserts that the
    /// audit finds no violation.
    pub async fn assert_orders(&self, requests: impl IntoIterator<Item = u64>) {
        let mut expected: Vec<u64> = requests.into_iter().collect();
        expected.sort_unstable();
        until("orders", || async {
            (self.harness.num_orders().await == expected.len()).then_some(())
        })
        .await;
        for request in &expected {
            let id = floodgate::domain::RequestId::new(*request).unwrap();
            let timeline = self.harness.backends.ledger.order_timeline(id).await.unwrap();
            assert!(timeline.is_some(), "request {request} has no order");
        }
        // The ledger row precedes the result in the stock.
        until("an audit at rest", || async {
            self.harness.audit(0).await.could_tell.then_some(())
        })
        .await;
        self.harness.assert_holds().await;
    }

    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics, name)
    }
}

/// An envelope as a relay builds it.
pub fn envelope(intents: &[OrderIntent]) -> (Headers, Vec<u8>) {
    let mut body = Vec::new();
    for intent in intents {
        pack_into(intent, &mut body);
    }
    (envelope::headers(&body, INSTALLATION, START_MS), body)
}

fn refresh(
    harness: &Harness,
    refreshed: &Arc<AtomicU32>,
    refresh_fails: &Arc<AtomicBool>,
) -> CatalogSync {
    let sales = harness.sales.clone();
    let (refreshed, refresh_fails) = (refreshed.clone(), refresh_fails.clone());
    Arc::new(move || {
        let sales = sales.clone();
        refreshed.fetch_add(1, Ordering::SeqCst);
        if refresh_fails.load(Ordering::SeqCst) {
            return async { Err("not read, on purpose".to_owned()) }.boxed();
        }
        async move { sales.refresh_catalog().await.map(drop).map_err(|error| error.to_string()) }
            .boxed()
    })
}
