//! Ledger, stock and outbox of a tier without actors and HTTP, and a sale in them.
//!
//! A closed loop of purchases batches like the gates: each client has one open purchase and sends
//! the next one after the answer; each bucket has one batch in flight, of the open purchases of its
//! clients. Everything but the connections runs on one thread.

use std::cell::Cell;
use std::sync::Arc;

use anyhow::{Context, Result};
use floodgate::config::{ConfigSources, Settings};
use floodgate::db::Ledger;
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, Currency, Epoch, OrderIntent, Phase, Policy, RequestId, Sale,
    SaleDraft, SaleId, Sku, SkuDraft, SkuHistory, SlotReturns, TraceId, Verdict,
};
use floodgate::outbox::{Outbox, OutboxStatus};
use floodgate::runtime::clock;
use floodgate::services::audit;
use floodgate::services::rebuild::load_sku;
use floodgate::stock::Stock;
use floodgate::tier;
use futures_util::future::try_join_all;

use crate::harness::Harness;

/// The default batch limit of gates and order consumers.
pub const BATCH_MAX: usize = 512;
/// Limit of orders per bucket: the capacity of its pages.
pub const PER_BUCKET_MAX: u64 = 393_216;
/// Operations that calibrate a side's rate.
pub const CALIBRATION_ORDERS: u64 = 20_000;
/// Limit of violations that are listed.
const VIOLATIONS_SHOWN: usize = 5;

/// Stock for `orders` buyers, with a surplus: buyers do not spread evenly, and no bucket may sell
/// out.
pub fn stock_for(orders: u64) -> Result<u32> {
    Ok(u32::try_from(orders + orders / 20 + 1_000)?)
}

/// The default settings with these changes.
pub fn settings(set: &[String]) -> Result<Settings> {
    Ok(Settings::load(&ConfigSources { set: set.to_vec(), ..ConfigSources::default() })?)
}

#[derive(Clone)]
pub struct Stores {
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    /// Only in tier `pipeline`.
    outbox: Option<Arc<dyn Outbox>>,
}

impl Stores {
    pub async fn open(set: &[String]) -> Result<Self> {
        let backends = tier::open(&settings(set)?, &clock::SystemClock::shared()).await?;
        let outbox = backends.pipeline.map(|pipeline| pipeline.outbox);
        Ok(Self { ledger: backends.ledger, stock: backends.stock, outbox })
    }

    /// Places a batch without conflicts and returns the time of its rows; a conflict is an error.
    pub async fn place(&self, batch: Vec<OrderIntent>) -> Result<i64> {
        let placed = self.ledger.place(batch).await?;
        placed.context("the ledger refuses a batch without conflicts")
    }
}

/// An open sale with one SKU.
pub struct Offer {
    pub stores: Stores,
    pub sale: SaleId,
    pub sku: Arc<Sku>,
    epoch: Epoch,
}

/// The result of [`Offer::sell`].
pub struct Sold {
    pub accepted: u64,
    pub mean_batch: f64,
}

impl Offer {
    /// Creates a sale of one SKU, opens it, and loads its buckets.
    pub async fn open(stores: &Stores, stock: u32, buckets: u16) -> Result<Self> {
        let now = clock::wall_ms();
        let sale: SaleId = format!("bench-{:016x}", fastrand::u64(..)).parse()?;
        let draft = SaleDraft {
            id: sale.clone(),
            title: "Bench".to_owned(),
            starts_at_ms: now - 60_000,
            ends_at_ms: now + 86_400_000,
            currency: Currency::default(),
            ticket_required: false,
            skus: vec![SkuDraft {
                no: (),
                id: "bench".parse()?,
                title: "Bench".to_owned(),
                price: 9_900,
                initial: stock,
                policy: Policy::OnePerBuyer { max_quantity: 1 },
                buckets,
                payment_window_s: 86_400,
                bar_lapsed: false,
                slot_returns: SlotReturns::default(),
                ends_max: 3,
                queue_timeout_s: 0,
                history: SkuHistory::default(),
            }],
        };
        let Stores { ledger, stock, .. } = stores;
        let created = ledger.create_sale(draft, now).await?;
        let created = created.context("a sale of that name exists")?;
        let opened = ledger.set_sale_phase(sale, created.epoch, Phase::Open, now, None).await?;
        let Sale { id: sale, epoch, skus, .. } = opened.context("the sale is gone")?;
        let sku = skus.into_iter().next().context("the sale has no SKU")?;
        let loader = ledger.begin_load(sku.no).await?;
        load_sku(ledger.as_ref(), stock.as_ref(), &sku, loader, Vec::new()).await?;
        Ok(Self { stores: stores.clone(), sale, sku, epoch })
    }

    /// Sends `wanted` purchases, `concurrency` at a time: equal shares for each bucket.
    pub async fn sell(&self, concurrency: usize, wanted: u64) -> Result<Sold> {
        let buckets = self.sku.buckets;
        let batch_max = (concurrency / usize::from(buckets)).clamp(1, BATCH_MAX) as u64;
        let (num_accepted, num_batches) = (Cell::new(0), Cell::new(0_u64));
        try_join_all((0..buckets).map(async |bucket| {
            let num_first = wanted % u64::from(buckets);
            let mut rest = wanted / u64::from(buckets) + u64::from(u64::from(bucket) < num_first);
            let key = self.bucket(bucket);
            while rest > 0 {
                let size = rest.min(batch_max);
                let batch = (0..size).map(|_| self.purchase_from(key.bucket));
                let batch = batch.collect::<Result<_>>()?;
                let verdicts = self.stores.stock.reserve(key, batch).await?;
                let accepted = verdicts.iter().filter(|verdict| **verdict == Verdict::Reserved);
                num_accepted.set(num_accepted.get() + accepted.count() as u64);
                num_batches.set(num_batches.get() + 1);
                rest -= size;
            }
            anyhow::Ok(())
        }))
        .await?;
        let mean_batch = wanted as f64 / num_batches.get().max(1) as f64;
        Ok(Sold { accepted: num_accepted.get(), mean_batch })
    }

