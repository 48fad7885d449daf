//! Flow step 8/12: ledger writer -> ledger.
//!
//! The ledger is the source of truth: only its loss loses a sale, every other store is rebuilt from
//! it. [`Ledger`] is the contract of every backend; [`conflict_resolution`] determines one exact
//! outcome per intent of a batch, in the same way for every backend.
//!
//! On crash: an uncommitted transaction has no effect; committed rows are found by request id.
//! May repeat: every write, by request id.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::invariants::{FailureFacts, SkuFacts};
use crate::domain::{
    Actor, AttemptKey, BuyerId, CancelOutcome, DeadLetter, DeadLetterContent, DeadLetterCounts,
    DeadLetterFilter, DeadLetterNo, DeadLetterTransition, DueOrder, DueRefund, Epoch, Examination,
    Failure, NewDeadLetter, OpenPayment, Order, OrderEvent, OrderIntent, OrderKey, OrderState,
    OrderTimeline, Payment, PaymentEvent, PaymentRecorded, PaymentTerms, Phase, RefundResult,
    RequestId, Sale, SaleDraft, SaleId, SkuNo, StartedPayment, StoreDeadLetterOutcome,
};

pub mod conflict_resolution;
pub mod error;
mod failure_rows;
mod life_rows;
pub mod migrate;
pub mod mysql;
mod rows;
mod sale_rows;
mod schema;
pub mod sql;
pub mod sqlite;
mod workers;

pub use error::{Error, ErrorClass};

/// The last order of the previous page of a buyer's orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderCursor {
    pub placed_at_ms: i64,
    pub request: RequestId,
}

/// Limit of an operator's read. The ledger's own limits are longer: they are made for orders.
const OPERATOR_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits an operator's read to 5 s. The job itself continues after the limit.
///
/// # Errors
/// Those of the call, and [`Error::TimedOut`] after 5 s.
pub async fn with_timeout<T>(
    operation: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let result = tokio::time::timeout(OPERATOR_READ_TIMEOUT, call).await;
    result.unwrap_or(Err(Error::TimedOut { operation }))
}

/// Receives rows one at a time; returning `false` ends the scan early.
pub type Visitor<T> = Box<dyn FnMut(T) -> bool + Send>;

/// One row that an audit reads of a SKU.
#[derive(Debug, Clone)]
pub enum AuditRow {
    /// The first row.
    Sku(SkuFacts, FailureFacts),
    Order(Order),
}

/// The inconsistencies within one SKU.
#[derive(Debug, Clone, Default)]
pub struct Anomalies {
    /// Request ids with both an order and a recorded failure.
    pub orders_and_failures: Vec<i64>,
    /// Quota rows that differ from the orders that count: buyer, units in the row, units of the
    /// orders.
    pub wrong_quotas: Vec<(i64, i64, i64)>,
    /// Requests of orders that contradict their payments.
    pub wrong_money: Vec<i64>,
}

/// The inconsistencies over all SKUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrossSkuAnomalies {
    /// Request ids with more than one order, each with the number of its orders.
    pub duplicate_requests: Vec<(i64, i64)>,
    /// SKUs of orders or failures that do not belong to a sale.
    pub unknown_skus: Vec<UnknownSku>,
}

/// A SKU without a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownSku {
    pub sku: SkuNo,
    pub num_orders: u64,
    pub num_failures: u64,
}

/// Writes orders and failures.
///
/// A method of this and the following ports that returns `Ok` is committed and durable. An error's
/// [`ErrorClass`] tells whether nothing was written (`Retry`, `Down`, `Bug`) or the result is
/// unknown (`Unknown`).
#[async_trait]
pub trait OrderWriter: Send + Sync {
    /// Writes all intents as orders in one transaction and returns the time of the rows, epoch
    /// milliseconds, with which the payment windows begin; `None` if a unique key, a quota, the
    /// stock or a bar rejected the batch, and nothing was written. Conditional updates take stock
    /// and quota, unique keys guard request and slot, and the same transaction checks the writer's
    /// fencing token. The other columns of a row (trace, times) are not compared: a repeat may
    /// arrive by another path.
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Option<i64>, Error>;

