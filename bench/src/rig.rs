//! Accepted orders in an outbox that nobody empties yet, the processes that then do, and what the
//! queue must hold afterwards.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use floodgate::broker::{Source, Topology};
use floodgate::domain::{BucketNo, SaleId};
use floodgate::redis::scripts::OutboxKeys;
use tempfile::TempDir;

use crate::admin::Admin;
use crate::bare::{self, Bare, settings};
use crate::crowd::{Offer, stock_for};
use crate::lab::{Lab, number};
use crate::meter::Meter;
use crate::pipeline::Servers;
use crate::process::{ServerChild, poll, scratch};
use crate::raw;
use crate::stats::{Sample, whole};

/// With the default of 64 entries for each bucket and of 4 workers, 512 messages are on their way
/// at most, as at the yardstick.
pub(crate) const BUCKETS: u16 = 2;
/// See [`BUCKETS`].
pub(crate) const WINDOW: usize = 512;
/// Wishes that are with each bucket at once: batches are full.
const ASKERS_PER_BUCKET: usize = 1_024;
const PATIENCE: Duration = Duration::from_mins(5);
const NAMESPACE: &str = "bench";

/// What is to wait in an outbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) orders: u64,
    pub(crate) buckets: u16,
    /// Orders in one entry.
    pub(crate) envelope_max: usize,
}

/// A sale of which everything waits in the outbox, in a Redis and a ledger of its own.
pub(crate) struct Stocked {
    plan: Plan,
    keys: Vec<(&'static str, String)>,
    bare: Bare,
    offer: Offer,
    pub(crate) num_entries: u64,
    scratch: TempDir,
}

/// What waits in the outbox.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Entries that nobody has.
    pub(crate) line: u64,
    /// Entries in each worker's hand, where there are any.
    pub(crate) hands: Vec<(String, u64)>,
}

impl Servers {
    /// Opens a sale on an empty Redis and a new ledger; nothing is sold.
    pub(crate) async fn open(&self, lab: &Lab<'_>, plan: Plan) -> anyhow::Result<Stocked> {
        self.redis.clear()?;
        let keys = vec![
            ("tier", "pipeline".to_owned()),
            ("namespace", NAMESPACE.to_owned()),
            ("redis.url", self.redis.url()),
            ("redis.durability", "aof".to_owned()),
            // What is read at the end is long.
            ("redis.command_timeout_ms", "60000".to_owned()),
            ("http.answer_deadline_ms", "120000".to_owned()),
            ("amqp.url", self.rabbit.url()),
            ("ledger.url", self.maria.database().await?),
            ("outbox.envelope_max", plan.envelope_max.to_string()),
            ("outbox.entries_max", plan.orders.to_string()),
        ];
        let set: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let bare = bare::bare(&settings(&set)?).await?;
        let offer = Offer::open(&bare, stock_for(plan.orders)?, plan.buckets).await?;
        let scratch = scratch(lab.args.directory.as_deref())?;
        Ok(Stocked { plan, keys, bare, offer, num_entries: 0, scratch })
    }

