//! Order events on their way from the ledger to the broker: no listener, a crash, a lost lease.
//! Covers the crash point `events_published`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use floodgate::actors::EventPublisher;
use floodgate::actors::periodic::Task;
use floodgate::broker::{
    BrokerStatus, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Topology,
};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{OrderChanges, OrderWriter, SaleStore};
use floodgate::domain::{OrderKey, Refusal, Sku};
use floodgate::lease::{Lease, LeaseGrant, SoleLease, TaskLease};
use floodgate::observe::metrics::Metrics;
use floodgate::redis::transport;
use floodgate::runtime::clock::{SharedClock, SystemClock};
use floodgate::services::catalog::Catalog;
use floodgate::services::order_feed::OrderFeed;
use lapin::options::{BasicGetOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::memory_broker::MemoryBroker;
use crate::support::offers::{ANY, assert_ledger_holds, intent, open_offer, run};
use crate::support::servers::rabbitmq::RabbitMq;

const EXCHANGE: &str = "fg.events";
const LISTENER: &str = "listener";

/// Its dot is no dot of a routing key.
const SALE: &str = "spring.2030";

/// More than a page of the publisher, so that a page ends within the row of a placement.
const ORDERS: u64 = 600;

/// A sale on a ledger file, and the broker.
struct Fixture {
    ledger: Arc<FaultyLedger>,
    catalog: Arc<Catalog>,
    broker: Arc<RabbitBroker>,
    server: RabbitMq,
    sku: Sku,
    _folder: TempDir,
}

impl Fixture {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteLedger::open(&OpenOptions::new(folder.path().join("ledger.db"))).unwrap();
        let ledger = Arc::new(FaultyLedger::new(Arc::new(file)));
        let sku = open_offer(&*ledger, SALE, ANY, 10_000).await;
        let catalog = Arc::new(Catalog::default());
        ledger.sales().await.unwrap().iter().for_each(|sale| catalog.put(sale));
        let server = RabbitMq::start();
        let topology = Topology { has_events: true, ..Topology::new("fg", 1, 100) };
        let options = server.options(topology);
        let broker = Arc::new(RabbitBroker::new(options).unwrap());
        Self { ledger, catalog, broker, server, sku, _folder: folder }
    }

    /// The publisher of a process.
    fn process(&self, publisher: Arc<dyn Publisher>, lease: Arc<dyn Lease>) -> EventPublisher {
        let clock = SystemClock::shared();
        let (ledger, catalog) = (self.ledger.clone(), Arc::clone(&self.catalog));
        EventPublisher {
            feed: OrderFeed::new(ledger.clone(), catalog, clock.clone(), "0a0b0c0d".into()),
            ledger,
            publisher,
            lease: TaskLease::new(&lease, "event_publisher", 5_000, &clock),
            window: 64,
            metrics: Arc::new(Metrics::default()),
        }
    }

    fn healthy(&self) -> EventPublisher {
        let clock: SharedClock = SystemClock::shared();
        self.process(self.broker.clone(), Arc::new(SoleLease::new(clock)))
    }

    async fn place(&self, requests: std::ops::RangeInclusive<u64>) {
        let intents = requests.map(|number| intent(&self.sku, number, number, 1)).collect();
        assert!(self.ledger.place(intents).await.unwrap().is_some());
    }

    async fn cancel(&self, request: u64) {
        let intent = intent(&self.sku, request, request, 1);
        let key = OrderKey { sku: intent.sku, buyer: intent.buyer, request: intent.request };
        self.ledger.cancel(key).await.unwrap();
    }

    async fn refuse(&self, request: u64) {
        let failure = intent(&self.sku, request, request, 1).failure(Refusal::SoldOut, 1);
        self.ledger.record_failures(vec![failure]).await.unwrap();
    }

    async fn cursor(&self) -> i64 {
        self.ledger.cursor("broker").await.unwrap()
    }

    fn listen(&self, key: &str) {
        self.server.with_channel(async |channel| {
            let (options, none) = (QueueDeclareOptions::durable(), FieldTable::default());
            channel.queue_declare(LISTENER.into(), options, none.clone()).await.unwrap();
            let (options, key) = (QueueBindOptions::default(), key.into());
            channel.queue_bind(LISTENER.into(), EXCHANGE.into(), key, options, none).await.unwrap();
        });
    }

    /// The messages that the listener received: message id, routing key and body.
    fn received(&self) -> Vec<(String, String, Json)> {
        self.server.with_channel(async |channel| {
            let mut received = Vec::new();
            let options = BasicGetOptions { no_ack: true };
            while let Some(message) = channel.basic_get(LISTENER.into(), options).await.unwrap() {
                let properties = &message.delivery.properties;
                assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
                let content_type = properties.content_type().as_ref().unwrap().as_str();
                assert_eq!(content_type, "application/cloudevents+json; charset=utf-8");
                let id = properties.message_id().as_ref().unwrap().as_str().to_owned();
                let key = message.delivery.routing_key.as_str().to_owned();
                received.push((id, key, serde_json::from_slice(&message.delivery.data).unwrap()));
            }
            received
        })
    }
}

