//! S6 and S7: how many messages and orders a second one relay process brings from the outbox to the
//! broker.

use floodgate::redis::scripts::intent::INTENT_BYTES;

use crate::crowd::{GUESSED_BY, PER_BUCKET_MAX};
use crate::lab::Lab;
use crate::meter::Meter;
use crate::pipeline::Servers;
use crate::raw::{self, Loop};
use crate::rig::{BUCKETS, Plan, WINDOW};
use crate::stats::{Round, Sample, for_seconds, grouped, row, shown};
use crate::table::Row;

/// The goals, and the orders in one message of each.
const GOALS: [(&str, usize); 2] = [("S6", 1), ("S7", 64)];

/// One goal on its way.
struct Side {
    id: &'static str,
    plan: Plan,
    rounds: Vec<Round>,
}

impl Side {
    async fn guess(
        servers: &Servers,
        lab: &mut Lab<'_>,
        (id, envelope_max): (&'static str, usize),
    ) -> anyhow::Result<Self> {
        let most = PER_BUCKET_MAX * u64::from(BUCKETS);
        let orders = (GUESSED_BY * envelope_max as u64).min(most / 4);
        let plan = Plan { orders, buckets: BUCKETS, envelope_max };
        let rate = servers.steady(lab, plan).await?.value;
        let orders = for_seconds(rate, lab.args.seconds, (orders, most));
        Ok(Self { id, plan: Plan { orders, ..plan }, rounds: Vec::new() })
    }

    async fn round(
        &mut self,
        servers: &Servers,
        lab: &mut Lab<'_>,
        raw: &Sample,
    ) -> anyhow::Result<()> {
        let sample = servers.steady(lab, self.plan).await?;
        let (size, rate) = (self.plan.envelope_max, grouped(sample.value));
        let costs = shown(&sample.costs);
        lab.say(&format!("{rate} orders/s in messages of {size}; core-µs: {costs}"));
        self.rounds.push(Round::pair(sample, raw.clone()));
        Ok(())
    }

    fn row(&self) -> anyhow::Result<Row> {
        let last = self.rounds.last();
        let costs = last.map_or_else(String::new, |round| shown(&round.product.costs));
        let raw = last.and_then(|round| round.yardstick.as_ref()?.costs.get(1..));
        let remark = format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs for each order in the \
             last round: {costs}; raw loop: {}",
            shown(raw.unwrap_or_default())
        );
        row(self.id, &self.rounds, Some(remark))
    }
}

/// Both goals; the raw publish loop of a round is the yardstick of both.
pub(crate) async fn relay(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let mut sides = Vec::new();
    for goal in GOALS {
        if lab.wants(&[goal.0]) {
            sides.push(Side::guess(&servers, lab, goal).await?);
        }
    }
    let guess = raw_loop(&servers, lab, GUESSED_BY).await?;
    let messages = for_seconds(guess.value, lab.args.seconds, (GUESSED_BY, u64::MAX));
    for number in 1..=lab.args.rounds {
        let raw = raw_loop(&servers, lab, messages).await?;
        lab.say(&format!("round {number}: {}/s by a raw publish loop", grouped(raw.value)));
        for side in &mut sides {
            side.round(&servers, lab, &raw).await?;
        }
    }
    sides.iter().map(Side::row).collect()
}

/// A round of the yardstick.
async fn raw_loop(servers: &Servers, lab: &mut Lab<'_>, messages: u64) -> anyhow::Result<Sample> {
    let job = Loop { messages, window: WINDOW, body_bytes: INTENT_BYTES };
    let meter = Meter::start(&[("rabbitmq", servers.rabbit.pid())])?;
    let took = raw::publish(&servers.rabbit, job).await?;
    let metered = lab.stop(meter)?;
    let rate = messages as f64 / took.as_secs_f64().max(1e-9);
    // The loop runs in this process: it is what is compared with the relay's.
    let costs = [vec![("loop", metered.own_us(messages))], metered.each(messages)].concat();
    Ok(Sample { costs, ..Sample::of(rate) })
}
