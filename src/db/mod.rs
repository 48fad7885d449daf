//! Flow step 8/12: ledger writer -> ledger.
//!
//! The ledger is the source of truth: only its loss loses a sale, every other store is rebuilt from
//! it. [`Ledger`] is the contract of every backend; [`placement`] determines one exact
//! outcome per intent of a batch, in the same way for every backend.
//!
//! On crash: an uncommitted transaction has no effect; committed rows are found by request id.
//! May repeat: every write, by request id.

use std::collections::HashMap;

use async_trait::async_trait;

use crate::domain::invariants::{SkuFacts, Violation};
use crate::domain::{
    AttemptKey, BuyerId, ByOperator, CancelOutcome, DueOrder, DueRefund, DueRetake, Epoch,
    Examination, Failure, LoaderToken, OpenPayment, Order, OrderIntent, OrderKey, OrderState,
    OrderTimeline, Payment, PaymentEvent, PaymentRecorded, PaymentTerms, Phase, RefundResult,
    Refusal, RequestId, RetakeEnd, RetakeOutcome, Sale, SaleChange, SaleChanged, SaleDraft, SaleId,
    SkuNo, StartedPayment, StockChange, StockChangeOutcome, StockChangeRequest,
};

mod archive_tables;
mod dead_letter_store;
pub mod error;
mod failure_rows;
mod feed_event;
mod follow_ups;
mod life_rows;
pub mod migrate;
pub mod mysql;
mod payment_rows;
pub mod placement;
mod repairs;
mod retention;
mod rows;
mod sale_rows;
mod schema;
pub mod sql;
pub mod sqlite;
mod verbs;
mod workers;

pub use archive_tables::summed_columns;
pub use dead_letter_store::DeadLetterStore;
pub use error::{Error, ErrorClass, with_timeout};
pub use feed_event::{FeedEvent, FeedPage};
pub use follow_ups::{EventCursor, FollowUps};
pub use repairs::RepairStore;
pub use retention::{PurgeStep, RetentionStore};
pub use verbs::VerbStore;

/// The last order of the previous page of a buyer's orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderCursor {
    pub placed_at_ms: i64,
    pub request: RequestId,
}

/// Receives rows one at a time; returning `false` ends the scan early.
pub type Visitor<T> = Box<dyn FnMut(T) -> bool + Send>;

/// One row that an audit reads of a SKU.
#[derive(Debug, Clone)]
pub enum AuditRow {
    /// The first row.
    Sku(SkuFacts),
    Order(Order),
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

    /// Records refused intents, each with its event in the feed. A request with a record keeps its
    /// first one; a request with an order (another buyer sent its id, or another writer has just
    /// placed it) gets none, so that each request has one final state. Returns the recorded failure
    /// of each request that has one.
    async fn record_failures(
        &self,
        failures: Vec<Failure>,
    ) -> Result<HashMap<RequestId, Refusal>, Error>;
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
    /// caller that has the buyer uses [`Self::order`].
    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error>;

    /// One order by its key.
    async fn order(&self, key: OrderKey) -> Result<Option<Order>, Error>;

    /// One recorded failure by its request.
    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error>;

    /// A page of a buyer's orders, newest first: at most `limit`, older than `cursor`.
    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error>;

    /// The buyers who may not order a SKU any more, barred at or after `since_ms`.
    async fn barred(&self, sku: SkuNo, since_ms: i64) -> Result<Vec<BuyerId>, Error>;

    /// The payment attempts of these orders; those of one order oldest first.
    async fn payments_of(&self, orders: Vec<OrderKey>) -> Result<Vec<Payment>, Error>;

    /// Visits the facts of a SKU, then its orders by buyer and slot, in one snapshot.
    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error>;

    /// Finds the inconsistencies within one SKU: requests that are order and failure, wrong quota
    /// rows, orders that contradict their payments.
    async fn anomalies(&self, sku: SkuNo) -> Result<Vec<Violation>, Error>;