    /// Orders of one unit each by random buyers.
    pub fn intents(&self, num: usize) -> Result<Vec<OrderIntent>> {
        (0..num).map(|_| self.purchase()).collect()
    }

    /// A purchase of one unit with random, practically unique ids.
    fn purchase(&self) -> Result<OrderIntent> {
        let id = || fastrand::u64(1 << 60..1 << 63);
        let buyer = BuyerId::new(id()).context("0 is no buyer")?;
        let request = RequestId::new(id()).context("0 is no request")?;
        let placed = self.sku.intent(request, buyer, self.epoch, 1, clock::wall_ms());
        Ok(OrderIntent { trace: TraceId(fastrand::u128(..)), ..placed })
    }

    /// A purchase by a buyer of this bucket.
    fn purchase_from(&self, bucket: BucketNo) -> Result<OrderIntent> {
        loop {
            let purchase = self.purchase()?;
            if purchase.bucket == bucket {
                return Ok(purchase);
            }
        }
    }

    /// The key of one of its buckets.
    fn bucket(&self, number: u16) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: BucketNo(number) }
    }

    /// Commits all accepted orders to the ledger and settles them in the stock, like the order
    /// consumer. Returns the number of orders.
    async fn commit(&self) -> Result<u64> {
        let (stores, mut committed) = (&self.stores, 0);
        for key in (0..self.sku.buckets).map(|number| self.bucket(number)) {
            let intents = stores.stock.unsettled(key).await?;
            for batch in intents.chunks(BATCH_MAX) {
                let at_ms = stores.place(batch.to_vec()).await?;
                let orders = batch.iter().map(|intent| (key.bucket, intent.order(at_ms)));
                stores.stock.settle(orders.collect()).await?;
                committed += batch.len() as u64;
            }
        }
        Ok(committed)
    }

    /// The entries of the outbox.
    pub async fn entries(&self) -> Result<OutboxStatus> {
        let outbox = self.stores.outbox.as_ref().context("a tier without an outbox")?;
        let mut all = OutboxStatus::default();
        for number in 0..self.sku.buckets {
            let status = outbox.status(self.bucket(number)).await?;
            all.num_waiting += status.num_waiting;
            all.claimed.extend(status.claimed.into_iter().filter(|(_, count)| *count > 0));
        }
        Ok(all)
    }

    /// Audits the ledger of the sale, and its buckets if wanted. Returns the first violations, and
    /// the notes of an incomplete audit.
    async fn violations(&self, with_stock: bool) -> Result<Vec<String>> {
        let (ledger, stock) = (self.stores.ledger.as_ref(), self.stores.stock.as_ref());
        let stock = with_stock.then_some(stock);
        let report = audit::audit(stock, ledger, Some(&self.sale), clock::wall_ms()).await?;
        let shown = report.violations.iter().take(VIOLATIONS_SHOWN);
        let mut found: Vec<String> = shown.map(|violation| format!("{violation:?}")).collect();
        if with_stock && !report.could_tell {
            found.extend(report.notes);
        }
        Ok(found)
    }

    /// The table is void unless the audit holds; see [`Self::violations`].
    pub async fn audit(&self, harness: &mut Harness, with_stock: bool) -> Result<()> {
        harness.void_on_violations(self.sale.as_str(), &self.violations(with_stock).await?);
        Ok(())
    }

    /// Commits the accepted orders. The table is void unless exactly `wanted` purchases were
    /// accepted and committed and the audit holds.
    pub async fn check(&self, harness: &mut Harness, accepted: u64, wanted: u64) -> Result<()> {
        let (sale, committed) = (&self.sale, self.commit().await?);
        harness.void_unless((accepted, committed) == (wanted, wanted), || {
            format!("{sale}: {wanted} requested, {accepted} accepted, {committed} committed")
        });
        self.audit(harness, true).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An offer in tier `memory`, with a ledger in this folder.
    async fn offer(folder: &tempfile::TempDir, stock: u32, buckets: u16) -> Offer {
        let ledger = format!("ledger.url=sqlite://{}/l.db", folder.path().display());
        let stores = Stores::open(&["tier=memory".to_owned(), ledger]).await.unwrap();
        Offer::open(&stores, stock, buckets).await.unwrap()
    }

    #[tokio::test]
    async fn many_purchases_are_decided_in_batches_and_committed() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(&folder, 500, 2).await;
        let sold = offer.sell(40, 450).await.unwrap();
        assert_eq!(sold.accepted, 450);
        assert!(sold.mean_batch > 5.0, "{}", sold.mean_batch);
        assert_eq!(offer.commit().await.unwrap(), sold.accepted);
        assert_eq!(offer.violations(true).await.unwrap(), Vec::<String>::new());
        offer.stores.ledger.close().await;
    }

    #[tokio::test]
    async fn an_order_that_no_gate_accepted_is_a_violation() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(&folder, 50, 1).await;
        offer.stores.place(offer.intents(1).unwrap()).await.unwrap();
        assert!(!offer.violations(true).await.unwrap().is_empty());
        assert!(offer.violations(false).await.unwrap().is_empty());
        offer.stores.ledger.close().await;
    }
}
