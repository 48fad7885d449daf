//! What operators see while a part is down: all other parts, and which part does not answer.

use std::net::SocketAddr;

use serde_json::Value as Json;

use crate::support::admin::count_in;
use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;
use crate::support::wait::until;

/// Each stage of a trace with its state.
fn stages(trace: &Json) -> Vec<(&str, &str)> {
    let stages = trace["stages"].as_array().unwrap().iter();
    stages
        .map(|stage| (stage["stage"].as_str().unwrap(), stage["state"].as_str().unwrap()))
        .collect()
}

/// HTTP status of `/readyz`, and the names of the failing checks.
async fn readiness(internal: SocketAddr) -> (u16, Vec<String>) {
    let answer = reqwest::get(format!("http://{internal}/readyz?verbose")).await.unwrap();
    let status = answer.status().as_u16();
    let answer: Json = answer.json().await.unwrap();
    let failing = answer["checks"].as_array().unwrap().iter().filter(|check| check["ok"] == false);
    (status, failing.map(|check| check["name"].as_str().unwrap().to_owned()).collect())
}

/// Waits until `/readyz`, whose answer may be a second old, has this status and these failing
/// checks.
async fn until_readiness(internal: SocketAddr, status: u16, failing: &[&str]) {
    until("the readiness", async || {
        let (seen, checks) = readiness(internal).await;
        (seen == status && checks == failing).then_some(())
    })
    .await;
}

/// Stages of the funnel without a count.
fn uncounted(fixture: &PipelineFixture, internal: SocketAddr) -> Vec<String> {
    let sale = fixture.ask(internal, &["sale", "show", "sale"]);
    let stages = sale["funnel"].as_array().unwrap().iter();
    let uncounted = stages.filter(|stage| stage["count"].is_null());
    uncounted.map(|stage| stage["stage"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn operators_see_the_rest_while_a_part_is_away() {
    let fixture = PipelineFixture::new("list").patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let consumer = fixture.server("consumer", &[]);
        let at = server.internal;
        let mut shop = Shop::open(at, 100).await;
        shop.sell(server.public, 20).await;
        fixture.drained(at).await;
        let last = |shop: &Shop| shop.history.purchases.last().unwrap().request_id.clone().unwrap();
        let placed = last(&shop);

        fixture.mariadb.kill();
        shop.sell(server.public, 10).await;
        let waiting = last(&shop);
        until_readiness(at, 200, &["ledger"]).await;
        until_readiness(consumer.internal, 503, &["ledger"]).await;
        until("the orders to be in a queue or at a consumer", async || {
            let sale = fixture.ask(at, &["sale", "show", "sale"]);
            let count = |stage| count_in(&sale["funnel"], stage);
            assert_eq!(count("unsettled"), Some(10));
            (count("outbox") == Some(0) && count("relay") == Some(0)).then_some(())
        })
        .await;
        assert_eq!(uncounted(&fixture, at), ["left", "committed", "failed"]);
        let trace = fixture.ask_and_exit(at, &["trace", &waiting], 2);
        let expected = [("gate", "queued"), ("broker", "queued"), ("ledger", "unknown")];
        assert_eq!(stages(&trace), expected, "{trace:#}");
        let trace = fixture.ask_and_exit(at, &["trace", &placed], 2);
        assert_eq!(stages(&trace), [("gate", "pending_payment"), ("ledger", "unknown")]);
        fixture.mariadb.restart();
        fixture.drained(at).await;

        fixture.settle_queues();
        fixture.rabbit.kill();
        assert_eq!(uncounted(&fixture, at), ["broker", "dead"]);
        until_readiness(at, 200, &[]).await;
        fixture.rabbit.restart();
        until("the counts of the broker", async || {
            uncounted(&fixture, at).is_empty().then_some(())
        })
        .await;

        fixture.redis.kill();
        assert_eq!(uncounted(&fixture, at), ["unsettled", "outbox", "relay"]);
        until_readiness(at, 503, &["stock"]).await;
        let trace = fixture.ask(at, &["trace", &waiting]);
        let expected =
            [("gate", "pending_payment"), ("relay", "published"), ("ledger", "pending_payment")];
        assert_eq!(stages(&trace), expected, "the state in the ledger is final");
        // An unused request number: while Redis is down, its state is unknown.
        let trace = fixture.ask_and_exit(at, &["trace", "4611686018427387905"], 2);
        assert_eq!(stages(&trace), [("gate", "unknown")]);
        fixture.redis.restart();
        shop.check(&fixture, at).await;
    });
}
