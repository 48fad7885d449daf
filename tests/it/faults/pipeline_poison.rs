//! Poison messages in the outbox and in the order queue: C20.

use bytes::Bytes;
use floodgate::broker::Headers;
use floodgate::domain::{OrderIntent, SkuNo};
use floodgate::messages::envelope::{self, BODY_BYTES_MAX};

use crate::support::pipeline::PipelineFixture;
use crate::support::poison::{Intruder, dead_letter_of};
use crate::support::process::Server;
use crate::support::shop::Shop;
use crate::support::wait::until;
use crate::wire::{MalformedMessage, malformed_messages};

/// The SKU of the orders in the files.
const SKU: SkuNo = SkuNo(7);

/// The byte of an intent that has its version.
const VERSION_AT: usize = 22;

/// The poison messages of the files, with the installation, its signatures, and the SKU of this
/// test.
fn poison_messages(intruder: &Intruder) -> Vec<MalformedMessage> {
    let ours = intruder.intent(1, 1).sku;
    let mut poison_messages = malformed_messages();
    for poison in &mut poison_messages {
        poison.headers.installation = Some(intruder.installation.clone());
        if let [intent] = envelope::intents_in(&poison.body)[..] {
            let sku = if intent.sku == SKU { ours } else { intent.sku };
            poison.body = intruder.pack(&OrderIntent { sku, ..intent }).into();
        }
        // The limit in this reason depends on the policy.
        if poison.reason.starts_with("quantity ") {
            "quantity 16777215 is more than ".clone_into(&mut poison.reason);
        }
    }
    poison_messages
}

/// Writes every body that is invalid by itself, one intent between two valid ones and, in a stream,
/// an entry of another form. The valid intents and the entries around them become orders.
async fn in_outbox(fixture: &PipelineFixture, server: &Server, outbox: &str, intruder: &Intruder) {
    let mut num = 0;
    for (poison, bucket) in poison_messages(intruder).iter().zip((0..4).cycle()) {
        if poison.flaw != "version" {
            intruder.write(fixture, outbox, bucket, &poison.body);
            num += 1;
        }
    }
    assert_eq!(num, 11, "all but the one with invalid headers only");
    if outbox == "stream" {
        fixture.redis.cmd(&["XADD", &intruder.outbox_key(0), "*", "order", "7"]);
        num += 1;
    }
    let [first, mut broken, second] =
        [1, 2, 3].map(|n| intruder.pack(&intruder.intent(9_100_000 + n, 9_100_000 + n)));
    broken[VERSION_AT] = 99;
    intruder.write(fixture, outbox, 0, &[first, broken.clone(), second].concat());
    num += 1;
    dead_letter_of(fixture, server, &broken, "an intent: an unknown version").await;
    for poison in poison_messages(intruder).iter().filter(|poison| poison.flaw != "version") {
        // The relay gives up what no message may hold.
        let is_too_long = poison.body.len() > BODY_BYTES_MAX;
        let body = &poison.body[..poison.body.len().min(BODY_BYTES_MAX)];
        let dead_letter = dead_letter_of(fixture, server, body, "").await;
        let reason = dead_letter["reason"].as_str().unwrap();
        assert!(!reason.is_empty(), "{}", poison.what);
        let origin = if is_too_long { "relay" } else { "consumer" };
        assert_eq!(dead_letter["origin"], origin, "{}: {reason}", poison.what);
    }
    until("all dead letters", async || {
        (fixture.open_dead_letters(server.internal).len() == num).then_some(())
    })
    .await;
}

async fn in_order_queue(fixture: &PipelineFixture, server: &Server, intruder: &mut Intruder) {
    let poison_messages = poison_messages(intruder);
    for poison in &poison_messages {
        intruder.publish(poison.headers.clone(), poison.body.clone()).await;
    }
    for poison in &poison_messages {
        dead_letter_of(fixture, server, &poison.body, &poison.reason).await;
    }

    // One invalid order between two valid ones: only the invalid one is dead-lettered.
    let [first, second] =
        [1, 2].map(|n| intruder.pack(&intruder.intent(9_000_000 + n, 9_000_000 + n)));
    let bad = intruder.pack(&OrderIntent { amount: 1, ..intruder.intent(9_000_003, 9_000_003) });
    let body = Bytes::from([first, bad.clone(), second].concat());
    let headers = envelope::headers(&body, &intruder.installation, 1);
    intruder.publish(headers.clone(), body.clone()).await;
    dead_letter_of(fixture, server, &bad, "amount 1, price times quantity is 100").await;

    // A message of a newer version, one of another installation, and one without a known form.
    let newer = Headers { version: Some(4), ..headers.clone() };
    intruder.publish(newer, body.clone()).await;
    dead_letter_of(fixture, server, &body, "version 4 is newer than 3").await;
    let other = Headers { installation: Some("0badcafe".to_owned()), ..headers };
    intruder.publish(other, body.clone()).await;
    dead_letter_of(fixture, server, &body, "it belongs to installation \"0badcafe\"").await;
    let junk = intruder.publish_junk(0).await;
    dead_letter_of(fixture, server, &junk, "").await;
}

fn poisoned(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let mut intruder = Intruder::new(&fixture, 4).await;
        let crowd = shop.crowd(server.public, 1_000);
        in_outbox(&fixture, &server, outbox, &intruder).await;
        shop.settle(server.public, crowd).await;
        let crowd = shop.crowd(server.public, 1_000);
        in_order_queue(&fixture, &server, &mut intruder).await;
        shop.settle(server.public, crowd).await;
        let verdict = fixture.check(0, server.internal, &shop.history, 5_000).await;
        // All orders of both crowds, and the valid ones of the mixed entry and the mixed message.
        assert_eq!((verdict.acknowledged, verdict.ok, verdict.failed), (2_000, 2_004, 0));
    });
}

#[test]
fn poison_messages_become_dead_letters_with_a_list() {
    poisoned("list");
}

#[test]
fn poison_messages_become_dead_letters_with_a_stream() {
    poisoned("stream");
}
