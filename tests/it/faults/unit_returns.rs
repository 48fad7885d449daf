//! Changes of orders on their way from the ledger to the buckets: crashes, outages, loads, and two
//! processes at once. Covers the crash point `changes_settled`.

use std::sync::Arc;

use floodgate::actors::payment_timer::TimerDeps;
use floodgate::actors::periodic::Task;
use floodgate::actors::{PaymentTimer, StockReturner};
use floodgate::config::Tier;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{OrderChanges, OrderWriter, SaleStore};
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, CancelOutcome, Epoch, LoaderToken, OrderKey, Phase, RequestId,
    Sku,
};
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::catalog::Catalog;
use floodgate::services::order_feed::{FeedError, OrderFeed};
use floodgate::services::order_life::OrderService;
use floodgate::services::trusted_time::TrustedTime;
use floodgate::stock::Stock;
use floodgate::tier::Backends;
use tempfile::TempDir;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::harness::{
    Harness, Offer, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::offers::intent;
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

pub(super) const STOCK: u32 = 10;
const OFFER: Offer = Offer { policy: UNLIMITED, stock: STOCK, buckets: 2 };

/// One open sale on a ledger file.
pub(super) struct Fixture {
    pub harness: Harness,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
    redis: Option<Redis>,
    pub folder: TempDir,
}

impl Fixture {
    pub async fn open(tier: Tier) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(START_MS));
        let shared: SharedClock = clock.clone();
        let options = OpenOptions::new(folder.path().join("ledger.db"));
        let options = OpenOptions { clock: shared.clone(), ..options };
        let ledger = Arc::new(FaultyLedger::new(Arc::new(SqliteLedger::open(&options).unwrap())));
        let mut settings = settings(tier);
        settings.http.answer_deadline_ms = 20_000;
        settings.http.sales_refresh_ms = 10;
        settings.redis.command_timeout_ms = 10_000;
        // Longer than the test: only a message makes the actor run.
        settings.maintenance.every_ms = 3_600_000;
        let redis = (tier == Tier::Gate).then(Redis::start);
        let mut backends = match &redis {
            Some(redis) => {
                settings.redis.url = redis.url();
                Backends::on_redis(&settings, ledger.clone(), &shared).await.unwrap()
            }
            None => Backends::embedded(tier, ledger.clone(), &shared),
        };
        let stock = Arc::new(FaultyStock::new(backends.stock.clone()));
        backends.stock = stock.clone();
        let harness = Harness::on(&settings, backends, clock);
        harness.create(OFFER, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        Self { harness, ledger, stock, redis, folder }
    }

    /// One order of one unit for each of these buyers; the request has the buyer's number.
    pub async fn sell(&self, buyers: std::ops::RangeInclusive<u64>) {
        for buyer in buyers {
            let answer = self.harness.buy_as(buyer, buyer, 1).await;
            assert!(is_placed(&answer), "{answer:?}");
        }
    }

    pub async fn cancel(&self, buyer: u64) {
        self.cancel_of(&self.sku(), buyer).await;
    }

    async fn cancel_of(&self, sku: &Sku, buyer: u64) {
        let order = OrderKey {
            sku: sku.no,
            buyer: BuyerId::new(buyer).unwrap(),
            request: RequestId::new(buyer).unwrap(),
        };
        let cancelled = self.ledger.cancel(order).await.unwrap();
        assert!(matches!(cancelled, CancelOutcome::Cancelled(_)), "{cancelled:?}");
    }

    /// Ends the orders by their deadline. The returner gets no message, as in a process that is
    /// killed after the commit.
    async fn end_due(&self) {
        self.harness.clock.advance(std::time::Duration::from_secs(900));
        let payment = settings(Tier::Memory).payment;
        let (ledger, clock) = (self.ledger.clone(), self.harness.clock.clone());
        let orders = OrderService::new(ledger.clone(), None, &payment, Arc::new(|| ()));
        let metrics = Arc::new(Metrics::default());
        let skew_max_ms = payment.clock_skew_max_ms;
        let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), skew_max_ms);
        let deps = TimerDeps { orders, ledger, settings: payment, time, clock, metrics };
        PaymentTimer(Arc::new(deps)).run(&()).await.unwrap();
    }

    pub fn sku(&self) -> Arc<Sku> {
        self.harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
    }

    pub fn returner(&self) -> Arc<StockReturner> {
        self.returner_of(self.harness.catalog.clone())
    }

    /// In a process that has read these sales.
    fn returner_of(&self, catalog: Arc<Catalog>) -> Arc<StockReturner> {
        Arc::new(StockReturner {
            ledger: self.ledger.clone(),
            stock: self.stock.clone(),
            catalog,
            clock: self.harness.clock.clone(),
            metrics: Arc::new(Metrics::default()),
            unread_since_ms: parking_lot::Mutex::default(),
        })
    }

    /// In a process that has read these sales.
    fn feed_of(&self, catalog: Arc<Catalog>) -> OrderFeed {
        let clock = self.harness.clock.clone();
        OrderFeed::new(self.ledger.clone(), catalog, clock, "0a0b0c0d".into())
    }

    pub async fn cursor(&self) -> i64 {
        self.ledger.cursor("stock").await.unwrap()
    }

    pub async fn free(&self) -> u32 {
        self.harness.free().await.iter().sum()
    }

    async fn assert_at_rest(&self, free: u32) {
        assert_eq!(self.free().await, free);
        assert_eq!(self.ledger.available(self.sku().no).await.unwrap(), free);
        self.harness.assert_holds().await;
    }

    fn redis(&self) -> &Redis {
        self.redis.as_ref().unwrap()
    }
}

