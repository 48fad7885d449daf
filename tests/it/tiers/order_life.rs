//! The life of orders over HTTP, for each policy in each tier: buy and pay; buy, let the order
//! lapse, and another buyer gets the unit; buy, cancel, and buy again; pay late; pay twice; refund.

use floodgate::config::{PaymentBackend, Tier};
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use crate::support::app::{TestApp, fresh_settings, sale_body};
use crate::support::wait::until;

/// Time to pay of a sale whose orders lapse during the test, in seconds.
const SHORT_WINDOW_S: u32 = 4;

/// A server, and the policy of its sales of one unit each.
struct Story {
    app: TestApp,
    policy: Json,
}

impl Story {
    fn begin(tier: Tier, policy: Json) -> Self {
        let (mut settings, stores) = fresh_settings(tier);
        settings.payment.provider = PaymentBackend::Demo;
        (settings.payment.paying_window_s, settings.payment.extension_max_s) = (1, 2);
        (settings.payment.every_ms, settings.maintenance.every_ms) = (50, 50);
        Self { app: TestApp::on((settings, stores)), policy }
    }

    /// Opens a sale of one unit.
    async fn open(&self, sale: &str, payment_window_s: u32, ends_max: u16) {
        let mut body = sale_body(sale, self.policy.clone(), 1, 1);
        body["skus"][0]["payment_window_s"] = json!(payment_window_s);
        body["skus"][0]["ends_max"] = json!(ends_max);
        self.app.admin("/sales", Some(body)).await;
        self.app.admin(&format!("/sales/{sale}/open"), Some(json!({}))).await;
    }

    fn is_one_per_buyer(&self) -> bool {
        self.policy["kind"] == "one_per_buyer"
    }

    /// Buys one unit as soon as there is one, and returns the request id.
    async fn buy(&self, sale: &str, buyer: u64) -> String {
        let id = self.app.request_id(sale, buyer).await;
        self.buy_as(sale, buyer, &id).await;
        id
    }

    /// [`Self::buy`] with this request id.
    async fn buy_as(&self, sale: &str, buyer: u64, id: &str) {
        let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        until("a unit", async || {
            let (status, answer) = self.app.buy_json(sale, buyer, body.clone()).await;
            // A bucket learns of an end a moment after the buyer.
            let is_early = answer["code"] == "sold-out" || answer["code"] == "quota-exceeded";
            assert!(is_early || matches!(status.as_u16(), 200 | 202 | 503), "{answer}");
            (status == StatusCode::OK).then_some(())
        })
        .await;
    }

    /// The code of the problem that refuses a purchase.
    async fn refusal(&self, sale: &str, buyer: u64) -> Json {
        let id = self.app.request_id(sale, buyer).await;
        let body = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        self.app.buy_json(sale, buyer, body).await.1["code"].clone()
    }

