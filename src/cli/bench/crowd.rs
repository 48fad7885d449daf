//! A crowd in front of the stock, without HTTP and without actors.
//!
//! It asks as buyers and gates do: each asker has one wish open and comes with the next one when it
//! is answered; each bucket has one batch with the stock, and whatever gathers meanwhile is the
//! next one. Everything but the connections runs on one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, bail};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::{Notify, oneshot};

use crate::cli::engine::Bare;
use crate::clock;
use crate::config::{Settings, Sources};
use crate::db::Placing;
use crate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, Policy, RequestId, Reservation, SaleDraft, SaleId, Sku,
    SkuDraft, TraceId, Verdict,
};
use crate::stock::BucketKey;

/// As a gate's and a consumer's default.
pub(super) const BATCH_MAX: usize = 512;

/// Settings of an engine without server, from the defaults alone.
pub(super) fn settings(set: &[String]) -> anyhow::Result<Settings> {
    Ok(Settings::load(&Sources { set: set.to_vec(), ..Sources::default() })?)
}

/// Something on sale.
pub(super) struct Offer {
    pub(super) sale: SaleId,
    pub(super) sku: Arc<Sku>,
    pub(super) epoch: Epoch,
}

/// What a crowd came to.
pub(super) struct Sold {
    pub(super) accepted: u64,
    pub(super) decided: u64,
    pub(super) batches: u64,
}

impl Sold {
    pub(super) fn mean_batch(&self) -> f64 {
        self.decided as f64 / self.batches.max(1) as f64
    }
}

/// Ids that no other wish has.
pub(super) fn wish(sku: &Sku, epoch: Epoch) -> anyhow::Result<Reservation> {
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
    pub(super) async fn open(bare: &Bare, stock: u32, buckets: u16) -> anyhow::Result<Self> {
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
    pub(super) async fn rush(
        &self,
        bare: &Bare,
        askers: usize,
        wanted: u64,
    ) -> anyhow::Result<Sold> {
        let gates: Vec<Gate> = (0..self.sku.buckets.max(1)).map(|_| Gate::default()).collect();
        let (come, over) = (Cell::new(0), Cell::new(false));
        let asking = join_all((0..askers).map(|_| async {
            let mut accepted = 0;
            while come.get() < wanted && !over.get() {
                come.set(come.get() + 1);
                let wish = wish(&self.sku, self.epoch)?;
                let gate = gates.get(usize::from(wish.bucket.0)).context("no such bucket")?;
                let verdict = gate.ask(wish).await?;
                accepted += u64::from(verdict == Verdict::Reserved);
            }
            anyhow::Ok(accepted)
        }));
        let asking = async {
            let accepted = asking.await;
            over.set(true);
            for gate in &gates {
                gate.came.notify_one();
            }
            accepted.into_iter().sum::<anyhow::Result<u64>>()
        };
        let deciding = try_join_all((0..).map(BucketNo).zip(&gates).map(|(bucket, gate)| {
            let key = BucketKey { sku: self.sku.no, bucket };
            gate.decide(bare, key, &over)
        }));
        let deciding = async {
            let decided = deciding.await;
            if decided.is_err() {
                // Nobody answers any more: let the askers go.
                over.set(true);
                for gate in &gates {
                    gate.waiting.borrow_mut().clear();
                }
            }
            decided
        };
        let (accepted, batches) = tokio::join!(asking, deciding);
        let batches = batches?.into_iter().sum();
        Ok(Sold { accepted: accepted?, decided: wanted, batches })
    }

    /// Brings everything accepted to the ledger and its results to the stock, as the order consumer
    /// does; returns how many orders there were.
    pub(super) async fn land(&self, bare: &Bare) -> anyhow::Result<u64> {
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
}

/// Writes a batch that nothing speaks against.
pub(super) async fn place(bare: &Bare, batch: Vec<OrderIntent>) -> anyhow::Result<()> {
    match bare.ledger.place(batch).await? {
        Placing::All => Ok(()),
        Placing::Conflict => bail!("the ledger refuses a batch without conflicts"),
    }
}

/// Those who wait in front of one bucket.
#[derive(Default)]
struct Gate {
    waiting: RefCell<VecDeque<(Reservation, oneshot::Sender<Verdict>)>>,
    came: Notify,
}

impl Gate {
    async fn ask(&self, wish: Reservation) -> anyhow::Result<Verdict> {
        let (reply, answer) = oneshot::channel();
        self.waiting.borrow_mut().push_back((wish, reply));
        self.came.notify_one();
        answer.await.context("nobody decides any more")
    }

    /// Decides batches until it is over; how many they were.
    async fn decide(&self, bare: &Bare, key: BucketKey, over: &Cell<bool>) -> anyhow::Result<u64> {
        let mut batches = 0;
        loop {
            let batch: Vec<_> = {
                let mut waiting = self.waiting.borrow_mut();
                let size = waiting.len().min(BATCH_MAX);
                waiting.drain(..size).collect()
            };
            if batch.is_empty() {
                if over.get() {
                    return Ok(batches);
                }
                self.came.notified().await;
                continue;
            }
            let wishes = batch.iter().map(|(wish, _)| *wish).collect();
            let verdicts = bare.stock.reserve(key, wishes).await?;
            batches += 1;
            for ((_, reply), verdict) in batch.into_iter().zip(verdicts) {
                // An asker waits until it is answered.
                let _always_there = reply.send(verdict);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engine;

    async fn bare(folder: &tempfile::TempDir) -> Bare {
        let ledger = format!("ledger.url=sqlite://{}/l.db", folder.path().display());
        let settings = settings(&["tier=memory".to_owned(), ledger]).unwrap();
        engine::bare(&settings).await.unwrap()
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
