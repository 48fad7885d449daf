//! What does not belong into outbox and order queue, put there by hand, and where it ends.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use floodgate::broker::{
    Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route, Topology,
};
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, RequestId, SkuNo, TraceId, dead_letter,
};
use floodgate::runtime::clock::wall_ms;
use serde_json::Value as Json;

use super::pipeline::PipelineGround;
use super::process::Server;
use super::wait::until;

/// Somebody who writes where only Floodgate should.
pub struct Intruder {
    outgoing: Box<dyn PublishChannel>,
    _broker: RabbitBroker,
    /// Of the ledger.
    pub installation: String,
    /// Of the one SKU.
    sku: SkuNo,
    epoch: Epoch,
    buckets: u16,
}

impl Intruder {
    /// Learns the names from the keys of a sale with so many buckets.
    pub fn new(ground: &PipelineGround, buckets: u16) -> Self {
        let names: Vec<String> =
            redis::from_redis_value(ground.redis.cmd(&["KEYS", "fg:*:bucket"])).unwrap();
        let sku = names[0].split(['{', ':', '}']).find_map(|part| part.parse().ok()).unwrap();
        let opening = ground.redis.text(&["HGET", &names[0], "epoch"]);
        let (installation, epoch) = opening.split_once('.').unwrap();
        // As the server under test declares it.
        let topology = Topology::new("fg", 1, 100);
        let broker = RabbitBroker::new(ground.rabbit.options(topology)).unwrap();
        Self {
            outgoing: broker.outgoing(64),
            _broker: broker,
            installation: installation.to_owned(),
            sku: SkuNo(sku),
            epoch: Epoch(epoch.parse().unwrap()),
            buckets,
        }
    }

    /// An order that nobody reserved, and that the sale allows.
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
            pay_by_ms: now + 900_000,
            trace: TraceId(1),
            published_at_ms: None,
        }
    }

    pub fn outbox_key(&self, bucket: u16) -> String {
        format!("fg:{{{}:{bucket}}}:outbox", self.sku)
    }

    /// An entry into the outbox of a bucket.
    pub fn write(&self, ground: &PipelineGround, outbox: &str, bucket: u16, body: &[u8]) {
        let key = self.outbox_key(bucket);
        if outbox == "list" {
            ground.redis.cmd_of_bytes(&[b"RPUSH", key.as_bytes(), body]);
        } else {
            ground.redis.cmd_of_bytes(&[b"XADD", key.as_bytes(), b"*", b"intents", body]);
        }
    }

    /// A message into the order queue.
    pub async fn publish(&mut self, headers: Headers, body: Bytes) {
        self.publish_to(Route::Orders(0), headers, body).await;
    }

    /// A message among the dead letters of the broker.
    pub async fn publish_dead(&mut self, headers: Headers, body: Bytes) {
        self.publish_to(Route::Dead, headers, body).await;
    }

    async fn publish_to(&mut self, route: Route, headers: Headers, body: Bytes) {
        let message = Message { route, headers, body };
        until("a message in its queue", async || {
            let sent = self.outgoing.publish(vec![message.clone()]).await;
            (sent == [PublishOutcome::Confirmed]).then_some(())
        })
        .await;
    }

    /// A message that is nobody's order.
    pub async fn publish_junk(&mut self, number: usize) -> Bytes {
        let body = Bytes::from(format!("junk {number}"));
        let headers = Headers { message_id: format!("junk-{number}"), ..Headers::default() };
        self.publish(headers, body.clone()).await;
        body
    }
}

/// Waits for an open dead letter with this body, or its beginning, and these words in its reason.
pub async fn letter_of(ground: &PipelineGround, server: &Server, body: &[u8], why: &str) -> Json {
    let kept = &body[..body.len().min(dead_letter::BODY_BYTES_MAX)];
    let client = reqwest::Client::new();
    until(&format!("a dead letter because of {why:?}"), async || {
        for letter in ground.open_letters(server.internal) {
            let is_like = letter["body_bytes"] == body.len()
                && letter["reason"].as_str().unwrap().contains(why);
            if !is_like {
                continue;
            }
            let id = letter["id"].as_str().unwrap();
            let url = format!("http://{}/admin/v1/dead-letters/{id}", server.internal);
            let whole: Json = client.get(url).send().await.ok()?.json().await.ok()?;
            if STANDARD.decode(whole["body"].as_str()?).unwrap() == kept {
                return Some(whole);
            }
        }
        None
    })
    .await
}
