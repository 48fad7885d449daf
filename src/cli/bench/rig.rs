//! Accepted orders in an outbox that nobody empties yet, the processes that then do, and what the
//! queue must hold afterwards.

use std::time::Duration;

use anyhow::{Context, bail};

use super::admin::Admin;
use super::child::ServerChild;
use super::crowd::{Offer, settings};
use super::lab::Lab;
use super::meter::Meter;
use super::probe::number;
use super::raw;
use super::sample::Sample;
use super::scratch::Scratch;
use super::servers::Servers;
use crate::broker::Topology;
use crate::cli::engine::{self, Bare};
use crate::clock::now_monotonic;
use crate::domain::BucketNo;
use crate::scripts::OutboxKeys;

/// With the default of 64 entries for each bucket and of 4 workers, 512 messages are on their way
/// at most, as at the yardstick.
pub(super) const BUCKETS: u16 = 2;
/// See [`BUCKETS`].
pub(super) const WINDOW: usize = 512;
/// More in one bucket than its pages are made for would not be what a sale is.
pub(super) const PER_BUCKET_MAX: u64 = 393_216;
/// Wishes that are with each bucket at once: batches are full.
const ASKERS_PER_BUCKET: usize = 1_024;
const POLL_PERIOD: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_mins(5);
const NAMESPACE: &str = "bench";

/// The servers, and what is done with them.
pub(super) struct Rig(pub(super) Servers);

/// What is to wait in an outbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) orders: u64,
    pub(super) buckets: u16,
    /// Orders in one entry.
    pub(super) envelope_max: usize,
}

/// A sale of which everything waits in the outbox, in a Redis and a ledger of its own.
pub(super) struct Stocked {
    plan: Plan,
    keys: Vec<(&'static str, String)>,
    bare: Bare,
    offer: Offer,
    pub(super) num_entries: u64,
    scratch: Scratch,
}

/// What waits in the outbox.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Entries that nobody has.
    pub(super) line: u64,
    /// Entries in each worker's hand, where there are any.
    pub(super) hands: Vec<(String, u64)>,
}

/// What emptying an outbox came to, in orders.
pub(super) struct Drained {
    /// `value` is the rate.
    pub(super) sample: Sample,
    /// Core-microseconds for each order, by process.
    pub(super) costs: Vec<(&'static str, f64)>,
}

impl Rig {
    pub(super) async fn start(lab: &Lab<'_>) -> anyhow::Result<Self> {
        Ok(Self(Servers::start(lab).await?))
    }

    /// Opens a sale on an empty Redis and a new ledger; nothing is sold.
    pub(super) async fn open(&self, lab: &Lab<'_>, plan: Plan) -> anyhow::Result<Stocked> {
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.0.redis.connect()?)?;
        let keys = vec![
            ("tier", "pipeline".to_owned()),
            ("namespace", NAMESPACE.to_owned()),
            ("redis.url", self.0.redis.url()),
            ("redis.durability", "aof".to_owned()),
            // What is read at the end is long.
            ("redis.command_timeout_ms", "60000".to_owned()),
            ("http.answer_deadline_ms", "120000".to_owned()),
            ("amqp.url", self.0.rabbit.url()),
            ("ledger.url", self.0.maria.database().await?),
            ("outbox.envelope_max", plan.envelope_max.to_string()),
            ("outbox.entries_max", plan.orders.to_string()),
        ];
        let set: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let bare = engine::bare(&settings(&set)?).await?;
        // Buyers do not spread evenly; nobody is to be short of units.
        let stock = u32::try_from(plan.orders + plan.orders / 20 + 1_000)?;
        let offer = Offer::open(&bare, stock, plan.buckets).await?;
        let scratch = Scratch::new(lab.args.directory.as_deref())?;
        Ok(Stocked { plan, keys, bare, offer, num_entries: 0, scratch })
    }

    /// Lets buyers come until everything that was planned is accepted, while nobody relays it.
    pub(super) async fn fill(&self, stocked: &mut Stocked) -> anyhow::Result<()> {
        let Plan { orders, buckets, .. } = stocked.plan;
        let askers = ASKERS_PER_BUCKET * usize::from(buckets);
        let sold = stocked.offer.rush(&stocked.bare, askers, orders).await?;
        if sold.accepted != orders {
            bail!("{orders} asked, {} accepted", sold.accepted);
        }
        let Waiting { line, hands } = self.waiting(stocked)?;
        stocked.num_entries = line + hands.iter().map(|(_, count)| count).sum::<u64>();
        Ok(())
    }

    /// Both.
    pub(super) async fn stock(&self, lab: &Lab<'_>, plan: Plan) -> anyhow::Result<Stocked> {
        let mut stocked = self.open(lab, plan).await?;
        self.fill(&mut stocked).await?;
        Ok(stocked)
    }

