//! Stock gates over a failing ledger and a failing stock: accepted requests stay accepted, and no
//! request that may have been accepted is answered `busy`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::{ErrorClass, OrderReader, OrderWriter};
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, OrderIntent, Phase, PlaceOutcome, RecordState, Refusal, RequestId,
};
use floodgate::messages::{BuyAnswer, WriteError, WriteResult};
use floodgate::runtime::clock::ManualClock;
use floodgate::stock::Stock;
use floodgate::tier::Backends;
use futures_util::future::join_all;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::harness::{
    Harness, ONE_PER_BUYER, Offer, QUEUED, START_MS, UNLIMITED, in_system, is_placed,
    is_repeated_order, settings,
};
use crate::support::wait::until;

pub const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 100, buckets: 2 };

/// The answer to a buyer while the ledger has not decided.
pub fn undecided(tier: Tier, replayed: bool) -> BuyAnswer {
    if tier == Tier::Ledger { BuyAnswer::Unknown } else { BuyAnswer::Queued { replayed } }
}

fn is_unwritten(written: &WriteResult) -> bool {
    written.as_ref().is_err_and(WriteError::is_unwritten)
}

/// A harness whose ledger and stock can be made to fail.
pub struct Failing {
    pub harness: Harness,
    pub ledger: Arc<FaultyLedger>,
    pub stock: Arc<FaultyStock>,
}

impl Deref for Failing {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl Failing {
    pub async fn open(tier: Tier, offer: Offer) -> Self {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
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
        let harness = Harness::on(&settings, backends, clock);
        harness.create(offer, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        harness.gates_begun().await;
        Self { harness, ledger, stock }
    }

    pub async fn find(&self, reservation: &OrderIntent) -> Option<RecordState> {
        let found =
            self.stock.record(key_of(reservation), reservation.request, None).await.unwrap();
        found.map(|record| record.state)
    }

    /// Waits until the gates have accepted one request of each buyer, under the buyer's number.
    pub async fn accepted(&self, buyers: &[u64]) {
        until("a reservation for every buyer", async || {
            for buyer in buyers {
                self.find(&self.harness.ask(*buyer, *buyer, 1)).await?;
            }
            Some(())
        })
        .await;
    }

    pub async fn left(&self) -> u32 {
        self.harness.free().await.iter().sum()
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
}

pub fn key_of(reservation: &OrderIntent) -> BucketKey {
    BucketKey { sku: reservation.sku, bucket: reservation.bucket }
}

#[test]
fn an_accepted_request_stays_accepted_whatever_the_ledger_answers_last() {
    for tier in [Tier::Memory, Tier::Ledger] {
        for in_doubt in [false, true] {
            in_system(accepted_stays_accepted(tier, in_doubt));
        }
    }
}

/// The gates accept 20 buyers. If `in_doubt`, the ledger writes their orders and its answers are
/// lost. Then the ledger is down, and recovers at the end.
async fn accepted_stays_accepted(tier: Tier, in_doubt: bool) {
    let fixture = Failing::open(tier, OFFER).await;
    let buyers: Vec<u64> = (1..=20).collect();
    let before = fixture.left().await;
    fixture.ledger.set(Fault::Frozen);
    let purchases = join_all(buyers.iter().map(|buyer| fixture.buy_as(*buyer, *buyer, 1)));
    let inject_faults = async {
        fixture.accepted(&buyers).await;
        if in_doubt {
            fixture.ledger.set(Fault::AnswerLost);
            until("a second submission", async || {
                let batches = fixture.ledger.batches();
                let seen = |buyer| batches.iter().filter(|batch| batch.contains(buyer)).count();
                // A submission is two attempts.
                buyers.iter().all(|buyer| seen(buyer) > 2).then_some(())
            })
            .await;
        }
        fixture.ledger.set(Fault::Down);
    };
    let (answers, ()) = tokio::join!(purchases, inject_faults);
    assert_eq!(answers, [undecided(tier, false); 20], "{tier:?}, in doubt: {in_doubt}");
    for buyer in &buyers {
        let status = fixture.find(&fixture.ask(*buyer, *buyer, 1)).await;
        assert_eq!(status, Some(QUEUED), "{buyer}");
    }
    if tier == Tier::Memory {
        assert_eq!(fixture.left().await, before - 20, "no unit is returned");
    }
    // A request that was not accepted is answered `busy`.
    assert_eq!(fixture.buy_as(41, 41, 1).await, BuyAnswer::Busy);
    assert_eq!(fixture.find(&fixture.ask(41, 41, 1)).await, None);

    fixture.ledger.set(Fault::None);
    assert_eq!(fixture.drained().await, 20, "one order per buyer");
    for buyer in buyers {
        let again = fixture.buy_as(buyer, buyer, 1).await;
        assert!(is_repeated_order(&again), "{again:?}");
    }
}

#[test]
fn an_unknown_outcome_stays_unknown_whatever_the_ledger_answers_next() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let intent = fixture.ask(1, 1, 1);
        fixture.ledger.set(Fault::AnswerLostThenDown);
        let outcomes = fixture.actors.ledger_writer.place_and_settle(vec![intent]).await;
        assert_eq!(fixture.ledger.num_refused(), 1, "the next attempt was certainly not written");
        assert!(outcomes[0].is_err() && !is_unwritten(&outcomes[0]), "{outcomes:?}");
    });
}

