//! A crowd in front of the stock, without HTTP and without actors.
//!
//! It asks as buyers and gates do: each asker has one wish open and comes with the next one when it
//! is answered; each bucket has one batch with the stock, and whatever gathers meanwhile is the
//! next one. Everything but the connections runs on one thread.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, bail};
use floodgate::db::BlindInsert;
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, Policy, RequestId, Reservation, SaleDraft, SaleId, Sku,
    SkuDraft, TraceId, Verdict,
};
use floodgate::runtime::clock;
use floodgate::stock::BucketKey;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tempfile::TempDir;

use crate::bare::{self, Bare, settings};
use crate::lab::Lab;
use crate::private::RedisServer;
use crate::process::scratch;

/// As a gate's and a consumer's default.
pub(crate) const BATCH_MAX: usize = 512;
/// More in one bucket than its pages are made for would not be what a sale is.
pub(crate) const PER_BUCKET_MAX: u64 = 393_216;
/// Operations by which a side's rate is guessed.
pub(crate) const GUESSED_BY: u64 = 20_000;

/// Stock for so many buyers, who do not spread evenly: nobody is to be short of units.
pub(crate) fn stock_for(orders: u64) -> anyhow::Result<u32> {
    Ok(u32::try_from(orders + orders / 20 + 1_000)?)
}

/// Tier `gate` without server, on a Redis and a ledger file of its own.
pub(crate) struct GateRig {
    pub(crate) bare: Bare,
    pub(crate) redis: RedisServer,
    _scratch: TempDir,
}

impl GateRig {
    pub(crate) async fn start(lab: &Lab<'_>) -> anyhow::Result<Self> {
        let parent = lab.args.directory.as_deref();
        let scratch = scratch(parent)?;
        let redis = RedisServer::start(parent, &[]).await?;
        let set = [
            "tier=gate".to_owned(),
            // What is read at the end is long.
            "redis.command_timeout_ms=60000".to_owned(),
            "http.answer_deadline_ms=120000".to_owned(),
            format!("redis.url={}", redis.url()),
            format!("ledger.url=sqlite://{}", scratch.path().join("l.db").display()),
        ];
        let bare = bare::bare(&settings(&set)?).await?;
        Ok(Self { bare, redis, _scratch: scratch })
    }
}

/// Something on sale.
pub(crate) struct Offer {
    pub(crate) sale: SaleId,
    pub(crate) sku: Arc<Sku>,
    pub(crate) epoch: Epoch,
}

/// What a crowd came to.
#[derive(Default)]
pub(crate) struct Sold {
    pub(crate) accepted: u64,
    pub(crate) decided: u64,
    pub(crate) batches: u64,
}

impl Sold {
    pub(crate) fn mean_batch(&self) -> f64 {
        self.decided as f64 / self.batches.max(1) as f64
    }
}

/// Those who wait in front of one bucket.
#[derive(Default)]
struct Gate {
    waiting: VecDeque<Reservation>,
    /// A batch is with the stock.
    is_busy: bool,
}

/// Ids that no other wish has.
pub(crate) fn wish(sku: &Sku, epoch: Epoch) -> anyhow::Result<Reservation> {
    let id = || fastrand::u64(1 << 60..1 << 63);
    let buyer = BuyerId::new(id()).context("0 is no buyer")?;
    Ok(Reservation {
        request: RequestId::new(id()).context("0 is no request")?,
        sku: sku.no,
        bucket: BucketNo::home_of(buyer, sku.buckets),
        epoch,
        buyer,
        quantity: 1,
        asked_at_ms: clock::wall_ms(),
        trace: TraceId(fastrand::u128(..)),
    })
}

impl Offer {
    /// Creates a sale of one SKU, opens it, and loads its buckets.
    pub(crate) async fn open(bare: &Bare, stock: u32, buckets: u16) -> anyhow::Result<Self> {
        let now = clock::wall_ms();
        let sale: SaleId = format!("bench-{:016x}", fastrand::u64(..)).parse()?;
        let draft = SaleDraft {
            id: sale.clone(),
            title: "Bench".to_owned(),
            starts_at_ms: now - 60_000,
            ends_at_ms: now + 86_400_000,
            skus: vec![SkuDraft {
                id: "bench".parse()?,
                title: "Bench".to_owned(),
                price: 9_900,
                initial: stock,
                policy: Policy::OnePerBuyer { max_quantity: 1 },
                buckets,
                payment_window_s: 86_400,
                bar_lapsed: false,
            }],
        };
        let (sku, epoch) = bare.open_sale(draft).await?;
        Ok(Self { sale, sku, epoch })
    }

