//! What a million accepted orders cost while the broker is down, and how fast they leave when it is
//! back.

use crate::lab::Lab;
use crate::pipeline::Servers;
use crate::rig::Plan;
use crate::stats::{Round, Sample, grouped, row, shown};
use crate::table::Row;

/// Orders for each second that a round lasts: a million by default.
const PER_SECOND: u64 = 250_000;
const ORDERS_MAX: u64 = 1_000_000;
/// So many that no bucket has more than its pages are made for.
const BUCKETS: u16 = 4;
const ENVELOPE: usize = 64;
/// Share of them that warms the servers up.
const WARM_UP_SHARE: u64 = 5;

pub(crate) async fn backlog(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let orders = (PER_SECOND * lab.args.seconds).min(ORDERS_MAX);
    let all = Plan { orders, buckets: BUCKETS, envelope_max: ENVELOPE };
    let mut servers = Servers::start(lab).await?;
    servers.steady(lab, Plan { orders: orders / WARM_UP_SHARE, ..all }).await?;
    let before = servers.steady(lab, all).await?;
    servers.rabbit.down();
    let mut stocked = servers.open(lab, all).await?;
    let relay = stocked.serve("relay").await?;
    let empty = servers.redis.used_memory()?;
    servers.fill(&mut stocked).await?;
    let each = (servers.redis.used_memory()? - empty) / orders as f64;
    lab.say(&format!("{} orders wait, {each:.1} bytes each", grouped(orders as f64)));
    servers.rabbit.up().await?;
    let sample = servers.drain(lab, &stocked, &relay).await?;
    drop(relay);
    servers.judge(lab, stocked).await?;
    // As many orders on their way with a broker that was up all the time.
    let after = servers.steady(lab, all).await?;
    let rates = [&before, &sample, &after].map(|side| grouped(side.value));
    lab.say(&format!("orders/s: steady {}, backlog {}, steady {}", rates[0], rates[1], rates[2]));
    let remark =
        format!("{} orders in {BUCKETS} buckets, messages of {ENVELOPE}", grouped(orders as f64));
    let drained = format!(
        "{remark}; one drain against as many before and after, which a relay started to find with \
         the broker up; core-µs for each order: {}",
        shown(&sample.costs)
    );
    let drains = [before, after].map(|steady| Round::pair(sample.clone(), steady));
    Ok(vec![
        row("backlog", &[Round::number(Sample::of(each))], Some(remark))?,
        row("backlog drain", &drains, Some(drained))?,
    ])
}
