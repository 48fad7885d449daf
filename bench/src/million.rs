//! Start time and memory of a server with a large ledger.

use std::time::Duration;

use anyhow::Context;
use floodgate::runtime::clock;
use loadgen::{Load, Until, run, terminal_progress};
use serde::Serialize;

use crate::harness::{ENDLESS, Harness, newly_accepted};
use crate::meter::resident;
use crate::process::{ServerChild, scratch};

const SALE: &str = "million";
/// Orders in the ledger.
const ORDERS: u64 = 1_000_000;
const COMMIT_TIMEOUT: Duration = Duration::from_mins(2);

/// The start of a server on the ledger of a killed one.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LargeStart {
    orders: u64,
    /// Purchases per second while the ledger was filled.
    filled_per_second: f64,
    /// From the start of the process until it is ready.
    ready_ms: u64,
    resident_filled_bytes: u64,
    resident_started_bytes: u64,
}

impl LargeStart {
    /// One line of text.
    pub(crate) fn summary(&self) -> String {
        let Self { orders, filled_per_second, ready_ms, .. } = self;
        let mib = |bytes: u64| bytes / (1 << 20);
        format!(
            "{orders} orders: ready {ready_ms} ms after the start that follows a kill, resident \
             {} MiB ({} MiB before the kill); filled at {filled_per_second:.0}/s",
            mib(self.resident_started_bytes),
            mib(self.resident_filled_bytes)
        )
    }
}

/// Fills a ledger over HTTP, kills the server, and measures the next start.
pub(crate) async fn start(harness: &mut Harness<'_>) -> anyhow::Result<LargeStart> {
    let args = harness.args;
    let scratch = scratch(&args.parent())?;
    let server = ServerChild::serve(scratch.path(), &args.settings()).await?;
    let admin = server.ready().await?;
    admin.open_bench_sale(SALE, ENDLESS, args.buckets).await?;
    let report = run(Load {
        until: Until::Requests(ORDERS),
        progress: terminal_progress("filling"),
        ..harness.load(&server, SALE)
    })
    .await?;
    let accepted = newly_accepted(&report);
    let filled = admin.await_committed(SALE, accepted, COMMIT_TIMEOUT).await?;
    let resident_filled_bytes = resident(server.id())?;
    drop(server);

    let begin = clock::now_monotonic();
    let server = ServerChild::serve(scratch.path(), &args.settings()).await?;
    let admin = server.ready().await?;
    let ready = clock::now_monotonic().duration_since(begin);
    let resident_started_bytes = resident(server.id())?;
    let committed = admin.committed(SALE).await?;
    harness.void_unless(committed >= filled.max(accepted), || {
        format!("{accepted} accepted, {committed} left after the restart")
    });
    let violations = admin.audit(None).await.context("after the restart")?;
    harness.void_on_violations("after the restart", &violations);
    Ok(LargeStart {
        orders: committed,
        filled_per_second: report.per_second(accepted),
        ready_ms: u64::try_from(ready.as_millis()).unwrap_or(u64::MAX),
        resident_filled_bytes,
        resident_started_bytes,
    })
}
