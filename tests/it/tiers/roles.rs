//! One installation of eight processes, two of each role, that sells one sale.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::admin::open_sale;
use crate::support::crowd::{Attempt, History, send};
use crate::support::gate::{purchases, retry_until};
use crate::support::pipeline::PipelineFixture;
use crate::support::wait::{DEADLINE, until};

const STOCK: u32 = 400;

#[test]
fn two_processes_of_each_role_sell_one_sale() {
    let fixture = PipelineFixture::new("list").patient();
    let roles =
        ["maintenance", "maintenance", "consumer", "consumer", "relay", "relay", "api", "api"];
    let servers = roles.map(|role| fixture.server(role, &[]));
    let [maintenance, .., one, other] = &servers;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Every process serves the operator API; this one does not sell.
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(maintenance.internal, "sale", policy, STOCK, 4).await;
        for api in [one, other] {
            until("the sale to be open at this server", async || {
                let call = reqwest::get(format!("http://{}/v1/sales/sale", api.public));
                let sale: Json = call.await.ok()?.json().await.ok()?;
                (sale["skus"][0]["stock_left"] == STOCK).then_some(())
            })
            .await;
        }
        let purchases = Arc::new(purchases(1..601));
        let attempts: Arc<Vec<usize>> = (0..600).chain(0..600).collect::<Vec<_>>().into();
        let (mut history, more) = tokio::join!(
            send(one.public, "sale", purchases.clone(), attempts.clone(), 16),
            send(other.public, "sale", purchases.clone(), attempts, 16),
        );
        history.absorb(more);
        let verdict = fixture.check(0, maintenance.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok as u64, u64::from(STOCK));
        assert_eq!(history.acknowledged().len() as u64, u64::from(STOCK));
        assert_same_status(&history, one.public, other.public).await;
        let internal = maintenance.internal;
        assert_trace_covers_every_stage(&fixture, internal, one.public).await;
    });
}

/// The trace of a purchase has the trace id of the request and the time of each stage.
async fn assert_trace_covers_every_stage(
    fixture: &PipelineFixture,
    internal: SocketAddr,
    public: SocketAddr,
) {
    const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    open_sale(internal, "traced", json!({"kind": "one_per_buyer"}), 1, 1).await;
    let client = reqwest::Client::new();
    let id = until("an order", async || {
        let call = client.post(format!("http://{public}/v1/buy/traced"));
        let call = call.header("x-buyer-id", "7").json(&json!({"sku_id": "sku", "quantity": 1}));
        let call = call.header("traceparent", format!("00-{TRACE_ID}-00f067aa0ba902b7-01"));
        let answer: Json = call.send().await.ok()?.json().await.ok()?;
        (answer["state"] == "success").then(|| answer["order"]["request_id"].clone())
    })
    .await;
    let trace = fixture.ask(internal, &["trace", id.as_str().unwrap()]);
    assert_eq!(trace["trace_id"], TRACE_ID, "{trace:#}");
    let stages = trace["stages"].as_array().unwrap();
    let stage_states: Vec<_> =
        stages.iter().map(|stage| (&stage["stage"], &stage["state"])).collect();
    let (placed, published) = (json!("pending_payment"), json!("published"));
    let (gate, relay, ledger) = (json!("gate"), json!("relay"), json!("ledger"));
    assert_eq!(stage_states, [(&gate, &placed), (&relay, &published), (&ledger, &placed)]);
    let at = |stage: &Json| {
        let at = chrono::DateTime::parse_from_rfc3339(stage["at"].as_str().unwrap());
        at.unwrap().timestamp_millis()
    };
    let times: Vec<i64> = stages.iter().map(at).collect();
    assert!(times.is_sorted(), "{trace:#}");
    assert_eq!(trace["took_ms"], times[2] - times[0], "{trace:#}");
}

/// A request that one API process accepted reads the same at the other.
async fn assert_same_status(history: &History, one: SocketAddr, other: SocketAddr) {
    let attempt = history.purchases.iter().find(|attempt| attempt.is_promise()).unwrap();
    let (buyer, id) = (attempt.purchase + 1, attempt.request_id.as_deref().unwrap());
    let client = reqwest::Client::new();
    let mut views = Vec::new();
    for api in [one, other] {
        let call = client.get(format!("http://{api}/v1/requests/{id}"));
        let answer = call.header("x-buyer-id", buyer.to_string()).send().await.unwrap();
        views.push(answer.json::<Json>().await.unwrap());
    }
    assert_eq!(views[0]["state"], "success");
    assert_eq!(views[0], views[1]);
}

