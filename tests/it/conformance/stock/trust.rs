//! The errors of a stock on Redis, and when it drops its cache.

use floodgate::domain::{BucketNo, Epoch, LoaderToken, Phase, SkuNo};
use floodgate::redis::executor::CallError;
use floodgate::redis::scripts::snapshot::{BucketCounts, read_all};
use floodgate::redis::scripts::{self, BucketKeys, OutboxArgs, Pages};
use floodgate::stock::{BucketHealth, Error};
use redis::{Client, Connection};

use super::{FIRST_LOAD, OPENING, Shop, SingleRedis};
use crate::lua::harness::{Fixture, ScriptClient, opening};
use crate::support::offers::{ANY, ONE, run, sku};
use crate::support::servers::redis::Redis;

fn connect(backend: &SingleRedis) -> Connection {
    Client::open(backend.redis.url()).unwrap().get_connection().unwrap()
}

fn keys(shop: &Shop) -> BucketKeys {
    BucketKeys::new("test", shop.sku.no, BucketNo(0))
}

#[test]
fn a_partly_accepted_batch_has_an_unknown_outcome() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let shop = Shop::open(&backend, ANY, 10, 1).await;
        let (first, mut second) = (shop.reservation(1, 1, 1), shop.reservation(2, 2, 1));
        second.epoch = Epoch(2);
        // The second script call finds a damaged record.
        let page = keys(&shop).requests(Pages::of_sku(&shop.sku).page_of(2));
        let mut redis = connect(&backend);
        redis::Cmd::hset(&page, 2, "damaged").query::<()>(&mut redis).unwrap();
        let alone = shop.stock.reserve(shop.key(0), vec![second]).await;
        assert!(matches!(alone, Err(Error::Damaged { .. })), "the call changed nothing: {alone:?}");

        let both = shop.stock.reserve(shop.key(0), vec![first, second]).await;
        assert!(matches!(both, Err(Error::Unknown { .. })), "{both:?}");
        assert_eq!(shop.free().await, [9], "the first reservation was accepted");
    });
}

/// The script has run, and may have accepted the request.
#[test]
fn an_answer_that_cannot_be_read_has_an_unknown_outcome() {
    let error = Error::from(CallError::Rejected {
        operation: "reserving",
        sku: SkuNo(1),
        key: "bucket".to_owned(),
        error: scripts::Error::Unexpected { script: "reserve", reply: "nothing".to_owned() },
    });
    assert!(!error.is_certain(), "{error:?}");
}

/// A missing bucket sells nothing, but the other one may sell on.
#[test]
fn a_bucket_that_did_not_take_a_phase_is_reported_before_a_missing_one() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let shop = Shop::open(&backend, ANY, 10, 2).await;
        let mut redis = connect(&backend);
        redis::Cmd::del(keys(&shop).bucket()).query::<()>(&mut redis).unwrap();
        let pause = async || shop.stock.set_phase(&shop.sku, Phase::Paused, OPENING).await;
        assert_eq!(pause().await, Err(Error::NotLoaded(shop.sku.no)));

        let other = BucketKeys::new("test", shop.sku.no, BucketNo(1)).bucket();
        redis::Cmd::hset(&other, "phase", "unreadable").query::<()>(&mut redis).unwrap();
        let paused = pause().await;
        assert!(matches!(paused, Err(Error::Damaged { .. })), "{paused:?}");
    });
}

#[test]
fn a_bucket_that_is_not_ready_invalidates_the_cache() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let here = Shop::open(&backend, ONE, 1, 1).await;
        let there = here.in_other_process(&backend).await;
        let _hints = there.stock.result_hints().await.unwrap();
        let mut redis = connect(&backend);
        here.take(&[here.reservation(1, 1, 1)]).await;
        let bucket = keys(&here).bucket();
        let health = async || there.stock.health(&there.sku, Phase::Paused, OPENING).await;
        let other = there.reservation(2, 2, 1);
        let may_have_accepted = || there.stock.may_have_accepted(there.key(0), other.request);

        there.refresh().await;
        assert!(there.is_sold_out() && !may_have_accepted());
        redis::Cmd::hset(&bucket, "server", "another").query::<()>(&mut redis).unwrap();
        assert!(matches!(health().await, Ok(BucketHealth::Distrusted { .. })));
        assert!(!there.is_sold_out() && may_have_accepted());

        here.load(LoaderToken(2), 0, Vec::new(), Vec::new()).await;
        there.refresh().await;
        assert!(there.is_sold_out() && !may_have_accepted());
        let _loading = here.stock.load(here.sku.clone(), LoaderToken(3)).await.unwrap();
        assert_eq!(health().await, Ok(BucketHealth::Missing));
        assert!(!there.is_sold_out() && may_have_accepted());
    });
}

