//! Flow step 3/12: stock gate -> bucket.
//!
//! A [`Stock`] counts units. For each bucket it holds the free units, the buyers, and the accepted
//! requests with their results. A gate holds no state that a crash could lose.
//!
//! If a gate exits: [`Stock::unsettled`] returns the requests that it accepted and did not submit
//! to the ledger; the bucket's next gate submits them again. May repeat: every call, by request id
//! or loan number.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;

use crate::domain::invariants::BucketFacts;
use crate::domain::{
    BucketKey, BucketNo, BucketSnapshot, BuyerId, Epoch, Failure, LoaderToken, Loan, Order,
    OrderIntent, Phase, Policy, RequestId, RequestRecord, Sku, SkuNo, StockChange, Verdict,
    Withdrawal,
};
use crate::redis::executor::CallError;
use crate::redis::scripts::Error as ScriptError;

pub mod memory;
pub mod redis;

pub use self::redis::{RedisStock, ResultHints};
pub use memory::MemoryStock;

/// Why a stock could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This process does not know the SKU, or a bucket of it is missing or held by a loader: what
    /// was accepted cannot be told. Nothing was changed.
    #[error("sku {0} is not loaded")]
    NotLoaded(SkuNo),
    /// A panic interrupted a change of the bucket. The bucket must be rebuilt from the ledger.
    #[error("bucket {bucket} of sku {sku} was left half-written by a panic")]
    HalfWritten { sku: SkuNo, bucket: BucketNo },
    /// The store is not the one that the buckets were opened on, they belong to another
    /// installation, or another loader has taken them over. They are not used until they are
    /// loaded. Nothing was changed.
    #[error("the buckets of sku {sku} are fenced: {reason}")]
    Fenced { sku: SkuNo, reason: String },
    /// The store could not be reached, or refused the call. Nothing was changed.
    #[error("the stock is not available: {reason}")]
    Unavailable { reason: String },
    /// The store did not answer, or did not confirm the required durability. Repeat the call with
    /// the same ids; never give the units back.
    #[error("the stock did not confirm {operation}: {reason}")]
    Unknown { operation: &'static str, reason: String },
    /// The store holds data that no version of this program wrote. Nothing was changed.
    #[error("the stock is damaged: {what}")]
    Damaged { what: String },
}

impl Error {
    /// Whether the call certainly changed nothing.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// Whether the buckets are to be loaded: a load brings them to the ledger's state.
    pub fn is_not_loaded(&self) -> bool {
        matches!(self, Self::NotLoaded(_) | Self::Fenced { .. })
    }
}

/// The result of a call for buckets that are loaded: what others lack their next load brings.
pub fn if_loaded(changed: Result<(), Error>) -> Result<(), Error> {
    match changed {
        Err(error) if error.is_not_loaded() => Ok(()),
        changed => changed,
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        let (sku, key, error) = match error {
            CallError::Unavailable { reason } => return Self::Unavailable { reason },
            CallError::Unknown { operation, reason } => return Self::Unknown { operation, reason },
            CallError::Damaged { what } => return Self::Damaged { what },
            CallError::Rejected { sku, key, error, .. } => (sku, key, error),
        };
        let reason = format!("{key}: {error}");
        match error {
            ScriptError::NotReady => Self::NotLoaded(sku),
            ScriptError::Fenced | ScriptError::OldLoader | ScriptError::Foreign => {
                Self::Fenced { sku, reason }
            }
            ScriptError::Corrupt { .. } | ScriptError::TooMany => Self::Damaged { what: reason },
            // The script has run; one of its answers cannot be parsed.
            ScriptError::Unexpected { .. } => {
                Self::Unknown { operation: "reading an answer", reason }
            }
        }
    }
}

/// The state of a SKU's buckets, compared with the sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketHealth {
    /// All buckets are in the sale's phase and opening.
    Ready,
    /// At least one intact bucket is in another phase or opening; `latest` is the latest pair of
    /// all buckets.
    OtherPhase { latest: (Epoch, Phase) },
    /// At least one bucket lacks changes of the SKU's stock after this number.
    OtherStock { change_no: i32 },
    /// At least one bucket is not loaded.
    Missing,
    /// At least one bucket must not be used: it belongs to another server or ledger, or is damaged.
    Distrusted { reason: String },
}

