//! Errors without a certain outcome, and when a stock on Redis drops its cache.

use floodgate::domain::{Epoch, LoaderToken, Phase};
use floodgate::redis::scripts::{BucketKeys, OutboxArgs, Pages};
use floodgate::stock::{BucketHealth, Error};
use redis::{Client, Connection};

use super::{OPENING, Shop, SingleRedis};
use crate::support::offers::{ANY, ONE, run};

fn connect(backend: &SingleRedis) -> Connection {
    Client::open(backend.redis.url()).unwrap().get_connection().unwrap()
}

fn keys(shop: &Shop) -> BucketKeys {
    BucketKeys::new("test", shop.sku.no, floodgate::domain::BucketNo(0))
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

#[test]
fn a_bucket_that_is_not_ready_invalidates_the_cache() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let here = Shop::open(&backend, ONE, 1, 1).await;
        let there = here.in_other_process(&backend).await;
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
        let _loading = here.stock.load(here.sku.clone(), 0, LoaderToken(3)).await.unwrap();
        assert_eq!(health().await, Ok(BucketHealth::Missing));
        assert!(!there.is_sold_out() && may_have_accepted());
    });
}