    /// Finds the inconsistencies over all SKUs: requests with several orders, SKUs without a sale.
    async fn anomalies_across_skus(&self) -> Result<Vec<Violation>, Error>;
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
    async fn cancel(&self, order: OrderKey) -> Result<CancelOutcome, Error>;

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

    /// Events after a feed number, in ascending order; none at the end of the feed, and where every
    /// later event is of an order or failure that no longer exists. Such an event is left out.
    async fn events_after(&self, feed_no: i64, limit: u32) -> Result<Vec<FeedEvent>, Error>;

    /// Changes after a feed number, without placements, failures, and changes of orders that no
    /// longer exist, and how far the feed was read. A change that is not readable is left out,
    /// logged and counted.
    async fn changes_after(&self, feed_no: i64, limit: u32) -> Result<FeedPage, Error>;

    /// The last feed number that was given, also if its event is deleted; 0 before the first.
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

    /// Stores the provider's answer to a refund; repeat-safe. `false`: another answer came first.
    async fn refund_result(&self, refund: AttemptKey, result: RefundResult) -> Result<bool, Error>;
}

/// Purchases with the late money of timed-out orders; see [`crate::domain::retake`].
#[async_trait]
pub trait Retakes: Send + Sync {
    /// Payments that wait for their purchase, oldest first.
    async fn due_retakes(&self, limit: u32) -> Result<Vec<DueRetake>, Error>;

    /// Exempts the purchase from the buyer's bars, if the lapse of the order brought one of them;
    /// repeat-safe.
    async fn exempt_retake(&self, retake: OrderKey, successor: RequestId) -> Result<(), Error>;

    /// Pays the successor with the money, or makes it due back; repeat-safe.
    async fn end_retake(&self, retake: AttemptKey, end: RetakeEnd) -> Result<RetakeOutcome, Error>;
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
        by: Option<ByOperator>,
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

    /// Changes a sale as [`Sale::changed`] decides.
    async fn change_sale(
        &self,
        sale: SaleId,
        change: SaleChange,
        now_ms: i64,
    ) -> Result<SaleChanged, Error>;

    /// A fencing token for a load of a SKU's buckets: larger than every earlier one. Units that the
    /// buckets gave up before cannot leave the ledger any more; the load frees them.
    async fn begin_load(&self, sku: SkuNo) -> Result<LoaderToken, Error>;

    /// Changes the stock of a SKU whose sale is not closed, once per SKU and id. Units to take out
    /// leave only if no load of the buckets began since they gave them up.
    async fn change_stock(&self, request: StockChangeRequest) -> Result<StockChangeOutcome, Error>;

    /// The recorded change of a SKU's stock with this id.
    async fn stock_change(&self, sku: SkuNo, id: String) -> Result<Option<StockChange>, Error>;

    /// The changes of a SKU's stock after a number, in their order.
    async fn stock_changes(&self, sku: SkuNo, after: i32) -> Result<Vec<StockChange>, Error>;

    /// Records that no bucket of a sale is in a phase before the sale's any more. The first time is
    /// kept.
    async fn phase_applied(&self, sale: &Sale, now_ms: i64) -> Result<(), Error>;

    /// Every sale with its SKUs, oldest first.
    async fn sales(&self) -> Result<Vec<Sale>, Error>;

    /// The available units of a SKU.
    async fn available(&self, sku: SkuNo) -> Result<u32, Error>;
}

/// The durable record of sales, orders, failures and dead letters.
#[async_trait]
pub trait Ledger:
    OrderWriter
    + OrderReader
    + OrderChanges
    + Refunds
    + FollowUps
    + Retakes
    + SaleStore
    + DeadLetterStore
    + RepairStore
    + RetentionStore
    + VerbStore
{
    /// The named secret of this installation, 32 bytes; generated from the operating system's
    /// randomness at the first call.
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error>;

    /// Increments the named counter and returns its value, which is never returned twice; used for
    /// process numbers and fencing tokens.
    async fn next_token(&self, name: &'static str) -> Result<i64, Error>;

    /// Commits what a placement writes besides its orders: an order event, which it removes again.
    async fn commit_canary(&self) -> Result<(), Error>;

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
}
