//! The ladder on a ledger that says what it is told to: another writer is in its words.

use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::*;
use crate::db::{Anomalies, AnomaliesOverAll, AuditRow, LedgerSize, OrderCursor, Visitor};
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, KeepOutcome, NewDeadLetter, Order,
    OrderTimeline, Phase, Policy, Refusal, RequestId, Sale, SaleDraft, SaleId, SkuNo, samples,
};

/// Answers in this order.
struct Script {
    placings: Mutex<VecDeque<BlindInsert>>,
    /// Units left at each examination.
    available: Mutex<VecDeque<u32>>,
    placed: Mutex<Vec<Vec<u64>>>,
}

macro_rules! not_asked {
    ($($name:ident($($arg:ty),*) -> $answer:ty;)+) => {
        #[async_trait]
        impl Ledger for Script {
            async fn place(&self, batch: Vec<OrderIntent>) -> Result<BlindInsert, Error> {
                let requests = batch.iter().map(|intent| intent.request.get()).collect();
                self.placed.lock().push(requests);
                self.placings.lock().pop_front().ok_or(Error::Closed)
            }

            async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
                let left = self.available.lock().pop_front().ok_or(Error::Closed)?;
                let available = batch.iter().map(|intent| (intent.sku, left)).collect();
                Ok(Examination { available, ..Examination::default() })
            }

            async fn close(&self) {}

            $(async fn $name(&self, $(_: $arg),*) -> Result<$answer, Error> {
                Err(Error::Closed)
            })+
        }
    };
}

not_asked! {
    record_failures(Vec<Failure>) -> ();
    create_sale(SaleDraft, i64) -> Option<Sale>;
    turn_sale(SaleId, Epoch, Phase, i64) -> Option<Sale>;
    sales() -> Vec<Sale>;
    tally(SkuNo) -> LedgerSize;
    available(SkuNo) -> u32;
    scan_orders(SkuNo, Visitor<Order>) -> ();
    scan_failures(SkuNo, Visitor<Failure>) -> ();
    journey(RequestId) -> Option<OrderTimeline>;
    failure(RequestId) -> Option<Failure>;
    orders_of(BuyerId, Option<OrderCursor>, u32) -> Vec<Order>;
    keep_dead_letters(Vec<NewDeadLetter>, i64) -> Vec<KeepOutcome>;
    dead_letters(DeadLetterFilter, u32) -> Vec<DeadLetter>;
    dead_letter(DeadLetterNo) -> Option<DeadLetterContent>;
    turn_dead_letter(DeadLetterTransition) -> bool;
    ending_letters(DeadLetterNo, u32) -> Vec<(DeadLetter, Vec<u8>)>;
    count_dead_letters() -> DeadLetterCounts;
    dead_among(Vec<RequestId>) -> Vec<RequestId>;
    scan_audit(SkuNo, Visitor<AuditRow>) -> ();
    anomalies(SkuNo) -> Anomalies;
    secret(&'static str) -> Vec<u8>;
    next_token(&'static str) -> i64;
    anomalies_over_all() -> AnomaliesOverAll;
    ping() -> ();
}

impl Script {
    fn new(placings: &[BlindInsert], available: &[u32]) -> Self {
        Self {
            placings: Mutex::new(placings.iter().copied().collect()),
            available: Mutex::new(available.iter().copied().collect()),
            placed: Mutex::default(),
        }
    }

    fn climb(&self, batch: &[OrderIntent]) -> Vec<Option<PlaceOutcome>> {
        let mut outcomes = vec![None; batch.len()];
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(climb(self, batch, &mut outcomes)).unwrap();
        outcomes
    }
}

/// A purchase by buyer 1, who may have one order.
fn intent(request: u64, quantity: u32) -> OrderIntent {
    let slot = Policy::OnePerBuyer { max_quantity: 9 }.slot(RequestId::new(request).unwrap());
    OrderIntent { buyer: BuyerId::new(1).unwrap(), quantity, slot, ..samples::intent(request) }
}

use BlindInsert::{All, Conflict};

#[test]
fn who_was_in_the_way_must_have_been_written() {
    // The second is refused because of the first; but another writer takes a unit meanwhile, the
    // first does not fit any more, and the second does.
    let batch = [intent(1, 2), intent(2, 1)];
    let script = Script::new(&[Conflict, Conflict, All], &[2, 1, 1]);
    assert_eq!(
        script.climb(&batch),
        [
            Some(PlaceOutcome::Refused(Refusal::SoldOut)),
            Some(PlaceOutcome::Placed(batch[1].order()))
        ]
    );
    assert_eq!(*script.placed.lock(), [vec![1, 2], vec![1], vec![2]]);
}

#[test]
fn what_was_refused_for_the_sake_of_another_is_told_when_that_one_is_written() {
    let batch = [intent(1, 2), intent(2, 1), intent(1, 2), intent(1, 1)];
    let script = Script::new(&[Conflict, All], &[9]);
    let first = batch[0].request;
    assert_eq!(
        script.climb(&batch),
        [
            Some(PlaceOutcome::Placed(batch[0].order())),
            Some(PlaceOutcome::Refused(Refusal::AlreadyPurchased { first })),
            Some(PlaceOutcome::Repeat(batch[0].order())),
            Some(PlaceOutcome::Refused(Refusal::RequestIdReused)),
        ]
    );
}

#[test]
fn what_the_ledger_itself_refuses_is_told_at_once() {
    let batch = [intent(1, 2), intent(2, 1)];
    let script = Script::new(&[Conflict], &[0]);
    assert_eq!(script.climb(&batch), [Some(PlaceOutcome::Refused(Refusal::SoldOut)); 2]);
}

#[test]
fn a_conflict_without_a_reason_is_never_guessed() {
    let batch = [intent(1, 1)];
    let script = Script::new(&[Conflict; 4], &[9; 3]);
    assert_eq!(script.climb(&batch), [Some(PlaceOutcome::Unavailable)]);
    assert_eq!(script.placed.lock().len(), 4);
}
