//! Queued requests that their buyers cancel, in tiers `memory`, `ledger` and `gate`.
//! Covers the crash point `ended_not_released`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::{OrderWriter, SaleStore};
use floodgate::domain::{
    BucketKey, BuyerId, Failure, OrderIntent, Phase, PlaceOutcome, Policy, RecordState, Refusal,
    SaleDraft, Sku,
};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::rebuild::load_sku;
use floodgate::tier::Backends;
use futures_util::future::join_all;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{
    Harness, ONE_PER_BUYER, Offer, QUEUED, START_MS, in_system, is_placed, settings,
};
use crate::support::wait::until;

const STOCK: u32 = 100;
const CANCELLED: RecordState = RecordState::Failed(Refusal::CancelledByBuyer);

/// A sale of one order per buyer. A buyer's first request has the buyer's number.
pub fn draft() -> SaleDraft {
    let offer = Offer { policy: ONE_PER_BUYER, stock: STOCK, buckets: 2 };
    offer.draft("sale", START_MS - 1000)
}

/// A tier with a ledger and a stock that can be made to fail.
pub struct Queue {
    pub harness: Harness,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
    tier: Tier,
    redis: Option<GateFixture>,
}

impl Queue {
    /// An open sale.
    pub async fn open(tier: Tier, draft: SaleDraft) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let inner = DefectiveLedger::new(LedgerDefect::None);
        inner.follow(clock.clone());
        let ledger = Arc::new(FaultyLedger::new(Arc::new(inner)));
        let shared: SharedClock = clock.clone();
        let redis = (tier == Tier::Gate).then(GateFixture::new);
        let mut settings =
            redis.as_ref().map_or_else(|| settings(tier), |redis| redis.settings(&PATIENT));
        settings.consumer.attempts_max = 2;
        settings.consumer.retry_backoff_min_ms = 1;
        settings.consumer.retry_backoff_max_ms = 5;
        settings.gate.resubmit_every_ms = 20;
        settings.http.answer_deadline_ms = 60_000;
        let mut backends = match redis {
            Some(_) => Backends::on_redis(&settings, ledger.clone(), &shared).await.unwrap(),
            None => Backends::embedded(tier, ledger.clone(), &shared),
        };
        let stock = Arc::new(FaultyStock::new(backends.stock));
        backends.stock = stock.clone();
        let harness = Harness::on(&settings, backends, clock);
        harness.sales.create(draft).await.unwrap();
        harness.set_phase(Phase::Open).await;
        harness.gates_begun().await;
        Self { harness, ledger, stock, tier, redis }
    }

    /// Accepts a request of each buyer; none reaches the ledger.
    pub async fn queue(&self, buyers: &[u64]) {
        self.ledger.set(Fault::Frozen);
        let buying = join_all(buyers.iter().map(|buyer| self.harness.buy_as(*buyer, *buyer, 1)));
        let failing = async {
            until("accepted requests", async || {
                for buyer in buyers {
                    self.state(*buyer).await?;
                }
                Some(())
            })
            .await;
            self.ledger.set(Fault::Down);
        };
        tokio::join!(buying, failing);
        self.ledger.set(Fault::None);
        // The tests buy at once, so the breaker must be closed.
        self.harness.actors.breaker.close();
    }

    pub fn sku(&self) -> Arc<Sku> {
        self.harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
    }

    pub fn intent(&self, request: u64, buyer: u64) -> OrderIntent {
        self.harness.ask(request, buyer, 1)
    }

    /// The state of the buyer's first request.
    pub async fn state(&self, buyer: u64) -> Option<RecordState> {
        let intent = self.intent(buyer, buyer);
        let key = BucketKey { sku: intent.sku, bucket: intent.bucket };
        let stock = &self.harness.backends.stock;
        let found = stock.record(key, intent.request, Some(intent.buyer)).await.unwrap();
        found.map(|found| found.state)
    }

    /// Cancels the request of buyer `of` in the name of `buyer`.
    async fn cancel_as(&self, of: u64, buyer: u64) -> Option<RecordState> {
        let (sku, request) = (self.sku(), self.intent(of, of).request);
        let buyer = BuyerId::new(buyer).unwrap();
        let stored = self.harness.gates.record(&sku, request, buyer).await.unwrap()?;
        let requests = &self.harness.actors.requests;
        Some(requests.cancel(&sku, request, &stored).await.unwrap().state)
    }

    async fn cancel(&self, buyer: u64) -> Option<RecordState> {
        self.cancel_as(buyer, buyer).await
    }

    /// Units that can be sold.
    pub async fn left(&self) -> u32 {
        match self.tier {
            Tier::Ledger => self.ledger.available(self.sku().no).await.unwrap(),
            Tier::Memory | Tier::Gate | Tier::Pipeline => self.harness.free().await.iter().sum(),
        }
    }

    /// Advances the clock, so that gates resubmit, until every accepted request is decided. Returns
    /// the number of orders.
    pub async fn drained(&self) -> u64 {
        until("every accepted request to be decided", async || {
            self.harness.clock.advance(Duration::from_secs(1));
            let report = self.harness.try_audit(0).await.ok()?;
            (report.holds && report.could_tell).then_some(report.num_orders)
        })
        .await
    }

    fn failure(&self, buyer: u64) -> Failure {
        let OrderIntent { request, sku, buyer, quantity, .. } = self.intent(buyer, buyer);
        let reason = Refusal::CancelledByBuyer;
        Failure { request, sku, buyer, quantity, reason, recorded_at_ms: START_MS }
    }
}

