//! Payment events from the broker: their effects, poison, repeats, and a ledger that is away.

use std::cell::Cell;
use std::sync::Arc;

use floodgate::actors::PaymentConsumer;
use floodgate::actors::payment_consumer::Events;
use floodgate::actors::periodic::{RunResult, Task};
use floodgate::broker::{Headers, Publisher, RabbitBroker, Subscriber, Topology};
use floodgate::config::{PaymentBackend, Settings, Tier, WebhookSecret};
use floodgate::db::{self, ErrorClass};
use floodgate::domain::{OrderState, PaymentState};
use floodgate::observe::metrics::{Metrics, OutcomeLabel};
use floodgate::payment::{DemoProvider, WebhookReader, WebhookVerifier};
use floodgate::runtime::clock::{Clock, SystemClock};
use floodgate::services::order_life::OrderService;
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::payments::Shop;
use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::fake_broker::{FakeBroker, PublishAnswer};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::offers::{assert_ledger_holds, run};
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const KEY: [u8; 32] = [5; 32];
const EXCHANGE: &str = "fg.payments";

/// Signs as the provider does.
fn signer() -> WebhookVerifier {
    WebhookVerifier::new(&Settings::with_ledger("sqlite://unused.db").payment, &KEY)
}

fn event(kind: &str, payment_id: &str, amount: i64, refunded: i64) -> Json {
    let data = json!({
        "payment_id": payment_id, "amount": amount, "currency": "CNY", "refunded_total": refunded,
    });
    json!({"type": kind, "data": data})
}

/// Publishes a body with these headers, as another program does.
fn publish(server: &RabbitMq, headers: &[(&str, String)], body: &[u8]) {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString(value.as_str().into()));
    }
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(table);
    server.with_channel(async |channel| {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = channel.basic_publish(EXCHANGE.into(), "".into(), options, body, properties);
        sent.await.unwrap().await.unwrap();
    });
}

/// Publishes a signed event, `age_s` old.
fn send(server: &RabbitMq, id: &str, event: &Json, age_s: i64) {
    let (body, now_ms) = (event.to_string(), SystemClock.wall_ms());
    let headers = signer().sign(id, body.as_bytes(), now_ms - age_s * 1_000);
    publish(server, &headers, body.as_bytes());
}

/// A consumer of the shop's payment events from this broker.
fn consumer<B: Subscriber + Publisher + 'static>(
    shop: &Shop,
    ledger: &Arc<FaultyLedger>,
    broker: &Arc<B>,
) -> PaymentConsumer {
    PaymentConsumer {
        subscriber: broker.clone(),
        publisher: broker.clone(),
        webhooks: Arc::new(WebhookReader::new(Arc::new(signer()), DemoProvider::NAME)),
        orders: OrderService::new(ledger.clone(), None, &shop.settings, Arc::new(|| ())),
        clock: SystemClock::shared(),
        metrics: Arc::new(Metrics::default()),
    }
}

/// A shop with one order whose payment is open, and the id of the payment.
async fn paying() -> (Shop, Arc<FaultyLedger>, String) {
    let shop = Shop::open_with(SystemClock::shared(), 900).await;
    let payment_id = shop.service().pay(shop.key().await).await.unwrap().started.payment_id;
    let ledger = Arc::new(FaultyLedger::new(shop.ledger.clone()));
    (shop, ledger, payment_id)
}

/// A consumer of RabbitMQ.
struct Fixture {
    shop: Shop,
    ledger: Arc<FaultyLedger>,
    server: RabbitMq,
    broker: Arc<RabbitBroker>,
    consumer: PaymentConsumer,
    inbox: Events,
    payment_id: String,
}

impl Fixture {
    async fn open() -> Self {
        let (shop, ledger, payment_id) = paying().await;
        let server = RabbitMq::start();
        let topology = Topology { has_payments: true, ..Topology::new("fg", 1, 20) };
        let options = server.options(topology);
        let broker = Arc::new(RabbitBroker::new(options).unwrap());
        let consumer = consumer(&shop, &ledger, &broker);
        let inbox = Events::default();
        // Declares the queue.
        consumer.run(&inbox).await.unwrap();
        Self { shop, ledger, server, broker, consumer, inbox, payment_id }
    }

    fn paid(&self) -> Json {
        event("paid", &self.payment_id, 250, 0)
    }

    async fn run(&self) -> RunResult {
        self.consumer.run(&self.inbox).await
    }

    /// Runs until so many events had this outcome.
    async fn runs_until(&self, outcome: &'static str, count: u64) {
        until(outcome, async || {
            self.run().await.unwrap();
            (self.counted(outcome) == count).then_some(())
        })
        .await;
    }