    async fn call(&self, method: Method, path: &str, buyer: u64) -> (StatusCode, Json) {
        let call = self.app.client.request(method, self.app.url(path));
        let answer = call.header("x-buyer-id", buyer.to_string()).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    async fn try_start_payment(&self, id: &str, buyer: u64) -> Option<Json> {
        let path = format!("/v1/orders/{id}/payment");
        let (status, payment) = self.call(Method::POST, &path, buyer).await;
        assert!(status == StatusCode::OK || payment["code"] == "not-payable", "{payment}");
        (status == StatusCode::OK).then_some(payment)
    }

    async fn start_payment(&self, id: &str, buyer: u64) -> Json {
        self.try_start_payment(id, buyer).await.expect("an order that can be paid")
    }

    async fn cancel(&self, id: &str, buyer: u64) -> Json {
        let (status, order) = self.call(Method::DELETE, &format!("/v1/orders/{id}"), buyer).await;
        assert_eq!((status, &order["state"]), (StatusCode::OK, &json!("cancelled")), "{order}");
        order
    }

    /// The provider's page of a payment.
    async fn page(&self, payment: &Json) -> String {
        let page = self.app.client.get(payment["url"].as_str().unwrap());
        page.send().await.unwrap().text().await.unwrap()
    }

    /// Presses a button of the provider's page.
    async fn press(&self, payment: &Json, action: &str) {
        let form = self.app.client.post(payment["url"].as_str().unwrap());
        let form = form.header("content-type", "application/x-www-form-urlencoded");
        let page = form.body(format!("action={action}")).send().await.unwrap();
        assert_eq!(page.status(), StatusCode::OK, "{action}");
    }

    /// Waits until the order and its payment are in these states, and returns the order.
    async fn reaches(&self, id: &str, buyer: u64, states: (&str, &str)) -> Json {
        until(&format!("{states:?}"), async || {
            let (_, page) = self.app.get("/v1/orders", buyer).await;
            let orders = page["orders"].as_array().unwrap();
            let order = orders.iter().find(|order| order["request_id"] == id)?;
            let found = (&order["state"], &order["payment"]["state"]);
            (found == (&json!(states.0), &json!(states.1))).then(|| order.clone())
        })
        .await
    }

    /// Waits until the bucket, which answers the request's status, has this state of its order.
    async fn reaches_bucket(&self, id: &str, buyer: u64, state: &str) {
        let path = format!("/v1/requests/{id}");
        until(state, async || {
            let (_, view) = self.app.get(&path, buyer).await;
            (view["order"]["state"] == state).then_some(())
        })
        .await;
    }

    /// A refund returns the unit, and not the buyer's limit.
    async fn buy_and_pay_and_refund(&self) {
        self.open("paid", 900, 3).await;
        let id = self.buy("paid", 1).await;
        let payment = self.start_payment(&id, 1).await;
        assert_eq!(self.start_payment(&id, 1).await, payment, "one open payment");
        self.press(&payment, "pay").await;
        self.reaches(&id, 1, ("paid", "applied")).await;
        assert_eq!(self.refusal("paid", 2).await, "sold-out");
        self.press(&payment, "refund").await;
        let refunded = self.reaches(&id, 1, ("refunded", "refunded")).await;
        assert_eq!(refunded["payment"]["refunded_total"], 100);
        assert!(refunded.get("again").is_none(), "{refunded}");
        let other = self.buy("paid", 2).await;
        let payment = self.start_payment(&other, 2).await;
        self.press(&payment, "pay").await;
        self.reaches(&other, 2, ("paid", "applied")).await;
    }

    /// The unit of each order that lapses goes to the next buyer; the last one's payment was open.
    async fn lapse_and_pay_late(&self) {
        self.open("lapsing", SHORT_WINDOW_S, 3).await;
        let first = self.buy("lapsing", 1).await;
        self.reaches_bucket(&first, 1, "timed_out").await;
        // An order may lapse on a slow machine before its payment begins: the next buyer tries.
        let mut buyer = 1;
        let (id, payment) = until("an open payment", async || {
            buyer += 1;
            let id = self.buy("lapsing", buyer).await;
            Some((id.clone(), self.try_start_payment(&id, buyer).await?))
        })
        .await;
        self.reaches(&id, buyer, ("timed_out", "closed")).await;
        self.press(&payment, "pay_late").await;
        let successor = until("the order that late money buys", async || {
            let (_, page) = self.app.get("/v1/orders", buyer).await;
            let orders = page["orders"].as_array().unwrap();
            let ended = orders.iter().find(|order| order["request_id"] == id)?;
            assert_eq!(ended["state"], "timed_out", "{ended}");
            ended["replaced_by"].as_str().map(str::to_owned)
        })
        .await;
        let late = self.reaches(&successor, buyer, ("paid", "applied")).await;
        assert!(late.get("paid_unfulfilled").is_none(), "{late}");
    }

    /// Cancels twice: after the first time the buyer's limit returns, and a double click is one
    /// order; after the second it does not, because of `ends_max`.
    async fn cancel_and_buy_again(&self) {
        self.open("again", 900, 1).await;
        let first = self.buy("again", 1).await;
        let cancelled = self.cancel(&first, 1).await;
        assert_eq!(cancelled["again"].is_string(), self.is_one_per_buyer(), "{cancelled}");
        let second = match cancelled["again"].as_str() {
            Some(id) => id.to_owned(),
            None => self.app.request_id("again", 1).await,
        };
        assert_ne!(second, first);
        tokio::join!(self.buy_as("again", 1, &second), self.buy_as("again", 1, &second));
        let (_, listed) = self.app.get("/v1/orders", 1).await;
        let orders = listed["orders"].as_array().unwrap().iter();
        let live = orders.filter(|order| order["state"] == "pending_payment");
        let live: Vec<_> = live.map(|order| order["request_id"].as_str().unwrap()).collect();
        assert_eq!(live, [second.as_str()], "one live order");

        let ended = self.cancel(&second, 1).await;
        assert_eq!(self.cancel(&second, 1).await, ended, "repeat-safe");
        assert!(ended.get("again").is_none(), "{ended}");
        self.reaches_bucket(&second, 1, "cancelled").await;
        let (_, status) = self.app.get(&format!("/v1/requests/{second}"), 1).await;
        assert!(status.get("again").is_none(), "{status}");
        match self.policy["kind"].as_str().unwrap() {
            "one_per_buyer" => assert_eq!(self.app.request_id("again", 1).await, first),
            "quota" => assert_eq!(self.refusal("again", 1).await, "quota-exceeded"),
            _ => {
                let third = self.buy("again", 1).await;
                self.cancel(&third, 1).await;
            }
        }
        self.buy("again", 2).await;
    }

    /// The money of the payment that did not pay the order is paid back.
    async fn pay_twice(&self) {
        self.open("twice", 900, 3).await;
        let id = self.buy("twice", 1).await;
        let first = self.start_payment(&id, 1).await;
        self.press(&first, "fail").await;
        self.reaches(&id, 1, ("pending_payment", "closed")).await;
        let second = self.start_payment(&id, 1).await;
        assert_ne!(first["payment_id"], second["payment_id"]);
        self.press(&second, "pay_twice").await;
        let paid = self.reaches(&id, 1, ("paid", "applied")).await;
        assert_eq!(paid["payment"]["payment_id"], second["payment_id"]);
        until("the refund of the first payment", async || {
            self.page(&first).await.contains("<dd>refunded</dd>").then_some(())
        })
        .await;
        assert!(self.page(&second).await.contains("<dd>paid</dd>"));
    }
}

fn lives_through(tier: Tier, policy: Json) {
    let story = Story::begin(tier, policy);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        story.buy_and_pay_and_refund().await;
        story.lapse_and_pay_late().await;
        story.cancel_and_buy_again().await;
        story.pay_twice().await;
        story.app.assert_audit_holds().await;
    });
}