/// Crash point `orders_ended_not_told`: the orders have ended, and no bucket knows it.
#[test]
fn orders_ended_before_a_crash_return_their_units_once() {
    for tier in [Tier::Memory, Tier::Gate] {
        in_system(async {
            let fixture = Fixture::open(tier).await;
            fixture.sell(1..=3).await;
            fixture.end_due().await;
            assert_eq!(fixture.ledger.available(fixture.sku().no).await.unwrap(), STOCK);
            assert_eq!(fixture.free().await, STOCK - 3, "{tier:?}: no bucket knows it");
            for _ in 0..2 {
                fixture.returner().run(&()).await.unwrap();
                fixture.assert_at_rest(STOCK).await;
            }
            let answer = fixture.harness.buy_as(4, 4, 1).await;
            assert!(is_placed(&answer), "{tier:?}: {answer:?}");
            fixture.assert_at_rest(STOCK - 1).await;
        });
    }
}

/// Another process has opened and sold the sale since this one read the ledger.
#[test]
fn changes_and_events_of_a_sale_that_is_not_read_yet_wait_for_it() {
    in_system(async {
        let fixture = Fixture::open(Tier::Memory).await;
        fixture.sell(1..=3).await;
        fixture.cancel(2).await;
        let before = fixture.cursor().await;
        let error = fixture.returner_of(Arc::default()).run(&()).await.unwrap_err();
        assert!(error.to_string().contains("has not read the sale"), "{error}");
        assert_eq!((fixture.cursor().await, fixture.free().await), (before, STOCK - 3));
        let unread = fixture.feed_of(Arc::default()).events(0, 10).await;
        assert!(matches!(unread, Err(FeedError::UnknownSku(_))));

        fixture.returner().run(&()).await.unwrap();
        fixture.assert_at_rest(STOCK - 2).await;
        let feed = fixture.feed_of(fixture.harness.catalog.clone());
        assert_eq!(feed.events(0, 10).await.unwrap().len(), 4);
    });
}

