//! What a stock on Redis believes of what it was told: not for longer than it is so.

use floodgate::domain::{Epoch, Phase};
use floodgate::redis::scripts::{BucketKeys, OutboxArgs};
use floodgate::stock::{BucketHealth, Error, LoaderToken};
use redis::{Client, Connection};

use super::{OPENING, Shop, SingleRedis};
use crate::support::offers::{ANY, ONE, run};

fn connect(backend: &SingleRedis) -> Connection {
    Client::open(backend.redis.url()).unwrap().get_connection().unwrap()
}

fn keys(shop: &Shop) -> BucketKeys {
    BucketKeys::new("test", &shop.sku, floodgate::domain::BucketNo(0))
}

#[test]
fn a_batch_of_which_a_part_was_accepted_has_no_certain_end() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let shop = Shop::open(&backend, ANY, 10, 1).await;
        let (first, mut second) = (shop.ask(1, 1, 1), shop.ask(2, 2, 1));
        second.epoch = Epoch(2);
        // The second run finds what nobody wrote.
        let page = keys(&shop).requests(keys(&shop).page_of(2));
        let mut redis = connect(&backend);
        redis::Cmd::hset(&page, 2, "damaged").query::<()>(&mut redis).unwrap();
        let alone = shop.stock.reserve(shop.key(0), vec![second]).await;
        assert!(matches!(alone, Err(Error::Damaged { .. })), "nothing was done: {alone:?}");

        let both = shop.stock.reserve(shop.key(0), vec![first, second]).await;
        assert!(matches!(both, Err(Error::Unknown { .. })), "{both:?}");
        assert_eq!(shop.free().await, [9], "the first one was accepted");
    });
}

#[test]
fn a_bucket_that_is_not_ready_ends_what_was_known() {
    run(async {
        let backend = SingleRedis::fresh(OutboxArgs::None);
        let here = Shop::open(&backend, ONE, 1, 1).await;
        let there = here.elsewhere(&backend).await;
        let mut redis = connect(&backend);
        here.take(&[here.ask(1, 1, 1)]).await;
        let bucket = keys(&here).bucket();
        let look = async || there.stock.condition(&there.sku, Phase::Paused, OPENING).await;
        let unknown = there.ask(2, 2, 1);
        let may_know = || there.stock.may_know(there.key(0), unknown.request);

        there.refresh().await;
        assert!(there.is_sold_out() && !may_know());
        redis::Cmd::hset(&bucket, "server", "another").query::<()>(&mut redis).unwrap();
        assert!(matches!(look().await, Ok(BucketHealth::Distrusted { .. })));
        assert!(!there.is_sold_out() && may_know());

        here.load(LoaderToken(2), 0, Vec::new(), Vec::new()).await;
        there.refresh().await;
        assert!(there.is_sold_out() && !may_know());
        let _loading = here.stock.load(here.sku.clone(), 0, LoaderToken(3)).await.unwrap();
        assert_eq!(look().await, Ok(BucketHealth::Missing));
        assert!(!there.is_sold_out() && may_know());
    });
}
