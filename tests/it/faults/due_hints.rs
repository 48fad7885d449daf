//! Time-outs by the broker's delay queues: hints that come, that are lost, and that are wrong.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::payment_timer::hint_consumer::Hints;
use floodgate::actors::payment_timer::{HintConsumer, HintPublisher, PaymentTimer, TimerDeps};
use floodgate::actors::periodic::Task;
use floodgate::broker::{PublishOutcome, Publisher, RabbitBroker, Route, Topology};
use floodgate::config::{PaymentSettings, Tier};
use floodgate::domain::{OrderIntent, OrderKey, OrderState};
use floodgate::lease::{Lease, SoleLease, TaskLease};
use floodgate::messages::due_hint;
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
use crate::support::offers::{assert_ledger_holds, intent, run};
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const WINDOW_S: u32 = 2;
const INSTALLATION: &str = "0a0b0c0d";

/// A shop whose orders have a window with a delay queue; one order is placed.
struct Fixture {
    shop: Shop,
    ledger: Arc<FaultyLedger>,
    broker: Arc<RabbitBroker>,
    publisher: HintPublisher,
    consumer: HintConsumer,
    hints: Hints,
    metrics: Arc<Metrics>,
    settings: PaymentSettings,
    _server: RabbitMq,
}

fn deps(
    orders: OrderService,
    ledger: Arc<FaultyLedger>,
    settings: &PaymentSettings,
    clock: SharedClock,
    metrics: Arc<Metrics>,
) -> TimerDeps {
    let skew_max_ms = settings.clock_skew_max_ms;
    let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), skew_max_ms);
    TimerDeps { orders, ledger, settings: settings.clone(), time, clock, metrics }
}

impl Fixture {
    async fn open(change: impl FnOnce(&mut PaymentSettings)) -> Self {
        Self::open_on(SystemClock::shared(), change).await
    }

    /// [`Self::open`] with this clock of the process and of its ledger.
    async fn open_on(clock: SharedClock, change: impl FnOnce(&mut PaymentSettings)) -> Self {
        // The window of its order has no delay queue.
        let shop = Shop::open_with(clock.clone(), 900).await;
        let mut settings = shop.settings.clone();
        settings.delay_queues_s = vec![WINDOW_S.to_string()];
        change(&mut settings);
        let ledger = Arc::new(FaultyLedger::new(shop.ledger.clone()));
        let server = RabbitMq::start();
        let delays_s = settings.delay_windows_s();
        let topology = Topology { delays_s, ..Topology::new("fg", 1, 20) };
        let broker = Arc::new(RabbitBroker::new(server.options(topology)).unwrap());
        let metrics = Arc::new(Metrics::default());
        let orders = OrderService::new(ledger.clone(), None, &settings, Arc::new(|| ()));
        let deps = deps(orders, ledger.clone(), &settings, clock.clone(), metrics.clone());
        let lease: Arc<dyn Lease> = Arc::new(SoleLease::new(clock.clone()));
        let publisher = HintPublisher {
            ledger: ledger.clone(),
            publisher: broker.clone(),
            lease: TaskLease::new(&lease, "hint_publisher", 5_000, &clock),
            installation: INSTALLATION.into(),
            windows_s: settings.delay_windows_s(),
            window: 64,
            clock,
            metrics: metrics.clone(),
        };
        let consumer = HintConsumer {
            deps: Arc::new(deps),
            subscriber: broker.clone(),
            installation: INSTALLATION.into(),
        };
        // The first run notes where the feed is.
        publisher.run(&()).await.unwrap();
        let hints = Hints::default();
        consumer.run(&hints).await.unwrap();
        Self {
            shop,
            ledger,
            broker,
            publisher,
            consumer,
            hints,
            metrics,
            settings,
            _server: server,
        }
    }

    /// Places orders with this window.
    async fn place(&self, numbers: std::ops::RangeInclusive<u64>, window_s: i32) -> Vec<OrderKey> {
        let sku = self.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
        let intents: Vec<OrderIntent> = numbers
            .map(|it| OrderIntent { payment_window_s: window_s, ..intent(&sku, it, it, 1) })
            .collect();
        assert!(self.shop.ledger.place(intents.clone()).await.unwrap().is_some());
        let key = |it: &OrderIntent| OrderKey { sku: it.sku, buyer: it.buyer, request: it.request };
        intents.iter().map(key).collect()
    }

