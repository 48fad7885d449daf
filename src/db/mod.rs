//! Flow step 8/12: ledger writer -> ledger.
//!
//! The ledger has the last word: it is the only store whose loss loses a sale, and everything else
//! can be rebuilt from it. [`Ledger`] says what every backend promises; [`conflict_resolution`] turns
//! a batch of intents into one exact outcome each, the same way for every backend.
//!
//! On death: a transaction that did not commit never happened; one that did is found by request id.
//! May repeat: everything, by request id.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::invariants::{FailureFacts, SkuFacts};
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, KeepOutcome, NewDeadLetter, Order,
    OrderIntent, OrderTimeline, Phase, RequestId, Sale, SaleDraft, SaleId, SkuNo,
};

pub mod conflict_resolution;
mod dead_letter_rows;
pub mod error;
pub mod migrate;
pub mod mysql;
mod rows;
mod schema;
pub mod sql;
pub mod sqlite;
mod workers;

pub use error::{Error, ErrorClass};

/// What a blind write of a batch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlindInsert {
    /// Every intent is an order now, committed and durable.
    All,
    /// A unique key, a quota or the stock objected: nothing was written. Examine.
    Conflict,
}

/// A place in a buyer's list of orders: everything before it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderCursor {
    /// `placed_at_ms` of the last order shown.
    pub placed_at_ms: i64,
    /// Its request.
    pub request: RequestId,
}

/// How long an operator's look at the ledger may take. The ledger's own limits are made for orders,
/// which are worth a longer wait.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// What an operator's look comes to, while they wait; the job goes on without them.
///
/// # Errors
/// Those of the call, and [`Error::TimedOut`] when it takes longer than 5 s.
pub async fn look<T>(
    doing: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = tokio::time::timeout(LOOK_PATIENCE, call).await;
    answer.unwrap_or(Err(Error::TimedOut { doing }))
}

/// Receives rows one at a time; returning `false` ends the scan early.
pub type Visitor<T> = Box<dyn FnMut(T) -> bool + Send>;

/// One row of the evidence of a SKU.
#[derive(Debug, Clone)]
pub enum AuditRow {
    /// The SKU itself; comes first.
    Sku(SkuFacts, FailureFacts),
    /// One of its orders.
    Order(Order),
}

/// What an audit reads of a SKU besides the orders themselves.
#[derive(Debug, Clone, Default)]
pub struct Anomalies {
    /// Request ids that are both an order and a recorded failure.
    pub orders_and_failures: Vec<i64>,
    /// Quota rows that differ from the live orders: buyer, units by the row, units by the orders.
    pub wrong_quotas: Vec<(i64, i64, i64)>,
}

/// What an audit reads of the whole ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnomaliesOverAll {
    /// Request ids with more than one order, of whichever SKUs, with their number.
    pub duplicate_requests: Vec<(i64, i64)>,
    /// SKUs that no sale has, and that orders or failures name.
    pub unknown_skus: Vec<UnknownSku>,
}

/// A SKU that no sale has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownSku {
    /// Its number.
    pub sku: SkuNo,
    /// Orders that name it.
    pub num_orders: u64,
    /// Recorded failures that name it.
    pub num_failures: u64,
}

/// The ledger: where orders become true.
///
/// A method that returns `Ok` is committed and durable. An error's [`ErrorClass`] tells whether
/// nothing
/// was written (`Retry`, `Down`, `Bug`) or nobody knows (`Unknown`).
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Writes all intents as orders in one transaction, or none of them. Stock and quota are taken
    /// by conditional updates, request and slot are held by unique keys. The writer's fencing token
    /// is checked in the same transaction. What a row says besides the order (trace, times) is
    /// compared with nothing: a repeat may come by another way.
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<BlindInsert, Error>;

    /// Reads what the ledger holds that bears on the batch.
    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error>;

    /// Records refused intents. A request that is recorded already keeps its first record; one that
    /// is an order (another buyer came with its id) gets none, so that each request has one end.
    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error>;

    /// Creates a sale in phase draft. `Ok(None)`: a sale of that name exists.
    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error>;

    /// Moves a sale that is at this opening to `next`; opening takes the next epoch, a repeat of
    /// the present phase changes nothing. Returns the sale as it is afterwards; `Ok(None)`: unknown
    /// sale, another opening, or a move that [`Phase::may_become`] does not allow.
    async fn turn_sale(
        &self,
        sale: SaleId,
        epoch: Epoch,
        next: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error>;

    /// Every sale with its SKUs, oldest first.
    async fn sales(&self) -> Result<Vec<Sale>, Error>;

    /// How many orders and failures each SKU has, and the units it has left.
    async fn tally(&self, sku: SkuNo) -> Result<LedgerSize, Error>;

    /// The units a SKU has left.
    async fn available(&self, sku: SkuNo) -> Result<u32, Error>;

    /// Visits the orders of a SKU by buyer and slot, as of one instant.
    async fn scan_orders(&self, sku: SkuNo, visit: Visitor<Order>) -> Result<(), Error>;

    /// Visits the recorded failures of a SKU.
    async fn scan_failures(&self, sku: SkuNo, visit: Visitor<Failure>) -> Result<(), Error>;

    /// One order by its request, with its way; for operators. Rows of older versions do not tell
    /// their times. SQLite reads every order in slot 0 to find one of them, because its index of
    /// requests leaves those out; a caller that knows the buyer uses [`Self::examine`].
    async fn journey(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error>;

    /// One recorded failure by its request.
    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error>;

    /// A buyer's orders, newest first, at most `limit`, after `cursor`.
    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error>;

    /// Visits what an audit needs of a SKU, as of one instant: first its facts, then its orders by
    /// buyer and slot.
    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error>;

    /// What only a look across all orders of a SKU finds.
    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error>;

    /// What only a look across all SKUs finds.
    async fn anomalies_over_all(&self) -> Result<AnomaliesOverAll, Error>;

    /// Keeps dead letters, all of them or none, and says of each what became of it. A message that
    /// is there already is the same letter: its newest reason is noted, and if it had been replayed
    /// it is open again.
    async fn keep_dead_letters(
        &self,
        letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<KeepOutcome>, Error>;

    /// Dead letters, newest first, at most `limit`.
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error>;

    /// One dead letter with everything that is kept of it.
    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error>;

    /// Changes the state of a dead letter; `false`: it is not as it was seen, and nothing changed.
    async fn turn_dead_letter(&self, turn: DeadLetterTransition) -> Result<bool, Error>;

    /// Dead letters that are the end of their requests, open or parked, with their bodies; by
    /// number, after `after`, at most `limit`.
    async fn ending_letters(
        &self,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error>;

    /// How many dead letters there are.
    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error>;

    /// Which of these requests have ended in a dead letter: one that is open or parked.
    async fn dead_among(&self, requests: Vec<RequestId>) -> Result<Vec<RequestId>, Error>;

    /// The named secret of this installation, 32 bytes; made from the operating system's randomness
    /// at the first call and kept.
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error>;

    /// A number that no earlier call on this ledger returned, counted up by one; used for process
    /// numbers and fencing tokens.
    async fn next_token(&self, name: &'static str) -> Result<i64, Error>;

    /// One read and nothing else: is the ledger there?
    async fn ping(&self) -> Result<(), Error>;

    /// Finishes what was begun and ends the workers.
    async fn close(&self);
}

/// How large a SKU's part of the ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerSize {
    /// Orders, live or not.
    pub num_orders: u64,
    /// Recorded failures.
    pub num_failures: u64,
    /// Units left.
    pub available: u32,
    /// The latest opening.
    pub epoch: Option<Epoch>,
}
