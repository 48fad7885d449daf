//! S19: memory that an audit of a large ledger takes.

use std::time::Duration;

use anyhow::Context;
use floodgate::domain::{BuyerId, OrderIntent, RequestId};
use testkit::mariadb;

use crate::crowd::{BATCH_MAX, Offer, place, purchase, stock_for};
use crate::harness::Harness;
use crate::meter::resident;
use crate::servers::maria;
use crate::stats::{Round, Sample, grouped, row};
use crate::stores::{self, Stores, settings};
use crate::table::Row;

/// Orders per second of a round: 10,000,000 in all by default.
const PER_SECOND: u64 = 2_500_000;
const ORDERS_MAX: u64 = 10_000_000;
const MEMORY_READ_EVERY: Duration = Duration::from_millis(20);
const PROGRESS_EVERY: u64 = 1_000_000;

/// The most memory that the server has while it audits, beyond what it had before, which is the
/// gate's own index of the orders. Measured once: the audit reads each row.
pub(crate) async fn audit(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let orders = (PER_SECOND * harness.args.seconds).min(ORDERS_MAX);
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
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let remark =
        format!("{} orders; the server has {:.0} MiB before", grouped(orders as f64), mib(idle));
    let own = mib(most.saturating_sub(idle));
    harness.note(&format!("{own:.1} MiB more; {remark}"));
    Ok(vec![row("S19", &[Round::number(Sample::of(own))], Some(remark))?])
}

/// Places orders with ascending ids, so that each is written behind the last one.
async fn fill(
    harness: &Harness<'_>,
    stores: &Stores,
    offer: &Offer,
    orders: u64,
) -> anyhow::Result<()> {
    let mut first = 1;
    while first <= orders {
        let last = (first + BATCH_MAX as u64 - 1).min(orders);
        let intent = |id| {
            let mut intent = purchase(&offer.sku, offer.epoch)?.intent(&offer.sku);
            intent.buyer = BuyerId::new(id).context("0 is no buyer")?;
            intent.request = RequestId::new(id).context("0 is no request")?;
            anyhow::Ok(intent)
        };
        let batch: Vec<OrderIntent> = (first..=last).map(intent).collect::<anyhow::Result<_>>()?;
        place(stores, batch).await?;
        if last / PROGRESS_EVERY > (first - 1) / PROGRESS_EVERY {
            harness.note(&format!("{} orders written", grouped(last as f64)));
        }
        first = last + 1;
    }
    Ok(())
}
