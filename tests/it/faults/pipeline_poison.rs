//! What no version of this program wrote, in outbox and order queue: C20.

use bytes::Bytes;
use floodgate::broker::Headers;
use floodgate::domain::OrderIntent;
use floodgate::messages::envelope;
use floodgate::redis::scripts::intent::{INTENT_BYTES, pack};

use crate::support::pipeline::PipelineGround;
use crate::support::poison::{Intruder, letter_of};
use crate::support::process::Server;
use crate::support::shop::Shop;
use crate::support::wait::until;
use crate::wire::{Beast, zoo};

/// Where the number of the SKU is in an intent.
const SKU_AT: std::ops::Range<usize> = 28..32;

/// The beasts, as messages of this installation; those that name the SKU of the files name ours.
fn beasts(intruder: &Intruder) -> Vec<Beast> {
    let ours = pack(&intruder.intent(1, 1))[SKU_AT].to_vec();
    let mut beasts = zoo();
    for beast in &mut beasts {
        beast.headers.installation = Some(intruder.installation.clone());
        if beast.body.len() == INTENT_BYTES && beast.body[SKU_AT] == 7_u32.to_be_bytes() {
            let mut body = beast.body.to_vec();
            body[SKU_AT].copy_from_slice(&ours);
            beast.body = body.into();
        }
        // How much is too much is the policy's affair.
        if beast.reason.starts_with("quantity ") {
            "quantity 4294967295 is more than ".clone_into(&mut beast.reason);
        }
    }
    beasts
}

/// Every body that is wrong by itself, and in a stream an entry of another form; the good ones
/// around them land.
async fn in_outbox(ground: &PipelineGround, server: &Server, outbox: &str, intruder: &Intruder) {
    let mut num = 0;
    for (beast, bucket) in beasts(intruder).iter().zip((0..4).cycle()) {
        if beast.flaw != "version" {
            intruder.write(ground, outbox, bucket, &beast.body);
            num += 1;
        }
    }
    assert_eq!(num, 11, "all but the one that only its headers make a beast");
    if outbox == "stream" {
        ground.redis.cmd(&["XADD", &intruder.outbox_key(0), "*", "order", "7"]);
        num += 1;
    }
    for beast in beasts(intruder).iter().filter(|beast| beast.flaw != "version") {
        let letter = letter_of(ground, server, &beast.body, "").await;
        let reason = letter["reason"].as_str().unwrap();
        assert!(!reason.is_empty(), "{}", beast.what);
        let origin = if ["sku", "content"].contains(&&*beast.flaw) { "consumer" } else { "relay" };
        assert_eq!(letter["origin"], origin, "{}: {reason}", beast.what);
    }
    until("all letters", async || {
        (ground.open_letters(server.internal).len() == num).then_some(())
    })
    .await;
}

async fn in_order_queue(ground: &PipelineGround, server: &Server, intruder: &mut Intruder) {
    let beasts = beasts(intruder);
    for beast in &beasts {
        intruder.publish(beast.headers.clone(), beast.body.clone()).await;
    }
    for beast in &beasts {
        letter_of(ground, server, &beast.body, &beast.reason).await;
    }

    // One bad order between two good ones: it dies alone.
    let [first, second] = [1, 2].map(|n| pack(&intruder.intent(9_000_000 + n, 9_000_000 + n)));
    let bad = pack(&OrderIntent { amount: 1, ..intruder.intent(9_000_003, 9_000_003) });
    let body = Bytes::from([first, bad.clone(), second].concat());
    let headers = envelope::headers(&body, &intruder.installation, 1).unwrap();
    intruder.publish(headers.clone(), body.clone()).await;
    letter_of(ground, server, &bad, "amount 1, price times quantity is 100").await;

    // A message of a newer version, another party's, and one of another installation.
    let newer = Headers { version: Some(2), ..headers.clone() };
    intruder.publish(newer, body.clone()).await;
    letter_of(ground, server, &body, "version 2 is newer than 1").await;
    let other = Headers { installation: Some("0badcafe".to_owned()), ..headers };
    intruder.publish(other, body.clone()).await;
    letter_of(ground, server, &body, "it belongs to installation \"0badcafe\"").await;
    let junk = intruder.publish_junk(0).await;
    letter_of(ground, server, &junk, "").await;
}

fn poisoned(outbox: &str) {
    let ground = PipelineGround::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = ground.server("all", &[]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let mut intruder = Intruder::new(&ground, 4);
        let crowd = shop.crowd(server.public, 1_000);
        in_outbox(&ground, &server, outbox, &intruder).await;
        shop.settle(server.public, crowd).await;
        let crowd = shop.crowd(server.public, 1_000);
        in_order_queue(&ground, &server, &mut intruder).await;
        shop.settle(server.public, crowd).await;
        let verdict = ground.judge(0, server.internal, &shop.history, 5_000).await;
        // All of the crowds, and the two good ones of the mixed envelope.
        assert_eq!((verdict.acknowledged, verdict.ok, verdict.failed), (2_000, 2_002, 0));
    });
}

#[test]
fn poison_ends_among_the_dead_letters_with_a_list() {
    poisoned("list");
}

#[test]
fn poison_ends_among_the_dead_letters_with_a_stream() {
    poisoned("stream");
}
