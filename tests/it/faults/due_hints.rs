//! Time-outs by the broker's delay queues: hints that come, that are lost, and that are wrong.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use floodgate::actors::payment_timer::hint_consumer::Hints;
use floodgate::actors::payment_timer::{HintConsumer, HintPublisher, PaymentTimer, TimerDeps};
use floodgate::actors::periodic::Task;
use floodgate::broker::{
    BrokerStatus, Headers, Message, PublishOutcome, Publisher, RabbitBroker, Route, Topology,
};
use floodgate::config::Tier;
use floodgate::domain::{OrderIntent, OrderKey, OrderState};
use floodgate::lease::{Lease, SoleLease, TaskLease};
use floodgate::observe::metrics::{Metrics, OutcomeLabel};
use floodgate::runtime::clock::{ManualClock, SharedClock, SystemClock, wall_ms};
use floodgate::runtime::clock_guard::CALM;
use floodgate::services::order_life::OrderService;
use floodgate::services::trusted_time::TrustedTime;
use serde_json::{Value as Json, json};

use super::payments::Shop;
use crate::support::TestApp;
use crate::support::app::{fresh_settings, sale_body};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::memory_broker::MemoryBroker;
use crate::support::offers::{assert_ledger_holds, intent, run};
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

/// The lengths of the delay queues.
const DELAYS_S: [u32; 2] = [2, 600];

/// A shop with one order, whose window has no delay queue.
struct Fixture {
    shop: Shop,
    ledger: Arc<FaultyLedger>,
    broker: MemoryBroker,
    publisher: HintPublisher,
    read_to: Cell<i64>,
    consumer: HintConsumer,
    hints: Hints,
    metrics: Arc<Metrics>,
}

fn topology() -> Topology {
    Topology { delays_s: DELAYS_S.to_vec(), ..Topology::new("fg", 1, 20) }
}

/// Publishes this message so many times, as if it had left a delay queue.
async fn send(broker: &dyn Publisher, headers: Headers, body: &'static [u8], count: usize) {
    let message = Message { route: Route::Due, headers, body: Bytes::from_static(body) };
    let sent = broker.open_channel(64).publish(vec![message; count]).await;
    assert_eq!(sent, vec![PublishOutcome::Confirmed; count]);
}

impl Fixture {
    /// A shop with this clock of the process and of its ledger.
    async fn open(clock: SharedClock) -> Self {
        let shop = Shop::open_with(clock.clone(), 900).await;
        let mut settings = shop.settings.clone();
        settings.delay_queues_s = DELAYS_S.map(|s| s.to_string()).to_vec();
        let ledger = Arc::new(FaultyLedger::new(shop.ledger.clone()));
        let metrics = Arc::new(Metrics::default());
        let broker = MemoryBroker::new(topology());
        let lease: Arc<dyn Lease> = Arc::new(SoleLease::new(clock.clone()));
        let publisher = HintPublisher {
            ledger: ledger.clone(),
            publisher: Arc::new(broker.clone()),
            lease: TaskLease::new(&lease, "hint_publisher", 5_000, &clock),
            windows_s: DELAYS_S.to_vec(),
            window: 64,
            clock: clock.clone(),
            metrics: metrics.clone(),
        };
        let orders = OrderService::new(ledger.clone(), None, &settings, Arc::new(|| ()));
        let skew_max_ms = settings.clock_skew_max_ms;
        let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), skew_max_ms);
        let deps = TimerDeps {
            orders,
            ledger: ledger.clone(),
            settings,
            time,
            clock,
            metrics: metrics.clone(),
        };
        let consumer = HintConsumer { deps: Arc::new(deps), subscriber: Arc::new(broker.clone()) };
        let (read_to, hints) = (Cell::default(), Hints::default());
        Self { shop, ledger, broker, publisher, read_to, consumer, hints, metrics }
    }

    /// Replaces the broker by a real one.
    fn use_rabbitmq(&mut self) -> (RabbitMq, Arc<RabbitBroker>) {
        let server = RabbitMq::start();
        let broker = Arc::new(RabbitBroker::new(server.options(topology())).unwrap());
        self.publisher.publisher = broker.clone();
        self.consumer.subscriber = broker.clone();
        (server, broker)
    }

    /// Places orders with this window.
    async fn place(&self, numbers: RangeInclusive<u64>, window_s: i32) -> Vec<OrderKey> {
        let sku = self.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
        let intents: Vec<OrderIntent> = numbers
            .map(|it| OrderIntent { payment_window_s: window_s, ..intent(&sku, it, it, 1) })
            .collect();
        assert!(self.shop.ledger.place(intents.clone()).await.unwrap().is_some());
        let key = |it: &OrderIntent| OrderKey { sku: it.sku, buyer: it.buyer, request: it.request };
        intents.iter().map(key).collect()
    }

    /// Sends hints, which a run of the consumer receives.
    async fn send(&self, count: usize) {
        send(&self.broker, Headers::default(), &[], count).await;
    }

    async fn run_consumer(&self) {
        self.consumer.run(&self.hints).await.unwrap();
    }

    async fn num_live(&self, keys: &[OrderKey]) -> usize {
        let mut num_live = 0;
        for key in keys {
            let orders = self.shop.ledger.orders_of(key.buyer, None, 9).await.unwrap();
            num_live += orders.iter().filter(|it| it.state == OrderState::PendingPayment).count();
        }
        num_live
    }

    async fn ends(&self, keys: &[OrderKey]) {
        until("the end", async || {
            self.run_consumer().await;
            (self.num_live(keys).await == 0).then_some(())
        })
        .await;
    }

    fn published(&self, outcome: &'static str) -> u64 {
        self.metrics.due_hints.get_or_create(&OutcomeLabel { outcome }).get()
    }
}