const TIERS: [Tier; 3] = [Tier::Memory, Tier::Ledger, Tier::Gate];

#[test]
fn a_queued_request_is_cancelled_once_and_its_buyer_buys_again() {
    for tier in TIERS {
        in_system(async {
            let queue = Queue::open(tier, draft()).await;
            queue.queue(&[1, 2, 3]).await;
            assert_eq!(queue.state(1).await, Some(QUEUED), "{tier:?}");
            assert_eq!(queue.cancel_as(1, 2).await, None, "another buyer's");
            for _ in 0..2 {
                assert_eq!(queue.cancel(1).await, Some(CANCELLED), "{tier:?}");
                assert_eq!(queue.cancel_as(1, 2).await, None, "another buyer's");
                let left = if tier == Tier::Ledger { STOCK } else { STOCK - 2 };
                assert_eq!(queue.left().await, left, "{tier:?}: the unit came back once");
            }
            assert_eq!(queue.state(1).await, Some(CANCELLED), "{tier:?}");
            // A copy of the request arrives later.
            let late =
                queue.harness.actors.ledger_writer.place_and_settle(vec![queue.intent(1, 1)]).await;
            assert_eq!(late, [Ok(PlaceOutcome::Refused(Refusal::CancelledByBuyer))]);
            let repeated = queue.harness.buy_as(1, 1, 1).await;
            assert_eq!(
                repeated,
                BuyAnswer::Refused { refusal: Refusal::CancelledByBuyer, replayed: true },
                "{tier:?}"
            );
            assert!(is_placed(&queue.harness.buy_as(101, 1, 1).await), "{tier:?}: again");
            assert_eq!(queue.drained().await, 3, "{tier:?}");
            assert_eq!(queue.left().await, STOCK - 3, "{tier:?}");
            // What is an order stays one.
            let decided = queue.cancel(2).await;
            assert!(matches!(decided, Some(RecordState::Ordered { .. })), "{decided:?}");
        });
    }
}

#[test]
fn the_quota_returns_with_the_cancellation() {
    for tier in [Tier::Memory, Tier::Gate] {
        in_system(async {
            let mut draft = draft();
            draft.skus[0].policy = Policy::Quota { limit: 1, max_quantity: 1 };
            let queue = Queue::open(tier, draft).await;
            queue.queue(&[1]).await;
            let over = Refusal::QuotaExceeded { owned: 1, limit: 1 };
            assert_eq!(queue.harness.buy_as(101, 1, 1).await, BuyAnswer::refused(over), "{tier:?}");
            assert_eq!(queue.cancel(1).await, Some(CANCELLED), "{tier:?}");
            assert!(is_placed(&queue.harness.buy_as(102, 1, 1).await), "{tier:?}");
            assert_eq!((queue.drained().await, queue.left().await), (1, STOCK - 1), "{tier:?}");
        });
    }
}

#[test]
fn while_the_ledger_is_away_nothing_is_cancelled() {
    in_system(async {
        let queue = Queue::open(Tier::Memory, draft()).await;
        queue.queue(&[1]).await;
        queue.ledger.set(Fault::Down);
        let (sku, intent) = (queue.sku(), queue.intent(1, 1));
        let stored = queue.harness.gates.record(&sku, intent.request, intent.buyer).await.unwrap();
        let requests = &queue.harness.actors.requests;
        requests.cancel(&sku, intent.request, &stored.unwrap()).await.unwrap_err();
        assert_eq!((queue.state(1).await, queue.left().await), (Some(QUEUED), STOCK - 1));
        queue.ledger.set(Fault::None);
        assert_eq!(queue.drained().await, 1, "it is still an accepted request");
    });
}

/// The process crashed after it had recorded the failure.
#[test]
fn ended_not_released_is_healed_by_the_next_submission() {
    for tier in TIERS {
        in_system(async {
            let queue = Queue::open(tier, draft()).await;
            queue.queue(&[1, 2]).await;
            queue.ledger.record_failures(vec![queue.failure(1)]).await.unwrap();
            assert_eq!(queue.state(1).await, Some(QUEUED));
            assert_eq!(queue.drained().await, 1, "{tier:?}");
            assert_eq!(queue.left().await, STOCK - 1, "{tier:?}");
            assert_eq!(queue.cancel(1).await, Some(CANCELLED), "{tier:?}");
        });
    }
}

