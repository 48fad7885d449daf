//! S8 and S9: how many orders a second MariaDB takes: in batches as the order consumer writes them,
//! one transaction each, and raw.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use futures_util::future::try_join_all;

use super::crowd::{BATCH_MAX, Offer, place, settings, wish};
use super::lab::Lab;
use super::meter::Meter;
use super::private::MariaServer;
use super::sample::{Round, Sample, row};
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::cli::engine::{self, Bare};
use crate::clock::now_monotonic;
use crate::domain::{OrderIntent, OrderState, SaleId};

/// Stock that no round can sell.
const ENDLESS: u32 = 1_000_000_000;
/// SKU numbers of raw rows begin here, far from those of sales.
const RAW_SKU: u64 = 1_000_000;

/// The rig of both goals.
struct Rig {
    bare: Bare,
    maria: MariaServer,
    raw: AsyncMysqlConnection,
    /// Writers that the ledger has.
    writers: usize,
    raw_skus: u64,
}

/// Measures both goals with the same rounds of the product.
pub(super) async fn ledger(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let maria = MariaServer::start(lab.args.directory.as_deref()).await?;
    let set = ["tier=ledger".to_owned(), format!("ledger.url={}", maria.url())];
    let settings = settings(&set)?;
    let bare = engine::bare(&settings).await?;
    let raw = AsyncMysqlConnection::establish(&maria.url()).await?;
    let mut rig = Rig { bare, maria, raw, writers: settings.ledger.writers, raw_skus: RAW_SKU };
    let (mut one_by_one, mut loader) = (Vec::new(), Vec::new());
    // The first round warms up.
    for number in 0..=lab.args.rounds {
        let product = rig.placed(lab, 1, BATCH_MAX).await?;
        let single = rig.placed(lab, rig.writers, 1).await?;
        let loaded = rig.load_raw(lab).await?;
        lab.say(&format!(
            "round {number}: {}/s in batches, {}/s one by one, {}/s raw",
            grouped(product.value),
            grouped(single.value),
            grouped(loaded.value)
        ));
        if number > 0 {
            one_by_one.push(Round { product: product.clone(), yardstick: Some(single) });
            loader.push(Round { product, yardstick: Some(loaded) });
        }
    }
    rig.bare.ledger.close().await;
    let goal = Goal::AtLeast { floor: 20.0, aim: 60.0 };
    let what = "orders per second in MariaDB, against one transaction each";
    let mut s8 = row("S8", what, goal, &one_by_one, "/s")?;
    s8.remark = Some(format!(
        "core-µs are MariaDB's; one batch on its way against {} transactions",
        rig.writers
    ));
    let goal = Goal::AtLeast { floor: 0.60, aim: 0.85 };
    let what = "the same against a raw multi-row loader";
    let s9 = row("S9", what, goal, &loader, "/s")?;
    Ok(vec![s8, s9])
}

impl Rig {
    /// Places orders of one SKU for one round, `together` calls of `batch` orders on their way.
    async fn placed(
        &self,
        lab: &mut Lab<'_>,
        together: usize,
        batch: usize,
    ) -> anyhow::Result<Sample> {
        let offer = Offer::open(&self.bare, ENDLESS, 1).await?;
        let (end, placed) = (now_monotonic() + lab.args.round(), AtomicU64::new(0));
        let meter = Meter::start(self.maria.pid())?;
        try_join_all((0..together).map(|_| async {
            while now_monotonic() < end {
                place(&self.bare, intents(&offer, batch)?).await?;
                placed.fetch_add(batch as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }))
        .await?;
        let metered = meter.stop(lab)?;
        let placed = placed.into_inner();
        self.check(lab, &offer, placed).await?;
        let mut sample = metered.sample(metered.rate(placed), placed);
        sample.batches = vec![("ledger", batch as f64)];
        Ok(sample)
    }

    async fn check(&self, lab: &mut Lab<'_>, offer: &Offer, placed: u64) -> anyhow::Result<()> {
        let sale: &SaleId = &offer.sale;
        let landed = self.bare.ledger.tally(offer.sku.no).await?.num_orders;
        if landed != placed {
            lab.void.push(format!("{sale}: {placed} placed, {landed} landed"));
        }
        let violations = self.bare.ledger_violations(sale).await?;
        if !violations.is_empty() {
            lab.void.push(format!("{sale}: audit {}", violations.join("; ")));
        }
        Ok(())
    }

    /// Inserts as many rows as it can in one round: batches of the same size, each its own
    /// transaction, without stock, limits or a look at what failed.
    async fn load_raw(&mut self, lab: &mut Lab<'_>) -> anyhow::Result<Sample> {
        self.raw_skus += 1;
        let offer = Offer::open(&self.bare, 1, 1).await?;
        let (end, mut loaded) = (now_monotonic() + lab.args.round(), 0);
        let meter = Meter::start(self.maria.pid())?;
        while now_monotonic() < end {
            let rows = insert(self.raw_skus, &intents(&offer, BATCH_MAX)?);
            self.raw.batch_execute(&rows).await.context("loading raw rows")?;
            loaded += BATCH_MAX as u64;
        }
        let metered = meter.stop(lab)?;
        Ok(metered.sample(metered.rate(loaded), loaded))
    }
}

/// Orders of buyers in no order.
fn intents(offer: &Offer, batch: usize) -> anyhow::Result<Vec<OrderIntent>> {
    let intent = |_| Ok(wish(&offer.sku, offer.epoch)?.intent(&offer.sku));
    (0..batch).map(intent).collect()
}

fn insert(sku: u64, intents: &[OrderIntent]) -> String {
    let mut text = "INSERT INTO orders (sku_no, buyer_id, slot, request_id, epoch, quantity, \
                    amount, state, placed_at_ms, pay_by_ms, trace_id) VALUES "
        .to_owned();
    let mut before = "";
    let state = OrderState::PendingPayment.to_db();
    for order in intents {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{before}({sku},{},{},{},{},{},{},{state},{},{},x'{:032x}')",
            order.buyer,
            order.slot,
            order.request,
            order.epoch.0,
            order.quantity,
            order.amount,
            order.placed_at_ms,
            order.pay_by_ms,
            order.trace.0
        );
        before = ",";
    }
    text
}