/// Builds the buckets of one SKU from the ledger and publishes them. While a `Loading` exists the
/// buckets accept nothing, and only the loader with the largest token can write; in memory there is
/// one. A loader may be dropped at any point: the next one takes the buckets over without loss.
#[async_trait]
pub trait Loading: Send {
    /// Empties the buckets, except for accepted requests without a ledger decision: they stay
    /// queued, and their units are subtracted from the published stock. A request that is also
    /// passed as an order or a failure counts as that. Must be called first.
    async fn clear(&mut self) -> Result<(), Error>;
    /// Adds accepted requests that the buckets may have lost; they are queued again.
    async fn queued(&mut self, rows: Vec<OrderIntent>) -> Result<(), Error>;
    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error>;
    async fn failures(&mut self, rows: Vec<Failure>) -> Result<(), Error>;
    /// The last change of the stock that the published units contain; without this call none.
    fn stock_change(&mut self, no: i32);
    /// Publishes the buckets with `available` units distributed evenly, in the given phase of an
    /// opening, or in a later one that was set during the load.
    async fn publish(
        self: Box<Self>,
        available: u32,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error>;
}

/// The queued requests on some pages of a bucket: accepted, without a ledger decision.
#[derive(Debug, Default)]
pub struct QueuedPage {
    /// The requests, as intents to submit to the ledger.
    pub intents: Vec<OrderIntent>,
    /// Pages read.
    pub num_pages: u16,
    /// The first page not read yet; `None` at the end.
    pub next: Option<u16>,
    /// Describes the first unreadable entry or page.
    pub damage: Option<String>,
}

/// Decides reservations, and stores their results and the units of every bucket.
#[async_trait]
pub trait Stock: Send + Sync {
    /// Makes a SKU with its latest terms known to this process, without a call. Until then it is
    /// `NotLoaded`, whatever other processes have loaded.
    fn register(&self, sku: &Arc<Sku>);

    /// Frees what this process holds of a SKU whose sale is purged.
    fn forget(&self, sku: SkuNo);

    /// Holds every bucket of a SKU for a load. Publishing the load replaces the previous content. A
    /// loader with a larger token fences the previous one. Those in memory are loaded once.
    async fn load(&self, sku: Arc<Sku>, loader: LoaderToken) -> Result<Box<dyn Loading>, Error>;

