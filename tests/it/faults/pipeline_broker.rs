//! A broker that is away, and one that refuses: C07.

use std::net::SocketAddr;

use serde_json::Value as Json;

use crate::support::admin::stage;
use crate::support::gate::try_stage;
use crate::support::pipeline::PipelineGround;
use crate::support::shop::Shop;
use crate::support::wait::until;

/// Steps that the relay workers of a process have made.
async fn relay_steps(internal: SocketAddr) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let relays = report["actors"].as_array()?.iter().filter(|one| one["kind"] == "outbox_relay");
    relays.map(|one| one["steps"].as_u64()).sum()
}

async fn empty_outbox(internal: SocketAddr) {
    until("an empty outbox", async || {
        for name in ["outbox", "relay", "relay_dead"] {
            if try_stage(internal, name).await? > 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

/// C07, first part: nobody's fault, so no attempt of any entry. When the outbox is full, buyers are
/// told to come again.
async fn away_for_long(
    ground: &PipelineGround,
    shop: &mut Shop,
    [public, internal, relay]: [SocketAddr; 3],
) {
    let crowd = shop.crowd(public, 500);
    ground.rabbit.kill();
    ground.rabbit.restart();
    shop.settle(public, crowd).await;
    ground.drained(internal).await;
    assert!(ground.open_letters(internal).is_empty());

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
    shop.sell(public, 40).await;
    ground.drained(internal).await;
    assert!(ground.open_letters(internal).is_empty(), "its absence is no attempt");
}

/// Redis restarts, and its buckets are loaded: what no consumer has brought to the ledger is
/// brought there, but for the letters, open or parked, which keep their units.
async fn load_brings_the_others_to_the_ledger(
    ground: &PipelineGround,
    internal: SocketAddr,
    num_letters: usize,
) {
    let letters = num_letters as u64;
    assert!(stage(internal, "sale", "unsettled").await > letters, "the queue is full");
    ground.redis.kill();
    ground.redis.restart();
    until("a load that keeps the letters", async || {
        (try_stage(internal, "unsettled").await? == letters).then_some(())
    })
    .await;
}

/// C07, second part: a broker that refuses is an attempt, and the last one makes a dead letter,
/// which can be replayed.
async fn refusing(
    ground: &PipelineGround,
    shop: &mut Shop,
    public: SocketAddr,
    internal: SocketAddr,
) {
    let full = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    ground.rabbit.ctl(&["set_policy", "full", r"^fg\.orders\.", full, "--apply-to", "queues"]);
    // The queue hears of its policy a little later.
    until("dead letters", async || {
        shop.sell(public, 5).await;
        (!ground.open_letters(internal).is_empty()).then_some(())
    })
    .await;
    empty_outbox(internal).await;
    let letters = ground.open_letters(internal);
    for letter in &letters {
        assert_eq!((&letter["origin"], &letter["attempts"]), (&"relay".into(), &2.into()));
        // Attempts before the last one; the reason counts that one, too.
        let reason = letter["reason"].as_str().unwrap();
        assert!(reason.starts_with("not published in 3 attempts, last: "), "{reason}");
    }
    let parked = letters[0]["id"].as_str().unwrap().to_owned();
    ground.dlq(internal, &["park", &parked]);
    load_brings_the_others_to_the_ledger(ground, internal, letters.len()).await;
    ground.rabbit.ctl(&["clear_policy", "full"]);
    ground.dlq(internal, &["replay", "--all", "--max", "500"]);
    ground.dlq(internal, &["replay", &parked]);
    assert!(ground.open_letters(internal).is_empty());
}

fn broker_fails(outbox: &str) {
    let ground = PipelineGround::new(outbox)
        .with("outbox.envelope_max", "1")
        .with("outbox.entries_max", "20")
        .with("relay.attempts_max", "3")
        .with("amqp.reconnect_max_ms", "50");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [keeper, api, relay] = ["keeper", "api", "relay"].map(|role| ground.server(role, &[]));
        let mut consumer = ground.server("consumer", &[]);
        let mut shop = Shop::open(keeper.internal, 20_000).await;
        let at = [api.public, keeper.internal, relay.internal];
        away_for_long(&ground, &mut shop, at).await;
        // Nobody may empty the queue that is to be full.
        consumer.kill();
        refusing(&ground, &mut shop, api.public, keeper.internal).await;
        consumer = ground.server("consumer", &[]);
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
