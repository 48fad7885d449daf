//! The gates of this process, and the handle that sends a purchase from the buy handler to the gate
//! of its bucket: refuses locally what needs no gate, takes a permit, sends, and awaits the answer
//! up to a deadline. If the gate crashes, the request is sent again with the same request id. A
//! request without an answer at the deadline is `unknown`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::StockGate;
use crate::actors::supervisor::supervised::Address;
use crate::config::Settings;
use crate::domain::{
    BucketKey, BucketNo, BuyerId, Phase, Refusal, RequestId, RequestRecord, Reservation, Sku, SkuNo,
};
use crate::messages::{BuyAnswer, Reserve};
use crate::runtime::permits::Permits;
use crate::services::catalog::{Catalog, CatalogSale};
use crate::stock::{self, BucketHealth, Stock};

/// Address of one gate, and the permits to send it requests.
#[derive(Debug, Clone)]
pub struct GateAddress {
    /// Bound the requests inside the gate.
    pub permits: Permits,
    pub address: Address<StockGate>,
}

/// All gates of this process; read without a lock.
#[derive(Debug, Default)]
pub struct GateDirectory {
    gates: ArcSwap<HashMap<SkuNo, Arc<[GateAddress]>>>,
    /// Held while the gates of a SKU are started, so that they are started once.
    opening: Mutex<()>,
}

impl GateDirectory {
    fn gate(&self, sku: SkuNo, bucket: BucketNo) -> Option<GateAddress> {
        self.gates.load().get(&sku)?.get(usize::from(bucket.0)).cloned()
    }

    /// Whether the SKU has gates in this process.
    pub(crate) fn has(&self, sku: SkuNo) -> bool {
        self.gates.load().contains_key(&sku)
    }

    /// The gates of one SKU, in bucket order.
    pub(super) fn of_sku(&self, sku: SkuNo) -> Option<Arc<[GateAddress]>> {
        self.gates.load().get(&sku).cloned()
    }

    pub(crate) fn all(&self) -> Vec<GateAddress> {
        self.gates.load().values().flat_map(|gates| gates.iter().cloned()).collect()
    }

    /// Inserts the gates of one SKU, in bucket order, unless it has gates.
    pub fn open(&self, sku: SkuNo, start: impl FnOnce() -> Vec<GateAddress>) {
        if self.has(sku) {
            return;
        }
        let _opening = self.opening.lock();
        if self.has(sku) {
            return;
        }
        let mut gates = HashMap::clone(&self.gates.load());
        gates.insert(sku, start().into());
        self.gates.store(Arc::new(gates));
    }

    /// Removes the gates of one SKU. Each ends when no request is on its way to it.
    pub(crate) fn close(&self, sku: SkuNo) {
        if !self.has(sku) {
            return;
        }
        let _opening = self.opening.lock();
        let mut gates = HashMap::clone(&self.gates.load());
        gates.remove(&sku);
        self.gates.store(Arc::new(gates));
    }

    /// Requests inside all gates.
    pub(crate) fn num_inside(&self) -> usize {
        self.all().iter().map(|gate| gate.permits.num_taken()).sum()
    }
}

/// Sends purchases to the gates. Cheap to clone.
#[derive(Clone)]
pub struct GateHandle {
    catalog: Arc<Catalog>,
    directory: Arc<GateDirectory>,
    stock: Arc<dyn Stock>,
    /// After this the answer is [`BuyAnswer::Unknown`].
    deadline: Duration,
    /// Sends of one request: again after a crash of its gate, or with a later epoch.
    attempts_max: u32,
}

