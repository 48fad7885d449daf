//! S8 and S9: orders per second in MariaDB: in batches like the order consumer's, one transaction
//! per order, and with a raw loader.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use floodgate::domain::{OrderIntent, OrderState, SkuNo};
use floodgate::runtime::clock::now_monotonic;
use futures_util::future::try_join_all;
use testkit::{PrivateServer, mariadb};

use crate::harness::{ENDLESS, Harness};
use crate::servers::maria;
use crate::stats::RoundSample;
use crate::stores::{BATCH_MAX, Offer, Stores, settings};

/// The fixture of both goals.
struct LedgerFixture {
    stores: Stores,
    maria: PrivateServer,
    raw: AsyncMysqlConnection,
}

/// Measures both goals with the same rounds of the product.
pub async fn ledger(harness: &mut Harness) -> Result<()> {
    let maria = maria(harness)?;
    let url = mariadb::url("floodgate", maria.addr(), "floodgate");
    let set = ["tier=ledger".to_owned(), format!("ledger.url={url}")];
    let (stores, writers) = (Stores::open(&set).await?, settings(&set)?.ledger.writers);
    let raw = AsyncMysqlConnection::establish(&url).await?;
    let mut fixture = LedgerFixture { stores, maria, raw };
    // Round 0 is the warm-up.
    for number in 0..=harness.args.rounds {
        let product = fixture.placed(harness, 1, BATCH_MAX).await?;
        let single = fixture.placed(harness, writers, 1).await?;
        let loaded = fixture.load_raw(harness).await?;
        if number > 0 {
            harness.pair("S8", product.clone(), single);
            harness.pair("S9", product, loaded);
        }
    }
    fixture.stores.ledger.close().await;
    let remark =
        format!("core-µs are MariaDB's; one batch in flight against {writers} transactions");
    harness.remark("S8", remark);
    Ok(())
}

impl LedgerFixture {
    /// Places orders of one SKU for one round, `concurrency` batches of `batch` orders at a time.
    async fn placed(
        &self,
        harness: &mut Harness,
        concurrency: usize,
        batch: usize,
    ) -> Result<RoundSample> {
        let offer = Offer::open(&self.stores, ENDLESS, 1).await?;
        let (end, placed) = (now_monotonic() + harness.args.round(), AtomicU64::new(0));
        let placing = try_join_all((0..concurrency).map(|_| async {
            while now_monotonic() < end {
                offer.stores.place(offer.intents(batch)?).await?;
                placed.fetch_add(batch as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }));
        let (_, metered) = harness.meter(&[("mariadb", self.maria.id())], placing).await?;
        let placed = placed.into_inner();
        let sale = &offer.sale;
        let committed = self.stores.ledger.ledger_size(offer.sku.no).await?.num_orders;
        harness.void_unless(committed == placed, || {
            format!("{sale}: {placed} placed, {committed} committed")
        });
        offer.audit(harness, false).await?;
        let sample = metered.sample(metered.rate(placed), placed);
        Ok(RoundSample { batches: vec![("ledger", batch as f64)], ..sample })
    }

    /// Inserts rows for one round: batches of the same size, one transaction each, without stock,
    /// limits or conflict resolution.
    async fn load_raw(&mut self, harness: &mut Harness) -> Result<RoundSample> {
        // An audit requires the sale of each order.
        let offer = Offer::open(&self.stores, 1, 1).await?;
        let end = now_monotonic() + harness.args.round();
        let loading = async {
            let mut loaded = 0;
            while now_monotonic() < end {
                let rows = insert(offer.sku.no, &offer.intents(BATCH_MAX)?);
                self.raw.batch_execute(&rows).await.context("loading raw rows")?;
                loaded += BATCH_MAX as u64;
            }
            Ok(loaded)
        };
        let (loaded, metered) = harness.meter(&[("mariadb", self.maria.id())], loading).await?;
        Ok(metered.sample(metered.rate(loaded), loaded))
    }
}

fn insert(sku: SkuNo, intents: &[OrderIntent]) -> String {
    let mut text = "INSERT INTO orders (sku_no, buyer_id, slot, request_id, epoch, quantity, \
                    amount, state, placed_at_ms, pay_by_ms, trace_id, recorded_at_ms) VALUES "
        .to_owned();
    let mut separator = "";
    let state = OrderState::PendingPayment.to_db();
    for order in intents {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{separator}({sku},{},{},{},{},{},{},{state},{},{},x'{:032x}',{})",
            order.buyer,
            order.slot,
            order.request,
            order.epoch.0,
            order.quantity,
            order.amount,
            order.placed_at_ms,
            order.placed_at_ms + i64::from(order.payment_window_s) * 1_000,
            order.trace.0,
            order.placed_at_ms
        );
        separator = ",";
    }
    text
}
