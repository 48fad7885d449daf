//! Start time and memory of a server with a large ledger.

use std::time::Duration;

use anyhow::{Context, Result};
use floodgate::runtime::clock;

use crate::admin::DAY_S;
use crate::harness::{ENDLESS, Harness, newly_accepted};
use crate::meter::{mib, resident};
use crate::process::ServerChild;
use crate::stats::grouped;

const SALE: &str = "million";
/// Orders in the ledger.
const ORDERS: u64 = 1_000_000;
const COMMIT_TIMEOUT: Duration = Duration::from_mins(2);

/// Fills a ledger over HTTP, kills the server, and measures the next start, once.
pub async fn large_start(harness: &mut Harness) -> Result<()> {
    let args = harness.args.clone();
    let scratch = testkit::folder(&args.parent())?;
    let server = ServerChild::serve(scratch.path(), &args.settings()).await?;
    let admin = server.ready().await?;
    admin.open_sale(SALE, ENDLESS, args.buckets, DAY_S).await?;
    let report = harness.fill(&server, SALE, ORDERS).await?;
    let accepted = newly_accepted(&report);
    let filled = admin.await_committed(SALE, accepted, COMMIT_TIMEOUT).await?;
    let resident_filled = resident(server.id())?;
    drop(server);

    let begin = clock::now_monotonic();
    let server = ServerChild::serve(scratch.path(), &args.settings()).await?;
    let admin = server.ready().await?;
    let ready = clock::now_monotonic().duration_since(begin);
    let resident_started = resident(server.id())?;
    let committed = admin.committed(SALE).await?;
    harness.void_unless(committed >= filled.max(accepted), || {
        format!("{accepted} accepted, {committed} left after the restart")
    });
    let violations = admin.audit(None).await.context("after the restart")?;
    harness.void_on_violations("after the restart", &violations);
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
