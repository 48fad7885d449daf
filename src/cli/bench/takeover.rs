//! S17: what the death of a relay process costs: until when its work is published by another one,
//! and whether the other one is as fast as ever.

use std::time::Duration;

use anyhow::bail;
use rustix::process::Signal;

use super::crowd::settings;
use super::lab::Lab;
use super::rig::{BUCKETS, Drained, PER_BUCKET_MAX, Plan, Rig, Waiting, for_seconds, published};
use super::sample::{Round, Sample, row};
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::clock::now_monotonic;

/// By which the rate is guessed.
const GUESSED_BY: u64 = 20_000;
const POLL_PERIOD: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_mins(2);
/// The backlog is to be gone before the lease ends: what is measured is the lease, not the backlog.
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

pub(super) async fn takeover(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let rig = Rig::start(lab).await?;
    let lease_s = settings(&[])?.relay.lease_ttl_ms as f64 / 1_000.0;
    let rate = steady(&rig, lab, GUESSED_BY).await?.sample.value;
    let most = PER_BUCKET_MAX * u64::from(BUCKETS);
    let orders = for_seconds(rate, lab.args.seconds.min(SECONDS_MAX), (GUESSED_BY, most));
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    let mut num_orphans = 0;
    for number in 1..=lab.args.rounds {
        let alone = steady(&rig, lab, orders).await?.sample;
        let death = death(&rig, lab, orders).await?;
        lab.say(&format!(
            "round {number}: {} entries of the dead published after {:.2} s, {}/s by the \
             survivor, {}/s by a relay alone",
            death.num_orphans,
            death.takeover_s,
            grouped(death.rate),
            grouped(alone.value)
        ));
        num_orphans += death.num_orphans;
        let side = |value| Sample { value, ..Sample::default() };
        times.push(Round { product: side(death.takeover_s - lease_s), yardstick: None });
        rates.push(Round { product: side(death.rate), yardstick: Some(alone) });
    }
    let goal = Goal::Count { floor: 5.0, aim: 1.0 };
    let what = "seconds beyond the lease until what a killed relay held is published";
    let mut takeover = row("S17", what, goal, &times, " s")?;
    takeover.remark = Some(format!(
        "the lease is {lease_s} s and was renewed up to a third of it before the kill; \
         {num_orphans} entries were in the hands of the dead, in all rounds"
    ));
    let goal = Goal::AtLeast { floor: 0.90, aim: 1.0 };
    let what = "relay that survives another, against a relay alone";
    Ok(vec![takeover, row("S17 recovery", what, goal, &rates, "/s")?])
}

/// A relay process alone.
async fn steady(rig: &Rig, lab: &mut Lab<'_>, orders: u64) -> anyhow::Result<Drained> {
    let stocked = rig.stock(lab, plan(orders)).await?;
    let drained = rig.drain(lab, &stocked).await?;
    rig.judge(lab, stocked).await?;
    Ok(drained)
}

async fn death(rig: &Rig, lab: &mut Lab<'_>, orders: u64) -> anyhow::Result<Death> {
    let stocked = rig.stock(lab, plan(orders)).await?;
    // Holds no work; gives back what the dead had.
    let keeper = stocked.serve("keeper")?;
    let survivor = stocked.serve("relay")?;
    let victim = stocked.serve("relay")?;
    let mark = format!("{}-", victim.id());
    let admin = survivor.admin()?;
    published(&admin, 1).await?;
    let end = now_monotonic() + PATIENCE;
    loop {
        victim.signal(Signal::STOP)?;
        if orphans(&rig.waiting(&stocked)?, &mark) > 0 {
            break;
        }
        victim.signal(Signal::CONT)?;
        if now_monotonic() > end || rig.waiting(&stocked)?.line == 0 {
            bail!("the relay that was to be killed had never anything in hand");
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
    let killed = now_monotonic();
    // kill -9
    drop(victim);
    let num_orphans = orphans(&rig.waiting(&stocked)?, &mark);
    let before = published(&admin, 1).await?;
    let begun = now_monotonic();
    let is_backlog = |waiting: &Waiting| {
        waiting.line > 0 || waiting.hands.iter().any(|(name, _)| !name.starts_with(&mark))
    };
    while is_backlog(&rig.waiting(&stocked)?) {
        tokio::time::sleep(POLL_PERIOD).await;
    }
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
