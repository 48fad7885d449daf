//! Sends a purchase from the buy handler to its gate: refuses locally what needs no gate, finds the
//! buyer's home bucket, takes a permit, sends, and awaits the answer up to a deadline. If the gate
//! crashes, the request is sent again with the same request id. A request without an answer at the
//! deadline is `unknown`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::actors::stock_gate::directory::{GateAddress, GateDirectory};
use crate::domain::{
    BucketKey, BucketNo, BuyerId, Phase, Refusal, RequestId, Reservation, Sku, SkuNo,
};
use crate::messages::{BuyAnswer, GateReply, Reserve};
use crate::services::catalog::{Catalog, CatalogSale};
use crate::stock::{self, BucketHealth, Stock, StoredRequest};

/// Sends purchases to the gates. Cheap to clone.
#[derive(Clone)]
pub struct GateHandle {
    catalog: Arc<Catalog>,
    directory: Arc<GateDirectory>,
    stock: Arc<dyn Stock>,
    limits: AttemptLimits,
}

/// Limits of one purchase.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// After this the answer is [`BuyAnswer::Unknown`].
    pub deadline: Duration,
    /// Attempts, each after the gate crashed with the request.
    pub attempts_max: u32,
}

enum Attempt {
    Answered(GateReply),
    /// No permit: the request did not reach the gate.
    NotSent,
    /// The gate crashed with the request.
    Lost,
}

impl GateHandle {
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        directory: Arc<GateDirectory>,
        stock: Arc<dyn Stock>,
        limits: AttemptLimits,
    ) -> Self {
        Self { catalog, directory, stock, limits }
    }

    /// The refusal that applies to the whole sale: outside the window, paused, sold out. `None`: a
    /// gate must decide. A request that was accepted before is not refused; the stock is read only
    /// if this process cannot tell that it was not.
    ///
    /// # Errors
    /// The stock's error when it has to be read and does not answer.
    pub async fn refuse(
        &self,
        listed: &CatalogSale,
        request: &Reservation,
        now_ms: i64,
    ) -> Result<Option<Refusal>, stock::Error> {
        let Some(refusal) = self.sale_refusal(listed, request.sku, now_ms) else { return Ok(None) };
        let Some(sku) = listed.skus.iter().find(|sku| sku.no == request.sku) else {
            return Ok(Some(refusal));
        };
        let key = BucketKey { sku: request.sku, bucket: request.bucket };
        // The cached ids of accepted requests are as old as the last poll. They exclude a repeat
        // only if nothing can have been accepted since: sold out, or before the window.
        let is_cache_valid =
            self.stock.is_sold_out(request.sku) || now_ms < listed.sale.starts_at_ms;
        let is_new = is_cache_valid && !self.stock.may_have_accepted(key, request.request);
        if self.directory.has(request.sku) && is_new {
            return Ok(Some(refusal));
        }
        // The gate does not check the window, and would sell: the request must be read here.
        let accepted = match self.status(sku, request.request, request.buyer).await {
            // Before the first opening nothing was accepted. Later, buckets that are being loaded
            // do not tell what was accepted.
            Err(stock::Error::NotLoaded(_)) if now_ms < listed.sale.starts_at_ms => None,
            accepted => accepted?,
        };
        Ok(accepted.is_none().then_some(refusal))
    }

    fn sale_refusal(&self, listed: &CatalogSale, sku: SkuNo, now_ms: i64) -> Option<Refusal> {
        match listed.sale.phase {
            Phase::Draft | Phase::Paused => Some(Refusal::NotStarted),
            Phase::Closed => Some(Refusal::Ended),
            Phase::Open if now_ms < listed.sale.starts_at_ms => Some(Refusal::NotStarted),
            Phase::Open if now_ms >= listed.sale.ends_at_ms => Some(Refusal::Ended),
            Phase::Open if self.stock.is_sold_out(sku) => Some(Refusal::SoldOut),
            Phase::Open => None,
        }
    }

    /// Sends the request to the buyer's home gate, and awaits the answer up to the deadline.
    pub async fn buy(&self, request: Reservation) -> BuyAnswer {
        let Some(gate) = self.directory.gate(request.sku, request.bucket) else {
            return BuyAnswer::Busy;
        };
        match tokio::time::timeout(self.limits.deadline, self.buy_at(&gate, request)).await {
            Ok(answer) => answer,
            // The gate may still accept; a repeat of the request id reads the outcome.
            Err(_elapsed) => BuyAnswer::Unknown,
        }
    }

    async fn buy_at(&self, gate: &GateAddress, mut request: Reservation) -> BuyAnswer {
        let mut may_be_accepted = false;
        for _ in 0..self.limits.attempts_max {
            match Self::send(gate, request).await {
                // The gate that crashed with the request may have accepted it.
                Attempt::Answered(GateReply::Final(BuyAnswer::Busy)) if may_be_accepted => break,
                Attempt::Answered(GateReply::Final(answer)) => return answer,
                Attempt::Answered(GateReply::StaleEpoch) => {
                    if let Some((listed, _)) = self.catalog.of_sku(request.sku) {
                        request.epoch = listed.sale.epoch;
                    }
                    tokio::task::yield_now().await;
                }
                Attempt::NotSent => break,
                Attempt::Lost => may_be_accepted = true,
            }
        }
        if may_be_accepted { BuyAnswer::Unknown } else { BuyAnswer::Busy }
    }

    async fn send(gate: &GateAddress, reservation: Reservation) -> Attempt {
        let Some(permit) = gate.permits.try_take() else { return Attempt::NotSent };
        let address = gate.address.wait_up().await;
        let (reply, answer) = oneshot::channel();
        if address.try_send(Reserve { reservation, reply, permit }).is_err() {
            return Attempt::Lost;
        }
        answer.await.map_or(Attempt::Lost, Attempt::Answered)
    }

    /// The status of a request of `buyer`; `None`: it was not accepted.
    ///
    /// # Errors
    /// The stock's error when it cannot be read. `NotLoaded` when this process has no gates of a
    /// sale that another process may sell.
    pub async fn status(
        &self,
        sku: &Arc<Sku>,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, stock::Error> {
        if !self.directory.has(sku.no) && self.is_unsold(sku).await? {
            return Ok(None);
        }
        let bucket = BucketNo::home_of(buyer, sku.buckets);
        self.stock.status(BucketKey { sku: sku.no, bucket }, request, Some(buyer)).await
    }

    /// Whether no process has sold a SKU without gates here: a draft in this process's catalog, and
    /// without buckets.
    async fn is_unsold(&self, sku: &Arc<Sku>) -> Result<bool, stock::Error> {
        let not_loaded = stock::Error::NotLoaded(sku.no);
        let Some((listed, _)) = self.catalog.of_sku(sku.no) else { return Err(not_loaded) };
        let (phase, epoch) = (listed.sale.phase, listed.sale.epoch);
        match self.stock.health(sku, phase, epoch).await? {
            BucketHealth::Missing if phase == Phase::Draft => Ok(true),
            BucketHealth::Missing | BucketHealth::Distrusted { .. } => Err(not_loaded),
            BucketHealth::Ready | BucketHealth::OtherPhase => Ok(false),
        }
    }
}