#[test]
fn an_unpaid_order_ends_when_its_hint_leaves_the_delay_queue() {
    run(async {
        let mut fixture = Fixture::open(SystemClock::shared()).await;
        let _rabbitmq = fixture.use_rabbitmq();
        let keys = fixture.place(2..=4, 2).await;
        let later = fixture.place(6..=6, 600).await;
        // Of a window without a delay queue.
        let others = fixture.place(5..=5, 300).await;
        for _ in 0..2 {
            fixture.publisher.run(&fixture.read_to).await.unwrap();
        }
        assert_eq!((fixture.published("published"), fixture.published("lost")), (2, 0));
        fixture.ends(&keys).await;
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 3);
        assert_eq!(fixture.num_live(&later).await, 1, "not before the end of the window");
        assert_eq!(fixture.num_live(&others).await, 1, "not before the end of the window");
        assert_ledger_holds(&*fixture.shop.ledger).await;
    });
}

#[test]
fn wrong_early_and_repeated_hints_do_no_harm() {
    run(async {
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let mut fixture = Fixture::open(clock.clone()).await;
        let (server, broker) = fixture.use_rabbitmq();
        let keys = fixture.place(2..=4, 900).await;
        let due = fixture.place(5..=8, 1).await;
        // Of another program.
        let content_type = Some("text/plain".to_owned());
        let headers = Headers { content_type, version: Some(-1), ..Headers::default() };
        send(&*broker, headers, &[0xff; 1_000], 4).await;
        until("the hints", async || {
            fixture.run_consumer().await;
            (server.num_ready("fg.due") == Some(0)).then_some(())
        })
        .await;
        // A run without hints, so that the next ones decide.
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&due).await, 4, "not due");
        clock.advance(Duration::from_secs(1));
        send(&*broker, Headers::default(), &[], 8).await;
        fixture.ends(&due).await;
        for _ in 0..2 {
            fixture.run_consumer().await;
        }
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 4, "once each");
        assert_eq!(fixture.num_live(&keys).await, 3, "not due");
        assert_ledger_holds(&*fixture.shop.ledger).await;
    });
}

#[test]
fn many_hints_start_one_pass_and_one_more() {
    run(async {
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let mut fixture = Fixture::open(clock.clone()).await;
        let keys = fixture.place(2..=3, 1).await;
        clock.advance(Duration::from_millis(900));
        fixture.send(100).await;
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 2, "due a moment after their hints");
        clock.advance(Duration::from_millis(100));
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 0);
        let keys = fixture.place(4..=4, 1).await;
        clock.advance(Duration::from_secs(1));
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 1, "no pass without hints");
        // The subscription ends: what was not acknowledged is ready again.
        fixture.hints = Hints::default();
        assert!(fixture.broker.waiting("due").is_empty());
    });
}

