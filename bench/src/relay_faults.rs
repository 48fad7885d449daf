//! Faults while orders wait in the outbox or in the broker: the crash of a relay, a broker that is
//! down, and the restart of Redis.

use std::time::Duration;

use anyhow::{Result, ensure};
use floodgate::outbox::OutboxStatus;
use floodgate::runtime::clock::now_monotonic;
use testkit::Signal;

use crate::harness::Harness;
use crate::process::poll;
use crate::relay::{BUCKETS, Backlog, ORDERS_MAX, Plan, published, steady};
use crate::servers::Servers;
use crate::stats::{for_seconds, grouped, per_second, shown};
use crate::stores::{CALIBRATION_ORDERS, settings};

const CRASH_TIMEOUT: Duration = Duration::from_mins(2);
const NOTHING_CLAIMED: &str = "the relay to be killed never had a claimed entry";
/// Limits the backlog of a crash to less than the heartbeat's time, so that the time measured is
/// the heartbeat's and not the backlog's.
const CRASH_SECONDS_MAX: u64 = 2;

/// Orders of rounds of four seconds and more: of a broker that was down, and of a restart of Redis.
const WAITING_MAX: u64 = 1_000_000;
const RESTART_MAX: u64 = 100_000;
/// The warm-up's orders are this fraction of the round's: one in five.
const WARM_UP_SHARE: u64 = 5;
const SELLING_LIMIT: Duration = Duration::from_mins(10);
const COMMIT_LIMIT: Duration = Duration::from_mins(10);

/// Many orders in few messages, in enough buckets that none exceeds the capacity of its pages.
fn packed(orders: u64) -> Plan {
    Plan { orders, buckets: 4, envelope_max: 64 }
}

/// One order per message, for many messages.
fn single(orders: u64) -> Plan {
    Plan { orders, buckets: BUCKETS, envelope_max: 1 }
}

/// S17: the time until another relay has published the entries that a killed relay had claimed, and
/// the rate of the surviving relay.
pub async fn takeover(harness: &mut Harness) -> Result<()> {
    let servers = Servers::pipeline(harness)?;
    let heartbeat_s = settings(&[])?.relay.heartbeat_ttl_ms as f64 / 1_000.0;
    let rate = steady(harness, &servers, single(CALIBRATION_ORDERS)).await?.value;
    let seconds = harness.args.seconds.min(CRASH_SECONDS_MAX);
    let orders = for_seconds(rate, seconds, (CALIBRATION_ORDERS, ORDERS_MAX));
    let mut num_orphans = 0;
    for _ in 0..harness.args.rounds {
        let alone = steady(harness, &servers, single(orders)).await?;
        let (orphans, after_s, rate) = crash(&servers, harness, orders).await?;
        num_orphans += orphans;
        harness.number("S17", after_s - heartbeat_s);
        harness.pair("S17 recovery", rate, alone);
    }
    let remark = format!(
        "the heartbeat lasts {heartbeat_s} s and was renewed up to a third of it before the kill; \
         {num_orphans} entries of killed relays in all rounds"
    );
    harness.remark("S17", remark);
    Ok(())
}

/// The entries that a killed relay had claimed, the seconds from the kill until the outbox was
/// empty, and the orders per second that the survivor published.
async fn crash(servers: &Servers, harness: &mut Harness, orders: u64) -> Result<(u64, f64, f64)> {
    let backlog = Backlog::filled(harness, servers, single(orders)).await?;
    // Claims nothing itself; gives back the orphaned entries.
    let maintenance = backlog.serve("maintenance").await?;
    let survivor = backlog.serve("relay").await?;
    let victim = backlog.serve("relay").await?;
    let prefix = format!("{}-", victim.id());
    let admin = survivor.admin()?;
    published(&admin, 1).await?;
    let check = async || {
        victim.signal(Signal::STOP)?;
        if orphans(&backlog.offer.entries().await?, &prefix) > 0 {
            return Ok(((), true));
        }
        victim.signal(Signal::CONT)?;
        ensure!(backlog.offer.entries().await?.num_waiting > 0, NOTHING_CLAIMED);
        Ok(((), false))
    };
    let ((), is_caught) = poll(CRASH_TIMEOUT, check).await?;
    ensure!(is_caught, NOTHING_CLAIMED);
    let killed = now_monotonic();
    // kill -9
    drop(victim);
    let num_orphans = orphans(&backlog.offer.entries().await?, &prefix);
    let before = published(&admin, 1).await?;
    let begun = now_monotonic();
    let is_gone = async || {
        let OutboxStatus { num_waiting, claimed, .. } = backlog.offer.entries().await?;
        Ok(((), num_waiting == 0 && claimed.iter().all(|(name, _)| name.starts_with(&prefix))))
    };
    poll(CRASH_TIMEOUT, is_gone).await?;
    let elapsed = now_monotonic().duration_since(begun);
    let rate = per_second(published(&admin, before).await? - before, elapsed);
    backlog.await_empty().await?;
    let drained_after_s = now_monotonic().duration_since(killed).as_secs_f64();
    drop((survivor, maintenance));
    backlog.verify(harness).await?;
    Ok((num_orphans, drained_after_s, rate))
}

