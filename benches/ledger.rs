//! Durable orders per second of a ledger, by batch size.
//!
//! `cargo bench --bench ledger -- [target] [batch] [policy]`. The target is a directory for SQLite,
//! which decides the measured disk, or mysql://user:password@host:port/database, which is written
//! to and not cleared. Batch and policy select a single size and a single policy.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use floodgate::db::Ledger;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{
    BucketNo, BuyerId, Currency, Epoch, OrderIntent, Policy, RequestId, SaleDraft, SkuDraft,
    SkuHistory, SkuNo, SlotReturns, TraceId,
};
use floodgate::runtime::clock::{now_monotonic, wall_ms};

const MEASURE_FOR: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let target = arguments.next();
    let (batch_only, policy_only) = (arguments.next(), arguments.next());
    let (url, directory) = match target {
        Some(url) if url.starts_with("mysql://") => (Some(url), std::env::temp_dir()),
        directory => (None, directory.map_or_else(std::env::temp_dir, Into::into)),
    };
    let scratch = tempfile::tempdir_in(directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    println!(
        "{:>14} {:>6} {:>10} {:>10} {:>8} {:>8} {:>8}",
        "policy", "batch", "orders/s", "commits/s", "p50 ms", "p99 ms", "max ms"
    );
    for policy in [
        Policy::OnePerBuyer { max_quantity: 1 },
        Policy::Unlimited { max_quantity: 1 },
        Policy::Quota { limit: 5, max_quantity: 5 },
    ] {
        for batch in [1, 16, 256, 1024] {
            let other_batch = batch_only.as_ref().is_some_and(|only| *only != batch.to_string());
            if other_batch || policy_only.as_ref().is_some_and(|only| only != policy.kind()) {
                continue;
            }
            let file = scratch.path().join(format!("{}-{batch}.db", policy.kind()));
            let ledger: Arc<dyn Ledger> = match &url {
                Some(url) => Arc::new(MysqlLedger::open(&MysqlOptions::new(url))?),
                None => Arc::new(SqliteLedger::open(&OpenOptions::new(file))?),
            };
            runtime.block_on(measure(ledger.as_ref(), policy, batch))?;
            runtime.block_on(ledger.close());
        }
    }
    Ok(())
}

async fn measure(ledger: &dyn Ledger, policy: Policy, batch: u64) -> anyhow::Result<()> {
    // A MariaDB may hold orders and sales of earlier runs.
    let first = u64::try_from(wall_ms())? << 20;
    let draft = draft(&format!("bench-{first}"), policy)?;
    let sale = ledger.create_sale(draft, 0).await?.context("the name is taken")?;
    let sku = sale.skus.first().context("no sku")?.no;
    let mut times_ms = Vec::new();
    let start = now_monotonic();
    let mut next = first;
    while start.elapsed() < MEASURE_FOR {
        let intents = (next..next + batch)
            .map(|number| intent(sku, policy, number))
            .collect::<anyhow::Result<_>>()?;
        next += batch;
        let begun = now_monotonic();
        anyhow::ensure!(ledger.place(intents).await?.is_some(), "a conflict");
        times_ms.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    let seconds = start.elapsed().as_secs_f64();
    times_ms.sort_unstable_by(f64::total_cmp);
    let permille =
        |share: usize| times_ms.get(times_ms.len() * share / 1_000).copied().unwrap_or_default();
    println!(
        "{:>14} {batch:>6} {:>10.0} {:>10.0} {:>8.2} {:>8.2} {:>8.2}",
        policy.kind(),
        (next - first) as f64 / seconds,
        times_ms.len() as f64 / seconds,
        permille(500),
        permille(990),
        times_ms.last().copied().unwrap_or_default()
    );
    Ok(())
}

fn draft(id: &str, policy: Policy) -> anyhow::Result<SaleDraft> {
    Ok(SaleDraft {
        id: id.parse()?,
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: 1,
        currency: Currency::default(),
        ticket_required: false,
        skus: vec![SkuDraft {
            no: (),
            id: "sku".parse()?,
            title: "SKU".to_owned(),
            price: 100,
            initial: 1_000_000_000,
            policy,
            buckets: 1,
            payment_window_s: 900,
            bar_lapsed: false,
            slot_returns: SlotReturns::default(),
            ends_max: 3,
            queue_timeout_s: 0,
            history: SkuHistory::default(),
        }],
    })
}

/// Buyer ids are scattered, request ids ascend.
fn intent(sku: SkuNo, policy: Policy, number: u64) -> anyhow::Result<OrderIntent> {
    let request = RequestId::new(number).context("0 is no request")?;
    let buyer = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1 | 1;
    Ok(OrderIntent {
        request,
        sku,
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: BuyerId::new(buyer).context("0 is no buyer")?,
        quantity: 1,
        slot: policy.slot(request),
        quota: policy.quota(),
        amount: 100,
        placed_at_ms: 1_800_000_000_000,
        payment_window_s: 900,
        trace: TraceId(u128::from(number) << 64),
        published_at_ms: None,
    })
}
