//! Orders per second that a ledger writes durably, by batch size.
//!
//! `cargo bench --bench ledger -- [place] [batch] [policy]`; the place is a directory, which
//! decides which disk is measured with SQLite, or mysql://user:password@host:port/database, which
//! is written to and not cleared; the other two leave out what is not of interest.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{BlindInsert, Ledger};
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, Policy, RequestId, SaleDraft, SkuDraft, SkuNo, TraceId,
};
use floodgate::runtime::clock::{now_monotonic, wall_ms};

const MEASURE_FOR: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let place = words.next();
    let (batch_only, policy_only) = (words.next(), words.next());
    let (url, directory) = match place {
        Some(place) if place.starts_with("mysql://") => (Some(place), std::env::temp_dir()),
        place => (None, place.map_or_else(std::env::temp_dir, Into::into)),
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
    // A server may have orders and sales of earlier runs.
    let first = u64::try_from(wall_ms())? << 20;
    let draft = draft(&format!("bench-{first}"), policy)?;
    let sale = ledger.create_sale(draft, 0).await?.context("the name is taken")?;
    let sku = sale.skus.first().context("no sku")?.no;
    let mut took = Vec::new();
    let start = now_monotonic();
    let mut next = first;
    while start.elapsed() < MEASURE_FOR {
        let intents = (next..next + batch)
            .map(|number| intent(sku, policy, number))
            .collect::<anyhow::Result<_>>()?;
        next += batch;
        let begun = now_monotonic();
        anyhow::ensure!(ledger.place(intents).await? == BlindInsert::All, "a conflict");
        took.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    let seconds = start.elapsed().as_secs_f64();
    took.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| took.get(took.len() * share / 1_000).copied().unwrap_or_default();
    println!(
        "{:>14} {batch:>6} {:>10.0} {:>10.0} {:>8.2} {:>8.2} {:>8.2}",
        policy.kind(),
        (next - first) as f64 / seconds,
        took.len() as f64 / seconds,
        at(500),
        at(990),
        took.last().copied().unwrap_or_default()
    );
    Ok(())
}

fn draft(id: &str, policy: Policy) -> anyhow::Result<SaleDraft> {
    Ok(SaleDraft {
        id: id.parse()?,
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: 1,
        skus: vec![SkuDraft {
            id: "sku".parse()?,
            title: "SKU".to_owned(),
            price: 100,
            initial: 1_000_000_000,
            policy,
            buckets: 1,
            payment_window_s: 900,
            bar_lapsed: false,
        }],
    })
}

/// Buyers come in no order, request ids rise with time.
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
        pay_by_ms: 1_800_000_900_000,
        trace: TraceId(u128::from(number) << 64),
        published_at_ms: None,
    })
}