/// Crash point `changes_settled`: the buckets have the changes, and the cursor does not.
#[test]
fn changes_settled_before_a_crash_are_settled_again_without_effect() {
    for tier in [Tier::Memory, Tier::Gate] {
        in_system(async {
            let fixture = Fixture::open(tier).await;
            fixture.sell(1..=4).await;
            fixture.cancel(1).await;
            fixture.cancel(2).await;
            fixture.harness.assert_holds().await;
            fixture.stock.set(StockFault::ResultsWait);
            let dying = fixture.returner();
            let (ended, ()) = tokio::join!(dying.run(&()), async {
                let settles = async || (fixture.stock.num_waiting() > 0).then_some(());
                until("the settling", settles).await;
                fixture.ledger.set(Fault::Down);
                fixture.stock.set(StockFault::None);
            });
            ended.unwrap_err();
            fixture.ledger.set(Fault::None);
            assert_eq!(fixture.cursor().await, 0);
            fixture.assert_at_rest(STOCK - 2).await;
            for _ in 0..2 {
                let next = fixture.returner();
                next.run(&()).await.unwrap();
                assert!(fixture.cursor().await >= 6, "four placements and two ends");
                fixture.assert_at_rest(STOCK - 2).await;
            }
        });
    }
}

#[test]
fn two_returners_at_once_return_each_unit_once() {
    for tier in [Tier::Memory, Tier::Gate] {
        in_system(async {
            let fixture = Fixture::open(tier).await;
            fixture.sell(1..=8).await;
            for round in 0..4 {
                let (one, other) = (fixture.returner(), fixture.returner());
                fixture.cancel(round * 2 + 1).await;
                fixture.cancel(round * 2 + 2).await;
                let (a, b) = tokio::join!(one.run(&()), other.run(&()));
                a.unwrap();
                b.unwrap();
                fixture.assert_at_rest(STOCK - 6 + 2 * u32::try_from(round).unwrap()).await;
            }
        });
    }
}

/// The actor runs at once when this process changed an order, and its units are sold again.
#[test]
fn units_of_an_ended_order_are_sold_again_at_once() {
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate] {
        in_system(async {
            let fixture = Fixture::open(tier).await;
            fixture.harness.actors.start_stock_returner();
            fixture.sell(1..=u64::from(STOCK)).await;
            assert!(!is_placed(&fixture.harness.buy_as(99, 99, 1).await));
            fixture.cancel(3).await;
            fixture.harness.actors.return_stock();
            until("the returned unit to be sold", async || {
                is_placed(&fixture.harness.buy_as(100, 100, 1).await).then_some(())
            })
            .await;
            assert!(!is_placed(&fixture.harness.buy_as(101, 101, 1).await));
            until("a read cursor", async || (fixture.cursor().await > 0).then_some(())).await;
            fixture.harness.assert_holds().await;
        });
    }
}

/// Of an order that was cancelled, or of three that timed out.
#[test]
fn redis_that_is_lost_before_or_after_the_settling_sells_the_unit_once() {
    for (is_settled, by_time) in [(false, false), (true, false), (false, true), (true, true)] {
        in_system(async {
            let fixture = Fixture::open(Tier::Gate).await;
            fixture.sell(1..=3).await;
            let left = if by_time {
                fixture.end_due().await;
                STOCK
            } else {
                fixture.cancel(2).await;
                STOCK - 2
            };
            let returner = fixture.returner();
            if is_settled {
                returner.run(&()).await.unwrap();
            }
            let cursor = fixture.cursor().await;
            fixture.redis().cmd(&["FLUSHALL"]);
            assert_eq!(returner.run(&()).await.is_err(), !is_settled);
            assert_eq!(fixture.cursor().await, cursor);
            until("loaded buckets", async || {
                fixture.harness.sync().await.ok()?;
                fixture.harness.backends.stock.facts(fixture.sku().no).await.ok()
            })
            .await;
            fixture.assert_at_rest(left).await;
            for _ in 0..2 {
                returner.run(&()).await.unwrap();
                fixture.assert_at_rest(left).await;
            }
            assert!(fixture.cursor().await > 0);
        });
    }
}

