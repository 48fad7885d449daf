//! S19: memory that an audit of a large ledger takes.

use std::time::Duration;

use anyhow::{Context, Result};
use floodgate::domain::{BuyerId, RequestId};
use testkit::mariadb;

use crate::crowd::{BATCH_MAX, Offer, place, stock_for};
use crate::harness::Harness;
use crate::meter::{mib, resident};
use crate::servers::maria;
use crate::stats::grouped;
use crate::stores::{self, Stores, settings};

/// Orders of rounds of four seconds and more.
const ORDERS_MAX: u64 = 10_000_000;
const MEMORY_READ_EVERY: Duration = Duration::from_millis(20);
const PROGRESS_EVERY: u64 = 1_000_000;

/// The most memory that the server has while it audits, beyond what it had before, which is the
/// gate's own index of the orders. Measured once: the audit reads each row.
pub async fn audit(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(ORDERS_MAX);
    let maria = maria(harness)?;
    let set = [
        "tier=ledger".to_owned(),
        format!("ledger.url={}", mariadb::url("floodgate", maria.addr(), "floodgate")),
    ];
    let stores = stores::open(&settings(&set)?).await?;
    let offer = Offer::open(&stores, stock_for(orders)?, 1).await?;
    fill(harness, &stores, &offer, orders).await?;
    stores.ledger.close().await;

    let product = harness.product(&set).await?;
    let server = product.server.id();
    let idle = resident(server)?;
    let mut most = idle;
    let auditing = product.admin.audit(None);
    tokio::pin!(auditing);
    let violations = loop {
        most = most.max(resident(server)?);
        tokio::select! {
            audited = &mut auditing => break audited?,
            () = tokio::time::sleep(MEMORY_READ_EVERY) => {}
        }
    };
    harness.void_on_violations("the large ledger", &violations);
    let remark =
        format!("{} orders; the server has {:.0} MiB before", grouped(orders as f64), mib(idle));
    let own = mib(most.saturating_sub(idle));
    harness.number("S19", own);
    harness.remark("S19", remark);
    Ok(())
}

/// Places orders with ascending ids, so that each is written behind the last one.
async fn fill(harness: &Harness, stores: &Stores, offer: &Offer, orders: u64) -> Result<()> {
    for first in (1..=orders).step_by(BATCH_MAX) {
        let last = orders.min(first + BATCH_MAX as u64 - 1);
        let mut batch = offer.intents(usize::try_from(last - first + 1)?)?;
        for (id, intent) in (first..).zip(&mut batch) {
            intent.buyer = BuyerId::new(id).context("0 is no buyer")?;
            intent.request = RequestId::new(id).context("0 is no request")?;
        }
        place(stores, batch).await?;
        if last / PROGRESS_EVERY > (first - 1) / PROGRESS_EVERY {
            harness.note(&format!("{} orders written", grouped(last as f64)));
        }
    }
    Ok(())
}
