//! A million accepted orders while the broker is down: their memory, and the rate at which they are
//! published afterwards.

use crate::harness::Harness;
use crate::pipeline::Servers;
use crate::relay_fixture::Plan;
use crate::stats::{grouped, shown};
use anyhow::Result;

/// Orders of rounds of four seconds and more.
const ORDERS_MAX: u64 = 1_000_000;
/// Enough buckets that none exceeds the capacity of its pages.
const BUCKETS: u16 = 4;
const ENVELOPE: usize = 64;
/// The warm-up's orders are this fraction of the round's: one in five.
const WARM_UP_SHARE: u64 = 5;

pub async fn backlog(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(ORDERS_MAX);
    let all = Plan { orders, buckets: BUCKETS, envelope_max: ENVELOPE };
    let servers = Servers::start(harness)?;
    servers.steady(harness, Plan { orders: orders / WARM_UP_SHARE, ..all }).await?;
    let before = servers.steady(harness, all).await?;
    servers.rabbit.kill();
    let mut backlog = servers.open(harness, all).await?;
    let relay = backlog.serve("relay").await?;
    let empty = servers.redis.used_memory()?;
    servers.fill(&mut backlog).await?;
    let bytes = (servers.redis.used_memory()? - empty) / orders as f64;
    harness.number("backlog", bytes);
    servers.rabbit.restart()?;
    let sample = servers.drain(harness, &backlog, &relay).await?;
    drop(relay);
    servers.verify(harness, backlog).await?;
    // The same number of orders with a broker that was never down.
    let after = servers.steady(harness, all).await?;
    let remark =
        format!("{} orders in {BUCKETS} buckets, messages of {ENVELOPE}", grouped(orders as f64));
    let drained = format!(
        "{remark}; one drain against as many orders before and after, drained with the broker \
         never down; core-µs for each order: {}",
        shown(&sample.costs)
    );
    harness.remark("backlog", remark);
    for steady in [before, after] {
        harness.pair("backlog drain", sample.clone(), steady);
    }
    harness.remark("backlog drain", drained);
    Ok(())
}
