//! S17: what the death of a relay process costs: until when its work is published by another one,
//! and whether the other one is as fast as ever.

use std::time::Duration;

use anyhow::ensure;
use floodgate::runtime::clock::now_monotonic;
use rustix::process::Signal;

use crate::bare::settings;
use crate::crowd::{GUESSED_BY, PER_BUCKET_MAX};
use crate::lab::Lab;
use crate::pipeline::Servers;
use crate::process::poll;
use crate::rig::{BUCKETS, Plan, Waiting, published};
use crate::stats::{Round, Sample, for_seconds, grouped, row};
use crate::table::Row;

const PATIENCE: Duration = Duration::from_mins(2);
const NOTHING_IN_HAND: &str = "the relay that was to be killed had never anything in hand";
/// The backlog is to be gone before the heartbeat ends: what is measured is the heartbeat, not the
/// backlog.
const SECONDS_MAX: u64 = 2;

/// What one death came to.
struct Death {
    /// From the kill until nothing was left, in seconds.
    takeover_s: f64,
    /// Orders a second that the survivor published.
    rate: f64,
    /// Entries that the dead one had in hand.
    num_orphans: u64,
}

/// One order in each message, so that there are many.
fn plan(orders: u64) -> Plan {
    Plan { orders, buckets: BUCKETS, envelope_max: 1 }
}

pub(crate) async fn takeover(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let heartbeat_s = settings(&[])?.relay.heartbeat_ttl_ms as f64 / 1_000.0;
    let rate = servers.steady(lab, plan(GUESSED_BY)).await?.value;
    let most = PER_BUCKET_MAX * u64::from(BUCKETS);
    let orders = for_seconds(rate, lab.args.seconds.min(SECONDS_MAX), (GUESSED_BY, most));
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    let mut num_orphans = 0;
    for number in 1..=lab.args.rounds {
        let alone = servers.steady(lab, plan(orders)).await?;
        let death = death(&servers, lab, orders).await?;
        lab.say(&format!(
            "round {number}: {} entries of the dead published after {:.2} s, {}/s by the \
             survivor, {}/s by a relay alone",
            death.num_orphans,
            death.takeover_s,
            grouped(death.rate),
            grouped(alone.value)
        ));
        num_orphans += death.num_orphans;
        times.push(Round::number(Sample::of(death.takeover_s - heartbeat_s)));
        rates.push(Round::pair(Sample::of(death.rate), alone));
    }
    let remark = format!(
        "the heartbeat lasts {heartbeat_s} s and was renewed up to a third of it before the kill; \
         {num_orphans} entries were in the hands of the dead, in all rounds"
    );
    Ok(vec![row("S17", &times, Some(remark))?, row("S17 recovery", &rates, None)?])
}

async fn death(rig: &Servers, lab: &mut Lab<'_>, orders: u64) -> anyhow::Result<Death> {
    let stocked = rig.stock(lab, plan(orders)).await?;
    // Holds no work; gives back what the dead had.
    let keeper = stocked.serve("maintenance").await?;
    let survivor = stocked.serve("relay").await?;
    let victim = stocked.serve("relay").await?;
    let mark = format!("{}-", victim.id());
    let admin = survivor.admin()?;
    published(&admin, 1).await?;
    let look = async || {
        victim.signal(Signal::STOP)?;
        if orphans(&rig.waiting(&stocked)?, &mark) > 0 {
            return Ok(((), true));
        }
        victim.signal(Signal::CONT)?;
        ensure!(rig.waiting(&stocked)?.line > 0, NOTHING_IN_HAND);
        Ok(((), false))
    };
    let ((), is_caught) = poll(PATIENCE, look).await?;
    ensure!(is_caught, NOTHING_IN_HAND);
    let killed = now_monotonic();
    // kill -9
    drop(victim);
    let num_orphans = orphans(&rig.waiting(&stocked)?, &mark);
    let before = published(&admin, 1).await?;
    let begun = now_monotonic();
    let is_gone = async || {
        let Waiting { line, hands } = rig.waiting(&stocked)?;
        Ok(((), line == 0 && hands.iter().all(|(name, _)| name.starts_with(&mark))))
    };
    poll(PATIENCE, is_gone).await?;
    let took = now_monotonic().duration_since(begun).as_secs_f64().max(1e-9);
    let rate = (published(&admin, before).await? - before) as f64 / took;
    rig.await_empty(&stocked).await?;
    let takeover_s = now_monotonic().duration_since(killed).as_secs_f64();
    drop((survivor, keeper));
    rig.judge(lab, stocked).await?;
    Ok(Death { takeover_s, rate, num_orphans })
}

/// Entries in the hands of a process.
fn orphans(waiting: &Waiting, mark: &str) -> u64 {
    let of_it = waiting.hands.iter().filter(|(worker, _)| worker.starts_with(mark));
    of_it.map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_belong_to_the_process_that_their_names_begin_with() {
        let hands = [("12-ab/0", 3), ("12-ab/1", 4), ("123-ab/0", 9)];
        let hands = hands.map(|(name, count)| (name.to_owned(), count)).to_vec();
        assert_eq!(orphans(&Waiting { line: 1, hands }, "12-"), 7);
    }
}
