//! S6 and S7: how many messages and orders a second one relay process brings from the outbox to the
//! broker.

use super::lab::Lab;
use super::meter::Meter;
use super::raw::{self, Loop};
use super::rig::{BUCKETS, Drained, PER_BUCKET_MAX, Plan, Rig, WINDOW, for_seconds, shown};
use super::sample::{Round, Sample, row};
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::scripts::intent::INTENT_BYTES;

/// Orders in one message, in S7.
const ENVELOPE: usize = 64;
/// By which the rates are guessed.
const GUESSED_BY: u64 = 20_000;

/// One goal on its way.
struct Side {
    envelope_max: usize,
    orders: u64,
    rounds: Vec<Round>,
    /// Of the last round.
    costs: Vec<(&'static str, f64)>,
}

impl Side {
    async fn guess(rig: &Rig, lab: &mut Lab<'_>, envelope_max: usize) -> anyhow::Result<Self> {
        let most = PER_BUCKET_MAX * u64::from(BUCKETS);
        let orders = (GUESSED_BY * envelope_max as u64).min(most / 4);
        let mut side = Self { envelope_max, orders, rounds: Vec::new(), costs: Vec::new() };
        let rate = side.drained(rig, lab).await?.sample.value;
        side.orders = for_seconds(rate, lab.args.seconds, (orders, most));
        Ok(side)
    }

    async fn drained(&self, rig: &Rig, lab: &mut Lab<'_>) -> anyhow::Result<Drained> {
        let Self { envelope_max, orders, .. } = *self;
        let stocked = rig.stock(lab, Plan { orders, buckets: BUCKETS, envelope_max }).await?;
        let drained = rig.drain(lab, &stocked).await?;
        rig.judge(lab, stocked).await?;
        Ok(drained)
    }

    async fn round(&mut self, rig: &Rig, lab: &mut Lab<'_>, raw: &Sample) -> anyhow::Result<()> {
        let Drained { sample, costs } = self.drained(rig, lab).await?;
        let (size, rate) = (self.envelope_max, grouped(sample.value));
        lab.say(&format!("{rate} orders/s in messages of {size}; core-µs: {}", shown(&costs)));
        self.rounds.push(Round { product: sample, yardstick: Some(raw.clone()) });
        self.costs = costs;
        Ok(())
    }

    fn row(
        &self,
        id: &'static str,
        what: &'static str,
        goal: Goal,
        raw_broker_us: f64,
    ) -> anyhow::Result<Row> {
        let mut row = row(id, what, goal, &self.rounds, "/s")?;
        row.remark = Some(format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs for each order in the \
             last round: {}; raw loop: rabbitmq {raw_broker_us:.1}",
            shown(&self.costs)
        ));
        Ok(row)
    }
}

/// Both goals; the raw publish loop of a round is the yardstick of both.
pub(super) async fn relay(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let rig = Rig::start(lab).await?;
    let (mut single, mut envelopes) = (None, None);
    if lab.wants(&["S6"]) {
        single = Some(Side::guess(&rig, lab, 1).await?);
    }
    if lab.wants(&["S7"]) {
        envelopes = Some(Side::guess(&rig, lab, ENVELOPE).await?);
    }
    let (guess, _) = raw_loop(&rig, lab, GUESSED_BY).await?;
    let messages = for_seconds(guess.value, lab.args.seconds, (GUESSED_BY, u64::MAX));
    let mut raw_broker_us = 0.0;
    for number in 1..=lab.args.rounds {
        let (raw, broker_us) = raw_loop(&rig, lab, messages).await?;
        lab.say(&format!("round {number}: {}/s by a raw publish loop", grouped(raw.value)));
        raw_broker_us = broker_us;
        for side in [&mut single, &mut envelopes].into_iter().flatten() {
            side.round(&rig, lab, &raw).await?;
        }
    }
    let mut rows = Vec::new();
    if let Some(side) = single {
        let goal = Goal::AtLeast { floor: 0.90, aim: 1.0 };
        let what = "relay, one order in each message, against a raw publish loop";
        rows.push(side.row("S6", what, goal, raw_broker_us)?);
    }
    if let Some(side) = envelopes {
        let goal = Goal::AtLeast { floor: 5.0, aim: 15.0 };
        let what = "relay, orders in messages of 64, against the same";
        rows.push(side.row("S7", what, goal, raw_broker_us)?);
    }
    Ok(rows)
}

/// A round of the yardstick, and what a message costs the broker.
async fn raw_loop(rig: &Rig, lab: &mut Lab<'_>, messages: u64) -> anyhow::Result<(Sample, f64)> {
    let job = Loop { messages, window: WINDOW, body_bytes: INTENT_BYTES };
    let meter = Meter::start_all(&[("rabbitmq", rig.0.rabbit.pid())])?;
    let took = raw::publish(rig.0.rabbit.url(), job).await?;
    let metered = meter.stop(lab)?;
    let rate = messages as f64 / took.as_secs_f64().max(1e-9);
    let sample = metered.sample(rate, messages);
    let broker_us = sample.server_us;
    // The loop runs in this process: it is what is compared with the relay's.
    let server_us = sample.own_us;
    Ok((Sample { server_us, own_us: 0.0, own_cores: 0.0, ..sample }, broker_us))
}
