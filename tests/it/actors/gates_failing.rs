//! Gates over a ledger and a stock that fail: what was accepted stays accepted, and `busy` is said
//! of nothing that may have been taken.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::GateHandle;
use floodgate::actors::stock_gate::directory::GateDirectory;
use floodgate::actors::stock_gate::handle::AttemptLimits;
use floodgate::config::Tier;
use floodgate::db::Ledger;
use floodgate::domain::{
    BucketNo, BuyerId, Counting, Phase, PlaceOutcome, Refusal, RequestId, RequestStatus,
    Reservation, Sale,
};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::ManualClock;
use floodgate::services::catalog::Catalog;
use floodgate::stock::{BucketKey, Error, MemoryStock, Stock};
use floodgate::tier::Backends;
use futures_util::future::join_all;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{
    ONE_PER_BUYER, Offer, Rig, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::wait::until;

pub const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 100, buckets: 2 };

/// What a buyer hears while the ledger has not decided.
fn undecided(tier: Tier, replayed: bool) -> BuyAnswer {
    if tier == Tier::Ledger { BuyAnswer::Unknown } else { BuyAnswer::Queued { replayed } }
}

pub struct Failing {
    pub rig: Rig,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
}

impl Failing {
    pub async fn open(tier: Tier, offer: Offer) -> Self {
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let clock = Arc::new(ManualClock::new(START_MS));
        let mut settings = settings(tier);
        settings.consumer.attempts_max = 2;
        settings.consumer.retry_backoff_min_ms = 1;
        settings.consumer.retry_backoff_max_ms = 5;
        settings.gate.resubmit_every_ms = 20;
        settings.http.answer_deadline_ms = 60_000;
        let mut backends = Backends::embedded(tier, ledger.clone(), &(clock.clone() as _));
        let stock = Arc::new(FaultyStock::new(backends.stock));
        backends.stock = stock.clone();
        let rig = Rig::on(&settings, backends, clock);
        rig.create(offer, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        rig.gates_begun().await;
        Self { rig, ledger, stock }
    }

    pub async fn find(&self, ask: &Reservation) -> Option<RequestStatus> {
        let found = self.stock.find(key_of(ask), ask.request).await.unwrap();
        found.map(|request| request.standing)
    }

    /// Waits until the gates have accepted these buyers, whose requests have their numbers.
    pub async fn accepted(&self, buyers: &[u64]) {
        until("units for every buyer", async || {
            for buyer in buyers {
                self.find(&self.rig.ask(*buyer, *buyer, 1)).await?;
            }
            Some(())
        })
        .await;
    }

    pub async fn left(&self) -> u32 {
        self.rig.free().await.iter().sum()
    }

    /// Lets sweeps find what is old enough, until every accepted request is decided.
    pub async fn drained(&self) -> u64 {
        until("every accepted request to be decided", async || {
            self.rig.clock.advance(Duration::from_secs(1));
            let report = self.rig.try_audit(0).await.ok()?;
            (report.holds && report.could_tell).then_some(report.num_orders)
        })
        .await
    }
}

fn key_of(ask: &Reservation) -> BucketKey {
    BucketKey { sku: ask.sku, bucket: ask.bucket }
}

#[test]
fn what_was_accepted_stays_accepted_whatever_the_ledger_says_last() {
    for tier in [Tier::Memory, Tier::Ledger] {
        for in_doubt in [false, true] {
            in_system(kept_by(tier, in_doubt));
        }
    }
}

/// A crowd is accepted; then the ledger writes its orders without an answer, or not at all; then it
/// is down, and back in the end.
async fn kept_by(tier: Tier, in_doubt: bool) {
    let it = Failing::open(tier, OFFER).await;
    let buyers: Vec<u64> = (1..=20).collect();
    let before = it.left().await;
    it.ledger.set(Fault::Frozen);
    let buying = join_all(buyers.iter().map(|buyer| it.rig.buy_as(*buyer, *buyer, 1)));
    let failing = async {
        it.accepted(&buyers).await;
        if in_doubt {
            it.ledger.set(Fault::Mute);
            until("a second submission", async || {
                let batches = it.ledger.batches();
                let seen = |buyer| batches.iter().filter(|batch| batch.contains(buyer)).count();
                // Two attempts are one submission.
                buyers.iter().all(|buyer| seen(buyer) > 2).then_some(())
            })
            .await;
        }
        it.ledger.set(Fault::Down);
    };
    let (answers, ()) = tokio::join!(buying, failing);
    assert_eq!(answers, [undecided(tier, false); 20], "{tier:?}, in doubt: {in_doubt}");
    for buyer in &buyers {
        let standing = it.find(&it.rig.ask(*buyer, *buyer, 1)).await;
        assert_eq!(standing, Some(RequestStatus::Queued), "{buyer}");
    }
    if tier == Tier::Memory {
        assert_eq!(it.left().await, before - 20, "no unit comes back");
    }
    // `busy` is said of what was not taken.
    assert_eq!(it.rig.buy_as(41, 41, 1).await, BuyAnswer::Busy);
    assert_eq!(it.find(&it.rig.ask(41, 41, 1)).await, None);

    it.ledger.set(Fault::None);
    assert_eq!(it.drained().await, 20, "each once");
    for buyer in buyers {
        let again = it.rig.buy_as(buyer, buyer, 1).await;
        assert!(matches!(again, BuyAnswer::Placed { replayed: true, .. }), "{again:?}");
    }
}

#[test]
fn a_doubt_stays_one_whatever_the_ledger_says_next() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        let intent = it.rig.ask(1, 1, 1).intent(&it.rig.catalog.sale("sale").unwrap().skus[0]);
        it.ledger.set(Fault::MuteThenDown);
        let outcomes = it.rig.actors.orders().place(vec![intent]).await;
        assert_eq!(it.ledger.num_refused(), 1, "the next attempt was certainly not written");
        assert_eq!(outcomes, [None]);
    });
}

