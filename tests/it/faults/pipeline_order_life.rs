//! The life of orders in tier `pipeline`: an order that waited in the broker for longer than its
//! window has all of it once it is committed.

use floodgate::runtime::clock::wall_ms;
use reqwest::{Client, Method};
use serde_json::{Value as Json, json};

use crate::support::admin::{call, stage, until_open};
use crate::support::app::sale_body;
use crate::support::crowd::{Purchase, send};
use crate::support::gate::{assert_holds_at_rest, purchases};
use crate::support::pipeline::PipelineFixture;
use crate::support::wait::{until, until_true};
use crate::support::webhooks::{SETTINGS, WebhookSender};

const BUYERS: u64 = 20;
/// Long enough for a slow machine to pay an order after its commit.
const WINDOW_MS: i64 = 15_000;

#[test]
fn an_order_that_waited_in_the_broker_is_paid_within_its_window_from_the_commit() {
    let with = |fixture: PipelineFixture, (key, value): (&str, &str)| fixture.with(key, value);
    let fixture = SETTINGS.into_iter().fold(PipelineFixture::new("list"), with).patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [maintenance, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| fixture.server(role, &[]));
        let mut body = sale_body("sale", json!({"kind": "one_per_buyer"}), 100, 2);
        body["skus"][0]["payment_window_s"] = json!(WINDOW_MS / 1_000);
        body["skus"][0]["bar_lapsed"] = json!(true);
        call(maintenance.internal, "/sales", body).await;
        call(maintenance.internal, "/sales/sale/open", json!({})).await;
        until_open(api.public).await;
        let asked_ms = wall_ms();
        let all: Vec<Purchase> = purchases(1..1 + BUYERS);
        let once: Vec<usize> = (0..all.len()).collect();
        let sent = send(api.public, "sale", all.into(), once.into(), 8).await;
        for attempt in &sent.purchases {
            assert_eq!(attempt.status, Some(202), "{attempt:?}");
        }
        // No consumer runs. In minutes it would be the same: every time is that of the ledger.
        until_true("an order that waits for longer than its window", || {
            wall_ms() - asked_ms > WINDOW_MS + 1_000
        });
        assert_eq!(stage(maintenance.internal, "sale", "committed").await, 0);

        let _consumer = fixture.server("consumer", &[]);
        let (client, id) = (Client::new(), sent.purchases[0].request_id.clone().unwrap());
        let buyer = sent.purchases[0].request.buyer;
        let request = async |method: Method, path: String| -> Json {
            let call = client.request(method, format!("http://{}{path}", api.public));
            let call = call.header("x-buyer-id", buyer.to_string());
            call.send().await.unwrap().json().await.unwrap()
        };
        until("the order", async || {
            let view = request(Method::GET, format!("/v1/requests/{id}")).await;
            (view["state"] == "success").then_some(())
        })
        .await;
        let payment = request(Method::POST, format!("/v1/orders/{id}/payment")).await;
        let payment_id = payment["payment_id"].as_str().unwrap_or_else(|| panic!("{payment}"));
        let webhooks = WebhookSender::new(client.clone());
        let outcome = webhooks.report(api.public, payment_id, "paid").await;
        assert_eq!(outcome.as_deref(), Some("applied"));

        let db = &fixture.mariadb;
        until_true("the end of the unpaid orders", || {
            db.number("SELECT COUNT(*) FROM orders WHERE state = 2")
                == i64::try_from(BUYERS).unwrap() - 1
        });
        let first_end = "SELECT MIN(e.at_ms - o.recorded_at_ms) FROM order_events e \
                         JOIN orders o USING (request_id) WHERE e.kind = 2";
        assert!(db.number(first_end) >= WINDOW_MS, "{}", db.number(first_end));
        let waited = "SELECT MIN(recorded_at_ms - placed_at_ms) FROM orders";
        assert!(db.number(waited) > WINDOW_MS, "the test waited for too short a time");
        // Those who let their orders lapse are barred, not those whose orders came late.
        assert_eq!(db.number("SELECT COUNT(*) FROM bars"), i64::try_from(BUYERS).unwrap() - 1);
        fixture.drained(maintenance.internal).await;
        assert_holds_at_rest(maintenance.internal).await;
    });
}
