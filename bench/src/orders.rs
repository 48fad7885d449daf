//! S8 and S9: how many orders a second MariaDB takes: in batches as the order consumer writes them,
//! one transaction each, and raw.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use floodgate::domain::{OrderIntent, OrderState, SkuNo};
use floodgate::runtime::clock::now_monotonic;
use futures_util::future::try_join_all;

use crate::bare::{self, Bare, settings};
use crate::crowd::{BATCH_MAX, Offer, place, wish};
use crate::lab::{ENDLESS, Lab};
use crate::meter::Meter;
use crate::private::MariaServer;
use crate::stats::{Round, Sample, grouped, row};
use crate::table::Row;

/// The rig of both goals.
struct Rig {
    bare: Bare,
    maria: MariaServer,
    raw: AsyncMysqlConnection,
    /// Writers that the ledger has.
    writers: usize,
}

/// Measures both goals with the same rounds of the product.
pub(crate) async fn ledger(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let maria = MariaServer::start(lab.args.directory.as_deref()).await?;
    let set = ["tier=ledger".to_owned(), format!("ledger.url={}", maria.url())];
    let settings = settings(&set)?;
    let bare = bare::bare(&settings).await?;
    let raw = AsyncMysqlConnection::establish(&maria.url()).await?;
    let mut rig = Rig { bare, maria, raw, writers: settings.ledger.writers };
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
            one_by_one.push(Round::pair(product.clone(), single));
            loader.push(Round::pair(product, loaded));
        }
    }
    rig.bare.ledger.close().await;
    let remark =
        format!("core-µs are MariaDB's; one batch on its way against {} transactions", rig.writers);
    Ok(vec![row("S8", &one_by_one, Some(remark))?, row("S9", &loader, None)?])
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
        let meter = Meter::start(&[("mariadb", self.maria.pid())])?;
        try_join_all((0..together).map(|_| async {
            while now_monotonic() < end {
                place(&self.bare, intents(&offer, batch)?).await?;
                placed.fetch_add(batch as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }))
        .await?;
        let metered = lab.stop(meter)?;
        let placed = placed.into_inner();
        let sale = &offer.sale;
        let landed = self.bare.ledger.tally(offer.sku.no).await?.num_orders;
        lab.require(landed == placed, || format!("{sale}: {placed} placed, {landed} landed"));
        lab.require_none(sale.as_str(), &self.bare.ledger_violations(sale).await?);
        let sample = metered.sample(metered.rate(placed), placed);
        Ok(Sample { batches: vec![("ledger", batch as f64)], ..sample })
    }

    /// Inserts as many rows as it can in one round: batches of the same size, each its own
    /// transaction, without stock, limits or a look at what failed.
    async fn load_raw(&mut self, lab: &mut Lab<'_>) -> anyhow::Result<Sample> {
        // An audit asks for the sale of each order.
        let offer = Offer::open(&self.bare, 1, 1).await?;
        let (end, mut loaded) = (now_monotonic() + lab.args.round(), 0);
        let meter = Meter::start(&[("mariadb", self.maria.pid())])?;
        while now_monotonic() < end {
            let rows = insert(offer.sku.no, &intents(&offer, BATCH_MAX)?);
            self.raw.batch_execute(&rows).await.context("loading raw rows")?;
            loaded += BATCH_MAX as u64;
        }
        let metered = lab.stop(meter)?;
        Ok(metered.sample(metered.rate(loaded), loaded))
    }
}

/// Orders of buyers in no order.
fn intents(offer: &Offer, batch: usize) -> anyhow::Result<Vec<OrderIntent>> {
    let intent = |_| Ok(wish(&offer.sku, offer.epoch)?.intent(&offer.sku));
    (0..batch).map(intent).collect()
}

fn insert(sku: SkuNo, intents: &[OrderIntent]) -> String {
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
