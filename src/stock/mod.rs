//! Flow step 3/12: stock gate -> bucket.
//!
//! Where units are counted. A [`Stock`] holds, for each bucket, the free units, the buyers and the
//! requests it accepted with their results; the gate in front of it holds nothing that matters.
//!
//! On death of a gate: what it had reserved and not yet handed to the ledger is in
//! [`Stock::unsettled`]; the next gate of the bucket submits it again. May repeat: every call, by
//! request id or transfer id.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::invariants::GateFacts;
use crate::domain::{
    BookSnapshot, BucketNo, BuyerId, Epoch, Failure, Order, OrderIntent, Phase, Refusal, RequestId,
    Reservation, Sku, SkuNo, Standing, TransferId, Verdict,
};

pub mod memory;

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
}

/// One bucket of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct BucketKey {
    /// Which SKU.
    pub sku: SkuNo,
    /// Which of its buckets.
    pub bucket: BucketNo,
}

/// Builds the buckets of one SKU from the ledger, row by row, before they are published.
pub trait Loading: Send {
    /// Enters an order.
    fn order(&mut self, order: &Order);
    /// Enters a recorded failure.
    fn failure(&mut self, failure: &Failure);
    /// Publishes the buckets: `available` units dealt out evenly, in the given phase of an opening.
    fn publish(self: Box<Self>, available: u32, phase: Phase, epoch: Epoch);
}

/// Where a request stands, as its buyer may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestStanding {
    /// Units asked for.
    pub quantity: u32,
    /// When it was asked, epoch milliseconds.
    pub asked_at_ms: i64,
    /// Where it stands.
    pub standing: Standing,
}

impl From<(u32, i64, Standing)> for RequestStanding {
    fn from((quantity, asked_at_ms, standing): (u32, i64, Standing)) -> Self {
        Self { quantity, asked_at_ms, standing }
    }
}

/// Where units are counted.
#[async_trait]
pub trait Stock: Send + Sync {
    /// Begins to load a SKU, with room for `num_orders`; what was loaded before is replaced when
    /// the loading is published.
    fn load(&self, sku: Arc<Sku>, num_orders: u64) -> Box<dyn Loading>;

    /// Moves every bucket of a SKU to a phase of an opening. An older opening is ignored
    /// (`Fenced`).
    async fn turn(&self, sku: SkuNo, phase: Phase, epoch: Epoch) -> Result<(), Error>;

    /// Decides a batch in order, one verdict each, as one atomic step.
    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error>;

    /// Records orders that the ledger has.
    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error>;

    /// Records refusals of the ledger; units come back, once, where the ledger still has them.
    async fn release(
        &self,
        bucket: BucketKey,
        refused: Vec<(RequestId, Refusal)>,
    ) -> Result<(), Error>;

    /// Forgets requests that certainly reached no ledger; their units come back, once.
    async fn withdraw(&self, bucket: BucketKey, requests: Vec<RequestId>) -> Result<(), Error>;

    /// Intents whose answer from the ledger is not known.
    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error>;

    /// Takes up to what is free, at least `want` if there is as much, out for a sibling bucket.
    async fn lend(
        &self,
        from: BucketKey,
        to: BucketNo,
        transfer: TransferId,
        want: u32,
    ) -> Result<u32, Error>;

    /// Finishes a transfer: adds the recorded units to the borrower and clears the lender's record.
    /// Returns the units; 0 for a transfer that was finished before.
    async fn borrow(
        &self,
        from: BucketKey,
        to: BucketNo,
        transfer: TransferId,
    ) -> Result<u32, Error>;

    /// Finishes every transfer to this bucket that was left half done. Returns the units.
    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error>;

    /// Where a request stands, for its owner.
    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<RequestStanding>, Error>;

    /// Where a request stands, whoever owns it; for operators.
    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<RequestStanding>, Error>;

    /// Where many requests of one SKU stand; for audits.
    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<Standing>>, Error>;

    /// Whether the request was accepted by this bucket, as far as this process can tell without
    /// asking anybody. May say yes wrongly, never no.
    fn may_know(&self, bucket: BucketKey, request: RequestId) -> bool;

    /// Units left over all buckets and transfers, as far as this process knows.
    fn left(&self, sku: SkuNo) -> u32;

    /// Whether this process knows that nothing is left. Cleared by any unit that comes back.
    fn is_sold_out(&self, sku: SkuNo) -> bool;

    /// Notes what the ledger has left, where the ledger counts; ignored elsewhere.
    fn note_left(&self, sku: SkuNo, left: u32);

    /// The counts of one bucket.
    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error>;

    /// The counts of all buckets of a SKU at one instant.
    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error>;
}
