//! Conflict resolution on a scripted ledger; the scripts simulate a concurrent writer.

use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::*;
use crate::db::{Anomalies, AuditRow, CrossSkuAnomalies, LedgerSize, OrderCursor, Visitor};
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, NewDeadLetter, Order, OrderTimeline, Phase,
    Policy, Refusal, RequestId, Sale, SaleDraft, SaleId, SkuNo, StoreDeadLetterOutcome, samples,
};

/// A ledger with scripted results, used in order.
struct ScriptedLedger {
    placings: Mutex<VecDeque<BlindInsert>>,
    /// Available units at each examination.
    available: Mutex<VecDeque<u32>>,
    placed: Mutex<Vec<Vec<u64>>>,
}

macro_rules! scripted_ledger {
    ($($name:ident($($arg:ty),*) -> $answer:ty;)+) => {
        #[async_trait]
        impl Ledger for ScriptedLedger {
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

scripted_ledger! {
    record_failures(Vec<Failure>) -> ();
    create_sale(SaleDraft, i64) -> Option<Sale>;
    set_sale_phase(SaleId, Epoch, Phase, i64) -> Option<Sale>;
    sales() -> Vec<Sale>;
    ledger_size(SkuNo) -> LedgerSize;
    available(SkuNo) -> u32;
    scan_orders(SkuNo, Visitor<Order>) -> ();
    scan_failures(SkuNo, Visitor<Failure>) -> ();
    order_timeline(RequestId) -> Option<OrderTimeline>;
    failure(RequestId) -> Option<Failure>;
    orders_of(BuyerId, Option<OrderCursor>, u32) -> Vec<Order>;
    store_dead_letters(Vec<NewDeadLetter>, i64) -> Vec<StoreDeadLetterOutcome>;
    dead_letters(DeadLetterFilter, u32) -> Vec<DeadLetter>;
    dead_letter(DeadLetterNo) -> Option<DeadLetterContent>;
    transition_dead_letter(DeadLetterTransition) -> bool;
    final_dead_letters(DeadLetterNo, u32) -> Vec<(DeadLetter, Vec<u8>)>;
    count_dead_letters() -> DeadLetterCounts;
    dead_lettered_among(Vec<RequestId>) -> Vec<RequestId>;
    scan_audit(SkuNo, Visitor<AuditRow>) -> ();
    anomalies(SkuNo) -> Anomalies;
    secret(&'static str) -> Vec<u8>;
    next_token(&'static str) -> i64;
    anomalies_across_skus() -> CrossSkuAnomalies;
    ping() -> ();
}

impl ScriptedLedger {
    fn new(placings: &[BlindInsert], available: &[u32]) -> Self {
        Self {
            placings: Mutex::new(placings.iter().copied().collect()),
            available: Mutex::new(available.iter().copied().collect()),
            placed: Mutex::default(),
        }
    }

    fn resolve(&self, batch: &[OrderIntent]) -> Vec<Option<PlaceOutcome>> {
        let mut outcomes = vec![None; batch.len()];
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(resolve(self, batch, &mut outcomes)).unwrap();
        outcomes
    }
}

/// An intent of buyer 1 under the policy `one_per_buyer`.
fn intent(request: u64, quantity: u32) -> OrderIntent {
    let slot = Policy::OnePerBuyer { max_quantity: 9 }.slot(RequestId::new(request).unwrap());
    OrderIntent { buyer: BuyerId::new(1).unwrap(), quantity, slot, ..samples::intent(request) }
}

use BlindInsert::{All, Conflict};

#[test]
fn a_refusal_caused_by_an_unwritten_intent_is_not_final() {
    // The first intent causes the refusal of the second. Another writer then takes a unit, so that
    // the first intent does not fit any more and the second one does.
    let batch = [intent(1, 2), intent(2, 1)];
    let ledger = ScriptedLedger::new(&[Conflict, Conflict, All], &[2, 1, 1]);
    assert_eq!(
        ledger.resolve(&batch),
        [
            Some(PlaceOutcome::Refused(Refusal::SoldOut)),
            Some(PlaceOutcome::Placed(batch[1].order()))
        ]
    );
    assert_eq!(*ledger.placed.lock(), [vec![1, 2], vec![1], vec![2]]);
}

#[test]
fn a_refusal_caused_by_another_intent_is_final_once_that_one_is_written() {
    let batch = [intent(1, 2), intent(2, 1), intent(1, 2), intent(1, 1)];
    let ledger = ScriptedLedger::new(&[Conflict, All], &[9]);
    let first = batch[0].request;
    assert_eq!(
        ledger.resolve(&batch),
        [
            Some(PlaceOutcome::Placed(batch[0].order())),
            Some(PlaceOutcome::Refused(Refusal::AlreadyPurchased { first })),
            Some(PlaceOutcome::Repeat(batch[0].order())),
            Some(PlaceOutcome::Refused(Refusal::RequestIdReused)),
        ]
    );
}

#[test]
fn a_refusal_by_the_ledgers_own_rows_is_final_at_once() {
    let batch = [intent(1, 2), intent(2, 1)];
    let ledger = ScriptedLedger::new(&[Conflict], &[0]);
    assert_eq!(ledger.resolve(&batch), [Some(PlaceOutcome::Refused(Refusal::SoldOut)); 2]);
}

#[test]
fn an_unexplained_conflict_is_reported_as_unavailable() {
    let batch = [intent(1, 1)];
    let ledger = ScriptedLedger::new(&[Conflict; 4], &[9; 3]);
    assert_eq!(ledger.resolve(&batch), [Some(PlaceOutcome::Unavailable)]);
    assert_eq!(ledger.placed.lock().len(), 4);
}
