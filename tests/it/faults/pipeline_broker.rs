//! A broker that is away, and one that refuses: C07.

use std::net::SocketAddr;

use floodgate::runtime::clock::now_monotonic;
use serde_json::Value as Json;

use crate::support::admin::stage;
use crate::support::gate::try_stage;
use crate::support::pipeline::PipelineGround;
use crate::support::shop::Shop;
use crate::support::wait::{drains_within, until};

/// Does something that needs the broker, which has just become well, and waits until everything
/// has ended.
async fn drains(ground: &PipelineGround, internal: SocketAddr, work: impl Future<Output = ()>) {
    let begun = now_monotonic();
    work.await;
    ground.drained(internal).await;
    let took = now_monotonic().duration_since(begun);
    println!("drained after {took:?}");
    assert!(took < drains_within(), "drained after {took:?}");
    assert!(ground.open_letters(internal).is_empty(), "the broker's trouble is no attempt");
}

/// Steps that the relay workers of a process have made.
async fn relay_steps(internal: SocketAddr) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let relays = report["actors"].as_array()?.iter().filter(|one| one["kind"] == "outbox_relay");
    relays.map(|one| one["steps"].as_u64()).sum()
}

/// C07, first part: nobody's fault, so no attempt of any entry. When the outbox is full, buyers are
/// told to come again.
async fn away_for_long(
    ground: &PipelineGround,
    shop: &mut Shop,
    [public, internal, relay]: [SocketAddr; 3],
) {
    let crowd = shop.crowd(public, 500);
    ground.settle_queues();
    ground.rabbit.kill();
    ground.rabbit.restart();
    drains(ground, internal, shop.settle(public, crowd)).await;

    ground.rabbit.kill();
    let refused = until("a full outbox", async || {
        let heard = shop.ask_once(public, 40).await;
        heard.iter().all(|heard| heard.status == Some(503)).then_some(heard)
    })
    .await;
    for heard in refused {
        assert_eq!(heard.code.as_deref(), Some("busy"), "{heard:?}");
    }
    assert!(stage(internal, "sale", "unsettled").await > 0);
    // Far more rounds than an entry has attempts.
    let begun = relay_steps(relay).await.unwrap();
    until("many rounds of the relay", async || {
        (relay_steps(relay).await? > begun + 100).then_some(())
    })
    .await;
    ground.rabbit.restart();
    drains(ground, internal, shop.sell(public, 40)).await;
}

/// C07, second part: a queue that refuses everything is no fault of an entry either. The outbox
/// becomes full, nothing becomes a dead letter, what waits outlives a restart of Redis, and
/// everything lands once the queue takes messages.
async fn refusing(
    ground: &PipelineGround,
    shop: &mut Shop,
    [public, internal, relay]: [SocketAddr; 3],
) {
    let full = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    let pattern = r"^fg\.orders\.";
    ground.rabbit.ctl(&["set_policy", "full", pattern, full, "--apply-to", "queues"]);
    // The queue hears of its policy a little later.
    until("a full outbox", async || {
        let heard = shop.ask_once(public, 40).await;
        heard.iter().all(|heard| heard.status == Some(503)).then_some(())
    })
    .await;
    let begun = relay_steps(relay).await.unwrap();
    until("many rounds of the relay", async || {
        (relay_steps(relay).await? > begun + 100).then_some(())
    })
    .await;
    assert!(ground.open_letters(internal).is_empty(), "nothing shows that it takes others");
    // Each bucket is loaded while its entries wait, and keeps them.
    let waiting = stage(internal, "sale", "unsettled").await;
    ground.redis.kill();
    ground.redis.restart();
    until("the requests that waited", async || {
        (try_stage(internal, "unsettled").await? >= waiting).then_some(())
    })
    .await;
    ground.rabbit.ctl(&["clear_policy", "full"]);
}

fn broker_fails(outbox: &str) {
    let ground = PipelineGround::new(outbox)
        .with("outbox.envelope_max", "1")
        .with("outbox.entries_max", "20")
        .with("relay.attempts_max", "3")
        .with("amqp.reconnect_max_ms", "50")
        // A Redis that is away refuses; one that is slow is waited for.
        .with("redis.connect_timeout_ms", "10000")
        .with("redis.command_timeout_ms", "10000");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [keeper, api, relay] =
            ["maintenance", "api", "relay"].map(|role| ground.server(role, &[]));
        let mut consumer = ground.server("consumer", &[]);
        let mut shop = Shop::open(keeper.internal, 20_000).await;
        let at = [api.public, keeper.internal, relay.internal];
        away_for_long(&ground, &mut shop, at).await;
        // Nobody may empty the queue that is to be full.
        consumer.kill();
        refusing(&ground, &mut shop, at).await;
        consumer = ground.server("consumer", &[]);
        drains(&ground, keeper.internal, shop.sell(api.public, 40)).await;
        shop.judge(&ground, keeper.internal).await;
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
