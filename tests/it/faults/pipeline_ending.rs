//! Queued requests that are cancelled or time out, over HTTP, in tiers `pipeline` and `gate`.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value as Json, json};

use crate::support::admin;
use crate::support::app::sale_body;
use crate::support::gate::{GateFixture, PATIENT, assert_holds_at_rest};
use crate::support::pipeline::PipelineFixture;
use crate::support::wait::until;

/// A buyer of the public listener.
struct Buyer<'a> {
    client: &'a Client,
    public: SocketAddr,
    no: u64,
}

impl Buyer<'_> {
    async fn call(&self, method: Method, path: &str, body: Option<Json>) -> Option<(u16, Json)> {
        let call = self.client.request(method, format!("http://{}{path}", self.public));
        let call = call.header("X-Buyer-Id", self.no.to_string());
        let call = match body {
            Some(body) => call.json(&body),
            None => call,
        };
        let answer = call.send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.ok()?))
    }

    /// Buys one unit until the answer is no time-out, and returns it.
    async fn buy(&self, request_id: Option<&str>) -> (u16, Json) {
        until("an answer", async || {
            let mut purchase = json!({"sku_id": "sku", "quantity": 1});
            if let Some(id) = request_id {
                purchase["request_id"] = json!(id);
            }
            let answer = self.call(Method::POST, "/v1/buy/sale", Some(purchase)).await?;
            // 404: this process does not know the sale of the other one yet.
            let is_final = !matches!(answer.0, 404 | 503) && answer.1["state"] != "unknown";
            is_final.then_some(answer)
        })
        .await
    }

    /// Buys one unit and returns the id of the queued request.
    async fn queued(&self) -> String {
        let (status, answer) = self.buy(None).await;
        assert_eq!((status, &answer["state"]), (202, &json!("queued")), "{answer}");
        answer["request_id"].as_str().unwrap().to_owned()
    }

    async fn cancel(&self, id: &str) -> (u16, Json) {
        until("an answer", async || {
            let answer = self.call(Method::DELETE, &format!("/v1/requests/{id}"), None).await?;
            (!matches!(answer.0, 429 | 503)).then_some(answer)
        })
        .await
    }

    /// Polls until the request is decided.
    async fn decided(&self, id: &str) -> Json {
        until("a decided request", async || {
            let (_, view) = self.call(Method::GET, &format!("/v1/requests/{id}"), None).await?;
            matches!(view["state"].as_str(), Some("success" | "failed")).then_some(view)
        })
        .await
    }
}

fn again(answer: &Json) -> String {
    answer["again"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn cancelled_while_its_message_waits(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        // Without relay and consumer, no order reaches the ledger.
        let api = fixture.server("api", &[]);
        let maintenance = fixture.server("maintenance", &[]);
        let one = json!({"kind": "one_per_buyer"});
        admin::open_sale(maintenance.internal, "sale", one, 2, 1).await;
        admin::until_open(api.public).await;
        let client = Client::new();
        let buyer = |no| Buyer { client: &client, public: api.public, no };
        let (first, other) = (buyer(1).queued().await, buyer(2).queued().await);
        assert_eq!(buyer(2).cancel(&first).await.0, 404, "another buyer's");
        let (status, cancelled) = buyer(1).cancel(&first).await;
        assert_eq!((status, &cancelled["state"]), (200, &json!("failed")), "{cancelled}");
        assert_eq!(cancelled["reason"], "cancelled-by-buyer");
        assert_eq!(buyer(1).cancel(&first).await, (200, cancelled.clone()), "a repeat");
        assert_eq!(buyer(1).decided(&first).await, cancelled);
        let (status, repeated) = buyer(1).buy(None).await;
        assert_eq!((status, &repeated["code"]), (409, &json!("cancelled-by-buyer")));
        assert_eq!(again(&repeated), again(&cancelled));
        // The last unit came back.
        let (status, bought) = buyer(1).buy(Some(&again(&cancelled))).await;
        assert_eq!((status, &bought["request_id"]), (202, &cancelled["again"]), "{bought}");
        let mine = buyer(1).call(Method::GET, "/v1/sales/sale/mine", None).await.unwrap().1;
        let id = &cancelled["again"];
        let expected = json!({"sku_id": "sku", "owned": 1, "request_id": id, "state": "queued"});
        assert_eq!(mine["skus"][0], expected, "not the cancelled request");

        // The entry of the outbox reaches the ledger and becomes no order.
        let _relay = fixture.server("relay", &[]);
        let _consumer = fixture.server("consumer", &[]);
        for (no, id) in [(1, again(&cancelled)), (2, other)] {
            assert_eq!(buyer(no).decided(&id).await["state"], "success");
            let (status, decided) = buyer(no).cancel(&id).await;
            assert_eq!((status, &decided["code"]), (409, &json!("already-decided")));
        }
        fixture.drained(maintenance.internal).await;
        assert_holds_at_rest(maintenance.internal).await;
        assert_eq!(buyer(1).decided(&first).await, cancelled);
        assert_eq!(admin::stage(maintenance.internal, "sale", "committed").await, 2);
        assert_eq!(admin::stage(maintenance.internal, "sale", "failed").await, 1);
    });
}

#[test]
fn a_cancelled_request_is_no_order_with_a_list() {
    cancelled_while_its_message_waits("list");
}

#[test]
fn a_cancelled_request_is_no_order_with_a_stream() {
    cancelled_while_its_message_waits("stream");
}