/// The ledger goes away once a batch is published, as for a process that crashes.
struct LosesLedger {
    inner: Arc<RabbitBroker>,
    ledger: Arc<FaultyLedger>,
}

struct LosesLedgerChannel {
    inner: Box<dyn PublishChannel>,
    ledger: Arc<FaultyLedger>,
}

impl Publisher for LosesLedger {
    fn open_channel(&self, window: usize) -> Box<dyn PublishChannel> {
        let (inner, ledger) = (self.inner.open_channel(window), self.ledger.clone());
        Box::new(LosesLedgerChannel { inner, ledger })
    }

    fn status(&self) -> BrokerStatus {
        self.inner.status()
    }
}

#[async_trait]
impl PublishChannel for LosesLedgerChannel {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let outcomes = self.inner.publish(messages).await;
        self.ledger.set(Fault::Down);
        outcomes
    }
}

/// Another process has the lease.
struct Taken;

#[async_trait]
impl Lease for Taken {
    async fn hold(&self, _: &str, _: &str, _: Duration) -> Result<LeaseGrant, transport::Error> {
        Ok(LeaseGrant::Taken { by: "another".to_owned() })
    }

    async fn release(&self, _: &str, _: &str) -> Result<(), transport::Error> {
        Ok(())
    }
}

#[test]
fn events_published_before_a_crash_come_again_and_none_is_missed() {
    run(async {
        let fixture = Fixture::open().await;
        // No queue is bound, which is no error.
        fixture.place(1..=1).await;
        fixture.healthy().run(&()).await.unwrap();
        assert_eq!(fixture.cursor().await, 1);

        fixture.listen("order.*.spring:2030.sku");
        fixture.listen("request.*.spring:2030.sku");
        fixture.place(2..=ORDERS).await;
        fixture.refuse(ORDERS + 1).await;
        for request in [3, 5] {
            fixture.cancel(request).await;
        }
        fixture.process(fixture.broker.clone(), Arc::new(Taken)).run(&()).await.unwrap();
        assert_eq!(fixture.cursor().await, 1, "another process publishes");

        let lease = Arc::new(SoleLease::new(SystemClock::shared()));
        let topology = Topology { has_events: true, ..Topology::new("fg", 1, 100) };
        let refuses_one = MemoryBroker::new(topology);
        refuses_one.nack_next(1);
        fixture.process(Arc::new(refuses_one), lease.clone()).run(&()).await.unwrap_err();
        assert_eq!(fixture.cursor().await, 1, "the first event of the page is not published");

        let (inner, ledger) = (fixture.broker.clone(), fixture.ledger.clone());
        let crashes = fixture.process(Arc::new(LosesLedger { inner, ledger }), lease);
        crashes.run(&()).await.unwrap_err();
        fixture.ledger.set(Fault::None);
        assert_eq!(fixture.cursor().await, 1);
        let first: Vec<_> = fixture.received().into_iter().map(|(id, ..)| id).collect();
        assert!(first.len() >= 500, "{}", first.len());

        let next = fixture.healthy();
        next.run(&()).await.unwrap();
        let all = i64::try_from(ORDERS + 3).unwrap();
        assert_eq!(fixture.cursor().await, all);
        assert_eq!(next.metrics.events_waiting.get(), 0);
        let received = fixture.received();
        assert_eq!(next.metrics.events_published.get(), received.len() as u64);
        let numbers: Vec<_> =
            received.iter().map(|(_, _, body)| body["sequence"].as_str().unwrap()).collect();
        assert_eq!(numbers, (2..=all).map(|number| number.to_string()).collect::<Vec<_>>());
        assert!(received.iter().zip(&first).all(|((id, ..), earlier)| id == earlier));
        for (id, key, body) in &received {
            assert_eq!(body["id"], id.as_str());
            assert_eq!(*key, format!("{}.spring:2030.sku", body["type"].as_str().unwrap()));
            assert_eq!(body["source"], format!("/floodgate/0a0b0c0d/{SALE}"));
        }
        let last: Vec<_> = received.iter().rev().take(3).map(|(id, ..)| id.as_str()).collect();
        assert_eq!(last, ["5.1", "3.1", format!("{}.0", ORDERS + 1).as_str()]);
        assert_eq!(received[received.len() - 3].1, "request.refused.spring:2030.sku");
        assert_ledger_holds(&*fixture.ledger).await;
    });
}
