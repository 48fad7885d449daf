//! Orders in outbox and broker that no gate accepted.

use bytes::Bytes;
use floodgate::domain::OrderIntent;
use floodgate::messages::envelope;
use floodgate::redis::scripts::intent::{IntentKey, pack};

use crate::support::gate::metric;
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
        let headers = envelope::headers(&body, &intruder.installation, 1);
        intruder.publish(headers, body).await;
        dead_letter_of(&fixture, &server, &changed, FORGED).await;
        assert_eq!(metric(server.internal, "floodgate_consumer_poison", "forged").await, 3);

        // A signed order outside the window is none.
        let early = OrderIntent { placed_at_ms: 1_000, ..intruder.intent(8_000_004, 4) };
        let body = Bytes::from(intruder.pack(&early));
        let headers = envelope::headers(&body, &intruder.installation, 1);
        intruder.publish(headers, body.clone()).await;
        dead_letter_of(&fixture, &server, &body, " ms before the window").await;

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
