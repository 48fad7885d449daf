//! A dead letter that is discarded while a copy of its message still waits in the outbox.

use bytes::Bytes;
use floodgate::messages::envelope;
use serde_json::{Value as Json, json};

use crate::support::pipeline::PipelineFixture;
use crate::support::poison::{Intruder, dead_letter_of};
use crate::support::shop::Shop;
use crate::support::wait::until;

fn discarded_while_its_message_waits(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        // Without relay and consumer, no order reaches the ledger.
        let api = fixture.server("api", &[]);
        let maintenance = fixture.server("maintenance", &[]);
        let shop = Shop::open(maintenance.internal, 10).await;
        let client = reqwest::Client::new();
        let id = until("an accepted request", async || {
            let call = client.post(format!("http://{}/v1/buy/sale", api.public));
            let purchase = json!({"sku_id": "sku", "quantity": 1});
            let answer = call.header("X-Buyer-Id", "1").json(&purchase).send().await.ok()?;
            let body: Json = answer.json().await.ok()?;
            (body["state"] == "queued").then(|| body["request_id"].as_str().unwrap().to_owned())
        })
        .await;
        let number = id.split('-').next().unwrap().parse().unwrap();
        let mut intruder = Intruder::new(&fixture, 4).await;
        let body = Bytes::from(intruder.pack(&intruder.intent(number, 1)));
        let mut headers = envelope::headers(&body, &intruder.installation, 1);
        headers.reason = Some("given up".to_owned());
        intruder.publish_dead(headers, body.clone()).await;
        let dead_letter = dead_letter_of(&fixture, &maintenance, &body, "given up").await;
        let dead_letter = dead_letter["id"].as_str().unwrap();

        let discard = || {
            fixture.dlq(maintenance.internal, &["discard", dead_letter, "--reason", "cancelled"])
        };
        assert_eq!(discard()["num_discarded"], 1);
        until("the buyer's answer", async || {
            let call = client.get(format!("http://{}/v1/requests/{id}", api.public));
            let answer = call.header("X-Buyer-Id", "1").send().await.ok()?;
            let view: Json = answer.json().await.ok()?;
            (view["state"] == "failed" && view["reason"] == "discarded").then_some(())
        })
        .await;

        // The entry of the outbox reaches the ledger and becomes no order.
        let _relay = fixture.server("relay", &[]);
        let _consumer = fixture.server("consumer", &[]);
        let verdict = fixture.check(0, maintenance.internal, &shop.history, 10).await;
        assert_eq!((verdict.ok, verdict.failed, verdict.dead), (0, 1, 0), "{verdict}");
        assert_eq!(discard()["num_already"], 1);
    });
}

#[test]
fn a_discarded_request_is_no_order_with_a_list() {
    discarded_while_its_message_waits("list");
}

#[test]
fn a_discarded_request_is_no_order_with_a_stream() {
    discarded_while_its_message_waits("stream");
}
