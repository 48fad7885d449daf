//! Event streams: what many buyers who wait cost the stock.

use std::sync::Arc;

use floodgate::actors::periodic::Task;
use floodgate::actors::status_watcher::{
    FollowedRequest, StatusWatcher, StreamNews, StreamRegistry,
};
use floodgate::config::Tier;
use floodgate::domain::{BucketNo, OrderIntent, Phase, RecordState, RequestRecord, SkuNo};
use floodgate::runtime::clock::Clock;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::gates_failing::{Failing, OFFER, key_of};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::harness::{Harness, START_MS, in_system, is_placed, settings};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

/// How the request of a stream ended, if the stream says so by now.
fn end(stream: &mut FollowedRequest) -> Option<RequestRecord> {
    while let Some(news) = stream.next().now_or_never() {
        match news.expect("a stream ends with the end of its request") {
            StreamNews::Ended(record) => return Some(record),
            StreamNews::Beat => {}
        }
    }
    None
}

#[test]
fn fifty_streams_cost_one_lookup_per_bucket_and_poll_and_outlive_a_stock_that_fails() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let buyers: Vec<u64> = (1..=50).collect();
        fixture.ledger.set(Fault::Frozen);
        let purchases = join_all(buyers.iter().map(|buyer| fixture.buy_as(*buyer, *buyer, 1)));
        let following = async {
            fixture.accepted(&buyers).await;
            let registry = Arc::new(StreamRegistry::new(1_000, Arc::default()));
            let watcher = StatusWatcher {
                registry: Arc::clone(&registry),
                stock: fixture.stock.clone(),
                clock: fixture.clock.clone(),
            };
            let follow = |buyer: &u64| {
                let asked = fixture.ask(*buyer, *buyer, 1);
                let now = fixture.clock.now();
                registry.follow((key_of(&asked), asked.request), asked.buyer, now).unwrap()
            };
            let mut streams: Vec<_> = buyers.iter().map(follow).collect();
            let before = fixture.stock.num_lookups();
            for _ in 0..4 {
                watcher.run(&()).await.unwrap();
            }
            assert_eq!(fixture.stock.num_lookups() - before, 8, "of two buckets, four times");
            assert!(streams.iter_mut().all(|stream| end(stream).is_none()));
            fixture.stock.set(StockFault::LookupFails);
            assert!(watcher.run(&()).await.is_err());
            fixture.stock.set(StockFault::None);
            fixture.ledger.set(Fault::None);
            let mut ended = Vec::new();
            until("the end of every stream", async || {
                watcher.run(&()).await.unwrap();
                streams.retain_mut(|stream| match end(stream) {
                    Some(record) => {
                        ended.push(record);
                        false
                    }
                    None => true,
                });
                streams.is_empty().then_some(())
            })
            .await;
            assert_eq!(ended.len(), buyers.len());
            assert!(ended.iter().all(|record| matches!(record.state, RecordState::Ordered { .. })));
            let after = fixture.stock.num_lookups();
            watcher.run(&()).await.unwrap();
            assert_eq!(fixture.stock.num_lookups(), after, "without streams nothing is read");
        };
        let (answers, ()) = tokio::join!(purchases, following);
        assert!(answers.iter().all(is_placed));
    });
}

#[test]
fn a_sku_whose_statuses_cannot_be_read_delays_no_stream_of_another_sku() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        assert!(is_placed(&fixture.buy_as(1, 1, 1).await));
        // The stock has no such SKU. Polls begin with the smallest number.
        let unreadable = OrderIntent { sku: SkuNo(0), ..fixture.ask(2, 2, 1) };
        assert_ends_beside(&fixture.harness, unreadable, fixture.ask(1, 1, 1)).await;
    });
}

#[test]
fn a_bucket_whose_statuses_cannot_be_read_delays_no_stream_of_another_bucket() {
    let redis = Redis::start();
    let mut settings = settings(Tier::Gate);
    settings.redis.url = redis.url();
    settings.redis.command_timeout_ms = 10_000;
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&settings, ledger).await;
        harness.create(OFFER, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        let [lost, own] = [0, 1].map(|bucket| {
            let mut asked = (1..).map(|number| harness.ask(number, number, 1));
            asked.find(|asked| asked.bucket == BucketNo(bucket)).unwrap()
        });
        for asked in [lost, own] {
            let buy = async || is_placed(&harness.gates.buy(asked).await).then_some(());
            until("an order", buy).await;
        }
        redis.cmd(&["DEL", &format!("fg:{{{}:0}}:bucket", lost.sku.0)]);
        assert_ends_beside(&harness, lost, own).await;
    });
}

/// Asserts that the stream of an order ends while the status of another request cannot be read.
async fn assert_ends_beside(harness: &Harness, unreadable: OrderIntent, own: OrderIntent) {
    let registry = Arc::new(StreamRegistry::new(1_000, Arc::default()));
    let watcher = StatusWatcher {
        registry: Arc::clone(&registry),
        stock: harness.backends.stock.clone(),
        clock: harness.clock.clone(),
    };
    let follow = |asked: OrderIntent| {
        let request = (key_of(&asked), asked.request);
        registry.follow(request, asked.buyer, harness.clock.now()).unwrap()
    };
    let (_unreadable, mut stream) = (follow(unreadable), follow(own));
    let record = until("the end of the stream", async || {
        registry.listen().hint(&[own.request, unreadable.request]);
        watcher.run(&()).await.unwrap_err();
        end(&mut stream)
    })
    .await;
    assert!(matches!(record.state, RecordState::Ordered { .. }), "{record:?}");
}
