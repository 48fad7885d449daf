//! A server with many orders in its ledger: the memory of its audit, and its start.

use std::time::Duration;

use anyhow::{Context, Result};
use floodgate::domain::{BuyerId, RequestId};
use floodgate::runtime::clock;

use crate::admin::DAY_S;
use crate::harness::{ENDLESS, Harness, newly_accepted};
use crate::meter::{mib, resident};
use crate::process::ServerChild;
use crate::servers::{maria, new_ledger};
use crate::stats::grouped;
use crate::stores::{BATCH_MAX, Offer, Stores, stock_for};

/// Orders of rounds of four seconds and more.
const AUDITED_MAX: u64 = 10_000_000;
const MEMORY_READ_EVERY: Duration = Duration::from_millis(20);
const PROGRESS_EVERY: u64 = 1_000_000;

/// The sale in the ledger of the server that starts.
const SALE: &str = "million";
const STARTED_WITH: u64 = 1_000_000;
const COMMIT_TIMEOUT: Duration = Duration::from_mins(2);

/// S19: the most memory that the server has while it audits, beyond what it had before, which is
/// the gate's own index of the orders. Measured once: the audit reads each row.
pub async fn audit(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(AUDITED_MAX);
    let maria = maria(harness)?;
    let set = ["tier=ledger".to_owned(), new_ledger(&maria).await?];
    let offer = Offer::open(&Stores::open(&set).await?, stock_for(orders)?, 1).await?;
    fill(harness, &offer, orders).await?;
    offer.stores.ledger.close().await;

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
    harness.number("S19", mib(most.saturating_sub(idle)));
    harness.remark("S19", remark);
    Ok(())
}

/// Places orders with ascending ids, so that each is written behind the last one.
async fn fill(harness: &Harness, offer: &Offer, orders: u64) -> Result<()> {
    for first in (1..=orders).step_by(BATCH_MAX) {
        let last = orders.min(first + BATCH_MAX as u64 - 1);
        let mut batch = offer.intents(usize::try_from(last - first + 1)?)?;
        for (id, intent) in (first..).zip(&mut batch) {
            intent.buyer = BuyerId::new(id).context("0 is no buyer")?;
            intent.request = RequestId::new(id).context("0 is no request")?;
        }
        offer.stores.place(batch).await?;
        if last / PROGRESS_EVERY > (first - 1) / PROGRESS_EVERY {
            harness.note(&format!("{} orders written", grouped(last as f64)));
        }
    }
    Ok(())
}

/// Fills a ledger over HTTP, kills the server, and measures the next start, once.
pub async fn start(harness: &mut Harness) -> Result<()> {
    let scratch = testkit::folder(&harness.args.parent())?;
    let server = ServerChild::serve(scratch.path(), &[]).await?;
    let admin = server.ready().await?;
    admin.open_sale(SALE, ENDLESS, DAY_S).await?;
    let report = harness.fill(&server, SALE, STARTED_WITH).await?;
    let accepted = newly_accepted(&report);
    let filled = admin.await_committed(SALE, accepted, COMMIT_TIMEOUT).await?;
    let resident_filled = resident(server.id())?;
    drop(server);

    let begin = clock::now_monotonic();
    let server = ServerChild::serve(scratch.path(), &[]).await?;
    let admin = server.ready().await?;
    let ready = clock::now_monotonic().duration_since(begin);
    let resident_started = resident(server.id())?;
    let committed = admin.committed(SALE).await?;
    harness.void_unless(committed >= filled.max(accepted), || {
        format!("{accepted} accepted, {committed} left after the restart")
    });
    harness.audit(&admin, None).await.context("after the restart")?;
    harness.number("start", ready.as_secs_f64());
    harness.number("start memory", mib(resident_started));
    let remark = format!(
        "{committed} orders; {:.0} MiB resident before the kill; filled at {}/s",
        mib(resident_filled),
        grouped(report.per_second(accepted))
    );
    harness.remark("start", remark);
    Ok(())
}