#[test]
fn an_undecided_request_withholds_no_outcome_of_its_submission() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        fixture.ledger.place(vec![fixture.ask(99, 1, 1)]).await.unwrap();
        fixture.ledger.set(Fault::RecordsNothing);
        let intents = [1, 2, 3].map(|no| fixture.ask(no, no, 1));
        let outcomes = fixture.actors.ledger_writer.place_and_settle(intents.to_vec()).await;
        let is_placed = |written: &WriteResult| matches!(written, Ok(PlaceOutcome::Placed(_)));
        assert!(outcomes[0].is_err() && !is_unwritten(&outcomes[0]), "no record: {outcomes:?}");
        assert!(outcomes[1..].iter().all(is_placed), "{outcomes:?}");
    });
}

#[test]
fn an_order_that_the_ledger_cannot_write_keeps_no_other_unwritten() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let intents: Vec<_> = (1..=40).map(|no| fixture.ask(no, no, 1)).collect();
        fixture.ledger.set(Fault::Refuses(intents[16].request));
        let outcomes = fixture.actors.ledger_writer.place_and_settle(intents).await;
        let is_placed = |written: &WriteResult| matches!(written, Ok(PlaceOutcome::Placed(_)));
        let placed: Vec<_> = outcomes.iter().map(is_placed).collect();
        let expected: Vec<_> = (0..40).map(|at| at != 16).collect();
        assert_eq!(placed, expected, "{outcomes:?}");
        assert!(is_unwritten(&outcomes[16]), "{outcomes:?}");

        // Where it writes nothing at all, nothing is tried in ever smaller parts.
        let intents: Vec<_> = (101..=140).map(|no| fixture.ask(no, no, 1)).collect();
        fixture.ledger.set(Fault::RefusesAll(ErrorClass::Bug));
        let before = fixture.ledger.num_refused();
        let outcomes = fixture.actors.ledger_writer.place_and_settle(intents).await;
        assert!(outcomes.len() == 40 && outcomes.iter().all(is_unwritten), "{outcomes:?}");
        assert_eq!(fixture.ledger.num_refused() - before, 9);
    });
}

#[test]
fn a_refusal_that_cannot_be_recorded_gives_nothing_back() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        // The gate does not have this order: another process sold to buyer 1.
        let foreign = fixture.ask(99, 1, 1);
        fixture.ledger.place(vec![foreign]).await.unwrap();
        fixture.ledger.set(Fault::Frozen);
        let (first, second, third) =
            (fixture.buy_as(1, 1, 1), fixture.buy_as(2, 2, 1), fixture.buy_as(3, 3, 1));
        let inject_faults = async {
            fixture.accepted(&[1, 2, 3]).await;
            fixture.ledger.set(Fault::RecordsNothing);
        };
        tokio::pin!(first);
        tokio::select! {
            answer = &mut first => panic!("answered before the refusal was recorded: {answer:?}"),
            (second, third, ()) = async { tokio::join!(second, third, inject_faults) } => {
                assert!(is_placed(&second) && is_placed(&third), "{second:?} {third:?}");
            }
        }
        let refusals = async || (fixture.ledger.num_refused() > 3).then_some(());
        tokio::select! {
            answer = &mut first => panic!("answered before the refusal was recorded: {answer:?}"),
            () = until("refused writes", refusals) => {}
        }
        assert_eq!(fixture.find(&fixture.ask(1, 1, 1)).await, Some(QUEUED));
        assert_eq!(fixture.left().await, 97, "no unit is returned");
        assert_eq!(fixture.ledger.failure(RequestId::new(1).unwrap()).await.unwrap(), None);

        fixture.ledger.set(Fault::None);
        let refusal = Refusal::AlreadyPurchased { first: RequestId::new(99).unwrap() };
        assert_eq!(first.await, BuyAnswer::refused(refusal));
        assert_eq!(fixture.left().await, 98, "the unit is returned once");
        assert_eq!(fixture.buy_as(1, 1, 1).await, BuyAnswer::Refused { refusal, replayed: true });
    });
}

#[test]
fn a_repeat_reads_the_status_of_its_request_while_the_ledger_is_down() {
    for tier in [Tier::Memory, Tier::Ledger] {
        in_system(async {
            let fixture = Failing::open(tier, OFFER).await;
            assert!(is_placed(&fixture.buy_as(1, 1, 1).await));
            fixture.ledger.set(Fault::Down);
            assert_eq!(fixture.buy_as(2, 2, 1).await, undecided(tier, false));
            assert!(fixture.actors.breaker.is_open());

            let ordered = fixture.buy_as(1, 1, 1).await;
            assert!(is_repeated_order(&ordered), "{ordered:?}");
            assert_eq!(fixture.buy_as(2, 2, 1).await, undecided(tier, true), "{tier:?}");
            assert_eq!(
                fixture.buy_as(3, 3, 1).await,
                BuyAnswer::Busy,
                "no new request is accepted"
            );
            assert_eq!(fixture.find(&fixture.ask(3, 3, 1)).await, None);
        });
    }
}