    pub(super) fn waiting(&self, stocked: &Stocked) -> anyhow::Result<Waiting> {
        let mut connection = self.0.redis.connect()?;
        let mut waiting = Waiting::default();
        let mut len = |key: String| redis::cmd("LLEN").arg(key).query::<u64>(&mut connection);
        let mut workers = self.0.redis.connect()?;
        for bucket in (0..stocked.plan.buckets).map(BucketNo) {
            let keys = OutboxKeys::new(NAMESPACE, stocked.offer.sku.no, bucket);
            waiting.line += len(keys.line())?;
            let names: Vec<String> = redis::cmd("HKEYS").arg(keys.claims()).query(&mut workers)?;
            for name in names {
                let count = len(keys.hand(&name))?;
                if count > 0 {
                    waiting.hands.push((name, count));
                }
            }
        }
        Ok(waiting)
    }

    /// Empties the outbox by one relay process with its defaults. Measured from when it is seen to
    /// publish until everything is confirmed.
    pub(super) async fn drain(
        &self,
        lab: &mut Lab<'_>,
        stocked: &Stocked,
    ) -> anyhow::Result<Drained> {
        let relay = stocked.serve("relay")?;
        self.drain_by(lab, stocked, &relay).await
    }

    /// The same by a process that was started before.
    pub(super) async fn drain_by(
        &self,
        lab: &mut Lab<'_>,
        stocked: &Stocked,
        relay: &ServerChild,
    ) -> anyhow::Result<Drained> {
        let (admin, all) = (relay.admin()?, stocked.num_entries);
        let begun = published(&admin, 1).await?;
        let servers = [
            ("relay", relay.id()),
            ("redis", self.0.redis.pid()),
            ("rabbitmq", self.0.rabbit.pid()),
        ];
        let meter = Meter::start_all(&servers)?;
        if begun > all / 2 {
            bail!("{begun} of {all} messages were published before the first look: too few");
        }
        let moved = published(&admin, all).await? - begun;
        let metered = meter.stop(lab)?;
        let orders = moved * stocked.plan.orders / all.max(1);
        self.await_empty(stocked).await?;
        let sample = metered.sample(metered.rate(orders), orders);
        Ok(Drained { sample, costs: metered.each(orders) })
    }

    /// Waits until nobody has anything.
    pub(super) async fn await_empty(&self, stocked: &Stocked) -> anyhow::Result<()> {
        let end = now_monotonic() + PATIENCE;
        loop {
            let waiting = self.waiting(stocked)?;
            if waiting.line == 0 && waiting.hands.is_empty() {
                return Ok(());
            }
            if now_monotonic() > end {
                bail!("the outbox does not become empty: {waiting:?}");
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// The queue must have a message for each entry; then the orders go to the ledger as a consumer
    /// brings them, and the audit must hold.
    pub(super) async fn judge(&self, lab: &mut Lab<'_>, stocked: Stocked) -> anyhow::Result<()> {
        let Stocked { plan, bare, offer, num_entries, .. } = &stocked;
        let topology = Topology::new(NAMESPACE, 1, 1, Vec::new());
        let queue = topology.queue(crate::broker::Source::Orders(0)).context("no order queue")?;
        let found = raw::purge(self.0.rabbit.url(), queue).await?;
        let sale = &offer.sale;
        if found < *num_entries {
            lab.void.push(format!("{sale}: {num_entries} entries published, {found} in the queue"));
        }
        let landed = offer.land(bare).await?;
        if landed != plan.orders {
            lab.void.push(format!("{sale}: {} accepted, {landed} landed", plan.orders));
        }
        let violations = bare.violations(sale).await?;
        if !violations.is_empty() {
            lab.void.push(format!("{sale}: audit {}", violations.join("; ")));
        }
        bare.ledger.close().await;
        Ok(())
    }
}

impl Stocked {
    /// A process of this installation.
    pub(super) fn serve(&self, role: &str) -> anyhow::Result<ServerChild> {
        let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
        let mut settings: Vec<(String, String)> =
            self.keys.iter().map(|(key, value)| (variable(key), value.clone())).collect();
        settings.push((variable("role"), role.to_owned()));
        ServerChild::serve(self.scratch.path(), &settings)
    }
}

/// Waits until a relay process has published so many messages; how many they are.
pub(super) async fn published(relay: &Admin, least: u64) -> anyhow::Result<u64> {
    let end = now_monotonic() + PATIENCE;
    loop {
        let published = whole(number(&relay.metrics().await?, "floodgate_relay_published_total"));
        if published >= least {
            return Ok(published);
        }
        if now_monotonic() > end {
            bail!("a relay published {published} of {least} messages in {PATIENCE:?}");
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// How many orders take so many seconds at this rate, within limits.
pub(super) fn for_seconds(rate: f64, seconds: u64, limits: (u64, u64)) -> u64 {
    whole(rate).saturating_mul(seconds).clamp(limits.0, limits.1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and rates are not negative, and far below 2^53"
)]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

/// `relay 12.0, redis 7.5`.
pub(super) fn shown(costs: &[(&'static str, f64)]) -> String {
    let each: Vec<_> = costs.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_as_long_as_asked_within_limits() {
        assert_eq!(for_seconds(1_000.9, 3, (10, 5_000)), 3_000);
        assert_eq!(for_seconds(0.0, 3, (10, 5_000)), 10);
        assert_eq!(for_seconds(1e9, 3, (10, 5_000)), 5_000);
        assert_eq!(shown(&[("relay", 12.04), ("redis", 7.5)]), "relay 12.0, redis 7.5");
    }
}
