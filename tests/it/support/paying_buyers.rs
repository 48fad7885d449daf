//! Buyers of a sale of their own who pay, cancel, do both at once, are refunded, or let their
//! orders lapse, while processes and servers are killed. The test plays the payment provider: it
//! signs the webhooks itself, so that no kill loses what the provider reported.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value as Json, json};

use super::admin;
use super::app::sale_body;
use super::servers::mariadb::MariaDb;
use super::wait::{until, until_true};
use super::webhooks::WebhookSender;

/// The sale of these buyers.
const SALE: &str = "paying";
const STOCK: u32 = 500;
const BUCKETS: u16 = 3;
/// Buyers at once.
const AT_ONCE: usize = 6;
/// Longer than the slowest answer of a process without its stores.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Status reads of one queued purchase; then its order lapses.
const READS_MAX: u32 = 40;

/// What becomes of an order.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Lapse,
    Cancel,
    /// The webhook is repeated.
    Pay,
    PayWhileCancelling,
    PayAndRefund,
    FailAndLapse,
}

impl Plan {
    const ALL: [Self; 6] = [
        Self::Lapse,
        Self::Cancel,
        Self::Pay,
        Self::PayWhileCancelling,
        Self::PayAndRefund,
        Self::FailAndLapse,
    ];
}

/// The buyers, and what processes confirmed to them.
pub struct PayingBuyers {
    client: Client,
    webhooks: WebhookSender,
    next: AtomicU64,
    /// Buyers of the orders whose cancellation was confirmed, by request id.
    cancelled: Mutex<BTreeMap<String, u64>>,
    /// Payments whose money was confirmed as recorded.
    received: Mutex<Vec<String>>,
}

impl PayingBuyers {
    /// Opens the sale.
    pub async fn open(internal: SocketAddr) -> Self {
        let policy = json!({"kind": "one_per_buyer"});
        let mut body = sale_body(SALE, policy, STOCK, BUCKETS);
        body["skus"][0]["payment_window_s"] = json!(4);
        admin::call(internal, "/sales", body).await;
        admin::call(internal, &format!("/sales/{SALE}/open"), json!({})).await;
        let client = Client::builder().timeout(CALL_TIMEOUT).build().unwrap();
        Self {
            webhooks: WebhookSender::new(client.clone()),
            client,
            next: AtomicU64::new(1),
            cancelled: Mutex::default(),
            received: Mutex::default(),
        }
    }