    fn counted(&self, outcome: &'static str) -> u64 {
        self.consumer.metrics.payment_messages.get_or_create(&OutcomeLabel { outcome }).get()
    }

    async fn num_ready(&self, queue: &str) -> u64 {
        let depths = self.broker.depths().await.unwrap();
        depths.iter().find(|depth| depth.queue == queue).unwrap().num_ready
    }
}

#[test]
fn events_from_the_queue_pay_and_refund_once_and_a_repeat_does_nothing() {
    run(async {
        let fixture = Fixture::open().await;
        send(&fixture.server, "closed", &event("failed", &fixture.payment_id, 0, 0), 0);
        fixture.runs_until("closed", 1).await;
        assert_eq!(fixture.shop.state().await, OrderState::PendingPayment);
        // Waited longer than a webhook may.
        send(&fixture.server, "paid", &fixture.paid(), 100_000);
        fixture.runs_until("applied", 1).await;
        send(&fixture.server, "paid", &fixture.paid(), 0);
        fixture.runs_until("known", 1).await;
        assert_eq!(fixture.shop.payment_states().await, [PaymentState::Applied]);
        send(&fixture.server, "other", &json!({"type": "customer.created"}), 0);
        fixture.runs_until("ignored", 1).await;
        send(&fixture.server, "back", &event("refunded", &fixture.payment_id, 250, 250), 0);
        fixture.runs_until("refunded", 1).await;
        assert_eq!(fixture.shop.state().await, OrderState::Refunded);
        // A new subscription gets what was not acknowledged.
        fixture.consumer.run(&Events::default()).await.unwrap();
        assert_eq!((fixture.counted("known"), fixture.num_ready("dead").await), (1, 0));
        assert_ledger_holds(&*fixture.shop.ledger).await;
    });
}

#[test]
fn unsigned_and_unreadable_messages_are_dead_letters_and_stop_nothing() {
    run(async {
        let fixture = Fixture::open().await;
        let forged = [("webhook-id", "x".to_owned()), ("webhook-timestamp", "1".to_owned())];
        publish(&fixture.server, &[], b"\xff");
        publish(&fixture.server, &forged, fixture.paid().to_string().as_bytes());
        send(&fixture.server, "unreadable", &json!({"type": "paid"}), 0);
        send(&fixture.server, "future", &fixture.paid(), -10_000);
        send(&fixture.server, "paid", &fixture.paid(), 0);
        fixture.runs_until("applied", 1).await;
        fixture.runs_until("dead", 4).await;
        until("the dead letters", async || (fixture.num_ready("dead").await == 4).then_some(()))
            .await;
        assert_eq!(fixture.num_ready("payments").await, 0);
        assert_eq!(fixture.shop.state().await, OrderState::Paid);
    });
}

#[test]
fn events_that_the_ledger_refuses_are_dead_letters_however_many_come_together() {
    // As many as the prefetch: no other event has room beside them.
    const NUM_REFUSED: u64 = 64;
    run(async {
        let fixture = Fixture::open().await;
        fixture.ledger.set(Fault::RefusesEvents("refused"));
        for number in 0..NUM_REFUSED {
            send(&fixture.server, &format!("refused-{number}"), &fixture.paid(), 0);
        }
        let num_good = Cell::new(0);
        until("the dead letters", async || {
            // The ledger records others.
            send(&fixture.server, &format!("good-{}", num_good.get()), &fixture.paid(), 0);
            num_good.set(num_good.get() + 1);
            drop(fixture.run().await);
            (fixture.counted("dead") == NUM_REFUSED).then_some(())
        })
        .await;
        assert_eq!(fixture.shop.state().await, OrderState::Paid);
    });
}

#[test]
fn while_the_ledger_refuses_every_event_none_becomes_a_dead_letter() {
    run(async {
        let (shop, ledger, payment_id) = paying().await;
        let broker = Arc::new(FakeBroker::default());
        let (consumer, inbox) = (consumer(&shop, &ledger, &broker), Events::default());
        let put = |id: &str, event: Json| {
            let body = event.to_string();
            let signed = signer().sign(id, body.as_bytes(), SystemClock.wall_ms()).into_iter();
            let signature = signed.map(|(name, value)| (name.to_owned(), value)).collect();
            broker.put(Headers { signature, ..Headers::default() }, "", body);
        };
        for id in ["one", "other"] {
            put(id, event("paid", &payment_id, 250, 0));
        }
        ledger.set(Fault::RefusesAll(ErrorClass::Bug));
        for round in 0..10 {
            // Needs no ledger, and shows nothing of it.
            put(&format!("ignored-{round}"), json!({"type": "customer.created"}));
            let failed = consumer.run(&inbox).await.unwrap_err();
            assert!(failed.is::<db::Error>(), "{failed:?}");
        }
        ledger.set(Fault::None);
        consumer.run(&inbox).await.unwrap();
        assert_eq!(shop.state().await, OrderState::Paid);
        assert!(broker.published().is_empty() && broker.is_empty());
    });
}