    async fn send(&self, route: Route, orders: &[OrderKey], installation: &str) {
        let message = due_hint::message(route, orders, installation, 1);
        let sent = self.broker.open_channel(1).publish(vec![message]).await;
        assert_eq!(sent, [PublishOutcome::Confirmed]);
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
            self.consumer.run(&self.hints).await.unwrap();
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
        let fixture = Fixture::open(|own| own.delay_queues_s.push("600".to_owned())).await;
        let keys = fixture.place(2..=4, WINDOW_S.cast_signed()).await;
        let later = fixture.place(6..=6, 600).await;
        // Of a window without a delay queue.
        let others = fixture.place(5..=5, 1).await;
        for _ in 0..2 {
            fixture.publisher.run(&()).await.unwrap();
        }
        assert_eq!((fixture.published("published"), fixture.published("lost")), (2, 0));
        fixture.ends(&keys).await;
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 3);
        assert_eq!(fixture.num_live(&later).await, 1, "not before the end of the window");
        assert_eq!(fixture.num_live(&others).await, 1, "left to the polls");
        assert_ledger_holds(&*fixture.shop.ledger).await;
    });
}

/// Crash point `hints_published`.
#[test]
fn wrong_early_and_repeated_hints_do_no_harm() {
    run(async {
        let fixture = Fixture::open(|settings| settings.batch = 2).await;
        let keys = fixture.place(2..=4, 900).await;
        fixture.send(Route::Due, &keys, "another installation").await;
        for _ in 0..4 {
            fixture.send(Route::Due, &keys[..2], INSTALLATION).await;
        }
        for _ in 0..8 {
            fixture.consumer.run(&fixture.hints).await.unwrap();
        }
        assert_eq!(fixture.num_live(&keys).await, 3, "not due");
        let due = fixture.place(5..=8, 1).await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        for chunk in due.chunks(2).chain(due.chunks(2)) {
            fixture.send(Route::Due, chunk, INSTALLATION).await;
        }
        // A run takes about one batch, however many hints there are.
        until("a batch", async || {
            fixture.consumer.run(&fixture.hints).await.unwrap();
            let num_ended = fixture.metrics.orders_ended_by_hint.get();
            assert!(num_ended <= 2, "{num_ended}");
            (num_ended == 2).then_some(())
        })
        .await;
        fixture.ends(&due).await;
        for _ in 0..4 {
            fixture.consumer.run(&fixture.hints).await.unwrap();
        }
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 4, "once each");
        assert_eq!(fixture.num_live(&keys).await, 3);
        assert_ledger_holds(&*fixture.shop.ledger).await;
    });
}

#[test]
fn orders_whose_hints_are_lost_end_by_the_polls_a_moment_later() {
    run(async {
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let fixture = Fixture::open_on(clock.clone(), |_| ()).await;
        let keys = fixture.place(2..=3, 1).await;
        clock.advance(Duration::from_millis(1_100));
        // The ledger is away when the hint comes: it is not kept.
        fixture.ledger.set(Fault::Down);
        fixture.send(Route::Due, &keys, INSTALLATION).await;
        until("the hint", async || {
            fixture.consumer.run(&fixture.hints).await.is_err().then_some(())
        })
        .await;
        fixture.ledger.set(Fault::None);
        fixture.consumer.run(&fixture.hints).await.unwrap();
        assert_eq!(fixture.num_live(&keys).await, 2);
        let timer = PaymentTimer(fixture.consumer.deps.clone());
        timer.run(&()).await.unwrap();
        assert_eq!(fixture.num_live(&keys).await, 2, "left to hints for 2 s");
        clock.advance(Duration::from_secs(2));
        until("the polls", async || {
            timer.run(&()).await.unwrap();
            (fixture.num_live(&keys).await == 0).then_some(())
        })
        .await;
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 0);
    });
}

/// The hint comes by the broker's clock; to the ledger, whose time has stepped, the order would be
/// due at once.
#[test]
fn hints_end_no_order_once_the_clock_has_stepped() {
    run(async {
        let mut fixture = Fixture::open(|_| ()).await;
        let clock = Arc::new(ManualClock::new(wall_ms()));
        let orders =
            OrderService::new(fixture.ledger.clone(), None, &fixture.settings, Arc::new(|| ()));
        fixture.consumer.deps = Arc::new(deps(
            orders,
            fixture.ledger.clone(),
            &fixture.settings,
            clock.clone(),
            fixture.metrics.clone(),
        ));
        let timer = PaymentTimer(fixture.consumer.deps.clone());
        timer.run(&()).await.unwrap();
        clock.set_wall_ms(wall_ms() + 3_600_000);
        timer.run(&()).await.unwrap();
        clock.advance(CALM);
        timer.run(&()).await.unwrap();
        let keys = fixture.place(2..=3, 1).await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        fixture.send(Route::Due, &keys, INSTALLATION).await;
        for _ in 0..3 {
            fixture.consumer.run(&fixture.hints).await.unwrap();
        }
        assert_eq!(fixture.num_live(&keys).await, 2);
        assert_eq!(fixture.metrics.orders_ended_by_hint.get(), 0);
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