    /// The state of the buckets, compared with the sale's phase and opening. Registers the SKU.
    async fn health(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error>;

    /// Advances every bucket of a SKU to a phase of an opening. (epoch, phase) is an ordered pair
    /// that only grows: a pair before a bucket's own is ignored (`Fenced`); a pair that is set
    /// during a load of shared buckets is published with the load. Registers the SKU.
    async fn set_phase(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error>;

    /// Deletes all that is stored of a SKU, of which nothing is queued. Nothing creates it again
    /// once the ledger refuses its loads.
    async fn purge(&self, sku: &Arc<Sku>) -> Result<(), Error>;

    /// Adds the units of a change of the stock to the buckets, in equal shares. Each bucket adds
    /// its share once, after every earlier change; one that lacks an earlier change adds nothing.
    async fn change_stock(&self, sku: &Arc<Sku>, change: StockChange) -> Result<(), Error>;

    /// Takes up to `units` free units out of the buckets: they are not sold any more. They stay
    /// lent until [`Self::end_withdrawal`]. If the ledger counts units, it decides how many it has.
    ///
    /// # Errors
    /// `Unavailable` while an earlier withdrawal is open. Buckets with an abandoned withdrawal
    /// become [`BucketHealth::Distrusted`], and their load frees the units.
    async fn withdraw(&self, sku: SkuNo, units: u32) -> Result<Withdrawal, Error>;

    /// Ends a withdrawal, once: the units are gone if the ledger recorded it, free otherwise.
    async fn end_withdrawal(
        &self,
        sku: SkuNo,
        withdrawal: &Withdrawal,
        is_recorded: bool,
    ) -> Result<(), Error>;

    /// Decides a batch in order as one atomic step. Returns one verdict for each intent.
    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<OrderIntent>,
    ) -> Result<Vec<Verdict>, Error>;

    /// Records committed orders, and each later change of an order: a larger version replaces a
    /// smaller one, so that changes may arrive late, repeated or reordered. The units of an order
    /// that ended return to the bucket, once. Waiting buyers see them with the next read.
    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error>;

    /// Records refusals of the ledger. The units return to the bucket, once, if the ledger still
    /// has them. A refusal of a request unknown to the bucket is recorded without moving units. An
    /// accepted request stays unsettled until the ledger has decided it. If the ledger counts
    /// units, requests that it decided are deleted.
    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error>;

    /// Intents without a ledger decision, accepted by any process. Submitting one twice is
    /// harmless.
    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error>;

    /// A part of [`Self::unsettled`], read from the request records from `page` on. The time that
    /// the store spends is bounded. Damaged records are skipped.
    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error>;

    /// Takes free units out for a sibling bucket: at least `want`, or all if fewer are free. While
    /// a loan to that bucket is open, the same loan is returned again.
    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error>;

    /// Finishes a transfer: adds the units to the borrower, once per loan, and clears the lender's
    /// record. Returns the units added; 0 if the loan was added before.
    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error>;

    /// Finishes every interrupted transfer to this bucket. Returns the units added.
    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error>;

    /// The record of a request; `None` if it belongs to another buyer. Without a buyer, for
    /// operators: the request of any buyer.
    async fn record(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: Option<BuyerId>,
    ) -> Result<Option<RequestRecord>, Error>;

    /// The units of a buyer's accepted requests and live orders, in the buyer's home bucket; 0
    /// without a quota.
    async fn owned(&self, bucket: BucketKey, buyer: BuyerId) -> Result<u32, Error>;

    /// The records of many requests of one SKU, in order; those of a bucket are read at once.
    /// `None` for a request that was not accepted, or belongs to another buyer.
    async fn records(
        &self,
        sku: SkuNo,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestRecord>>, Error>;

    /// Whether this bucket may have accepted the request, by the state of this process alone. False
    /// positives are possible, false negatives are not.
    fn may_have_accepted(&self, bucket: BucketKey, request: RequestId) -> bool;

    /// Units left over all buckets and transfers, by the state of this process.
    fn left(&self, sku: SkuNo) -> u32;

    /// Whether this process has observed that nothing is left. Cleared when a unit returns.
    fn is_sold_out(&self, sku: SkuNo) -> bool;

    /// Stores the units left in the ledger, if the ledger counts units; otherwise does nothing.
    fn cache_left(&self, _sku: SkuNo, _left: u32) {}

    /// Reads again what other processes may have changed: units left, sold out, and the accepted
    /// requests. Nothing, if there are no other processes.
    async fn refresh(&self, _sku: SkuNo) -> Result<(), Error> {
        Ok(())
    }

    /// Begins to receive hints of results from now on. `None`: this stock has none.
    async fn result_hints(&self) -> Result<Option<ResultHints>, Error> {
        Ok(None)
    }

    /// Checks that the store answers and is still the server that was connected to; otherwise its
    /// connections are closed. Nothing, if there is no server.
    async fn ping(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The counts of one bucket.
    async fn snapshot(&self, bucket: BucketKey) -> Result<BucketSnapshot, Error>;

    /// The number of a SKU's requests without a ledger decision. Cheap.
    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error>;

    /// [`Self::num_unsettled`] of buckets in any state, for archives: a bucket that is fenced,
    /// damaged or held by a loader is counted by reading its records. 0 if nothing is stored.
    async fn num_unsettled_in_any_state(&self, sku: SkuNo) -> Result<u64, Error>;

    /// The sums of all buckets of a SKU: at one instant in memory, read bucket by bucket in Redis.
    /// Reads every unsettled request: for audits.
    async fn facts(&self, sku: SkuNo) -> Result<BucketFacts, Error>;
}

/// What is stored of each SKU; read without a lock.
#[derive(Debug)]
struct SkuIndex<T>(ArcSwap<HashMap<SkuNo, Arc<T>>>);

impl<T> Default for SkuIndex<T> {
    fn default() -> Self {
        Self(ArcSwap::default())
    }
}

impl<T> SkuIndex<T> {
    fn get(&self, sku: SkuNo) -> Result<Arc<T>, Error> {
        self.0.load().get(&sku).cloned().ok_or(Error::NotLoaded(sku))
    }

    fn remove(&self, sku: SkuNo) {
        if self.0.load().contains_key(&sku) {
            self.change(|skus| drop(skus.remove(&sku)));
        }
    }

    fn change(&self, change: impl Fn(&mut HashMap<SkuNo, Arc<T>>)) {
        self.0.rcu(|old| {
            let mut new = HashMap::clone(old);
            change(&mut new);
            new
        });
    }
}

/// The sums of all buckets.
fn sum_facts(policy: Policy, counts_units: bool, all: &[BucketSnapshot]) -> BucketFacts {
    let mut facts = BucketFacts { counts_units, ..BucketFacts::default() };
    if policy.quota().is_some() {
        facts.num_buyers = Some(all.iter().map(|counts| counts.num_buyers as u64).sum());
    }
    facts.change_no = all.iter().map(|counts| counts.change_no).min().unwrap_or(0);
    for (bucket, counts) in (0..).map(BucketNo).zip(all) {
        let open_loan = counts.open_loan.map(|loan| (bucket, loan));
        facts.open_loan = facts.open_loan.or(open_loan);
        facts.left += u64::from(counts.available) + u64::from(counts.lent_units);
        facts.num_unsettled += counts.num_unsettled as u64;
        facts.num_ordered += counts.num_ordered as u64;
        facts.released_units += counts.released_units;
        facts.returned_units += counts.returned_units;
        facts.oldest_unsettled_ms =
            [facts.oldest_unsettled_ms, counts.oldest_unsettled_ms].into_iter().flatten().min();
    }
    facts
}