    /// Lets `askers` come with `wanted` wishes.
    pub(crate) async fn rush(
        &self,
        bare: &Bare,
        askers: usize,
        wanted: u64,
    ) -> anyhow::Result<Sold> {
        let (mut sold, mut deciding) = (Sold::default(), FuturesUnordered::new());
        let mut gates: Vec<Gate> = (0..self.sku.buckets).map(|_| Gate::default()).collect();
        let (mut num_idle, mut come) = (askers, 0);
        while sold.decided < wanted {
            while num_idle > 0 && come < wanted {
                let wish = wish(&self.sku, self.epoch)?;
                let gate = gates.get_mut(usize::from(wish.bucket.0)).context("no such bucket")?;
                gate.waiting.push_back(wish);
                (num_idle, come) = (num_idle - 1, come + 1);
            }
            for (bucket, gate) in (0..).map(BucketNo).zip(&mut gates) {
                if !gate.is_busy && !gate.waiting.is_empty() {
                    let size = gate.waiting.len().min(BATCH_MAX);
                    let batch = gate.waiting.drain(..size).collect();
                    let key = BucketKey { sku: self.sku.no, bucket };
                    gate.is_busy = true;
                    deciding.push(async move { (bucket, bare.stock.reserve(key, batch).await) });
                }
            }
            let (bucket, verdicts) = deciding.next().await.context("nothing is being decided")?;
            let verdicts = verdicts?;
            let gate = gates.get_mut(usize::from(bucket.0)).context("no such bucket")?;
            gate.is_busy = false;
            num_idle += verdicts.len();
            sold.batches += 1;
            sold.decided += verdicts.len() as u64;
            let accepted = verdicts.iter().filter(|verdict| **verdict == Verdict::Reserved);
            sold.accepted += accepted.count() as u64;
        }
        Ok(sold)
    }

    /// Brings everything accepted to the ledger and its results to the stock, as the order consumer
    /// does; returns how many orders there were.
    pub(crate) async fn land(&self, bare: &Bare) -> anyhow::Result<u64> {
        let mut landed = 0;
        for bucket in (0..self.sku.buckets).map(BucketNo) {
            let key = BucketKey { sku: self.sku.no, bucket };
            let intents = bare.stock.unsettled(key, i64::MAX).await?;
            for batch in intents.chunks(BATCH_MAX) {
                place(bare, batch.to_vec()).await?;
                let orders = batch.iter().map(|intent| (bucket, intent.order())).collect();
                bare.stock.settle(orders).await?;
                landed += batch.len() as u64;
            }
        }
        Ok(landed)
    }

    /// All of the `accepted` must land, `wanted` of them, and the audit must hold.
    pub(crate) async fn check(
        &self,
        lab: &mut Lab<'_>,
        bare: &Bare,
        accepted: u64,
        wanted: u64,
    ) -> anyhow::Result<()> {
        let (sale, landed) = (&self.sale, self.land(bare).await?);
        lab.require((accepted, landed) == (wanted, wanted), || {
            format!("{sale}: {wanted} asked, {accepted} accepted, {landed} landed")
        });
        lab.require_none(sale.as_str(), &bare.violations(sale).await?);
        Ok(())
    }
}

/// Writes a batch that nothing speaks against.
pub(crate) async fn place(bare: &Bare, batch: Vec<OrderIntent>) -> anyhow::Result<()> {
    match bare.ledger.place(batch).await? {
        BlindInsert::All => Ok(()),
        BlindInsert::Conflict => bail!("the ledger refuses a batch without conflicts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bare(folder: &TempDir) -> Bare {
        let ledger = format!("ledger.url=sqlite://{}/l.db", folder.path().display());
        let settings = settings(&["tier=memory".to_owned(), ledger]).unwrap();
        bare::bare(&settings).await.unwrap()
    }

    #[tokio::test]
    async fn a_crowd_is_decided_in_batches_and_all_of_it_lands() {
        let folder = tempfile::tempdir().unwrap();
        let bare = bare(&folder).await;
        let offer = Offer::open(&bare, 500, 2).await.unwrap();
        let sold = offer.rush(&bare, 40, 450).await.unwrap();
        assert_eq!(sold.decided, 450);
        assert!(sold.mean_batch() > 5.0, "{}", sold.mean_batch());
        assert_eq!(offer.land(&bare).await.unwrap(), sold.accepted);
        assert_eq!(bare.violations(&offer.sale).await.unwrap(), Vec::<String>::new());
        bare.ledger.close().await;
    }

    #[tokio::test]
    async fn an_order_that_no_gate_accepted_is_a_violation() {
        let folder = tempfile::tempdir().unwrap();
        let bare = bare(&folder).await;
        let offer = Offer::open(&bare, 50, 1).await.unwrap();
        let order = wish(&offer.sku, offer.epoch).unwrap().intent(&offer.sku);
        place(&bare, vec![order]).await.unwrap();
        assert!(!bare.violations(&offer.sale).await.unwrap().is_empty());
        assert!(bare.ledger_violations(&offer.sale).await.unwrap().is_empty());
        bare.ledger.close().await;
    }
}
