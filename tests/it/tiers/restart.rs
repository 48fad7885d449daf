//! A restarted server answers repeats from its stores and sells the remaining stock.

use floodgate::config::Tier;
use serde_json::json;

use crate::support::admin::open_sale;
use crate::support::app::{TestApp, fresh_settings};
use crate::support::pipeline::PipelineFixture;
use crate::support::wait::{until, until_true};

#[test]
fn a_restarted_server_answers_repeats_and_sells_the_rest() {
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate] {
        let (settings, _stores) = fresh_settings(tier);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let body = json!({"sku_id": "sku", "quantity": 1});
        let first = TestApp::start(settings.clone());
        let before = runtime.block_on(async {
            first.open_sale("sale", json!({"kind": "one_per_buyer"}), 3, 2).await;
            first.buy_json("sale", 1, body.clone()).await;
            first.buy_json("sale", 2, body.clone()).await
        });
        first.stop();

        let second = TestApp::start(settings);
        runtime.block_on(async {
            let again = second.buy("sale", 2, body.clone()).await;
            assert_eq!(again.headers()["idempotent-replayed"], "true");
            let again: serde_json::Value = again.json().await.unwrap();
            assert_eq!(again, before.1, "the first answer");
            let id = again["request_id"].as_str().unwrap();
            let (_, status) = second.get(&format!("/v1/requests/{id}"), 2).await;
            assert_eq!(status["state"], "success");
            let third = second.buy_json("sale", 3, body.clone()).await;
            assert_eq!(third.0, 200, "{third:?}");
            let fourth = second.buy_json("sale", 4, body).await;
            assert_eq!(fourth.1["code"], "sold-out");
            second.assert_audit_holds().await;
        });
    }
}

/// Otherwise the log of the broker has a warning for each connection at every deployment.
#[test]
fn a_stopped_server_closes_its_connections_to_the_broker() {
    let fixture = PipelineFixture::new("list");
    let mut server = fixture.server("all", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), 1, 1).await;
        until("an order", async || {
            let call = reqwest::Client::new().post(format!("http://{}/v1/buy/sale", server.public));
            let call = call.header("x-buyer-id", "7");
            let answer = call.json(&json!({"sku_id": "sku", "quantity": 1})).send().await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
    });
    let count = |what: &str| fixture.rabbit.log().matches(what).count();
    // One published, one consumes.
    until_true("both connections", || count("accepting AMQP connection") >= 2);
    server.terminate();
    assert!(server.wait().success(), "{}", server.log());
    until_true("no open connection", || {
        count("closing AMQP connection") == count("accepting AMQP connection")
    });
    let log = fixture.rabbit.log();
    assert!(!log.contains("client unexpectedly closed TCP connection"), "{log}");
}