#[test]
fn an_undecided_request_withholds_no_outcome_of_its_submission() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        let sku = it.rig.catalog.sale("sale").unwrap().skus[0].clone();
        it.ledger.place(vec![it.rig.ask(99, 1, 1).intent(&sku)]).await.unwrap();
        it.ledger.set(Fault::RecordsNothing);
        let intents = [1, 2, 3].map(|no| it.rig.ask(no, no, 1).intent(&sku));
        let outcomes = it.rig.actors.orders().place(intents.to_vec()).await;
        let is_placed =
            |outcome: &Option<PlaceOutcome>| matches!(outcome, Some(PlaceOutcome::Placed(_)));
        assert_eq!(outcomes[0], None, "a refusal that is not on record");
        assert!(outcomes[1..].iter().all(is_placed), "{outcomes:?}");
    });
}

#[test]
fn a_refusal_that_cannot_be_recorded_gives_nothing_back() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        // Behind the gate's back: another process has sold to buyer 1.
        let foreign = it.rig.ask(99, 1, 1).intent(&it.rig.catalog.sale("sale").unwrap().skus[0]);
        it.ledger.place(vec![foreign]).await.unwrap();
        it.ledger.set(Fault::Frozen);
        let (first, second, third) =
            (it.rig.buy_as(1, 1, 1), it.rig.buy_as(2, 2, 1), it.rig.buy_as(3, 3, 1));
        let failing = async {
            it.accepted(&[1, 2, 3]).await;
            it.ledger.set(Fault::RecordsNothing);
        };
        tokio::pin!(first);
        tokio::select! {
            answer = &mut first => panic!("nobody knows yet: {answer:?}"),
            (second, third, ()) = async { tokio::join!(second, third, failing) } => {
                assert!(is_placed(&second) && is_placed(&third), "{second:?} {third:?}");
            }
        }
        tokio::select! {
            answer = &mut first => panic!("nobody knows yet: {answer:?}"),
            () = until("several tries", async || (it.ledger.num_refused() > 3).then_some(())) => {}
        }
        assert_eq!(it.find(&it.rig.ask(1, 1, 1)).await, Some(RequestStatus::Queued));
        assert_eq!(it.left().await, 97, "no unit comes back");
        assert_eq!(it.ledger.failure(RequestId::new(1).unwrap()).await.unwrap(), None);

        it.ledger.set(Fault::None);
        let refusal = Refusal::AlreadyPurchased { first: RequestId::new(99).unwrap() };
        assert_eq!(first.await, BuyAnswer::Refused { refusal, replayed: false });
        assert_eq!(it.left().await, 98, "and now it does, once");
        assert_eq!(it.rig.buy_as(1, 1, 1).await, BuyAnswer::Refused { refusal, replayed: true });
    });
}

