//! Writes foreign entries and messages into outbox and broker, and finds their dead letters.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use floodgate::broker::{
    Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route, Topology,
};
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, RequestId, SkuNo, TraceId, dead_letter,
};
use floodgate::redis::scripts::intent;
use floodgate::runtime::clock::wall_ms;
use serde_json::Value as Json;

use super::intents::{IntentKey, key_of};
use super::pipeline::PipelineFixture;
use super::process::Server;
use super::wait::until;

/// Writes to keys and queues that only Floodgate should write.
pub struct Intruder {
    outgoing: Box<dyn PublishChannel>,
    _broker: RabbitBroker,
    /// The installation id of the ledger.
    pub installation: String,
    /// The key of the installation, which only its processes have.
    key: IntentKey,
    sku: SkuNo,
    epoch: Epoch,
    buckets: u16,
}

impl Intruder {
    /// Reads SKU, epoch and installation from the Redis keys of a sale with `buckets` buckets.
    pub async fn new(fixture: &PipelineFixture, buckets: u16) -> Self {
        let names: Vec<String> =
            redis::from_redis_value(fixture.redis.cmd(&["KEYS", "fg:*:bucket"])).unwrap();
        let sku = names[0].split(['{', ':', '}']).find_map(|part| part.parse().ok()).unwrap();
        let opening = fixture.redis.text(&["HGET", &names[0], "epoch"]);
        let (installation, epoch) = opening.split_once('.').unwrap();
        // The same topology as the server under test.
        let topology = Topology::new("fg", 1, 100);
        let broker = RabbitBroker::new(fixture.rabbit.options(topology)).unwrap();
        Self {
            outgoing: broker.open_channel(64),
            _broker: broker,
            installation: installation.to_owned(),
            key: key_of(&fixture.settings(&[])).await,
            sku: SkuNo(sku),
            epoch: Epoch(epoch.parse().unwrap()),
            buckets,
        }
    }

    /// A valid intent without a reservation.
    pub fn intent(&self, request: u64, buyer: u64) -> OrderIntent {
        let buyer = BuyerId::new(buyer).unwrap();
        let now = wall_ms();
        OrderIntent {
            request: RequestId::new(request).unwrap(),
            sku: self.sku,
            bucket: BucketNo::home_of(buyer, self.buckets),
            epoch: self.epoch,
            buyer,
            quantity: 1,
            slot: 0,
            quota: None,
            amount: 100,
            placed_at_ms: now,
            payment_window_s: 900,
            trace: TraceId(1),
            published_at_ms: None,
        }
    }

    /// Packs as a gate of the installation does.
    pub fn pack(&self, intent: &OrderIntent) -> Vec<u8> {
        intent::pack(intent, &self.key)
    }

    pub fn outbox_key(&self, bucket: u16) -> String {
        format!("fg:{{{}:{bucket}}}:outbox", self.sku)
    }

    /// Writes an entry into the outbox of a bucket.
    pub fn write(&self, fixture: &PipelineFixture, outbox: &str, bucket: u16, body: &[u8]) {
        let key = self.outbox_key(bucket);
        if outbox == "list" {
            fixture.redis.cmd_of_bytes(&[b"RPUSH", key.as_bytes(), body]);
        } else {
            fixture.redis.cmd_of_bytes(&[b"XADD", key.as_bytes(), b"*", b"intents", body]);
        }
    }

    /// Publishes a message to the order queue.
    pub async fn publish(&mut self, headers: Headers, body: Bytes) {
        self.publish_to(Route::Orders(0), headers, body).await;
    }

    /// Publishes a message to the dead-letter queue.
    pub async fn publish_dead(&mut self, headers: Headers, body: Bytes) {
        self.publish_to(Route::Dead, headers, body).await;
    }

    async fn publish_to(&mut self, route: Route, headers: Headers, body: Bytes) {
        let message = Message { route, headers, body };
        until("a message in its queue", async || {
            let outcomes = self.outgoing.publish(vec![message.clone()]).await;
            (outcomes == [PublishOutcome::Confirmed]).then_some(())
        })
        .await;
    }

    /// Publishes an undecodable message to the order queue and returns its body.
    pub async fn publish_junk(&mut self, number: usize) -> Bytes {
        let body = Bytes::from(format!("junk {number}"));
        let headers = Headers { message_id: format!("junk-{number}"), ..Headers::default() };
        self.publish(headers, body.clone()).await;
        body
    }
}

/// Waits for an open dead letter with this body (it may be stored truncated) whose reason contains
/// `reason`.
pub async fn dead_letter_of(
    fixture: &PipelineFixture,
    server: &Server,
    body: &[u8],
    reason: &str,
) -> Json {
    let stored = &body[..body.len().min(dead_letter::BODY_BYTES_MAX)];
    let client = reqwest::Client::new();
    until(&format!("a dead letter because of {reason:?}"), async || {
        for dead_letter in fixture.open_dead_letters(server.internal) {
            let is_candidate = dead_letter["body_bytes"] == body.len()
                && dead_letter["reason"].as_str().unwrap().contains(reason);
            if !is_candidate {
                continue;
            }
            let id = dead_letter["id"].as_str().unwrap();
            let url = format!("http://{}/admin/v1/dead-letters/{id}", server.internal);
            let content: Json = client.get(url).send().await.ok()?.json().await.ok()?;
            if STANDARD.decode(content["body"].as_str()?).unwrap() == stored {
                return Some(content);
            }
        }
        None
    })
    .await
}
