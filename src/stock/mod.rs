//! Flow step 3/12: stock gate -> bucket.
//!
//! Where units are counted. A [`Stock`] holds, for each bucket, the free units, the buyers and the
//! requests it accepted with their results; the gate in front of it holds nothing that matters.
//!
//! On death of a gate: what it had reserved and not yet handed to the ledger is in
//! [`Stock::unsettled`]; the next gate of the bucket submits it again. May repeat: every call, by
//! request id or loan number.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::invariants::GateFacts;
use crate::domain::{
    BookSnapshot, BucketNo, BuyerId, Epoch, Failure, Loan, Order, OrderIntent, Phase, RequestId,
    RequestStatus, Reservation, Sku, SkuNo, Verdict,
};

pub mod memory;
pub mod redis;

pub use self::redis::RedisStock;
pub use memory::MemoryStock;

/// Why a stock could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The SKU was never loaded here: no data, no sale.
    #[error("sku {0} is not loaded")]
    NotLoaded(SkuNo),
    /// A panic happened while the bucket was being changed; only a rebuild from the ledger helps.
    #[error("bucket {bucket} of sku {sku} was left half-written by a panic")]
    HalfWritten {
        /// Which SKU.
        sku: SkuNo,
        /// Which bucket.
        bucket: BucketNo,
    },
    /// The store is not the one that the buckets were opened on, or is being loaded: what it says
    /// is not believed until a rebuild. Nothing was changed.
    #[error("the buckets of sku {sku} are not believed: {reason}")]
    Fenced {
        /// Which SKU.
        sku: SkuNo,
        /// What differs.
        reason: String,
    },
    /// The store could not be asked, or refused before it did anything. Nothing was changed.
    #[error("the stock is not available: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
    /// The store was asked and did not answer, or did not confirm as durably as it must. Ask again
    /// with the same ids; never give back.
    #[error("the stock did not confirm {doing}: {reason}")]
    Unknown {
        /// What was being done.
        doing: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The store holds something that no version of this program wrote. Nothing was changed.
    #[error("the stock is damaged: {what}")]
    Damaged {
        /// What was found, and where.
        what: String,
    },
}

impl Error {
    /// Whether it certainly changed nothing, and may go away by itself.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

/// The fencing token of whoever loads a SKU, counted by the ledger: a loader with a smaller one
/// than another that began writes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoaderToken(pub i64);

/// In which condition the buckets of a SKU are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketHealth {
    /// All of them stand where the sale stands.
    Ready,
    /// At least one is whole, and in another phase or of another opening.
    OtherPhase,
    /// At least one holds nothing.
    Missing,
    /// At least one is not to be believed: another server, another ledger, damage.
    Distrusted {
        /// What differs.
        reason: String,
    },
}

/// One bucket of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct BucketKey {
    /// Which SKU.
    pub sku: SkuNo,
    /// Which of its buckets.
    pub bucket: BucketNo,
}

impl BucketKey {
    /// Every bucket of a SKU.
    pub fn all_of(sku: &Sku) -> impl Iterator<Item = Self> + use<> {
        let no = sku.no;
        (0..sku.buckets).map(move |bucket| Self { sku: no, bucket: BucketNo(bucket) })
    }
}

/// Builds the buckets of one SKU from the ledger before they are published. From its making on
/// nothing is accepted there, and only the loader with the largest token writes. A loader that is
/// dropped at any point leaves buckets that the next one takes over without loss.
#[async_trait]
pub trait Loading: Send {
    /// Empties the buckets, but for accepted requests that the ledger has not decided: those stay
    /// queued, and their units are taken from what is published. What also comes as an order or a
    /// failure counts as that. To be called first.
    async fn clear(&mut self) -> Result<(), Error>;
    /// Enters accepted requests that the buckets may have lost, as if they had stayed.
    async fn queued(&mut self, rows: Vec<OrderIntent>) -> Result<(), Error>;
    /// Enters orders.
    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error>;
    /// Enters recorded failures.
    async fn failures(&mut self, rows: Vec<Failure>) -> Result<(), Error>;
    /// Publishes the buckets: `available` units dealt out evenly, in the given phase of an opening,
    /// or in the one that was set meanwhile when that is further on.
    async fn publish(
        self: Box<Self>,
        available: u32,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error>;
}

/// Where a request stands, as its buyer may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRequest {
    /// Units asked for.
    pub quantity: u32,
    /// When it was asked, epoch milliseconds.
    pub asked_at_ms: i64,
    /// Where it stands.
    pub standing: RequestStatus,
}

