//! S6 and S7: messages and orders per second that one relay process publishes from the outbox to
//! the broker.

use floodgate::redis::scripts::intent::INTENT_BYTES;

use crate::crowd::{CALIBRATION_ORDERS, PER_BUCKET_MAX};
use crate::harness::Harness;
use crate::meter::Meter;
use crate::pipeline::Servers;
use crate::raw::{self, PublishLoop};
use crate::relay_fixture::{BUCKETS, Plan, WINDOW};
use crate::stats::{Round, Sample, for_seconds, grouped, row, shown};
use crate::table::Row;

/// The goals and their orders per message.
const GOALS: [(&str, usize); 2] = [("S6", 1), ("S7", 64)];

/// Measures both goals; the raw publish loop of a round is the baseline of both.
pub(crate) async fn relay(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(harness)?;
    let max = PER_BUCKET_MAX * u64::from(BUCKETS);
    let mut sides = Vec::new();
    for (id, envelope_max) in GOALS {
        if harness.is_selected(id) {
            let orders = (CALIBRATION_ORDERS * envelope_max as u64).min(max / 4);
            let plan = Plan { orders, buckets: BUCKETS, envelope_max };
            let rate = servers.steady(harness, plan).await?.value;
            let orders = for_seconds(rate, harness.args.seconds, (orders, max));
            sides.push((id, Plan { orders, ..plan }, Vec::new()));
        }
    }
    let calibration = raw_loop(&servers, harness, CALIBRATION_ORDERS).await?;
    let messages =
        for_seconds(calibration.value, harness.args.seconds, (CALIBRATION_ORDERS, u64::MAX));
    let mut remark = String::new();
    for number in 1..=harness.args.rounds {
        let raw = raw_loop(&servers, harness, messages).await?;
        remark = format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs of the raw loop in the \
             last round: {}",
            shown(raw.costs.get(1..).unwrap_or_default())
        );
        harness.note(&format!("round {number}: {}/s by a raw publish loop", grouped(raw.value)));
        for (_, plan, rounds) in &mut sides {
            let sample = servers.steady(harness, *plan).await?;
            let (rate, costs) = (grouped(sample.value), shown(&sample.costs));
            let size = plan.envelope_max;
            harness.note(&format!("{rate} orders/s in messages of {size}; core-µs: {costs}"));
            rounds.push(Round::pair(sample, raw.clone()));
        }
    }
    let row = |(id, _, rounds): &(&'static str, Plan, Vec<Round>)| {
        let costs = rounds.last().map_or_else(String::new, |round| shown(&round.product.costs));
        row(id, rounds, Some(format!("{remark}; for each order: {costs}")))
    };
    sides.iter().map(row).collect()
}

/// A round of the baseline.
async fn raw_loop(
    servers: &Servers,
    harness: &mut Harness<'_>,
    messages: u64,
) -> anyhow::Result<Sample> {
    let job = PublishLoop { messages, window: WINDOW, body_bytes: INTENT_BYTES };
    let meter = Meter::start(&[("rabbitmq", servers.rabbit.id())])?;
    let elapsed = raw::publish(&servers.rabbit, job).await?;
    let metered = harness.stop(meter)?;
    let rate = messages as f64 / elapsed.as_secs_f64().max(1e-9);
    // The loop runs in this process; its costs are compared with the relay's.
    let costs = [vec![("loop", metered.own_us(messages))], metered.each(messages)].concat();
    Ok(Sample { costs, ..Sample::of(rate) })
}