const RACERS: u64 = 40;
/// Requests that are cancelled before the consumer starts, and others after they are orders.
const FIRST: usize = 5;

/// Cancellations while relay and consumer bring the same requests to the ledger.
#[test]
fn of_a_cancellation_and_an_order_at_once_one_wins() {
    let fixture = PipelineFixture::new("list").with("outbox.envelope_max", "1");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let api = fixture.server("api", &[]);
        let maintenance = fixture.server("maintenance", &[]);
        let one = json!({"kind": "one_per_buyer"});
        let stock = u32::try_from(RACERS).unwrap();
        admin::open_sale(maintenance.internal, "sale", one, stock, 2).await;
        admin::until_open(api.public).await;
        let client = Client::new();
        let buyer = |no| Buyer { client: &client, public: api.public, no };
        let mut ids = Vec::new();
        for no in 1..=RACERS {
            ids.push((no, buyer(no).queued().await));
        }
        let (before, rest) = ids.split_at(FIRST);
        let (racing, after) = rest.split_at(rest.len() - FIRST);
        let mut num_cancelled = 0;
        for (no, id) in before {
            assert_eq!(buyer(*no).cancel(id).await.0, 200, "nothing races");
            num_cancelled += 1;
        }
        let _relay = fixture.server("relay", &[]);
        let _consumer = fixture.server("consumer", &[]);
        for (no, id) in racing {
            let (status, answer) = buyer(*no).cancel(id).await;
            assert!(matches!(status, 200 | 409), "{answer}");
            let expected = if status == 200 { "failed" } else { "success" };
            assert_eq!(answer["state"], expected, "{answer}");
            assert_eq!(buyer(*no).decided(id).await["state"], expected, "{no}");
            num_cancelled += u64::from(status == 200);
        }
        for (no, id) in after {
            assert_eq!(buyer(*no).decided(id).await["state"], "success");
            assert_eq!(buyer(*no).cancel(id).await.0, 409, "it is an order");
        }
        println!("{num_cancelled} of {RACERS} were cancelled");
        fixture.drained(maintenance.internal).await;
        assert_holds_at_rest(maintenance.internal).await;
        let stage = |stage| admin::stage(maintenance.internal, "sale", stage);
        assert_eq!(stage("committed").await, RACERS - num_cancelled);
        assert_eq!(stage("failed").await, num_cancelled);
        assert_eq!(stage("left").await, num_cancelled, "the units are back");
    });
}

/// Creates and opens a sale whose requests may be queued for a second.
async fn open_with_timeout(internal: SocketAddr) {
    let mut body = sale_body("sale", json!({"kind": "one_per_buyer"}), 5, 2);
    body["skus"][0]["queue_timeout_s"] = json!(1);
    admin::call(internal, "/sales", body).await;
    admin::call(internal, "/sales/sale/open", json!({})).await;
}

#[test]
fn a_request_that_no_relay_publishes_times_out() {
    let fixture = PipelineFixture::new("list");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let api = fixture.server("api", &[]);
        let maintenance = fixture.server("maintenance", &[]);
        open_with_timeout(maintenance.internal).await;
        let client = Client::new();
        let buyer = Buyer { client: &client, public: api.public, no: 1 };
        let id = buyer.queued().await;
        let failed = buyer.decided(&id).await;
        assert_eq!(failed["reason"], "queue-timeout", "{failed}");
        let (status, decided) = buyer.cancel(&id).await;
        assert_eq!((status, &decided["reason"]), (409, &json!("queue-timeout")), "{decided}");
        let _relay = fixture.server("relay", &[]);
        let _consumer = fixture.server("consumer", &[]);
        fixture.drained(maintenance.internal).await;
        assert_holds_at_rest(maintenance.internal).await;
        assert_eq!(admin::stage(maintenance.internal, "sale", "committed").await, 0);
        let (_, bought) = buyer.buy(Some(&again(&failed))).await;
        assert_eq!(bought["request_id"], failed["again"], "{bought}");
    });
}

/// Tier `gate`: the ledger hangs, and the process crashes with the accepted request.
#[test]
fn a_request_that_a_crash_left_times_out_in_tier_gate() {
    let fixture = GateFixture::new();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server(&PATIENT[1..]);
        open_with_timeout(server.internal).await;
        let client = Client::new();
        fixture.mariadb.stop();
        let first = Buyer { client: &client, public: server.public, no: 1 };
        let purchase = json!({"sku_id": "sku", "quantity": 1});
        let unknown = first.call(Method::POST, "/v1/buy/sale", Some(purchase)).await.unwrap();
        assert_eq!(unknown.1["state"], "unknown", "{unknown:?}");
        let id = unknown.1["request_id"].as_str().unwrap();
        server.kill();
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        fixture.mariadb.cont();
        let server = fixture.server(&PATIENT[1..]);
        let buyer = Buyer { client: &client, public: server.public, no: 1 };
        let failed = buyer.decided(id).await;
        assert_eq!(failed["reason"], "queue-timeout", "{failed}");
        let mut next = again(&failed);
        // On a slow machine the next request may time out, too.
        until("an order", async || {
            buyer.buy(Some(&next)).await;
            let decided = buyer.decided(&next).await;
            if decided["state"] == "success" {
                return Some(());
            }
            assert_eq!(decided["reason"], "queue-timeout", "{decided}");
            next = again(&decided);
            None
        })
        .await;
        assert_holds_at_rest(server.internal).await;
        assert_eq!(admin::stage(server.internal, "sale", "left").await, 4);
    });
}