    /// Reads the rows that are relevant to the batch.
    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error>;

    /// Records refused intents. A request with a record keeps its first one; a request with an
    /// order (another buyer sent its id) gets none, so that each request has one final state.
    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error>;
}

/// Reads orders and failures.
#[async_trait]
pub trait OrderReader: Send + Sync {
    /// The number of orders and failures of a SKU, and its available units.
    async fn ledger_size(&self, sku: SkuNo) -> Result<LedgerSize, Error>;

    /// Visits the orders of a SKU by buyer and slot, in one snapshot.
    async fn scan_orders(&self, sku: SkuNo, visit: Visitor<Order>) -> Result<(), Error>;

    /// Visits the recorded failures of a SKU, in one snapshot.
    async fn scan_failures(&self, sku: SkuNo, visit: Visitor<Failure>) -> Result<(), Error>;

    /// One order by its request, with its timeline; for operators. In SQLite an order in slot 0
    /// requires a scan of all orders in slot 0, because the index of request ids omits them; a
    /// caller that has the buyer uses [`OrderWriter::examine`].
    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error>;

    /// One recorded failure by its request.
    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error>;

    /// A page of a buyer's orders, newest first: at most `limit`, older than `cursor`.
    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error>;

    /// The payment attempts of these orders; those of one order oldest first.
    async fn payments_of(&self, orders: Vec<OrderKey>) -> Result<Vec<Payment>, Error>;

    /// Visits the facts of a SKU, then its orders by buyer and slot, in one snapshot.
    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error>;

    /// Finds the inconsistencies within one SKU.
    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error>;

    /// Finds the inconsistencies over all SKUs.
    async fn anomalies_across_skus(&self) -> Result<CrossSkuAnomalies, Error>;
}

/// Changes orders after their placement, as [`crate::domain::lifecycle`] decides.
///
/// A change is one transaction with its event, and returns units and limits. It compares the
/// order's version under a lock, so that of two concurrent changes one decides with the result of
/// the other. Deadlines are compared with the writer's clock.
#[async_trait]
pub trait OrderChanges: Send + Sync {
    /// Opens a payment attempt, or returns the open one. Committed before the provider is called;
    /// a repeat calls the provider with the same attempt.
    async fn open_payment(
        &self,
        order: OrderKey,
        terms: PaymentTerms,
    ) -> Result<OpenPayment, Error>;

    /// Stores the provider's answer to the start of an attempt.
    ///
    /// # Errors
    /// `Unstorable` for an unknown attempt, and for one with another payment id.
    async fn payment_started(
        &self,
        attempt: AttemptKey,
        started: StartedPayment,
    ) -> Result<(), Error>;

    /// Records a report of a payment, and changes its order accordingly. Money is never refused; an
    /// event of no known attempt is stored as it is. Also records the provider's answer to a stop.
    async fn record_payment(&self, event: PaymentEvent) -> Result<PaymentRecorded, Error>;

    /// Ends those of these orders that are due, in transactions of a bounded size; returns them. An
    /// order that is `paying` is due `extension_max_ms` after `pay_by`; earlier, the provider
    /// must stop the attempt, and its answer be recorded.
    async fn end_due(
        &self,
        orders: Vec<OrderKey>,
        extension_max_ms: i64,
    ) -> Result<Vec<Order>, Error>;

    /// Cancels an unpaid order.
    async fn cancel(
        &self,
        order: OrderKey,
        by: Actor,
        reason: Option<String>,
    ) -> Result<CancelOutcome, Error>;

    /// Orders in this state whose deadline is at or before `until_ms`, oldest first.
    async fn due_orders(
        &self,
        state: OrderState,
        until_ms: i64,
        limit: u32,
    ) -> Result<Vec<DueOrder>, Error>;

    /// Gives feed numbers to committed events without one; returns how many rows got one. Numbers
    /// become visible in ascending order without gaps, also with several callers.
    async fn number_events(&self, limit: u32) -> Result<u32, Error>;

    /// Events after a feed number, in ascending order. An event of an order that no longer exists
    /// is left out.
    async fn events_after(&self, feed_no: i64, limit: u32) -> Result<Vec<OrderEvent>, Error>;