impl GateHandle {
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        directory: Arc<GateDirectory>,
        stock: Arc<dyn Stock>,
        settings: &Settings,
    ) -> Self {
        let deadline = Duration::from_millis(settings.http.answer_deadline_ms);
        let attempts_max = settings.gate.reserve_attempts_max;
        Self { catalog, directory, stock, deadline, attempts_max }
    }

    /// The refusal that needs no gate: outside the window, paused, sold out, or a barred buyer.
    /// `None`: a gate must decide. A request that was accepted before is not refused; the stock is
    /// read only if this process cannot tell that it was not.
    ///
    /// # Errors
    /// The stock's error when it has to be read and does not answer.
    pub async fn refuse(
        &self,
        listed: &CatalogSale,
        reservation: &Reservation,
        now_ms: i64,
    ) -> Result<Option<Refusal>, stock::Error> {
        let Some(refusal) = self.local_refusal(listed, reservation, now_ms) else {
            return Ok(None);
        };
        let sku = listed.skus.iter().find(|sku| sku.no == reservation.sku);
        let Some(sku) = sku.filter(|_| !listed.sale.retention.is_purged()) else {
            return Ok(Some(refusal));
        };
        let key = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        // The cached ids of accepted requests are as old as the last poll. They exclude a repeat
        // only if nothing can have been accepted since: sold out, or before the window.
        let is_cache_valid =
            self.stock.is_sold_out(reservation.sku) || now_ms < listed.sale.starts_at_ms;
        let is_new = is_cache_valid && !self.stock.may_have_accepted(key, reservation.request);
        if self.directory.has(reservation.sku) && is_new {
            return Ok(Some(refusal));
        }
        // A gate does not check the window, and would sell to a new request. So the stock is read
        // here, and a request that it does not have is refused.
        let accepted = match self.record(sku, reservation.request, reservation.buyer).await {
            // Before the first opening nothing was accepted. Later, buckets that are being loaded
            // do not tell what was accepted.
            Err(stock::Error::NotLoaded(_)) if now_ms < listed.sale.starts_at_ms => None,
            accepted => accepted?,
        };
        Ok(accepted.is_none().then_some(refusal))
    }

    fn local_refusal(
        &self,
        listed: &CatalogSale,
        reservation: &Reservation,
        now_ms: i64,
    ) -> Option<Refusal> {
        if listed.sale.is_over(now_ms) {
            return Some(Refusal::Ended);
        }
        if listed.sale.phase != Phase::Open || now_ms < listed.sale.starts_at_ms {
            return Some(Refusal::NotStarted);
        }
        let Reservation { sku, buyer, .. } = *reservation;
        let sold_out = self.stock.is_sold_out(sku).then_some(Refusal::SoldOut);
        sold_out.or_else(|| self.catalog.is_barred(sku, buyer).then_some(Refusal::Barred))
    }

    /// Sends the request to the buyer's home gate, and awaits the answer up to the deadline.
    pub async fn buy(&self, reservation: Reservation) -> BuyAnswer {
        let Some(gate) = self.directory.gate(reservation.sku, reservation.bucket) else {
            return BuyAnswer::Busy;
        };
        match tokio::time::timeout(self.deadline, self.buy_at(&gate, reservation)).await {
            Ok(answer) => answer,
            // The gate may still accept; a repeat of the request id reads the outcome.
            Err(_elapsed) => BuyAnswer::Unknown,
        }
    }

    async fn buy_at(&self, gate: &GateAddress, mut reservation: Reservation) -> BuyAnswer {
        let mut may_be_accepted = false;
        for _ in 0..self.attempts_max {
            // Without a permit the request does not reach the gate.
            let Some(permit) = gate.permits.try_take() else { break };
            let address = gate.address.wait_up().await;
            let (reply, answer) = oneshot::channel();
            if address.try_send(Reserve { reservation, reply, permit }).is_err() {
                continue;
            }
            match answer.await {
                // The gate that crashed with the request may have accepted it.
                Ok(Some(BuyAnswer::Busy)) if may_be_accepted => break,
                Ok(Some(answer)) => return answer,
                // The sale has another epoch.
                Ok(None) => {
                    if let Some((listed, sku)) = self.catalog.of_sku(reservation.sku) {
                        // The buyer has not seen other terms: the next request has them.
                        if sku.terms() != reservation.terms {
                            break;
                        }
                        reservation.epoch = listed.sale.epoch;
                    }
                    tokio::task::yield_now().await;
                }
                Err(_exited) => may_be_accepted = true,
            }
        }
        if may_be_accepted { BuyAnswer::Unknown } else { BuyAnswer::Busy }
    }

    /// The record of a request of `buyer`; `None`: it was not accepted, or the sale is purged.
    ///
    /// # Errors
    /// The stock's error when it cannot be read. `NotLoaded` when this process has no gates of a
    /// sale that another process may sell.
    pub async fn record(
        &self,
        sku: &Arc<Sku>,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<RequestRecord>, stock::Error> {
        if self.is_purged(sku) || !self.directory.has(sku.no) && self.is_unsold(sku).await? {
            return Ok(None);
        }
        let bucket = BucketNo::home_of(buyer, sku.buckets);
        self.stock.record(BucketKey { sku: sku.no, bucket }, request, Some(buyer)).await
    }

    /// The units of the buyer's accepted requests and live orders, under a quota.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub async fn owned(&self, sku: &Arc<Sku>, buyer: BuyerId) -> Result<u32, stock::Error> {
        if self.is_purged(sku) || !self.directory.has(sku.no) && self.is_unsold(sku).await? {
            return Ok(0);
        }
        let bucket = BucketNo::home_of(buyer, sku.buckets);
        self.stock.owned(BucketKey { sku: sku.no, bucket }, buyer).await
    }

    fn is_purged(&self, sku: &Sku) -> bool {
        self.catalog.of_sku(sku.no).is_some_and(|(listed, _)| listed.sale.retention.is_purged())
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
            BucketHealth::Ready
            | BucketHealth::OtherPhase { .. }
            | BucketHealth::OtherStock { .. } => Ok(false),
        }
    }
}