/// Buckets that a loader holds refuse changes: the other sale goes on, and nothing is skipped.
#[test]
fn held_buckets_get_their_changes_later_and_delay_no_other() {
    in_system(async {
        let fixture = Fixture::open(Tier::Gate).await;
        let mut draft = OFFER.draft("other", START_MS - 1000);
        draft.skus[0].buckets = 1;
        fixture.harness.sales.create(draft).await.unwrap();
        fixture
            .harness
            .sales
            .set_phase(&"other".parse().unwrap(), Phase::Open, None)
            .await
            .unwrap();
        let other = fixture.harness.catalog.sale("other").unwrap().skus[0].clone();
        fixture.sell(1..=4).await;
        fixture.cancel(4).await;

        fixture.ledger.place(vec![intent(&other, 50, 50, 1)]).await.unwrap();
        fixture.cancel_of(&other, 50).await;

        let mut loading = fixture.stock.load(fixture.sku(), LoaderToken(1_000)).await.unwrap();
        loading.clear().await.unwrap();
        let returner = fixture.returner();
        returner.run(&()).await.unwrap_err();
        assert_eq!(fixture.cursor().await, 0);
        assert_eq!(returner.metrics.order_changes_waiting.get(), 1);
        let facts = fixture.stock.facts(other.no).await.unwrap();
        assert_eq!((facts.returned_units, facts.num_ordered), (1, 1));

        drop(loading);
        let mut loading = fixture.stock.load(fixture.sku(), LoaderToken(1_001)).await.unwrap();
        loading.clear().await.unwrap();
        loading.publish(STOCK - 3, Phase::Open, Epoch(1)).await.unwrap();
        returner.run(&()).await.unwrap();
        assert!(fixture.cursor().await >= 7, "five placements and two ends");
        assert_eq!(returner.metrics.order_changes_waiting.get(), 0);
    });
}

/// More changes than one page has, and one of two servers is away.
#[test]
fn a_bucket_that_is_away_holds_back_no_change_of_its_sibling() {
    in_system(async {
        let fixture = Fixture::open(Tier::Memory).await;
        let sales = &fixture.harness.sales;
        let draft = Offer { stock: 2_000, ..OFFER }.draft("other", START_MS - 1000);
        sales.create(draft).await.unwrap();
        sales.set_phase(&"other".parse().unwrap(), Phase::Open, None).await.unwrap();
        let sku = fixture.harness.catalog.sale("other").unwrap().skus[0].clone();
        let intents: Vec<_> = (1..=1_100).map(|no| intent(&sku, no, no, 1)).collect();
        for chunk in intents.chunks(100) {
            fixture.ledger.place(chunk.to_vec()).await.unwrap();
        }
        fixture.harness.clock.advance(std::time::Duration::from_secs(900));
        let keys = intents.iter().map(|intent| intent.order(START_MS).key()).collect();
        assert_eq!(fixture.ledger.end_due(keys, 0).await.unwrap().len(), 1_100);
        let homes = intents.iter().map(|intent| BucketNo::home_of(intent.buyer, sku.buckets));
        let num_here = homes.filter(|home| *home == BucketNo(0)).count();
        let (returner, stock) = (fixture.returner(), &fixture.stock);
        let ended = async |bucket| {
            let key = BucketKey { sku: sku.no, bucket: BucketNo(bucket) };
            stock.snapshot(key).await.unwrap().num_ordered
        };
        stock.set(StockFault::Away(BucketNo(1)));
        returner.run(&()).await.unwrap_err();
        assert_eq!((ended(0).await, ended(1).await), (num_here, 0));
        let waiting = usize::try_from(returner.metrics.order_changes_waiting.get()).unwrap();
        assert_eq!((waiting, fixture.cursor().await), (1_100 - num_here, 0));
        stock.set(StockFault::None);
        returner.run(&()).await.unwrap();
        assert_eq!(ended(1).await, 1_100 - num_here);
    });
}

#[test]
fn missing_buckets_of_a_sale_closed_for_long_hold_back_nothing() {
    in_system(async {
        let fixture = Fixture::open(Tier::Gate).await;
        fixture.sell(1..=2).await;
        fixture.harness.set_phase(Phase::Closed).await;
        fixture.cancel(1).await;
        fixture.redis().cmd(&["FLUSHALL"]);
        let returner = fixture.returner();
        returner.run(&()).await.unwrap_err();
        assert_eq!(fixture.cursor().await, 0, "these buckets are still loaded again");
        fixture.harness.clock.advance(std::time::Duration::from_secs(3 * 86_400));
        returner.run(&()).await.unwrap();
        assert!(fixture.cursor().await >= 3);
    });
}