/// The ledger had no unit left, and the bucket did not take that result.
#[test]
fn a_request_that_was_refused_keeps_its_reason_when_its_buyer_cancels() {
    in_system(async {
        let queue = Queue::open(Tier::Memory, draft()).await;
        queue.queue(&[1]).await;
        let refused = Failure { reason: Refusal::SoldOut, ..queue.failure(1) };
        queue.ledger.record_failures(vec![refused]).await.unwrap();
        let sold_out = Some(RecordState::Failed(Refusal::SoldOut));
        assert_eq!(queue.cancel(1).await, sold_out);
        assert_eq!(queue.state(1).await, sold_out);
        assert_eq!(queue.left().await, STOCK - 1, "the ledger has no such unit");
    });
}

#[test]
fn a_bucket_that_takes_no_results_learns_the_cancellation_later() {
    in_system(async {
        let queue = Queue::open(Tier::Memory, draft()).await;
        queue.queue(&[1]).await;
        queue.stock.set(StockFault::RefusesResults);
        assert_eq!(queue.cancel(1).await, Some(CANCELLED));
        assert_eq!((queue.left().await, queue.state(1).await), (STOCK - 1, Some(QUEUED)));
        queue.stock.set(StockFault::None);
        assert_eq!(queue.cancel(1).await, Some(CANCELLED), "a repeat releases");
        assert_eq!((queue.drained().await, queue.left().await), (0, STOCK));
    });
}

/// Redis loses all data after the failure was recorded and before the unit was released.
#[test]
fn a_redis_that_is_emptied_in_between_gets_the_cancellation_from_the_ledger() {
    in_system(async {
        let queue = Queue::open(Tier::Gate, draft()).await;
        queue.queue(&[1]).await;
        queue.ledger.record_failures(vec![queue.failure(1)]).await.unwrap();
        queue.redis.as_ref().unwrap().redis.cmd(&["FLUSHALL"]);
        let (ledger, stock) = (&queue.harness.backends.ledger, &queue.harness.backends.stock);
        let loader = ledger.begin_load(queue.sku().no).await.unwrap();
        load_sku(&**ledger, &**stock, &queue.sku(), loader, Vec::new()).await.unwrap();
        assert_eq!((queue.state(1).await, queue.left().await), (Some(CANCELLED), STOCK));
        assert_eq!(queue.cancel(1).await, Some(CANCELLED));
        assert!(is_placed(&queue.harness.buy_as(101, 1, 1).await), "again");
        assert_eq!((queue.drained().await, queue.left().await), (1, STOCK - 1));
    });
}

/// A buyer cancels twice while the request is submitted.
#[test]
fn cancellation_and_order_at_once_end_each_request_once() {
    for tier in TIERS {
        in_system(async {
            let queue = Queue::open(tier, draft()).await;
            let buyers: Vec<u64> = (1..=40).collect();
            queue.queue(&buyers).await;
            let races = buyers.iter().map(async |buyer| {
                let orders = &queue.harness.actors.ledger_writer;
                let (one, other, placed) = if buyer.is_multiple_of(2) {
                    tokio::join!(
                        queue.cancel(*buyer),
                        queue.cancel(*buyer),
                        orders.place_and_settle(vec![queue.intent(*buyer, *buyer)])
                    )
                } else {
                    let placed = orders.place_and_settle(vec![queue.intent(*buyer, *buyer)]);
                    let (placed, one, other) =
                        tokio::join!(placed, queue.cancel(*buyer), queue.cancel(*buyer));
                    (one, other, placed)
                };
                let is_order = matches!(placed[0], Ok(PlaceOutcome::Placed(_)));
                let refused = Ok(PlaceOutcome::Refused(Refusal::CancelledByBuyer));
                assert!(is_order != (placed[0] == refused), "{tier:?} {placed:?}");
                for answer in [one, other] {
                    let is_same = match answer {
                        Some(RecordState::Ordered { .. }) => is_order,
                        answer => !is_order && answer == Some(CANCELLED),
                    };
                    assert!(is_same, "{tier:?} {buyer}: {answer:?} {placed:?}");
                }
                u32::from(is_order)
            });
            let num_orders: u32 = join_all(races).await.into_iter().sum();
            println!("{tier:?}: {num_orders} of {} requests are orders", buyers.len());
            assert_eq!(queue.drained().await, u64::from(num_orders), "{tier:?}");
            assert_eq!(queue.left().await, STOCK - num_orders, "{tier:?}");
        });
    }
}
