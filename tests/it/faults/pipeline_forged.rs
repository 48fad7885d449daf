//! Orders in outbox and broker that no gate accepted, and those of message version 1, which show
//! nothing of their origin.

use bytes::Bytes;
use floodgate::domain::OrderIntent;
use floodgate::messages::envelope::{self, intents_in};
use floodgate::redis::scripts::intent::{IntentKey, pack};

use crate::support::gate::metric;
use crate::support::intents::pack_unsigned;
use crate::support::pipeline::PipelineFixture;
use crate::support::poison::{Intruder, dead_letter_of};
use crate::support::shop::Shop;

const FORGED: &str = "no gate of this installation wrote it";

/// Byte of the buyer in an intent that becomes another buyer.
const BUYER_AT: usize = 7;

fn forged_orders_become_dead_letters(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 1_000).await;
        let mut intruder = Intruder::new(&fixture, 4).await;
        shop.sell(server.public, 100).await;

        // In the outbox of a bucket: all of an order is right, but for the key.
        let stranger = IntentKey::new(b"a key that was guessed");
        let entry = [1, 2].map(|no| pack(&intruder.intent(8_000_000 + no, no), &stranger));
        intruder.write(&fixture, outbox, 0, &entry.concat());
        for forged in &entry {
            let dead_letter = dead_letter_of(&fixture, &server, forged, FORGED).await;
            assert_eq!(dead_letter["replayable"], false, "{dead_letter}");
            assert!(dead_letter["why_not"].as_str().unwrap().contains(FORGED), "{dead_letter}");
        }

        // In the broker: the order of a gate, made out to another buyer.
        let mut changed = intruder.pack(&intruder.intent(8_000_003, 3));
        changed[BUYER_AT] ^= 1;
        let body = Bytes::from(changed.clone());
        let headers = envelope::headers(&body, &intruder.installation, 1).unwrap();
        intruder.publish(headers, body).await;
        dead_letter_of(&fixture, &server, &changed, FORGED).await;
        assert_eq!(metric(server.internal, "floodgate_consumer_poison", "forged").await, 3);

        // Version 1 shows nothing; a signed order outside the window is none.
        let body = Bytes::from(pack_unsigned(&intruder.intent(8_000_004, 4)));
        let headers = envelope::headers(&body, &intruder.installation, 1).unwrap();
        intruder.publish(headers, body.clone()).await;
        dead_letter_of(&fixture, &server, &body, "version 1 does not show who wrote it").await;
        let early = OrderIntent { placed_at_ms: 1_000, ..intruder.intent(8_000_005, 5) };
        let body = Bytes::from(intruder.pack(&early));
        let headers = envelope::headers(&body, &intruder.installation, 1).unwrap();
        intruder.publish(headers, body.clone()).await;
        dead_letter_of(&fixture, &server, &body, "the window is").await;

        shop.sell(server.public, 100).await;
        let verdict = fixture.check(0, server.internal, &shop.history, 1_000).await;
        assert_eq!((verdict.ok, verdict.failed), (200, 0), "{verdict}");
    });
}

#[test]
fn forged_orders_become_dead_letters_with_a_list() {
    forged_orders_become_dead_letters("list");
}

#[test]
fn forged_orders_become_dead_letters_with_a_stream() {
    forged_orders_become_dead_letters("stream");
}

/// Twenty accepted requests, whose entries were written by a gate of version 1. Returns the number
/// of dead letters once all are orders.
fn upgraded(accept_unsigned: &str) -> usize {
    let fixture = PipelineFixture::new("list").with("consumer.accept_unsigned", accept_unsigned);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let api = fixture.server("api", &[]);
        let maintenance = fixture.server("maintenance", &[]);
        let mut shop = Shop::open(maintenance.internal, 100).await;
        shop.sell(api.public, 20).await;
        let intruder = Intruder::new(&fixture, 4).await;
        let mut num_rewritten = 0;
        for bucket in 0..4 {
            let key = intruder.outbox_key(bucket);
            let entries = fixture.redis.cmd(&["LRANGE", &key, "0", "-1"]);
            let entries: Vec<Vec<u8>> = redis::from_redis_value(entries).unwrap();
            fixture.redis.cmd(&["DEL", &key]);
            for entry in entries {
                let intents = intents_in(&entry);
                let older: Vec<u8> = intents.iter().flat_map(pack_unsigned).collect();
                intruder.write(&fixture, "list", bucket, &older);
                num_rewritten += intents.len();
            }
        }
        assert_eq!(num_rewritten, 20);
        // A gate of the present version, beside them.
        shop.sell(api.public, 20).await;

        let _relay = fixture.server("relay", &[]);
        let _consumer = fixture.server("consumer", &[]);
        let verdict = fixture.check(0, maintenance.internal, &shop.history, 100).await;
        assert_eq!((verdict.ok, verdict.failed), (40, 0), "{verdict}");
        let dead_letters = fixture.open_dead_letters(maintenance.internal);
        for dead_letter in &dead_letters {
            let reason = dead_letter["reason"].as_str().unwrap();
            assert!(reason.starts_with("version 1 does not show"), "{reason}");
        }
        dead_letters.len()
    })
}

#[test]
fn orders_of_version_1_are_written_where_they_are_accepted() {
    assert_eq!(upgraded("true"), 0);
}

/// Their requests are in their buckets: the reconciler publishes them again, signed.
#[test]
fn refused_orders_of_version_1_are_published_again() {
    assert!(upgraded("false") > 0);
}