fn one_per_buyer() -> Json {
    json!({"kind": "one_per_buyer"})
}

fn quota() -> Json {
    json!({"kind": "quota", "limit": 1, "max_quantity": 1})
}

fn unlimited() -> Json {
    json!({"kind": "unlimited", "max_quantity": 2})
}

#[test]
fn one_per_buyer_in_memory() {
    lives_through(Tier::Memory, one_per_buyer());
}

#[test]
fn one_per_buyer_in_the_ledger() {
    lives_through(Tier::Ledger, one_per_buyer());
}

#[test]
fn one_per_buyer_in_redis() {
    lives_through(Tier::Gate, one_per_buyer());
}

#[test]
fn one_per_buyer_through_the_pipeline() {
    lives_through(Tier::Pipeline, one_per_buyer());
}

#[test]
fn quota_in_memory() {
    lives_through(Tier::Memory, quota());
}

#[test]
fn quota_in_the_ledger() {
    lives_through(Tier::Ledger, quota());
}

#[test]
fn quota_in_redis() {
    lives_through(Tier::Gate, quota());
}

#[test]
fn quota_through_the_pipeline() {
    lives_through(Tier::Pipeline, quota());
}

#[test]
fn unlimited_in_memory() {
    lives_through(Tier::Memory, unlimited());
}

#[test]
fn unlimited_in_the_ledger() {
    lives_through(Tier::Ledger, unlimited());
}

#[test]
fn unlimited_in_redis() {
    lives_through(Tier::Gate, unlimited());
}

#[test]
fn unlimited_through_the_pipeline() {
    lives_through(Tier::Pipeline, unlimited());
}
