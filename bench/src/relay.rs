//! S6 and S7: messages and orders per second that one relay process publishes from the outbox to
//! the broker.

use crate::crowd::{CALIBRATION_ORDERS, PER_BUCKET_MAX};
use crate::harness::Harness;
use crate::pipeline::Servers;
use crate::raw;
use crate::relay_fixture::{BUCKETS, Plan, WINDOW};
use crate::stats::{Sample, for_seconds, per_second, shown};
use anyhow::Result;

/// The goals and their orders per message.
const GOALS: [(&str, usize); 2] = [("S6", 1), ("S7", 64)];

/// Measures both goals; the raw publish loop of a round is the baseline of both.
pub async fn relay(harness: &mut Harness) -> Result<()> {
    let servers = Servers::start(harness)?;
    let max = PER_BUCKET_MAX * u64::from(BUCKETS);
    let mut sides = Vec::new();
    for (id, envelope_max) in GOALS {
        if harness.is_selected(id) {
            let orders = (CALIBRATION_ORDERS * envelope_max as u64).min(max / 4);
            let plan = Plan { orders, buckets: BUCKETS, envelope_max };
            let rate = servers.steady(harness, plan).await?.value;
            let orders = for_seconds(rate, harness.args.seconds, (orders, max));
            sides.push((id, Plan { orders, ..plan }));
        }
    }
    let calibration = raw_loop(&servers, harness, CALIBRATION_ORDERS).await?;
    let messages =
        for_seconds(calibration.value, harness.args.seconds, (CALIBRATION_ORDERS, u64::MAX));
    for _ in 0..harness.args.rounds {
        let raw = raw_loop(&servers, harness, messages).await?;
        let remark = format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs of the raw loop in the \
             last round: {}",
            shown(raw.costs.get(1..).unwrap_or_default())
        );
        for &(id, plan) in &sides {
            let sample = servers.steady(harness, plan).await?;
            harness.remark(id, format!("{remark}; for each order: {}", shown(&sample.costs)));
            harness.pair(id, sample, raw.clone());
        }
    }
    Ok(())
}

/// A round of the baseline.
async fn raw_loop(servers: &Servers, harness: &mut Harness, messages: u64) -> Result<Sample> {
    let publishing = raw::publish(&servers.rabbit, messages);
    let processes = [("rabbitmq", servers.rabbit.id())];
    let (elapsed, metered) = harness.meter(&processes, publishing).await?;
    // The loop runs in this process; its costs are compared with the relay's.
    let costs = [vec![("loop", metered.own_us(messages))], metered.each(messages)].concat();
    Ok(Sample { costs, ..per_second(messages, elapsed).into() })
}
