//! Stocks on Redis with an outbox: accepted requests wait for a relay, and `unsettled` finds them
//! even in a damaged bucket and after a change of the tier.

use std::sync::Arc;

use floodgate::domain::{LoaderToken, OrderIntent, Phase, TraceId, Verdict};
use floodgate::redis::scripts::intent::{IntentKey, pack};
use floodgate::redis::scripts::{BucketKeys, EntryLimits, OutboxArgs, Pages};
use floodgate::stock::{BucketHealth, Error};
use redis::{Client, Connection};

use super::{Backend, FIRST_LOAD, OPENING, Shop, SingleRedis, on_redis, sku};
use crate::lua::harness::{KINDS, OUTBOXES};
use crate::support::offers::{ONE, buyer, request, run};

/// An initial stock with more request pages than one call reads.
const PLANNED: u32 = 20_000;

fn connect(backend: &SingleRedis) -> Connection {
    Client::open(backend.redis.url()).unwrap().get_connection().unwrap()
}

fn command(connection: &mut Connection, words: &[&str]) -> redis::Value {
    redis::Cmd::new().arg(words).query(connection).unwrap()
}

fn keys(shop: &Shop) -> BucketKeys {
    BucketKeys::new("test", shop.sku.no, floodgate::domain::BucketNo(0))
}

async fn unsettled(shop: &Shop) -> Result<Vec<OrderIntent>, Error> {
    let mut found = shop.stock.unsettled(shop.key(0)).await?;
    found.sort_by_key(|intent| intent.request);
    Ok(found)
}

/// Accepts requests `from..to` and returns them as `unsettled` does.
async fn accept(backend: &SingleRedis, shop: &Shop, from: u64, to: u64) -> Vec<OrderIntent> {
    let reservations: Vec<OrderIntent> = (from..to).map(|no| shop.reservation(no, no, 1)).collect();
    assert!(shop.decide(&reservations).await.iter().all(|verdict| *verdict == Verdict::Reserved));
    reservations.iter().map(|reservation| backend.unsettled(reservation)).collect()
}

#[test]
fn queued_requests_are_found_on_every_page() {
    for outbox in OUTBOXES {
        run(async {
            let backend = SingleRedis::fresh(outbox);
            let shop = Shop::open(&backend, ONE, PLANNED, 1).await;
            assert!(Pages::of_sku(&shop.sku).all().end > 128);
            let expected = accept(&backend, &shop, 1, 1_500).await;
            assert_eq!(unsettled(&shop).await, Ok(expected));
        });
    }
}

#[test]
fn an_untrusted_bucket_still_lists_what_it_accepted() {
    for outbox in KINDS {
        run(async {
            let backend = SingleRedis::fresh(outbox);
            let shop = Shop::open(&backend, ONE, 100, 1).await;
            let expected = accept(&backend, &shop, 1, 4).await;
            let (mut redis, bucket) = (connect(&backend), keys(&shop).bucket());
            let damages =
                [("server", "elsewhere"), ("stock", "-1"), ("queued", "many"), ("phase", "9")];
            for (field, damage) in damages {
                let good = redis::Cmd::hget(&bucket, field).query::<String>(&mut redis).unwrap();
                command(&mut redis, &["HSET", &bucket, field, damage]);
                let health = shop.stock.health(&shop.sku, Phase::Open, OPENING);
                drop(shop.stock.refresh(shop.sku.no).await);
                assert!(matches!(health.await, Ok(BucketHealth::Distrusted { .. })), "{field}");
                assert_eq!(unsettled(&shop).await.as_ref(), Ok(&expected), "{field}");
                command(&mut redis, &["HSET", &bucket, field, &good]);
            }
            // Requests of another installation are rejected.
            command(&mut redis, &["HSET", &bucket, "epoch", "00000000.1"]);
            assert!(matches!(unsettled(&shop).await, Err(Error::Fenced { .. })));
        });
    }
}

/// Without an outbox a process submits the intents that Redis keeps: only its own installation's.
#[test]
fn forged_intents_are_read_from_the_records_of_their_requests() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let shop = Shop::open(&backend, ONE, 100, 1).await;
        let mut expected = accept(&backend, &shop, 1, 4).await;
        let (mut redis, kept) = (connect(&backend), keys(&shop).unsettled());
        let stranger = IntentKey::new(b"another key");
        let cheap = OrderIntent { amount: 1, ..expected[0] };
        let foreign = OrderIntent { request: request(9), buyer: buyer(9), ..expected[0] };
        for (no, intent) in [("1", cheap), ("9", foreign)] {
            redis::Cmd::hset(&kept, no, pack(&intent, &stranger)).exec(&mut redis).unwrap();
        }
        expected[0].trace = TraceId(0);
        assert_eq!(unsettled(&shop).await, Ok(expected));
    });
}