impl From<(u32, i64, RequestStatus)> for StoredRequest {
    fn from((quantity, asked_at_ms, standing): (u32, i64, RequestStatus)) -> Self {
        Self { quantity, asked_at_ms, standing }
    }
}

/// A few pages of what a bucket has accepted and the ledger has not answered.
#[derive(Debug, Default)]
pub struct QueuedPage {
    /// The requests, as intents that can be brought to the ledger.
    pub intents: Vec<OrderIntent>,
    /// Pages that were read.
    pub num_pages: u16,
    /// Where to read on; `None`: that was all.
    pub next: Option<u16>,
    /// What could not be read of them, if anything.
    pub damage: Option<String>,
}

/// Where units are counted.
#[async_trait]
pub trait Stock: Send + Sync {
    /// Holds every bucket of a SKU for a load, with room for `num_orders`; what was loaded before
    /// is replaced when the loading is published. A loader with a larger token ends the one before.
    async fn load(
        &self,
        sku: Arc<Sku>,
        num_orders: u64,
        loader: LoaderToken,
    ) -> Result<Box<dyn Loading>, Error>;

    /// In which condition the buckets are, compared with where the sale stands. From here on this
    /// process knows the SKU, whoever loaded it.
    async fn condition(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error>;

    /// Moves every bucket of a SKU on to a phase of an opening. The two are one ordered pair that
    /// only grows: one that comes before a bucket's own is ignored (`Fenced`), and one that is set
    /// while a bucket is loaded is kept and published with it. From here on this process knows the
    /// SKU, whoever loaded it.
    async fn turn(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error>;

    /// Decides a batch in order, one verdict each, as one atomic step.
    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error>;

    /// Records orders that the ledger has.
    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error>;

    /// Records refusals of the ledger; units come back, once, where the ledger still has them. One
    /// of a request that the bucket does not know is entered, and takes and gives no units. There
    /// is no other way back: an accepted request stays unsettled until the ledger has decided it.
    /// Where the ledger counts, the refused requests are forgotten.
    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error>;

    /// Intents asked before that time whose answer from the ledger is not known, whichever process
    /// accepted them. Submitting one twice does no harm.
    async fn unsettled(
        &self,
        bucket: BucketKey,
        asked_before_ms: i64,
    ) -> Result<Vec<OrderIntent>, Error>;

    /// A part of what is in [`Self::unsettled`], off the records from this page on; a bounded time
    /// of the store. What is damaged is left out.
    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error>;

    /// Takes up to what is free, at least `want` if there is as much, out for a sibling bucket. As
    /// long as a loan to that bucket is open, it is the answer again.
    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error>;

    /// Finishes a transfer: adds the units to the borrower, once per loan, and clears the lender's
    /// record. Returns the units added; 0 for a loan that was added before.
    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error>;

    /// Finishes every transfer to this bucket that was left half done. Returns the units.
    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error>;

    /// Where a request stands, for its owner.
    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, Error>;

    /// Where a request stands, whoever owns it; for operators.
    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<StoredRequest>, Error>;

    /// Where many requests of one SKU stand; for audits.
    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestStatus>>, Error>;

    /// Whether the request was accepted by this bucket, as far as this process can tell without
    /// asking anybody. May say yes wrongly, never no.
    fn may_know(&self, bucket: BucketKey, request: RequestId) -> bool;

    /// Units left over all buckets and transfers, as far as this process knows.
    fn left(&self, sku: SkuNo) -> u32;

    /// Whether this process knows that nothing is left. Cleared by any unit that comes back.
    fn is_sold_out(&self, sku: SkuNo) -> bool;

    /// Notes what the ledger has left, where the ledger counts; ignored elsewhere.
    fn note_left(&self, sku: SkuNo, left: u32);

    /// Looks again at what other processes may have changed: units left, sold out, and which
    /// requests were accepted.
    async fn refresh(&self, sku: SkuNo) -> Result<(), Error>;

    /// Whether the store behind answers at all, and is still the one that was connected to; else
    /// the connections to it are given up.
    async fn ping(&self) -> Result<(), Error>;

    /// The counts of one bucket.
    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error>;

    /// How many requests of a SKU have no answer of the ledger; cheap at any time.
    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error>;

    /// The counts of all buckets of a SKU at one instant. Reads all that is unsettled: for audits.
    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error>;
}
