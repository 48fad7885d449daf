//! S17: the crash of a relay process: the time until another relay has published its claimed
//! entries, and the rate of the surviving relay.

use std::time::Duration;

use anyhow::{Result, ensure};
use floodgate::runtime::clock::now_monotonic;
use testkit::Signal;

use crate::crowd::{CALIBRATION_ORDERS, PER_BUCKET_MAX};
use crate::harness::Harness;
use crate::pipeline::Servers;
use crate::process::poll;
use crate::relay_fixture::{BUCKETS, OutboxCounts, Plan, published};
use crate::stats::{for_seconds, per_second};
use crate::stores::settings;

const TIMEOUT: Duration = Duration::from_mins(2);
const NOTHING_CLAIMED: &str = "the relay to be killed never had a claimed entry";
/// Limits the backlog to less than the heartbeat's time, so that the time measured is the
/// heartbeat's and not the backlog's.
const SECONDS_MAX: u64 = 2;

/// One order per message, for many messages.
fn plan(orders: u64) -> Plan {
    Plan { orders, buckets: BUCKETS, envelope_max: 1 }
}

pub async fn takeover(harness: &mut Harness) -> Result<()> {
    let servers = Servers::start(harness)?;
    let heartbeat_s = settings(&[])?.relay.heartbeat_ttl_ms as f64 / 1_000.0;
    let rate = servers.steady(harness, plan(CALIBRATION_ORDERS)).await?.value;
    let most = PER_BUCKET_MAX * u64::from(BUCKETS);
    let orders =
        for_seconds(rate, harness.args.seconds.min(SECONDS_MAX), (CALIBRATION_ORDERS, most));
    let mut num_orphans = 0;
    for _ in 0..harness.args.rounds {
        let single = servers.steady(harness, plan(orders)).await?;
        let (orphans, after_s, rate) = crash(&servers, harness, orders).await?;
        num_orphans += orphans;
        harness.number("S17", after_s - heartbeat_s);
        harness.pair("S17 recovery", rate, single);
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
    let backlog = servers.open_filled(harness, plan(orders)).await?;
    // Claims nothing itself; gives back the orphaned entries.
    let maintenance = backlog.serve("maintenance").await?;
    let survivor = backlog.serve("relay").await?;
    let victim = backlog.serve("relay").await?;
    let prefix = format!("{}-", victim.id());
    let admin = survivor.admin()?;
    published(&admin, 1).await?;
    let check = async || {
        victim.signal(Signal::STOP)?;
        if orphans(&servers.counts(&backlog)?, &prefix) > 0 {
            return Ok(((), true));
        }
        victim.signal(Signal::CONT)?;
        ensure!(servers.counts(&backlog)?.queued > 0, NOTHING_CLAIMED);
        Ok(((), false))
    };
    let ((), is_caught) = poll(TIMEOUT, check).await?;
    ensure!(is_caught, NOTHING_CLAIMED);
    let killed = now_monotonic();
    // kill -9
    drop(victim);
    let num_orphans = orphans(&servers.counts(&backlog)?, &prefix);
    let before = published(&admin, 1).await?;
    let begun = now_monotonic();
    let is_gone = async || {
        let OutboxCounts { queued, claimed } = servers.counts(&backlog)?;
        Ok(((), queued == 0 && claimed.iter().all(|(name, _)| name.starts_with(&prefix))))
    };
    poll(TIMEOUT, is_gone).await?;
    let elapsed = now_monotonic().duration_since(begun);
    let rate = per_second(published(&admin, before).await? - before, elapsed);
    servers.await_empty(&backlog).await?;
    let drained_after_s = now_monotonic().duration_since(killed).as_secs_f64();
    drop((survivor, maintenance));
    servers.verify(harness, backlog).await?;
    Ok((num_orphans, drained_after_s, rate))
}

/// Entries claimed by the workers of a process.
fn orphans(counts: &OutboxCounts, prefix: &str) -> u64 {
    let workers = counts.claimed.iter().filter(|(worker, _)| worker.starts_with(prefix));
    workers.map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_belong_to_the_process_that_their_names_begin_with() {
        let claimed = [("12-ab/0", 3), ("12-ab/1", 4), ("123-ab/0", 9)];
        let claimed = claimed.map(|(name, count)| (name.to_owned(), count)).to_vec();
        assert_eq!(orphans(&OutboxCounts { queued: 1, claimed }, "12-"), 7);
    }
}