#[test]
fn a_repeat_reads_where_its_request_stands_while_the_ledger_is_down() {
    for tier in [Tier::Memory, Tier::Ledger] {
        in_system(async {
            let it = Failing::open(tier, OFFER).await;
            assert!(is_placed(&it.rig.buy_as(1, 1, 1).await));
            it.ledger.set(Fault::Down);
            assert_eq!(it.rig.buy_as(2, 2, 1).await, undecided(tier, false));
            assert!(it.rig.actors.breaker().is_open());

            let ordered = it.rig.buy_as(1, 1, 1).await;
            assert!(matches!(ordered, BuyAnswer::Placed { replayed: true, .. }), "{ordered:?}");
            assert_eq!(it.rig.buy_as(2, 2, 1).await, undecided(tier, true), "{tier:?}");
            assert_eq!(it.rig.buy_as(3, 3, 1).await, BuyAnswer::Busy, "nothing is taken");
            assert_eq!(it.find(&it.rig.ask(3, 3, 1)).await, None);
        });
    }
}

/// A ledger that counts accepts by its COMMIT alone, and keeps no record of a refusal.
#[test]
fn what_a_ledger_that_counts_did_not_decide_was_not_promised() {
    in_system(async {
        let it = Failing::open(Tier::Ledger, Offer { stock: 1, ..OFFER }).await;
        it.ledger.set(Fault::Down);
        assert_eq!(it.rig.buy_as(1, 1, 1).await, BuyAnswer::Unknown);
        assert_eq!(it.rig.buy_as(1, 1, 1).await, BuyAnswer::Unknown, "the breaker is open");
        it.ledger.set(Fault::None);

        // Another buyer is first at the ledger. The clock stands still: no sweep asks again.
        let sku = &it.rig.catalog.sale("sale").unwrap().skus[0];
        let last = it.rig.ask(9, 9, 1).intent(sku);
        let outcomes = it.rig.actors.orders().place(vec![last]).await;
        assert!(matches!(outcomes[..], [Some(PlaceOutcome::Placed(_))]), "{outcomes:?}");
        let refused = BuyAnswer::Refused { refusal: Refusal::SoldOut, replayed: false };
        assert_eq!(it.rig.buy_as(1, 1, 1).await, refused, "and not as if it stood on record");
        assert_eq!(it.find(&it.rig.ask(1, 1, 1)).await, None);
    });
}

#[test]
fn an_accepted_request_goes_on_without_its_buyer() {
    for tier in [Tier::Memory, Tier::Ledger] {
        in_system(async {
            let it = Failing::open(tier, OFFER).await;
            let ask = it.rig.ask(7, 7, 1);
            it.stock.set(StockFault::Held);
            tokio::select! {
                answer = it.rig.gates.buy(ask) => panic!("the stock is held: {answer:?}"),
                () = it.accepted(&[7]) => {}
            }
            it.stock.set(StockFault::None);
            // The clock stands still: nothing is old enough for a sweep.
            until("the order", async || {
                it.ledger.journey(ask.request).await.unwrap().map(|it| it.order)
            })
            .await;
        });
    }
}

