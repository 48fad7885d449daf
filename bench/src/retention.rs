//! The purge of a large sale while another one sells.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use crate::harness::{ENDLESS, Harness, Product, newly_accepted};
use crate::servers::GateTier;
use crate::stats::grouped;

/// Orders of rounds of four seconds and more.
const ORDERS_MAX: u64 = 1_000_000;
/// Sales meanwhile, as a share of the rate before.
const OFFERED: f64 = 0.5;
/// Limit of the time until the last order is in the ledger, and its event is read.
const SETTLED_TIMEOUT: Duration = Duration::from_mins(10);

/// The longest transaction of a purge, by the server's own clock; the client is this executable.
pub async fn purge(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(ORDERS_MAX);
    let tier = GateTier::start(harness).await?;
    for _ in 0..harness.args.rounds {
        purged(harness, &tier.product, orders).await?;
    }
    Ok(())
}

/// One round: archives a sale, and purges it while another one sells.
async fn purged(harness: &mut Harness, product: &Product, orders: u64) -> Result<()> {
    let old = harness.new_name();
    product.admin.open_sale(&old, ENDLESS, harness.args.buckets, 0).await?;
    let accepted = newly_accepted(&harness.fill(&product.server, &old, orders).await?);
    harness.check(&product.admin, &old, accepted).await?;
    product.admin.close_sale(&old).await?;
    let is_settled = product.admin.await_archivable(&old, SETTLED_TIMEOUT).await?;
    ensure!(is_settled, "{old}: cannot be archived after {SETTLED_TIMEOUT:?}");
    let folder = testkit::folder(&harness.args.parent())?;
    let archive = folder.path().to_str().context("a path that is not text")?.to_owned();
    product.server.command(&["sale", "archive", &old, "--to", &archive]).await?;

    let sale = harness.sale(product, ENDLESS).await?;
    let load = harness.load(&product.server, &sale);
    let before = harness.measure(Some(product), load.clone()).await?.goodput();
    ensure!(before > 0.0, "no purchase was accepted");
    let offered = before * OFFERED;
    let arguments = ["sale", "purge", &old, "--archive", &archive];
    let purging = product.placed_during(product.server.command(&arguments));
    let (purged, elapsed, during) = Harness::while_selling(load, offered, purging).await?;
    let count = |name| purged.get(name).and_then(Json::as_u64).context("an answer without counts");
    let (rows, longest_ms) = (count("num_rows")?, count("longest_ms")?);
    harness.void_unless(rows >= accepted, || format!("{old}: {rows} rows of {accepted} orders"));
    product.admin.close_sale(&sale).await?;
    for sale in [&old, &sale] {
        harness.void_on_violations(sale, &product.admin.audit(Some(sale)).await?);
    }
    let remark = format!(
        "{} orders archived, and purged in {:.0} s; {}/s of {}/s sold meanwhile, {}/s at \
         most before",
        grouped(accepted as f64),
        elapsed.as_secs_f64(),
        grouped(during),
        grouped(offered),
        grouped(before)
    );
    harness.number("purge", longest_ms as f64);
    harness.remark("purge", remark);
    Ok(())
}
