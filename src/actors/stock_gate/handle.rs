//! The way from the buy handler to the gates: refuses locally what needs no gate, finds the buyer's
//! home bucket, takes a permit, asks, and waits up to a deadline. A gate that crashes with the
//! question in hand is asked again with the same request id; what stays open at the deadline is
//! unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::actors::stock_gate::directory::{GateAddress, GateDirectory};
use crate::domain::{BucketNo, BuyerId, Phase, Refusal, RequestId, Reservation, Sku, SkuNo};
use crate::messages::{BuyAnswer, GateReply, Reserve};
use crate::services::catalog::{Catalog, CatalogSale};
use crate::stock::{self, BucketHealth, BucketKey, Stock, StoredRequest};

/// Asks gates on behalf of buyers. Cheap to clone.
#[derive(Clone)]
pub struct GateHandle {
    catalog: Arc<Catalog>,
    directory: Arc<GateDirectory>,
    stock: Arc<dyn Stock>,
    limits: AttemptLimits,
}

/// How long and how often a gate is asked.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// After this the answer is [`BuyAnswer::Unknown`].
    pub deadline: Duration,
    /// How often a question is put again after the gate died with it.
    pub attempts_max: u32,
}

/// What one attempt came to.
enum Attempt {
    Answered(GateReply),
    /// The question never reached the gate.
    NotAsked,
    /// The gate died with the question in hand.
    Lost,
}

impl GateHandle {
    /// A handle on the gates of `directory`.
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        directory: Arc<GateDirectory>,
        stock: Arc<dyn Stock>,
        limits: AttemptLimits,
    ) -> Self {
        Self { catalog, directory, stock, limits }
    }

    /// The refusal that a request hears because of the sale as a whole: outside the window, paused,
    /// sold out. `None` when a gate must decide. A request that was accepted before gets its first
    /// answer all the same; whether this one was is asked only where this process cannot tell.
    ///
    /// # Errors
    /// The stock's error when it has to be asked and does not answer.
    pub async fn refuse(
        &self,
        listed: &CatalogSale,
        ask: &Reservation,
        now_ms: i64,
    ) -> Result<Option<Refusal>, stock::Error> {
        let Some(refusal) = self.refusal(listed, ask.sku, now_ms) else { return Ok(None) };
        let Some(sku) = listed.skus.iter().find(|sku| sku.no == ask.sku) else {
            return Ok(Some(refusal));
        };
        let key = BucketKey { sku: ask.sku, bucket: ask.bucket };
        // What this process knows is as old as its last look. That nothing was accepted at all is
        // believed as long as nothing can be: before the window.
        let is_known = self.stock.is_sold_out(ask.sku) || now_ms < listed.sale.starts_at_ms;
        let is_stranger = is_known && !self.stock.may_know(key, ask.request);
        if self.directory.has(ask.sku) && is_stranger {
            return Ok(Some(refusal));
        }
        // A gate must not be asked on a guess: it knows no window, and would sell.
        let known = match self.standing(sku, ask.request, ask.buyer).await {
            // Before the first opening there is nothing to know. Later, buckets that are being
            // loaded say nothing of what was accepted.
            Err(stock::Error::NotLoaded(_)) if now_ms < listed.sale.starts_at_ms => None,
            known => known?,
        };
        Ok(known.is_none().then_some(refusal))
    }

    fn refusal(&self, listed: &CatalogSale, sku: SkuNo, now_ms: i64) -> Option<Refusal> {
        match listed.sale.phase {
            Phase::Draft | Phase::Paused => Some(Refusal::NotStarted),
            Phase::Closed => Some(Refusal::Ended),
            Phase::Open if now_ms < listed.sale.starts_at_ms => Some(Refusal::NotStarted),
            Phase::Open if now_ms >= listed.sale.ends_at_ms => Some(Refusal::Ended),
            Phase::Open if self.stock.is_sold_out(sku) => Some(Refusal::SoldOut),
            Phase::Open => None,
        }
    }

    /// Asks the buyer's home gate.
    pub async fn buy(&self, ask: Reservation) -> BuyAnswer {
        let Some(door) = self.directory.gate(ask.sku, ask.bucket) else {
            return BuyAnswer::Busy;
        };
        match tokio::time::timeout(self.limits.deadline, self.ask(&door, ask)).await {
            Ok(answer) => answer,
            // The gate may still decide; only the same request id can tell.
            Err(_elapsed) => BuyAnswer::Unknown,
        }
    }

    async fn ask(&self, door: &GateAddress, mut ask: Reservation) -> BuyAnswer {
        let mut in_doubt = false;
        for _ in 0..self.limits.attempts_max {
            match Self::ask_once(door, ask).await {
                // The gate that crashed with the question may have accepted it.
                Attempt::Answered(GateReply::Final(BuyAnswer::Busy)) if in_doubt => break,
                Attempt::Answered(GateReply::Final(answer)) => return answer,
                Attempt::Answered(GateReply::StaleEpoch) => {
                    if let Some((listed, _)) = self.catalog.of_sku(ask.sku) {
                        ask.epoch = listed.sale.epoch;
                    }
                    tokio::task::yield_now().await;
                }
                Attempt::NotAsked => break,
                Attempt::Lost => in_doubt = true,
            }
        }
        if in_doubt { BuyAnswer::Unknown } else { BuyAnswer::Busy }
    }

    async fn ask_once(door: &GateAddress, reservation: Reservation) -> Attempt {
        let Some(permit) = door.permits.try_take() else { return Attempt::NotAsked };
        let gate = door.address.wait_up().await;
        let (reply, answer) = oneshot::channel();
        if gate.try_send(Reserve { reservation, reply, permit }).is_err() {
            return Attempt::Lost;
        }
        answer.await.map_or(Attempt::Lost, Attempt::Answered)
    }

    /// Where a request of `buyer` stands.
    ///
    /// # Errors
    /// The stock's error when it cannot be read; also where this process has no gates of a sale
    /// that another one may sell.
    pub async fn standing(
        &self,
        sku: &Arc<Sku>,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, stock::Error> {
        if !self.directory.has(sku.no) && self.is_unsold(sku).await? {
            return Ok(None);
        }
        let bucket = BucketNo::home_of(buyer, sku.buckets);
        self.stock.standing(BucketKey { sku: sku.no, bucket }, request, buyer).await
    }

    /// Whether no process has sold anything of a SKU without gates here: a draft as far as this
    /// process knows, and without buckets.
    async fn is_unsold(&self, sku: &Arc<Sku>) -> Result<bool, stock::Error> {
        let not_loaded = stock::Error::NotLoaded(sku.no);
        let Some((listed, _)) = self.catalog.of_sku(sku.no) else { return Err(not_loaded) };
        let (phase, epoch) = (listed.sale.phase, listed.sale.epoch);
        match self.stock.condition(sku, phase, epoch).await? {
            BucketHealth::Missing if phase == Phase::Draft => Ok(true),
            BucketHealth::Missing | BucketHealth::Distrusted { .. } => Err(not_loaded),
            BucketHealth::Ready | BucketHealth::OtherPhase => Ok(false),
        }
    }
}