#[test]
fn nobody_hears_busy_of_a_question_that_a_gate_crashed_with() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        it.stock.set(StockFault::Held);
        it.ledger.set(Fault::Down);
        let crashing = async {
            it.accepted(&[7]).await;
            // The next gate hears that nothing was taken, by its own question.
            it.stock.set(StockFault::KillsAndLeaves);
        };
        let (answer, ()) = tokio::join!(it.rig.buy_as(7, 7, 1), crashing);
        assert_eq!(answer, BuyAnswer::Unknown, "it was accepted");
        it.stock.set(StockFault::None);
        it.ledger.set(Fault::None);
        assert_eq!(it.drained().await, 1);
    });
}

#[test]
fn units_of_a_loan_whose_answer_was_lost_are_sold() {
    in_system(async {
        let it = Failing::open(Tier::Memory, Offer { policy: UNLIMITED, ..OFFER }).await;
        assert_eq!(it.rig.free().await, [50, 50]);
        it.stock.set(StockFault::MuteLender);
        let borrower = (1..100_u64).find(|buyer| home_of(*buyer) == BucketNo(0)).unwrap();
        for request in 1..=10 {
            let answer = it.rig.buy_as(request, borrower, 10).await;
            assert!(is_placed(&answer), "units on their way are not sold out: {answer:?}");
        }
        assert_eq!(it.rig.free().await, [0, 0]);
        let none = BuyAnswer::Refused { refusal: Refusal::SoldOut, replayed: false };
        assert_eq!(it.rig.buy_as(11, borrower, 1).await, none);
        it.rig.assert_holds().await;
    });
}

fn home_of(buyer: u64) -> BucketNo {
    BucketNo::home_of(BuyerId::new(buyer).unwrap(), 2)
}

/// A process that has the sale in its catalog, in `phase`, and no gates.
fn without_gates(sale: &Sale, phase: Phase, stock: Arc<dyn Stock>) -> (GateHandle, Arc<Catalog>) {
    let catalog = Arc::new(Catalog::default());
    catalog.put(&Sale { phase, ..sale.clone() });
    let limits = AttemptLimits { deadline: Duration::from_secs(60), attempts_max: 3 };
    let gates = GateHandle::new(catalog.clone(), Arc::new(GateDirectory::default()), stock, limits);
    (gates, catalog)
}

#[test]
fn a_process_without_gates_denies_nothing() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        let sale = it.rig.catalog.sale("sale").unwrap().sale.clone();
        assert!(is_placed(&it.rig.buy_as(7, 7, 1).await));
        let ask = it.rig.ask(7, 7, 1);
        for phase in [Phase::Draft, Phase::Paused, Phase::Closed] {
            let is_draft = phase == Phase::Draft;
            // It reads the buckets that another process sells from.
            let (gates, catalog) = without_gates(&sale, phase, it.stock.clone());
            let listed = catalog.sale("sale").unwrap();
            let sku = listed.sku("sku").unwrap();
            assert_eq!(gates.refuse(&listed, &ask, START_MS).await, Ok(None), "{phase:?}");
            assert_eq!(gates.buy(ask).await, BuyAnswer::Busy);
            let known = gates.standing(sku, ask.request, ask.buyer).await.unwrap().unwrap();
            assert!(matches!(known.standing, RequestStatus::Ordered { .. }), "{known:?}");

            // It can read none. Of a draft there are none.
            let empty = Arc::new(MemoryStock::new(Counting::Here));
            let (gates, _) = without_gates(&sale, phase, empty);
            let refusal = if is_draft {
                Ok(Some(Refusal::NotStarted))
            } else {
                Err(Error::NotLoaded(sku.no))
            };
            assert_eq!(gates.refuse(&listed, &ask, START_MS).await, refusal, "{phase:?}");
            let unknown = gates.standing(sku, ask.request, ask.buyer).await;
            assert_eq!(unknown, if is_draft { Ok(None) } else { Err(Error::NotLoaded(sku.no)) });
        }
    });
}