/// Entries claimed by the workers of a process.
fn orphans(entries: &OutboxStatus, prefix: &str) -> u64 {
    let workers = entries.claimed.iter().filter(|(worker, _)| worker.starts_with(prefix));
    workers.map(|(_, count)| count).sum()
}

/// A million accepted orders while the broker is down: the rate at which they are published
/// afterwards.
pub async fn broker_down(harness: &mut Harness) -> Result<()> {
    let orders = harness.up_to(WAITING_MAX);
    let all = packed(orders);
    let servers = Servers::pipeline(harness)?;
    steady(harness, &servers, packed(orders / WARM_UP_SHARE)).await?;
    let before = steady(harness, &servers, all).await?;
    servers.rabbit()?.kill();
    let mut backlog = Backlog::open(harness, &servers, all).await?;
    let relay = backlog.serve("relay").await?;
    backlog.fill().await?;
    servers.rabbit()?.restart()?;
    let sample = backlog.drain(harness, &relay).await?;
    drop(relay);
    backlog.verify(harness).await?;
    // The same number of orders with a broker that was never down.
    let after = steady(harness, &servers, all).await?;
    let Plan { buckets, envelope_max, .. } = all;
    let remark = format!(
        "{} orders in {buckets} buckets, messages of {envelope_max}; one drain against as many \
         orders before and after, drained with the broker never down; core-µs for each order: {}",
        grouped(orders as f64),
        shown(&sample.costs)
    );
    for steady in [before, after] {
        harness.pair("backlog drain", sample.clone(), steady);
    }
    harness.remark("backlog drain", remark);
    Ok(())
}

/// S23: the time without sales during a restart of Redis on its append-only file, while orders wait
/// in the broker.
pub async fn redis_restart(harness: &mut Harness) -> Result<()> {
    let plan = packed(harness.up_to(RESTART_MAX));
    let servers = Servers::pipeline(harness)?;
    for _ in 0..harness.args.rounds {
        let (busy_s, remark) = restart(&servers, harness, plan).await?;
        harness.number("S23", busy_s);
        harness.remark("S23", remark);
    }
    Ok(())
}

/// Accepts and relays orders while no consumer runs. Then starts one process with every role, kills
/// Redis and restarts it. Returns the seconds from the kill to the next accepted purchase, and a
/// remark on the round.
async fn restart(servers: &Servers, harness: &mut Harness, plan: Plan) -> Result<(f64, String)> {
    let backlog = Backlog::filled(harness, servers, plan).await?;
    let relay = backlog.serve("relay").await?;
    backlog.await_empty().await?;
    drop(relay);
    let all = backlog.serve("all").await?;
    let (admin, sale) = (all.ready().await?, backlog.offer.sale.to_string());
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
    let remark = format!(
        "{queued} orders waited in the broker at the kill; Redis answered again after \
         {restarted_s:.2} s, all orders were committed after {committed_s:.1} s, {tries} \
         purchases were tried"
    );
    Ok((busy_s, remark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_belong_to_the_process_that_their_names_begin_with() {
        let claimed = [("12-ab/0", 3), ("12-ab/1", 4), ("123-ab/0", 9)];
        let claimed = claimed.map(|(name, count)| (name.to_owned(), count)).to_vec();
        assert_eq!(orphans(&OutboxStatus { claimed, ..OutboxStatus::default() }, "12-"), 7);
    }
}
