//! Conflict resolution on a scripted ledger; the scripts simulate a concurrent writer.

use std::collections::{HashMap, VecDeque};

use async_trait::async_trait;
use floodgate::db::placement::place_each;
use floodgate::db::{Error, OrderWriter};
use floodgate::domain::{
    BucketNo, Epoch, Examination, Failure, OrderIntent, PlaceOutcome, Policy, Refusal, RequestId,
    SkuNo, TraceId,
};
use parking_lot::Mutex;

use crate::support::offers::{buyer, request, run};

/// The time of the rows.
const NOW_MS: i64 = 1_800_000_000_500;
const WRITTEN: Option<i64> = Some(NOW_MS);
const CONFLICT: Option<i64> = None;

/// A ledger with scripted results, used in order.
struct ScriptedLedger {
    placings: Mutex<VecDeque<Option<i64>>>,
    /// Available units at each examination.
    available: Mutex<VecDeque<u32>>,
    placed: Mutex<Vec<Vec<u64>>>,
}

#[async_trait]
impl OrderWriter for ScriptedLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Option<i64>, Error> {
        let requests = batch.iter().map(|intent| intent.request.get()).collect();
        self.placed.lock().push(requests);
        self.placings.lock().pop_front().ok_or(Error::Closed)
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        let left = self.available.lock().pop_front().ok_or(Error::Closed)?;
        let available = batch.iter().map(|intent| (intent.sku, left)).collect();
        Ok(Examination { available, ..Examination::default() })
    }

    async fn record_failures(&self, _: Vec<Failure>) -> Result<HashMap<RequestId, Refusal>, Error> {
        Err(Error::Closed)
    }
}

impl ScriptedLedger {
    fn new(placings: &[Option<i64>], available: &[u32]) -> Self {
        Self {
            placings: Mutex::new(placings.iter().copied().collect()),
            available: Mutex::new(available.iter().copied().collect()),
            placed: Mutex::default(),
        }
    }

    fn place_each(&self, batch: &[OrderIntent]) -> Vec<Option<PlaceOutcome>> {
        let mut outcomes = vec![None; batch.len()];
        run(place_each(self, batch, &mut outcomes)).unwrap();
        outcomes
    }
}

/// An intent of buyer 1 under the policy `one_per_buyer`.
fn intent(request_no: u64, quantity: u32) -> OrderIntent {
    let request = request(request_no);
    OrderIntent {
        request,
        sku: SkuNo(1),
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: buyer(1),
        quantity,
        slot: Policy::OnePerBuyer { max_quantity: 9 }.slot(request),
        quota: None,
        amount: 100,
        placed_at_ms: 1_800_000_000_000,
        payment_window_s: 900,
        trace: TraceId(9),
        published_at_ms: None,
    }
}

#[test]
fn a_refusal_caused_by_an_unwritten_intent_is_not_final() {
    // The first intent causes the refusal of the second. Another writer then takes a unit, so that
    // the first intent does not fit any more and the second one does.
    let batch = [intent(1, 2), intent(2, 1)];
    let ledger = ScriptedLedger::new(&[CONFLICT, CONFLICT, WRITTEN], &[2, 1, 1]);
    assert_eq!(
        ledger.place_each(&batch),
        [
            Some(PlaceOutcome::Refused(Refusal::SoldOut)),
            Some(PlaceOutcome::Placed(batch[1].order(NOW_MS)))
        ]
    );
    assert_eq!(*ledger.placed.lock(), [vec![1, 2], vec![1], vec![2]]);
}

#[test]
fn a_refusal_caused_by_another_intent_is_final_once_that_one_is_written() {
    let batch = [intent(1, 2), intent(2, 1), intent(1, 2), intent(1, 1)];
    let ledger = ScriptedLedger::new(&[CONFLICT, WRITTEN], &[9]);
    let first = batch[0].request;
    assert_eq!(
        ledger.place_each(&batch),
        [
            Some(PlaceOutcome::Placed(batch[0].order(NOW_MS))),
            Some(PlaceOutcome::Refused(Refusal::AlreadyPurchased { first })),
            Some(PlaceOutcome::Repeat(batch[0].order(NOW_MS))),
            Some(PlaceOutcome::Refused(Refusal::RequestIdReused)),
        ]
    );
}

#[test]
fn a_refusal_by_the_ledgers_own_rows_is_final_at_once() {
    let batch = [intent(1, 2), intent(2, 1)];
    let ledger = ScriptedLedger::new(&[CONFLICT], &[0]);
    assert_eq!(ledger.place_each(&batch), [Some(PlaceOutcome::Refused(Refusal::SoldOut)); 2]);
}

#[test]
fn an_unexplained_conflict_leaves_no_outcome() {
    let batch = [intent(1, 1)];
    let ledger = ScriptedLedger::new(&[CONFLICT; 4], &[9; 3]);
    assert_eq!(ledger.place_each(&batch), [None]);
    assert_eq!(ledger.placed.lock().len(), 4);
}