#[test]
fn an_event_waits_until_its_dead_letter_is_confirmed() {
    run(async {
        let (shop, ledger, _) = paying().await;
        let broker = Arc::new(FakeBroker::default());
        let (consumer, inbox) = (consumer(&shop, &ledger, &broker), Events::default());
        broker.put(Headers::default(), "", "unsigned");
        for answer in [PublishAnswer::NotSent, PublishAnswer::Refused] {
            broker.say(answer);
            let failed = consumer.run(&inbox).await.unwrap_err().to_string();
            assert!(failed.starts_with("a dead letter was not confirmed: Some("), "{failed}");
            assert_eq!(broker.num_unacknowledged(), 1);
        }
        broker.say(PublishAnswer::Yes);
        consumer.run(&inbox).await.unwrap();
        assert_eq!((broker.dead().len(), broker.num_unacknowledged()), (1, 0));
    });
}

/// Crash point `payment_event_not_acknowledged`.
#[test]
fn while_the_ledger_is_away_events_wait_and_are_no_dead_letters() {
    run(async {
        let fixture = Fixture::open().await;
        fixture.ledger.set(Fault::Down);
        send(&fixture.server, "paid", &fixture.paid(), 0);
        until("a failure", async || fixture.run().await.is_err().then_some(())).await;
        for _ in 0..30 {
            let failed = fixture.run().await.unwrap_err();
            assert!(failed.is::<db::Error>(), "{failed:?}");
        }
        // Committed, and the answer was lost: as after a crash before the acknowledgement.
        fixture.ledger.set(Fault::AnswerLost);
        fixture.run().await.unwrap_err();
        assert_eq!(fixture.shop.state().await, OrderState::Paid);
        fixture.ledger.set(Fault::None);
        fixture.runs_until("known", 1).await;
        assert_eq!((fixture.num_ready("dead").await, fixture.counted("dead")), (0, 0));
        assert_eq!(fixture.num_ready("payments").await, 0);
    });
}

/// Calls the server for a buyer.
async fn call(app: &TestApp, method: Method, path: &str) -> Json {
    let call = app.client.request(method, app.url(path)).header("x-buyer-id", "1");
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    answer.json().await.unwrap()
}

#[tokio::test]
async fn a_dead_payment_event_shows_its_reason_and_is_replayed() {
    let (mut settings, stores) = fresh_settings(Tier::Pipeline);
    (settings.payment.provider, settings.payment.queue) = (PaymentBackend::Demo, true);
    settings.payment.every_ms = 3_600_000;
    // Another key than the sender's.
    settings.payment.webhook_keys = vec![WebhookSecret::of_key(&[6; 32])];
    settings.namespace = "fg".to_owned();
    let server = stores.rabbit.as_ref().unwrap();
    let app = TestApp::start(settings.clone());
    app.open_sale("sale", json!({"kind": "unlimited", "max_quantity": 2}), 5, 1).await;
    let id = app.request_id("sale", 1).await;
    let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    app.bought("sale", 1, purchase).await;
    let payment = call(&app, Method::POST, &format!("/v1/orders/{id}/payment")).await;
    let paid = event("paid", payment["payment_id"].as_str().unwrap(), 100, 0);
    send(server, "paid", &paid, 0);
    let dead_letter = until("the dead letter", async || {
        let page = app.admin("/dead-letters", None).await;
        page["dead_letters"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(
        dead_letter["reason"], "no signature is of a secret that is valid now",
        "{dead_letter}"
    );
    assert_eq!(dead_letter["origin"], "consumer");
    app.stop();

    // The operator adds the secret, and replays.
    settings.payment.webhook_keys.push(WebhookSecret::of_key(&KEY));
    let app = TestApp::start(settings);
    let path = format!("/dead-letters/{}/replay", dead_letter["id"].as_str().unwrap());
    let replayed = app.admin(&path, Some(json!({}))).await;
    assert_eq!(replayed["done"], "published", "{replayed}");
    until("the payment", async || {
        let page = call(&app, Method::GET, "/v1/orders").await;
        (page["orders"][0]["state"] == "paid").then_some(())
    })
    .await;
    app.assert_audit_holds().await;
    app.stop();
}