/// In tier `ledger` only the COMMIT accepts a request, and the ledger records no refusal.
#[test]
fn a_counting_ledger_promises_nothing_that_it_did_not_decide() {
    in_system(async {
        let fixture = Failing::open(Tier::Ledger, Offer { stock: 1, ..OFFER }).await;
        fixture.ledger.set(Fault::Down);
        assert_eq!(fixture.buy_as(1, 1, 1).await, BuyAnswer::Unknown);
        assert_eq!(fixture.buy_as(1, 1, 1).await, BuyAnswer::Unknown, "the breaker is open");
        fixture.ledger.set(Fault::None);

        // Another buyer gets the last unit. The clock is stopped, so the gate does not resubmit.
        let last = fixture.ask(9, 9, 1);
        let outcomes = fixture.actors.ledger_writer.place_and_settle(vec![last]).await;
        assert!(matches!(outcomes[..], [Ok(PlaceOutcome::Placed(_))]), "{outcomes:?}");
        let refused = BuyAnswer::refused(Refusal::SoldOut);
        assert_eq!(fixture.buy_as(1, 1, 1).await, refused, "a first answer, not a replayed one");
        assert_eq!(fixture.find(&fixture.ask(1, 1, 1)).await, None);
    });
}

#[test]
fn an_accepted_request_is_processed_without_its_buyer() {
    for tier in [Tier::Memory, Tier::Ledger] {
        in_system(async {
            let fixture = Failing::open(tier, OFFER).await;
            let reservation = fixture.ask(7, 7, 1);
            fixture.stock.set(StockFault::Held);
            tokio::select! {
                answer = fixture.gates.buy(reservation) => panic!("early answer: {answer:?}"),
                () = fixture.accepted(&[7]) => {}
            }
            fixture.stock.set(StockFault::None);
            // The clock is stopped, so no request is old enough to be resubmitted.
            until("the order", async || {
                fixture
                    .ledger
                    .order_timeline(reservation.request)
                    .await
                    .unwrap()
                    .map(|timeline| timeline.order)
            })
            .await;
        });
    }
}

#[test]
fn a_request_that_its_sender_gave_up_before_it_was_sent_is_not_accepted() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, Offer { buckets: 1, ..OFFER }).await;
        fixture.stock.set(StockFault::Held);
        let first = fixture.buy_as(1, 1, 1);
        tokio::pin!(first);
        tokio::select! {
            answer = &mut first => panic!("early answer: {answer:?}"),
            () = fixture.accepted(&[1]) => {}
        }
        // Reaches the gate, which waits for the answer to the first.
        let given_up = fixture.ask(2, 2, 1);
        let reaches_gate = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            answer = fixture.gates.buy(given_up) => panic!("early answer: {answer:?}"),
            () = reaches_gate => {}
        }
        fixture.stock.set(StockFault::None);
        assert!(is_placed(&first.await));
        assert!(is_placed(&fixture.buy_as(3, 3, 1).await));
        assert_eq!(fixture.find(&given_up).await, None);
        assert_eq!(fixture.left().await, OFFER.stock - 2);
    });
}

#[test]
fn a_request_inside_a_crashed_gate_is_never_answered_busy() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        fixture.stock.set(StockFault::Held);
        fixture.ledger.set(Fault::Down);
        let crash = async {
            fixture.accepted(&[7]).await;
            // The stock rejects the retry at the next gate, although it executed the first attempt.
            fixture.stock.set(StockFault::PanicsThenUnavailable);
        };
        let (answer, ()) = tokio::join!(fixture.buy_as(7, 7, 1), crash);
        assert_eq!(answer, BuyAnswer::Unknown, "the first attempt was accepted");
        fixture.stock.set(StockFault::None);
        fixture.ledger.set(Fault::None);
        assert_eq!(fixture.drained().await, 1);
    });
}

#[test]
fn units_of_a_loan_whose_answer_was_lost_are_sold() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, Offer { policy: UNLIMITED, ..OFFER }).await;
        assert_eq!(fixture.free().await, [50, 50]);
        fixture.stock.set(StockFault::LendAnswerLost);
        let borrower = (1..100_u64).find(|buyer| home_of(*buyer) == BucketNo(0)).unwrap();
        for request in 1..=10 {
            let answer = fixture.buy_as(request, borrower, 10).await;
            assert!(is_placed(&answer), "units in transfer are not sold out: {answer:?}");
        }
        assert_eq!(fixture.free().await, [0, 0]);
        let none = BuyAnswer::refused(Refusal::SoldOut);
        assert_eq!(fixture.buy_as(11, borrower, 1).await, none);
        fixture.assert_holds().await;
    });
}

fn home_of(buyer: u64) -> BucketNo {
    BucketNo::home_of(BuyerId::new(buyer).unwrap(), 2)
}