/// The chunks of an event stream that has ended.
async fn rest_of(stream: reqwest::Response) -> String {
    tokio::time::timeout(DEADLINE, stream.text()).await.unwrap().unwrap()
}

#[test]
fn a_buyer_has_three_streams_and_a_request_one_until_the_server_stops() {
    let fixture = PipelineFixture::new("list").patient();
    let _maintenance = fixture.server("maintenance", &[]);
    let api = TestApp::start(fixture.settings(&[("role", "api")]));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "unlimited"});
        open_sale(api.internal, "sale", policy, STOCK, 4).await;
        let mut ids = Vec::new();
        for _ in 0..4 {
            let id = api.request_id("sale", 1).await;
            let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
            until("an accepted request", async || {
                let (status, _) = api.buy_json("sale", 1, purchase.clone()).await;
                (status == 202).then_some(())
            })
            .await;
            ids.push(id);
        }
        let ask = async |method: Method, id: &str| {
            let call = api.client.request(method, api.url(&format!("/v1/requests/{id}/events")));
            call.header("x-buyer-id", "1").send().await.unwrap()
        };
        let follow = async |id: &str| ask(Method::GET, id).await;
        for id in &ids {
            let head = ask(Method::HEAD, id).await;
            assert_eq!(head.status(), 200, "HEAD takes no stream");
            assert_eq!(head.headers()["content-type"], "text/event-stream");
        }
        let mut streams = Vec::new();
        for id in &ids[..3] {
            let stream = follow(id).await;
            assert_eq!(stream.status(), 200);
            assert_eq!(follow(id).await.status(), 503, "a second stream of the request");
            streams.push(stream);
        }
        let refused = follow(&ids[3]).await;
        assert_eq!(refused.status(), 503);
        assert!(refused.headers().contains_key("retry-after"));
        assert_eq!(refused.json::<Json>().await.unwrap()["code"], "busy");

        let metrics = api.client.get(format!("http://{}/metrics", api.internal)).send().await;
        let metrics = metrics.unwrap().text().await.unwrap();
        for line in [
            "floodgate_event_streams 3",
            "floodgate_event_streams_refused_total{reason=\"buyer\"} 4",
        ] {
            assert!(metrics.lines().any(|found| found == line), "{line}");
        }
        // A place is free when its client has gone.
        drop(streams.remove(0));
        let again = until("a place", async || {
            let stream = follow(&ids[0]).await;
            (stream.status() == 200).then_some(stream)
        })
        .await;
        streams.push(again);
        tokio::task::spawn_blocking(move || api.stop()).await.unwrap();
        for stream in streams {
            let text = rest_of(stream).await;
            assert!(text.contains("\"state\":\"queued\""), "{text}");
            let retry = text.rsplit_once("retry: ").expect(&text).1.trim();
            assert!((1_000..5_000).contains(&retry.parse::<u32>().unwrap()), "{text}");
        }
    });
}

#[test]
fn every_open_stream_sends_its_order_when_a_consumer_starts_at_last() {
    let fixture = PipelineFixture::new("list").patient();
    let [maintenance, api, _relay] =
        ["maintenance", "api", "relay"].map(|role| fixture.server(role, &[]));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        open_sale(maintenance.internal, "sale", json!({"kind": "one_per_buyer"}), STOCK, 4).await;
        let purchases = Arc::new(purchases(1..201));
        let promised =
            retry_until(api.public, purchases, 16, |attempt: &Attempt| attempt.is_promise()).await;
        let client = reqwest::Client::new();
        let streams = promised.promised_by_purchase().into_iter().map(|(purchase, ids)| {
            let id = ids.first().unwrap();
            let call = client.get(format!("http://{}/v1/requests/{id}/events", api.public));
            call.header("x-buyer-id", (purchase + 1).to_string()).send()
        });
        let streams: Vec<_> = join_all(streams).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(streams.len(), 200);
        assert!(streams.iter().all(|stream| stream.status() == 200));
        let _consumer = fixture.server("consumer", &[]);
        // The text is complete when the server closes the stream.
        for text in join_all(streams.into_iter().map(reqwest::Response::text)).await {
            let text = text.unwrap();
            let queued: Vec<_> = text.matches("\"state\":\"queued\"").collect();
            assert_eq!(queued.len(), 1, "`queued` is sent once: {text}");
            assert_eq!(text.matches("\"state\":\"success\"").count(), 1, "{text}");
        }
        let verdict = fixture.check(0, maintenance.internal, &promised, STOCK.into()).await;
        assert_eq!(verdict.ok, 200);
    });
}
