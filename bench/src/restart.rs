//! S23: the time without sales during a restart of Redis, while orders wait in the broker.

use std::time::Duration;

use anyhow::{Result, ensure};
use floodgate::runtime::clock::now_monotonic;

use crate::harness::Harness;
use crate::pipeline::Servers;
use crate::process::poll;
use crate::relay_fixture::Plan;
use crate::stats::grouped;

/// Orders of rounds of four seconds and more.
const ORDERS_MAX: u64 = 100_000;
const BUCKETS: u16 = 4;
const ENVELOPE: usize = 64;
const SELLING_LIMIT: Duration = Duration::from_mins(10);
const COMMIT_LIMIT: Duration = Duration::from_mins(10);

/// Accepts and relays orders while no consumer runs. Then starts one process with every role, kills
/// Redis and restarts it on its append-only file.
pub async fn restart(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(ORDERS_MAX);
    let plan = Plan { orders, buckets: BUCKETS, envelope_max: ENVELOPE };
    let servers = Servers::start(harness)?;
    for _ in 0..harness.args.rounds {
        let (busy_s, remark) = round(&servers, harness, plan).await?;
        harness.number("S23", busy_s);
        harness.remark("S23", remark);
    }
    Ok(())
}

/// Seconds from the kill to the next accepted purchase, and a remark on the round.
async fn round(servers: &Servers, harness: &mut Harness, plan: Plan) -> Result<(f64, String)> {
    let backlog = servers.open_filled(harness, plan).await?;
    let relay = backlog.serve("relay").await?;
    servers.await_empty(&backlog).await?;
    drop(relay);
    let all = backlog.serve("all").await?;
    let (admin, sale) = (all.ready().await?, backlog.sale().to_string());
    let committed = admin.committed(&sale).await?;
    let killed = now_monotonic();
    let since_s = || now_monotonic().duration_since(killed).as_secs_f64();
    servers.redis.restart()?;
    let restarted_s = since_s();
    let mut tries = 0_u64;
    let is_selling = async || {
        tries += 1;
        let answer = harness.try_one(&all, &sale).await;
        Ok(((), answer.is_some_and(|(status, _)| matches!(status, 200 | 202))))
    };
    let ((), is_accepted) = poll(SELLING_LIMIT, is_selling).await?;
    ensure!(is_accepted, "{sale}: no purchase is accepted after the restart of Redis");
    let busy_s = since_s();
    admin.await_committed(&sale, plan.orders + 1, COMMIT_LIMIT).await?;
    let committed_s = since_s();
    harness.check(&admin, &sale, plan.orders + 1).await?;
    let queued = grouped(plan.orders.saturating_sub(committed) as f64);
    Ok((
        busy_s,
        format!(
            "{queued} orders waited in the broker at the kill; Redis answered again after \
             {restarted_s:.2} s, all orders were committed after {committed_s:.1} s, {tries} \
             purchases were tried"
        ),
    ))
}