    /// The last feed number; 0 before the first event.
    async fn last_feed_no(&self) -> Result<i64, Error>;

    /// The feed number that a reader of the feed has completed; 0 for a new reader.
    async fn cursor(&self, reader: &'static str) -> Result<i64, Error>;

    /// Moves a reader's cursor forward; never back.
    async fn move_cursor(&self, reader: &'static str, feed_no: i64) -> Result<(), Error>;
}

/// Refunds of money that was received and not applied to an order.
#[async_trait]
pub trait Refunds: Send + Sync {
    /// Refunds to be tried at or before `until_ms`, oldest first.
    async fn due_refunds(&self, until_ms: i64, limit: u32) -> Result<Vec<DueRefund>, Error>;

    /// Stores the provider's answer to a refund; repeat-safe.
    async fn refund_result(&self, refund: AttemptKey, result: RefundResult) -> Result<(), Error>;
}

/// The sales, their phases and their available units.
#[async_trait]
pub trait SaleStore: Send + Sync {
    /// Creates a sale in phase draft. `Ok(None)`: the sale id exists.
    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error>;

    /// Sets the phase of a sale whose epoch is `epoch`. Opening increments the epoch; setting the
    /// present phase changes nothing. Returns the sale after the change; `Ok(None)`: unknown sale,
    /// another epoch, or a change that [`Phase::may_become`] does not allow.
    async fn set_sale_phase(
        &self,
        sale: SaleId,
        epoch: Epoch,
        next: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error>;

    /// Pauses a sale whose epoch is `epoch` under the epoch after `above`, for a ledger that is
    /// older than its buckets. Returns the sale after the change; `Ok(None)`: unknown sale, another
    /// epoch, or closed.
    async fn pause_above(
        &self,
        sale: SaleId,
        epoch: Epoch,
        above: Epoch,
    ) -> Result<Option<Sale>, Error>;

    /// Every sale with its SKUs, oldest first.
    async fn sales(&self) -> Result<Vec<Sale>, Error>;

    /// The available units of a SKU.
    async fn available(&self, sku: SkuNo) -> Result<u32, Error>;
}

/// The undeliverable messages.
#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Stores dead letters, all of them or none; one outcome for each. A message that is stored
    /// already is the same dead letter: its reason is updated, and a replayed one is reopened.
    async fn store_dead_letters(
        &self,
        letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error>;

    /// Dead letters, newest first, at most `limit`.
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error>;

    /// One dead letter with its body and requests.
    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error>;

    /// Changes the state of a dead letter; `false`: its state or arrivals changed since the read,
    /// and nothing was written.
    async fn transition_dead_letter(&self, transition: DeadLetterTransition)
    -> Result<bool, Error>;

    /// Open and parked dead letters with their bodies, in ascending order of their number, after
    /// `after`, at most `limit`.
    async fn final_dead_letters(
        &self,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error>;

    /// The number of dead letters by state.
    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error>;

    /// The requests among these that are in an open or parked dead letter.
    async fn dead_lettered_among(&self, requests: Vec<RequestId>) -> Result<Vec<RequestId>, Error>;
}

/// The durable record of sales, orders, failures and dead letters.
#[async_trait]
pub trait Ledger:
    OrderWriter + OrderReader + OrderChanges + Refunds + SaleStore + DeadLetterStore
{
    /// The named secret of this installation, 32 bytes; generated from the operating system's
    /// randomness at the first call.
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error>;

    /// Increments the named counter and returns its value, which is never returned twice; used for
    /// process numbers and fencing tokens.
    async fn next_token(&self, name: &'static str) -> Result<i64, Error>;

    /// The time of the ledger's server, epoch milliseconds; of this process, where the ledger is
    /// a file.
    async fn time_ms(&self) -> Result<i64, Error>;

    /// Reads one row, to check that the ledger is reachable.
    async fn ping(&self) -> Result<(), Error>;

    /// Completes the submitted jobs and ends the worker threads.
    async fn close(&self);
}

/// The number of rows of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerSize {
    /// Orders in every state.
    pub num_orders: u64,
    pub num_failures: u64,
    pub available: u32,
    /// The latest opening; `None`: never opened.
    pub epoch: Option<Epoch>,
}
