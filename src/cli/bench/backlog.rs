//! What a million accepted orders cost while the broker is down, and how fast they leave when it is
//! back.

use super::lab::Lab;
use super::memory::used;
use super::rig::{Drained, Plan, Rig, shown};
use super::sample::{Round, Sample, row};
use super::stats::{Goal, grouped};
use super::table::Row;

/// Orders for each second that a round lasts: a million by default.
const PER_SECOND: u64 = 250_000;
const ORDERS_MAX: u64 = 1_000_000;
/// So many that no bucket has more than its pages are made for.
const BUCKETS: u16 = 4;
const ENVELOPE: usize = 64;
/// Share of them that warms the servers up.
const WARM_UP_SHARE: u64 = 5;

pub(super) async fn backlog(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let orders = (PER_SECOND * lab.args.seconds).min(ORDERS_MAX);
    let all = Plan { orders, buckets: BUCKETS, envelope_max: ENVELOPE };
    let mut rig = Rig::start(lab).await?;
    steady(&rig, lab, Plan { orders: orders / WARM_UP_SHARE, ..all }).await?;
    let before = steady(&rig, lab, all).await?;
    rig.0.rabbit.down();
    let mut stocked = rig.open(lab, all).await?;
    let relay = stocked.serve("relay")?;
    let empty = used(&mut rig.0.redis.connect()?)?;
    rig.fill(&mut stocked).await?;
    let each = (used(&mut rig.0.redis.connect()?)? - empty) / orders as f64;
    lab.say(&format!("{} orders wait, {each:.1} bytes each", grouped(orders as f64)));
    rig.0.rabbit.up().await?;
    let Drained { sample, costs } = rig.drain_by(lab, &stocked, &relay).await?;
    drop(relay);
    rig.judge(lab, stocked).await?;
    let after = steady(&rig, lab, all).await?;
    let rates = [&before, &sample, &after].map(|side| grouped(side.value));
    lab.say(&format!("orders/s: steady {}, backlog {}, steady {}", rates[0], rates[1], rates[2]));
    let remark =
        format!("{} orders in {BUCKETS} buckets, messages of {ENVELOPE}", grouped(orders as f64));
    let side = Sample { value: each, ..Sample::default() };
    let goal = Goal::Count { floor: 150.0, aim: 150.0 };
    let what = "Redis bytes for each order that waits, request and limit included";
    let bytes = Round { product: side, yardstick: None };
    let mut bytes = row("backlog", what, goal, &[bytes], " B")?;
    bytes.remark = Some(remark.clone());
    let goal = Goal::AtLeast { floor: 0.9, aim: 1.0 };
    let what = "the same, drained by one relay, against its steady rate";
    let pair = |steady| Round { product: sample.clone(), yardstick: Some(steady) };
    let mut drain = row("backlog drain", what, goal, &[pair(before), pair(after)], "/s")?;
    drain.remark = Some(format!(
        "{remark}; one drain against as many before and after, which a relay started to find with \
         the broker up; core-µs for each order: {}",
        shown(&costs)
    ));
    Ok(vec![bytes, drain])
}

/// As many orders on their way with a broker that was up all the time.
async fn steady(rig: &Rig, lab: &mut Lab<'_>, plan: Plan) -> anyhow::Result<Sample> {
    let stocked = rig.stock(lab, plan).await?;
    let drained = rig.drain(lab, &stocked).await?;
    rig.judge(lab, stocked).await?;
    Ok(drained.sample)
}
