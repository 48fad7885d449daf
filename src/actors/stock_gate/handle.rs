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
    BucketKey, BucketNo, BuyerId, OrderIntent, Phase, Refusal, RequestId, RequestRecord, Sale, Sku,
    SkuNo,
};
use crate::messages::{BuyAnswer, Reserve};
use crate::runtime::clock::SharedClock;
use crate::runtime::permits::Permits;
use crate::services::catalog::Catalog;
use crate::stock::{self, Stock};

/// Address of one gate, and the permits to send it requests.
#[derive(Clone)]
pub struct GateAddress {
    /// Bound the requests inside the gate.
    pub permits: Permits,
    pub address: Address<StockGate>,
}

/// All gates of this process; read without a lock.
#[derive(Default)]
pub struct GateDirectory {
    gates: ArcSwap<HashMap<SkuNo, Arc<[GateAddress]>>>,
    /// Held while the gates of a SKU are started, so that they are started once.
    opening: Mutex<()>,
}

impl GateDirectory {
    pub(super) fn gate(&self, sku: SkuNo, bucket: BucketNo) -> Option<GateAddress> {
        self.gates.load().get(&sku)?.get(usize::from(bucket.0)).cloned()
    }

    /// Whether the SKU has gates in this process.
    pub(crate) fn has(&self, sku: SkuNo) -> bool {
        self.gates.load().contains_key(&sku)
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

    /// Removes the gates of one SKU. Each ends when no request is on its way to it. Returns whether
    /// there were any.
    pub(crate) fn close(&self, sku: SkuNo) -> bool {
        if !self.has(sku) {
            return false;
        }
        let _opening = self.opening.lock();
        let mut gates = HashMap::clone(&self.gates.load());
        gates.remove(&sku);
        self.gates.store(Arc::new(gates));
        true
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
    clock: SharedClock,
    /// After this the answer is [`BuyAnswer::Unknown`].
    deadline: Duration,
    /// Sends of one request: again after a crash of its gate, or with a later epoch.
    attempts_max: u32,
}

impl GateHandle {
    pub fn new(
        catalog: Arc<Catalog>,
        directory: Arc<GateDirectory>,
        stock: Arc<dyn Stock>,
        clock: SharedClock,
        settings: &Settings,
    ) -> Self {
        let deadline = Duration::from_millis(settings.http.answer_deadline_ms);
        let attempts_max = settings.gate.reserve_attempts_max;
        Self { catalog, directory, stock, clock, deadline, attempts_max }
    }

    /// The refusal that needs no gate: outside the window, paused, sold out, or a barred buyer.
    /// `None`: a gate must decide. A request that was accepted before is not refused; the stock is
    /// read only if this process cannot tell that it was not.
    pub async fn refuse(
        &self,
        sale: &Sale,
        intent: &OrderIntent,
        now_ms: i64,
    ) -> Result<Option<Refusal>, stock::Error> {
        let Some(refusal) = self.local_refusal(sale, intent, now_ms) else {
            return Ok(None);
        };
        let sku = sale.skus.iter().find(|sku| sku.no == intent.sku);
        let Some(sku) = sku.filter(|_| !sale.retention.is_purged()) else {
            return Ok(Some(refusal));
        };
        let key = BucketKey { sku: intent.sku, bucket: intent.bucket };
        // The cached ids of accepted requests are as old as the last poll. They exclude a repeat
        // only if nothing can have been accepted since: sold out, or before the window.
        let is_cache_valid = self.stock.is_sold_out(intent.sku) || now_ms < sale.starts_at_ms;
        let is_new = is_cache_valid && !self.stock.may_have_accepted(key, intent.request);
        if self.directory.has(intent.sku) && is_new {
            return Ok(Some(refusal));
        }
        // A gate does not check the window, and would sell to a new request. So the stock is read
        // here, and a request that it does not have is refused.
        let accepted = self.record(sku, intent.request, intent.buyer).await?;
        Ok(accepted.is_none().then_some(refusal))
    }

    fn local_refusal(&self, sale: &Sale, intent: &OrderIntent, now_ms: i64) -> Option<Refusal> {
        if sale.is_over(now_ms) {
            return Some(Refusal::Ended);
        }
        if sale.phase != Phase::Open || now_ms < sale.starts_at_ms {
            return Some(Refusal::NotStarted);
        }
        let OrderIntent { sku, buyer, .. } = *intent;
        let sold_out = self.stock.is_sold_out(sku).then_some(Refusal::SoldOut);
        sold_out.or_else(|| self.catalog.is_barred(sku, buyer).then_some(Refusal::Barred))
    }

    /// Sends the request to the buyer's home gate, and awaits the answer up to the deadline.
    pub async fn buy(&self, intent: OrderIntent) -> BuyAnswer {
        let Some(gate) = self.directory.gate(intent.sku, intent.bucket) else {
            return self.recorded(&intent).await;
        };
        match tokio::time::timeout(self.deadline, self.buy_at(&gate, intent)).await {
            Ok(answer) => answer,
            // The gate may still accept; a repeat of the request id reads the outcome.
            Err(_elapsed) => BuyAnswer::Unknown,
        }
    }

    /// The recorded answer of a SKU without gates in this process; `Busy` without a record.
    async fn recorded(&self, intent: &OrderIntent) -> BuyAnswer {
        let OrderIntent { request, sku, buyer, quantity, .. } = *intent;
        let Some((_, sku)) = self.catalog.of_sku(sku) else { return BuyAnswer::Busy };
        match self.record(&sku, request, buyer).await {
            Ok(Some(record)) if record.quantity == quantity => BuyAnswer::repeat(record),
            Ok(Some(_)) => BuyAnswer::refused(Refusal::RequestIdReused),
            Ok(None) | Err(_) => BuyAnswer::Busy,
        }
    }

    async fn buy_at(&self, gate: &GateAddress, mut intent: OrderIntent) -> BuyAnswer {
        let mut may_be_accepted = false;
        for _ in 0..self.attempts_max {
            // Without a permit the request does not reach the gate.
            let Some(permit) = gate.permits.try_take() else { break };
            let address = gate.address.wait_up().await;
            let (reply, answer) = oneshot::channel();
            if address.try_send(Reserve { intent, reply, permit }).is_err() {
                continue;
            }
            match answer.await {
                // The gate that crashed with the request may have accepted it.
                Ok(Some(BuyAnswer::Busy)) if may_be_accepted => break,
                Ok(Some(answer)) => return answer,
                // The sale has another epoch.
                Ok(None) => {
                    if let Some((sale, sku)) = self.catalog.of_sku(intent.sku) {
                        // The buyer has not seen other terms, or an earlier end: the next request
                        // has them.
                        let is_late = intent.placed_at_ms >= sale.ends_at_ms;
                        if is_late || sku.terms() != sku.terms_in(intent.epoch) {
                            break;
                        }
                        intent.epoch = sale.epoch;
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
    /// `NotLoaded` from the start of the window on, while the buckets are not loaded.
    pub async fn record(
        &self,
        sku: &Arc<Sku>,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<RequestRecord>, stock::Error> {
        let key = BucketKey { sku: sku.no, bucket: BucketNo::home_of(buyer, sku.buckets) };
        self.read(sku, self.stock.record(key, request, Some(buyer))).await
    }

    /// The records of several requests of `buyer`, in order, read at once.
    pub async fn records(
        &self,
        sku: &Arc<Sku>,
        requests: &[RequestId],
        buyer: BuyerId,
    ) -> Result<Vec<Option<RequestRecord>>, stock::Error> {
        let of_buyer = requests.iter().map(|request| (*request, buyer)).collect();
        let mut records = self.read(sku, self.stock.records(sku.no, of_buyer)).await?;
        // Nothing is read of a purged sale, or of one that is not loaded yet.
        records.resize(requests.len(), None);
        Ok(records)
    }

    /// The units of the buyer's accepted requests and live orders, under a quota.
    pub async fn owned(&self, sku: &Arc<Sku>, buyer: BuyerId) -> Result<u32, stock::Error> {
        let key = BucketKey { sku: sku.no, bucket: BucketNo::home_of(buyer, sku.buckets) };
        self.read(sku, self.stock.owned(key, buyer)).await
    }

    /// What the buckets of a SKU answer. Nothing of a purged sale, and of one whose buckets are not
    /// loaded yet: a sale accepts nothing that was not opened, or before its window.
    async fn read<T: Default>(
        &self,
        sku: &Arc<Sku>,
        answer: impl Future<Output = Result<T, stock::Error>>,
    ) -> Result<T, stock::Error> {
        let not_loaded = || stock::Error::NotLoaded(sku.no);
        let (sale, _) = self.catalog.of_sku(sku.no).ok_or_else(not_loaded)?;
        if sale.retention.is_purged() {
            return Ok(T::default());
        }
        // The SKU may be unknown here: another process opened the sale, or the sale is long over.
        self.stock.register(sku);
        let is_early = || !sale.has_buckets() || self.clock.wall_ms() < sale.starts_at_ms;
        match answer.await {
            Err(stock::Error::NotLoaded(_)) if is_early() => Ok(T::default()),
            answer => answer,
        }
    }
}