#[test]
fn orders_whose_hints_are_lost_end_by_the_polls_a_moment_later() {
    run(async {
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let fixture = Fixture::open(clock.clone()).await;
        fixture.broker.set_reach(BrokerStatus::Down);
        let keys = fixture.place(2..=3, 2).await;
        fixture.publisher.run(&fixture.read_to).await.unwrap_err();
        assert_eq!((fixture.published("published"), fixture.published("lost")), (0, 1));
        clock.advance(Duration::from_secs(2));
        fixture.consumer.run(&fixture.hints).await.unwrap_err();
        let timer = PaymentTimer(fixture.consumer.deps.clone());
        timer.run(&()).await.unwrap();
        assert_eq!(fixture.num_live(&keys).await, 2, "left to hints for 2 s");
        clock.advance(Duration::from_secs(2));
        timer.run(&()).await.unwrap();
        assert_eq!(fixture.num_live(&keys).await, 0);
        assert_eq!(fixture.metrics.orders_timed_out.get(), 2);
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 0);
    });
}

#[test]
fn hints_are_published_after_the_feed_went_back() {
    run(async {
        let fixture = Fixture::open(Arc::new(ManualClock::new(wall_ms()))).await;
        // As it was before the ledger was restored.
        fixture.read_to.set(1_000_000);
        fixture.place(2..=3, 2).await;
        fixture.publisher.run(&fixture.read_to).await.unwrap();
        assert_eq!((fixture.published("published"), fixture.published("lost")), (1, 0));
    });
}

#[test]
fn a_hint_while_the_ledger_is_away_ends_its_orders_in_the_next_run() {
    run(async {
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let fixture = Fixture::open(clock.clone()).await;
        let keys = fixture.place(2..=3, 1).await;
        clock.advance(Duration::from_secs(1));
        fixture.ledger.set(Fault::Down);
        fixture.send(1).await;
        fixture.consumer.run(&fixture.hints).await.unwrap_err();
        fixture.ledger.set(Fault::None);
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 0);
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 2);
    });
}

/// To the ledger alone, whose clock stepped too, the orders would be due at once.
#[test]
fn a_step_of_the_clock_shortens_no_window_that_a_hint_ends() {
    run(async {
        let start_ms = wall_ms();
        let clock = Arc::new(ManualClock::new(start_ms));
        let fixture = Fixture::open(clock.clone()).await;
        let keys = fixture.place(2..=3, 600).await;
        clock.set_wall_ms(start_ms + 3_600_000);
        fixture.send(1).await;
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 2, "the clock is not trusted");
        clock.advance(CALM);
        fixture.send(1).await;
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 2, "half of the window has passed");
        clock.advance(CALM);
        fixture.send(1).await;
        fixture.run_consumer().await;
        assert_eq!(fixture.num_live(&keys).await, 0);
    });
}

#[tokio::test]
async fn the_delay_queue_of_a_server_ends_orders_and_their_units_are_sold_again() {
    let (mut settings, stores) = fresh_settings(Tier::Pipeline);
    settings.payment.delay_queues_s = vec!["2".to_owned()];
    // The polls never come.
    settings.payment.every_ms = 3_600_000;
    settings.maintenance.every_ms = 50;
    let app = TestApp::on((settings, stores));
    let mut body = sale_body("sale", json!({"kind": "unlimited", "max_quantity": 1}), 1, 1);
    body["skus"][0]["payment_window_s"] = json!(2);
    app.admin("/sales", Some(body)).await;
    app.admin("/sales/sale/open", Some(json!({}))).await;
    for buyer in [1, 2] {
        let id = app.request_id("sale", buyer).await;
        let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        until("the unit", async || {
            let (_, answer) = app.buy_json("sale", buyer, purchase.clone()).await;
            (answer["order"]["state"] == "pending_payment").then_some(())
        })
        .await;
    }
    let (_, page): (_, Json) = app.get("/v1/orders", 1).await;
    assert_eq!(page["orders"][0]["state"], "timed_out", "{page}");
    app.assert_audit_holds().await;
}
