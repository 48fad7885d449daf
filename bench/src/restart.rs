//! S23: how long a restart of Redis keeps a sale busy while orders wait in the broker.

use std::time::Duration;

use anyhow::ensure;
use floodgate::runtime::clock::now_monotonic;

use crate::lab::{LANDING_PATIENCE, Lab};
use crate::pipeline::Servers;
use crate::process::poll;
use crate::rig::Plan;
use crate::stats::{Round, Sample, grouped, row};
use crate::table::Row;

/// Orders for each second that a round lasts: 100,000 by default.
const PER_SECOND: u64 = 25_000;
const ORDERS_MAX: u64 = 100_000;
const BUCKETS: u16 = 4;
const ENVELOPE: usize = 64;
const SELLING_LIMIT: Duration = Duration::from_mins(10);
const LANDED_LIMIT: Duration = Duration::from_mins(10);

/// Orders are accepted and relayed while no consumer runs; then one process with every role starts,
/// and Redis is killed and restarted on its append-only file.
pub(crate) async fn restart(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let orders = (PER_SECOND * lab.args.seconds).min(ORDERS_MAX);
    let plan = Plan { orders, buckets: BUCKETS, envelope_max: ENVELOPE };
    let mut servers = Servers::start(lab).await?;
    let (mut rounds, mut last) = (Vec::new(), None);
    for number in 1..=lab.args.rounds {
        let (busy_s, remark) = round(&mut servers, lab, plan).await?;
        lab.say(&format!("round {number}: selling again after {busy_s:.2} s; {remark}"));
        rounds.push(Round::number(Sample::of(busy_s)));
        last = Some(remark);
    }
    Ok(vec![row("S23", &rounds, last)?])
}

/// Seconds without a sale, and what else was seen.
async fn round(
    servers: &mut Servers,
    lab: &mut Lab<'_>,
    plan: Plan,
) -> anyhow::Result<(f64, String)> {
    let stocked = servers.stock(lab, plan).await?;
    let relay = stocked.serve("relay").await?;
    servers.await_empty(&stocked).await?;
    drop(relay);
    let all = stocked.serve("all").await?;
    let admin = all.admin()?;
    let sale = stocked.sale().to_string();
    admin.await_ready().await?;
    let landed = admin.landed(&sale).await?;
    let killed = now_monotonic();
    let since_s = || now_monotonic().duration_since(killed).as_secs_f64();
    servers.redis.down();
    servers.redis.up().await?;
    let restarted_s = since_s();
    let mut tries = 0_u64;
    let is_selling = async || {
        tries += 1;
        let answer = lab.try_one(&all, &sale).await?;
        Ok(((), answer.is_some_and(|(status, _)| matches!(status, 200 | 202))))
    };
    let ((), is_sold) = poll(SELLING_LIMIT, is_selling).await?;
    ensure!(is_sold, "{sale}: no purchase is accepted after the restart of Redis");
    let busy_s = since_s();
    admin.await_landed(&sale, plan.orders + 1, LANDED_LIMIT).await?;
    let landed_s = since_s();
    lab.check(&admin, &sale, plan.orders + 1, LANDING_PATIENCE).await?;
    let waited = grouped(plan.orders.saturating_sub(landed) as f64);
    Ok((
        busy_s,
        format!(
            "{waited} orders waited in the broker at the kill; Redis answered again after \
             {restarted_s:.2} s, all orders had landed after {landed_s:.1} s, {tries} purchases \
             were tried"
        ),
    ))
}