    /// Buys until `end`. Calls that fail are not repeated, except webhooks.
    pub async fn buy_until(&self, public: SocketAddr, end: impl Future<Output = ()>) {
        let buying = join_all((0..AT_ONCE).map(|_| async {
            loop {
                let buyer = self.next.fetch_add(1, Ordering::SeqCst);
                if self.buy(public, buyer).await.is_none() {
                    // No answer, or sold out until orders lapse.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }));
        tokio::select! {
            _ = buying => {}
            () = end => {}
        }
    }

    /// `None`: the buyer has no order, or lost sight of it.
    async fn buy(&self, public: SocketAddr, buyer: u64) -> Option<()> {
        let purchase = json!({"sku_id": "sku", "quantity": 1});
        let path = format!("/v1/buy/{SALE}");
        let (status, answer) = self.call(public, Method::POST, &path, buyer, purchase).await?;
        if !matches!(status.as_u16(), 200 | 202) {
            return None;
        }
        let id = answer["request_id"].as_str()?;
        let mut view = answer.clone();
        for _ in 0..READS_MAX {
            if view["state"] == "success" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            let path = format!("/v1/requests/{id}");
            view = self.call(public, Method::GET, &path, buyer, Json::Null).await?.1;
        }
        let plan = usize::try_from(buyer).unwrap() % Plan::ALL.len();
        match Plan::ALL[plan] {
            Plan::Lapse => Some(()),
            Plan::Cancel => self.cancel(public, buyer, id).await,
            Plan::Pay => {
                let payment = self.start(public, buyer, id).await?;
                self.report(public, &payment, "paid", 2).await
            }
            Plan::PayWhileCancelling => {
                let payment = self.start(public, buyer, id).await?;
                let paid = self.report(public, &payment, "paid", 1);
                let (paid, _) = tokio::join!(paid, self.cancel(public, buyer, id));
                paid
            }
            Plan::PayAndRefund => {
                let payment = self.start(public, buyer, id).await?;
                // In either order.
                let (paid, refunded) = tokio::join!(
                    self.report(public, &payment, "paid", 1),
                    self.report(public, &payment, "refunded", 1)
                );
                paid.and(refunded)
            }
            Plan::FailAndLapse => {
                let payment = self.start(public, buyer, id).await?;
                self.report(public, &payment, "failed", 1).await
            }
        }
    }

    async fn call(
        &self,
        public: SocketAddr,
        method: Method,
        path: &str,
        buyer: u64,
        body: Json,
    ) -> Option<(StatusCode, Json)> {
        let call = self.client.request(method, format!("http://{public}{path}"));
        let call = call.header("x-buyer-id", buyer.to_string());
        let call = if body.is_null() { call } else { call.json(&body) };
        let answer = call.send().await.ok()?;
        Some((answer.status(), answer.json().await.ok()?))
    }

    /// Begins a payment and returns its id.
    async fn start(&self, public: SocketAddr, buyer: u64, id: &str) -> Option<String> {
        let path = format!("/v1/orders/{id}/payment");
        let (status, payment) = self.call(public, Method::POST, &path, buyer, Json::Null).await?;
        assert!(
            status == StatusCode::OK || matches!(status.as_u16(), 404 | 409 | 503),
            "{status} {payment}"
        );
        payment["payment_id"].as_str().map(str::to_owned)
    }

    async fn cancel(&self, public: SocketAddr, buyer: u64, id: &str) -> Option<()> {
        let path = format!("/v1/orders/{id}");
        let (status, order) = self.call(public, Method::DELETE, &path, buyer, Json::Null).await?;
        if status == StatusCode::OK {
            assert_eq!(order["state"], "cancelled", "{order}");
            self.cancelled.lock().insert(id.to_owned(), buyer);
        }
        Some(())
    }

    /// Sends a webhook, `times` times.
    async fn report(&self, public: SocketAddr, id: &str, kind: &str, times: u32) -> Option<()> {
        for _ in 0..times {
            self.webhooks.report(public, id, kind).await?;
            if kind != "failed" {
                self.received.lock().push(id.to_owned());
            }
        }
        Some(())
    }

    /// Buys on until orders have ended in each way, waits until every order is paid or has ended,
    /// and asserts that what was confirmed is in the ledger.
    pub async fn check(&self, mariadb: &MariaDb, public: SocketAddr, internal: SocketAddr) {
        let of_sale = "sku_no IN (SELECT sku_no FROM skus JOIN sales USING (sale_no) \
                       WHERE sale_id = 'paying')";
        let states = format!(
            "SELECT COUNT(DISTINCT state) FROM orders WHERE state NOT IN (0, 5) AND {of_sale}"
        );
        let each_end = until("orders that have ended in each way", async || {
            let is_each_confirmed =
                !self.cancelled.lock().is_empty() && !self.received.lock().is_empty();
            (is_each_confirmed && mariadb.number(&states) == 4).then_some(())
        });
        self.buy_until(public, each_end).await;
        until("the outcome of every request", async || {
            (admin::stage(internal, SALE, "unsettled").await == 0).then_some(())
        })
        .await;
        until_true("the end of every unpaid order", || {
            let unpaid = format!("SELECT COUNT(*) FROM orders WHERE state IN (0, 5) AND {of_sale}");
            mariadb.number(&unpaid) == 0
        });
        let counts = mariadb.texts(&format!(
            "SELECT CONCAT(state, ': ', COUNT(*)) AS text FROM orders WHERE {of_sale} \
             GROUP BY state ORDER BY state"
        ));
        let (cancelled, received) = (self.cancelled.lock().clone(), self.received.lock().clone());
        println!("orders by state: {counts:?}, {} confirmed cancellations", cancelled.len());
        assert_eq!(counts.len(), 4, "paid, timed out, cancelled and refunded orders: {counts:?}");
        let paid: Vec<String> =
            mariadb.texts("SELECT payment_id AS text FROM payments WHERE received IS NOT NULL");
        let paid: BTreeSet<String> = paid.into_iter().collect();
        let lost: Vec<_> = received.iter().filter(|id| !paid.contains(*id)).collect();
        assert!(lost.is_empty() && !received.is_empty(), "money that was confirmed: {lost:?}");
        assert!(!cancelled.is_empty());
        for (id, buyer) in cancelled {
            until("the cancelled order in its bucket", async || {
                let path = format!("/v1/requests/{id}");
                let (_, view) = self.call(public, Method::GET, &path, buyer, Json::Null).await?;
                (view["order"]["state"] == "cancelled").then_some(())
            })
            .await;
        }
    }
}
