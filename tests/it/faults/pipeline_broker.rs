//! A broker that is down, and one that rejects messages: C07.

use std::net::SocketAddr;

use floodgate::runtime::clock::now_monotonic;
use serde_json::Value as Json;

use crate::support::admin::stage;
use crate::support::gate::try_stage;
use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;
use crate::support::wait::{drains_within, until};

/// The line of a gate whose bucket has no room in its outbox.
const FULL: &str = "outbox full: new buyers read busy";

/// Runs work that needs the recovered broker, and waits until all requests are settled.
async fn assert_drains(
    fixture: &PipelineFixture,
    internal: SocketAddr,
    work: impl Future<Output = ()>,
) {
    let begun = now_monotonic();
    work.await;
    fixture.drained(internal).await;
    let took = now_monotonic().duration_since(begun);
    println!("drained after {took:?}");
    assert!(took < drains_within(), "drained after {took:?}");
    assert!(
        fixture.open_dead_letters(internal).is_empty(),
        "a broker failure counts as no attempt"
    );
}

/// Steps of all relay workers of a process.
async fn relay_steps(internal: SocketAddr) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let relays = report["actors"].as_array()?.iter().filter(|one| one["kind"] == "outbox_relay");
    relays.map(|one| one["steps"].as_u64()).sum()
}

/// C07, first part: an outage counts as no attempt of any entry. While the outbox is full, buyers
/// get `busy`.
async fn long_outage(
    fixture: &PipelineFixture,
    shop: &mut Shop,
    [public, internal, relay]: [SocketAddr; 3],
) {
    let crowd = shop.crowd(public, 500);
    fixture.settle_queues();
    fixture.rabbit.kill();
    fixture.rabbit.restart();
    assert_drains(fixture, internal, shop.settle(public, crowd)).await;

    fixture.rabbit.kill();
    let refused = until("a full outbox", async || {
        let attempts = shop.ask_once(public, 40).await;
        attempts.iter().all(|attempt| attempt.status == Some(503)).then_some(attempts)
    })
    .await;
    for attempt in refused {
        assert_eq!(attempt.code.as_deref(), Some("busy"), "{attempt:?}");
    }
    assert!(stage(internal, "sale", "unsettled").await > 0);
    // Far more rounds than an entry has attempts.
    let begun = relay_steps(relay).await.unwrap();
    until("many rounds of the relay", async || {
        (relay_steps(relay).await? > begun + 100).then_some(())
    })
    .await;
    fixture.rabbit.restart();
    assert_drains(fixture, internal, shop.sell(public, 40)).await;
}

/// C07, second part: a queue that rejects everything counts as no attempt either. The outbox fills
/// up, no entry becomes a dead letter, waiting entries survive a restart of Redis, and all become
/// orders once the queue accepts messages.
async fn rejecting_queue(
    fixture: &PipelineFixture,
    shop: &mut Shop,
    [public, internal, relay]: [SocketAddr; 3],
) {
    let full = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    let pattern = r"^fg\.orders\.";
    fixture.rabbit.ctl(&["set_policy", "full", pattern, full, "--apply-to", "queues"]);
    // RabbitMQ applies the policy with a delay.
    until("a full outbox", async || {
        let attempts = shop.ask_once(public, 40).await;
        attempts.iter().all(|attempt| attempt.status == Some(503)).then_some(())
    })
    .await;
    let begun = relay_steps(relay).await.unwrap();
    until("many rounds of the relay", async || {
        (relay_steps(relay).await? > begun + 100).then_some(())
    })
    .await;
    assert!(fixture.open_dead_letters(internal).is_empty(), "the queue rejects every message");
    // Each bucket is loaded while its entries wait, and keeps its entries.
    let waiting = stage(internal, "sale", "unsettled").await;
    fixture.redis.kill();
    fixture.redis.restart();
    until("the requests that waited", async || {
        (try_stage(internal, "unsettled").await? >= waiting).then_some(())
    })
    .await;
    fixture.rabbit.ctl(&["clear_policy", "full"]);
}

fn broker_fails(outbox: &str) {
    let fixture = PipelineFixture::new(outbox)
        .with("outbox.envelope_max", "1")
        .with("outbox.entries_max", "20")
        .with("relay.attempts_max", "3")
        .with("amqp.reconnect_max_ms", "50")
        // A stopped Redis refuses connections at once; a slow one needs the time.
        .with("redis.connect_timeout_ms", "10000")
        .with("redis.command_timeout_ms", "10000");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [maintenance, api, relay] =
            ["maintenance", "api", "relay"].map(|role| fixture.server(role, &[]));
        let mut consumer = fixture.server("consumer", &[]);
        let mut shop = Shop::open(maintenance.internal, 20_000).await;
        let at = [api.public, maintenance.internal, relay.internal];
        assert!(!api.log().contains(FULL), "{}", api.log());
        long_outage(&fixture, &mut shop, at).await;
        // One for each bucket in a minute, however many buyers are refused.
        let num_logged = api.log().matches(FULL).count();
        assert!((1..100).contains(&num_logged), "{num_logged} lines");
        // No consumer may empty the queue that must stay full.
        consumer.kill();
        rejecting_queue(&fixture, &mut shop, at).await;
        consumer = fixture.server("consumer", &[]);
        assert_drains(&fixture, maintenance.internal, shop.sell(api.public, 40)).await;
        shop.check(&fixture, maintenance.internal).await;
        drop(consumer);
    });
}

#[test]
fn a_broker_that_is_away_or_refuses_loses_nothing_from_a_list() {
    broker_fails("list");
}

#[test]
fn a_broker_that_is_away_or_refuses_loses_nothing_from_a_stream() {
    broker_fails("stream");
}
