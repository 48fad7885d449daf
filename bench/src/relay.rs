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

/// One goal and its rounds so far.
struct Side {
    id: &'static str,
    plan: Plan,
    rounds: Vec<Round>,
}

impl Side {
    async fn calibrate(
        servers: &Servers,
        harness: &mut Harness<'_>,
        (id, envelope_max): (&'static str, usize),
    ) -> anyhow::Result<Self> {
        let max = PER_BUCKET_MAX * u64::from(BUCKETS);
        let orders = (CALIBRATION_ORDERS * envelope_max as u64).min(max / 4);
        let plan = Plan { orders, buckets: BUCKETS, envelope_max };
        let rate = servers.steady(harness, plan).await?.value;
        let orders = for_seconds(rate, harness.args.seconds, (orders, max));
        Ok(Self { id, plan: Plan { orders, ..plan }, rounds: Vec::new() })
    }

    async fn round(
        &mut self,
        servers: &Servers,
        harness: &mut Harness<'_>,
        raw: &Sample,
    ) -> anyhow::Result<()> {
        let sample = servers.steady(harness, self.plan).await?;
        let (size, rate) = (self.plan.envelope_max, grouped(sample.value));
        let costs = shown(&sample.costs);
        harness.note(&format!("{rate} orders/s in messages of {size}; core-µs: {costs}"));
        self.rounds.push(Round::pair(sample, raw.clone()));
        Ok(())
    }

    fn row(&self) -> anyhow::Result<Row> {
        let last = self.rounds.last();
        let costs = last.map_or_else(String::new, |round| shown(&round.product.costs));
        let raw = last.and_then(|round| round.baseline.as_ref()?.costs.get(1..));
        let remark = format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs for each order in the \
             last round: {costs}; raw loop: {}",
            shown(raw.unwrap_or_default())
        );
        row(self.id, &self.rounds, Some(remark))
    }
}

/// Measures both goals; the raw publish loop of a round is the baseline of both.
pub(crate) async fn relay(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(harness).await?;
    let mut sides = Vec::new();
    for goal in GOALS {
        if harness.is_selected(&[goal.0]) {
            sides.push(Side::calibrate(&servers, harness, goal).await?);
        }
    }
    let calibration = raw_loop(&servers, harness, CALIBRATION_ORDERS).await?;
    let messages =
        for_seconds(calibration.value, harness.args.seconds, (CALIBRATION_ORDERS, u64::MAX));
    for number in 1..=harness.args.rounds {
        let raw = raw_loop(&servers, harness, messages).await?;
        harness.note(&format!("round {number}: {}/s by a raw publish loop", grouped(raw.value)));
        for side in &mut sides {
            side.round(&servers, harness, &raw).await?;
        }
    }
    sides.iter().map(Side::row).collect()
}

/// A round of the baseline.
async fn raw_loop(
    servers: &Servers,
    harness: &mut Harness<'_>,
    messages: u64,
) -> anyhow::Result<Sample> {
    let job = PublishLoop { messages, window: WINDOW, body_bytes: INTENT_BYTES };
    let meter = Meter::start(&[("rabbitmq", servers.rabbit.pid())])?;
    let elapsed = raw::publish(&servers.rabbit, job).await?;
    let metered = harness.stop(meter)?;
    let rate = messages as f64 / elapsed.as_secs_f64().max(1e-9);
    // The loop runs in this process; its costs are compared with the relay's.
    let costs = [vec![("loop", metered.own_us(messages))], metered.each(messages)].concat();
    Ok(Sample { costs, ..Sample::of(rate) })
}