    /// Lets buyers come until everything that was planned is accepted, while nobody relays it.
    pub(crate) async fn fill(&self, stocked: &mut Stocked) -> anyhow::Result<()> {
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
    pub(crate) async fn stock(&self, lab: &Lab<'_>, plan: Plan) -> anyhow::Result<Stocked> {
        let mut stocked = self.open(lab, plan).await?;
        self.fill(&mut stocked).await?;
        Ok(stocked)
    }

    pub(crate) fn waiting(&self, stocked: &Stocked) -> anyhow::Result<Waiting> {
        let mut connection = self.redis.connect()?;
        let mut waiting = Waiting::default();
        let mut other = self.redis.connect()?;
        let mut len = |key: String| redis::cmd("LLEN").arg(key).query::<u64>(&mut connection);
        for bucket in (0..stocked.plan.buckets).map(BucketNo) {
            let keys = OutboxKeys::new(NAMESPACE, stocked.offer.sku.no, bucket);
            waiting.line += len(keys.outbox())?;
            let names: Vec<String> =
                redis::cmd("SMEMBERS").arg(keys.claimants()).query(&mut other)?;
            for name in names {
                let count = len(keys.claimed(&name))?;
                if count > 0 {
                    waiting.hands.push((name, count));
                }
            }
        }
        Ok(waiting)
    }

    /// As many orders emptied by one relay process with its defaults, and judged.
    pub(crate) async fn steady(&self, lab: &mut Lab<'_>, plan: Plan) -> anyhow::Result<Sample> {
        let stocked = self.stock(lab, plan).await?;
        let relay = stocked.serve("relay").await?;
        let drained = self.drain(lab, &stocked, &relay).await?;
        drop(relay);
        self.judge(lab, stocked).await?;
        Ok(drained)
    }

    /// Empties the outbox by one relay process. Measured in orders, from when it is seen to publish
    /// until everything is confirmed.
    pub(crate) async fn drain(
        &self,
        lab: &mut Lab<'_>,
        stocked: &Stocked,
        relay: &ServerChild,
    ) -> anyhow::Result<Sample> {
        let (admin, all) = (relay.admin()?, stocked.num_entries);
        let begun = published(&admin, 1).await?;
        let (redis, rabbit) = (self.redis.pid(), self.rabbit.pid());
        let meter = Meter::start(&[("relay", relay.id()), ("redis", redis), ("rabbitmq", rabbit)])?;
        if begun > all / 2 {
            bail!("{begun} of {all} messages were published before the first look: too few");
        }
        let moved = published(&admin, all).await? - begun;
        let metered = lab.stop(meter)?;
        let orders = moved * stocked.plan.orders / all.max(1);
        self.await_empty(stocked).await?;
        Ok(metered.sample(metered.rate(orders), orders))
    }

    /// Waits until nobody has anything.
    pub(crate) async fn await_empty(&self, stocked: &Stocked) -> anyhow::Result<()> {
        let look = async || {
            let waiting = self.waiting(stocked)?;
            let is_empty = waiting.line == 0 && waiting.hands.is_empty();
            Ok((waiting, is_empty))
        };
        let (waiting, is_empty) = poll(PATIENCE, look).await?;
        ensure!(is_empty, "the outbox does not become empty: {waiting:?}");
        Ok(())
    }

    /// The queue must have a message for each entry; then the orders go to the ledger as a consumer
    /// brings them, and the audit must hold.
    pub(crate) async fn judge(&self, lab: &mut Lab<'_>, stocked: Stocked) -> anyhow::Result<()> {
        let Stocked { plan, bare, offer, num_entries, .. } = &stocked;
        let topology = Topology::new(NAMESPACE, 1, 1);
        let queue = topology.queue(Source::Orders(0)).context("no order queue")?;
        let found = raw::purge(&self.rabbit, &queue).await?;
        lab.require(found >= *num_entries, || {
            format!("{}: {num_entries} entries published, {found} in the queue", offer.sale)
        });
        offer.check(lab, bare, plan.orders, plan.orders).await?;
        bare.ledger.close().await;
        Ok(())
    }
}

impl Stocked {
    /// What is on sale.
    pub(crate) fn sale(&self) -> &SaleId {
        &self.offer.sale
    }

    /// A process of this installation.
    pub(crate) async fn serve(&self, role: &str) -> anyhow::Result<ServerChild> {
        let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
        let mut settings: Vec<(String, String)> =
            self.keys.iter().map(|(key, value)| (variable(key), value.clone())).collect();
        settings.push((variable("role"), role.to_owned()));
        ServerChild::serve(self.scratch.path(), &settings).await
    }
}

/// Waits until a relay process has published so many messages; how many they are.
pub(crate) async fn published(relay: &Admin, least: u64) -> anyhow::Result<u64> {
    let look = async || {
        let published = number(&relay.metrics().await?, "floodgate_relay_published_total");
        Ok((whole(published), whole(published) >= least))
    };
    let (published, is_enough) = poll(PATIENCE, look).await?;
    ensure!(is_enough, "a relay published {published} of {least} messages in {PATIENCE:?}");
    Ok(published)
}