#[test]
fn an_opening_that_cannot_be_read_hides_no_request() {
    run(async {
        let backend = SingleRedis::fresh(OUTBOXES[0]);
        let shop = Shop::open(&backend, ONE, 100, 1).await;
        let expected = accept(&backend, &shop, 1, 4).await;
        let (mut redis, bucket) = (connect(&backend), keys(&shop).bucket());
        command(&mut redis, &["HSET", &bucket, "epoch", "f100d6a7.first"]);
        assert_eq!(unsettled(&shop).await, Ok(expected));
    });
}

#[test]
fn a_foreign_record_does_not_hide_the_others() {
    run(async {
        let backend = SingleRedis::fresh(OUTBOXES[1]);
        let shop = Shop::open(&backend, ONE, 100, 1).await;
        let expected = accept(&backend, &shop, 1, 4).await;
        let (mut redis, page) = (connect(&backend), keys(&shop).requests(0));
        let eleven = "eleven byte";
        command(&mut redis, &["HSET", &page, "77", &format!("{eleven}Q but longer")]);
        command(&mut redis, &["HSET", &page, "no number", &format!("{eleven}Q123456")]);
        command(&mut redis, &["HSET", &page, "78", "short"]);
        assert_eq!(unsettled(&shop).await, Ok(expected));
    });
}

/// A newer version may have written it, and a sale with a queued request is not archived.
#[test]
fn a_record_that_cannot_be_read_is_queued_in_a_bucket_that_a_loader_holds() {
    run(async {
        let backend = SingleRedis::fresh(OUTBOXES[1]);
        let shop = Shop::open(&backend, ONE, 100, 1).await;
        accept(&backend, &shop, 1, 3).await;
        shop.settle(&[1, 2].map(|no| shop.reservation(no, no, 1))).await;
        let page = keys(&shop).requests(0);
        command(&mut connect(&backend), &["HSET", &page, "77", "eleven byte?123456"]);
        let _loading = shop.stock.load(shop.sku.clone(), LoaderToken(2)).await.unwrap();
        assert_eq!(shop.stock.num_unsettled_in_any_state(shop.sku.no).await, Ok(1));
    });
}

#[test]
fn a_change_of_the_tier_leaves_nothing_behind() {
    for outbox in OUTBOXES {
        run(async {
            let backend = SingleRedis::fresh(outbox);
            let shop = Shop::open(&backend, ONE, 100, 1).await;
            let waiting = accept(&backend, &shop, 1, 3).await;
            // The same buckets, without an outbox.
            let stock = on_redis(&backend.redis.url(), "test", OutboxArgs::None);
            let without_outbox = Shop { stock, sku: Arc::clone(&shop.sku) };
            without_outbox.stock.health(&without_outbox.sku, Phase::Open, OPENING).await.unwrap();
            assert_eq!(unsettled(&without_outbox).await, Ok(waiting.clone()));
            let direct = shop.reservation(3, 3, 1);
            assert_eq!(without_outbox.reserve(direct).await, Verdict::Reserved);
            let all: Vec<_> = waiting.into_iter().chain([direct]).collect();
            for shop in [&shop, &without_outbox] {
                assert_eq!(unsettled(shop).await, Ok(all.clone()));
                assert_eq!(shop.stock.num_unsettled(shop.sku.no).await, Ok(3));
                assert_eq!(shop.counts(0).await.num_unsettled, 3);
            }
            shop.settle(&[direct, shop.reservation(1, 1, 1)]).await;
            for shop in [&shop, &without_outbox] {
                assert_eq!(unsettled(shop).await, Ok(vec![all[1]]));
                assert_eq!(shop.stock.num_unsettled(shop.sku.no).await, Ok(1));
            }
        });
    }
}

#[test]
fn a_full_outbox_takes_nothing_and_answers_repeats() {
    run(async {
        let entries = EntryLimits { envelope_max: 2, entries_max: 2 };
        let backend = SingleRedis::fresh(OutboxArgs::List(entries));
        let shop = Shop { stock: backend.open().await, sku: sku(1, ONE, 100, 1) };
        shop.load(FIRST_LOAD, 100, Vec::new(), Vec::new()).await;
        accept(&backend, &shop, 1, 5).await;
        let reservation = shop.reservation(5, 5, 1);
        assert_eq!(shop.reserve(reservation).await, Verdict::Full);
        assert_eq!(shop.counts(0).await.available, 96);
        command(&mut connect(&backend), &["LPOP", &keys(&shop).outbox()]);
        assert_eq!(shop.reserve(reservation).await, Verdict::Reserved);
    });
}