/// Each refresh renews the cache, which would hide a withdrawal whose process has crashed.
#[test]
fn the_health_of_buckets_with_withdrawn_units_is_not_read_from_the_cache() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let here = Shop::open(&backend, ANY, 10, 1).await;
        let there = here.in_other_process(&backend).await;
        assert_eq!(here.stock.withdraw(here.sku.no, 3).await.unwrap().units, 3);
        there.refresh().await;
        let _loading = here.stock.load(here.sku.clone(), LoaderToken(2)).await.unwrap();
        let health = there.stock.health(&there.sku, Phase::Open, OPENING).await;
        assert_eq!(health, Ok(BucketHealth::Missing));
    });
}

/// The SKU is loaded between the loans of its two buckets, and the first one is free again.
#[test]
fn a_withdrawal_belongs_to_the_load_of_its_first_loan() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let shop = Shop::open(&backend, ANY, 10, 2).await;
        let mut client = ScriptClient::new(&backend.redis);
        let mut fixture = Fixture::new(&backend.redis, shop.sku.as_ref().clone());
        fixture.fence.server =
            backend.redis.text(&["HGET", &keys(&shop).bucket(), "server"]).into();
        let later = LoaderToken(2);
        fixture.load_begin(&mut client, 1, later).unwrap();
        let open = opening(later, 5).call(&fixture.buckets[1]);
        assert_eq!(fixture.run(&mut client, &open), Ok(true));
        let withdrawal = shop.stock.withdraw(shop.sku.no, 4).await.unwrap();
        assert_eq!((withdrawal.loans.len(), withdrawal.load), (2, Some(FIRST_LOAD)));
    });
}

/// The buckets are read one after the other.
#[test]
fn buckets_are_empty_only_if_no_unit_came_to_one_between_two_readings() {
    run(async {
        let redis = Redis::start();
        let mut client = ScriptClient::new(&redis);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ANY, 2), 0);
        let empty = fixture.counts(&mut client, 0);
        let queued = |num_queued| BucketCounts { num_queued, ..empty.clone() };
        let moved = |no| BucketCounts { borrowed: vec![(BucketNo(1), no)], ..empty.clone() };
        let mut returned = empty.clone();
        returned.left.changes += 1;
        let mut free = moved(3);
        free.left.stock = 1;
        let cases = [
            // Results settle meanwhile.
            ([queued(3), queued(2), queued(1)], Some(queued(2))),
            ([moved(1), moved(2), moved(2)], Some(moved(2))),
            ([moved(1), moved(2), free.clone()], Some(free)),
            ([moved(1), moved(2), moved(3)], None),
            // A unit returned and moved on.
            ([moved(1), empty.clone(), returned], None),
        ];
        for (readings, expected) in cases {
            let case = format!("{readings:?}");
            let mut readings = readings.into_iter();
            let read = || std::future::ready(Ok::<_, ()>(vec![readings.next().unwrap()]));
            let expected = expected.map(|counts| vec![counts]);
            assert_eq!(read_all(read).await, Ok(expected), "{case}");
        }
    });
}

#[test]
fn a_load_that_keeps_only_queued_requests_denies_none_of_them() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let here = Shop::open(&backend, ONE, 1, 1).await;
        let there = here.in_other_process(&backend).await;
        let accepted = here.reservation(1, 1, 1);
        here.take(&[accepted]).await;
        // The ledger has neither an order nor a failure.
        here.load(LoaderToken(2), 1, Vec::new(), Vec::new()).await;
        for shop in [&here, &there] {
            shop.refresh().await;
            assert!(shop.is_sold_out(), "the request holds the only unit");
            assert!(shop.stock.may_have_accepted(shop.key(0), accepted.request));
        }
    });
}
