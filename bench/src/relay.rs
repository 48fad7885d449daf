//! A backlog of accepted orders in the outbox, the relay processes that drain it, and the check of
//! the queue afterwards. S6 and S7: messages and orders per second that one relay process publishes
//! from the outbox to the broker.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use floodgate::broker::{Route, Topology};
use floodgate::outbox::OutboxStatus;
use testkit::Folder;

use crate::admin::Admin;
use crate::harness::Harness;
use crate::process::{ServerChild, poll};
use crate::raw;
use crate::servers::{Servers, clear};
use crate::stats::{RoundSample, for_seconds, per_second, shown};
use crate::stores::{CALIBRATION_ORDERS, Offer, PER_BUCKET_MAX, Stores, stock_for};

/// With the defaults of 64 entries per bucket and 4 workers, at most 512 messages are unconfirmed,
/// as in the baseline.
pub const BUCKETS: u16 = 2;
/// Limit of unconfirmed messages of the baseline, see [`BUCKETS`].
pub const WINDOW: usize = 512;
/// Orders of a backlog that the buckets have room for.
pub const ORDERS_MAX: u64 = PER_BUCKET_MAX * BUCKETS as u64;
/// Open purchases per bucket, enough for full batches.
const CONCURRENCY_PER_BUCKET: usize = 1_024;
const TIMEOUT: Duration = Duration::from_mins(5);
const NAMESPACE: &str = "bench";
/// The goals and their orders per message.
const GOALS: [(&str, usize); 2] = [("S6", 1), ("S7", 64)];

/// The size of a backlog.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub orders: u64,
    pub buckets: u16,
    /// Orders per entry.
    pub envelope_max: usize,
}

/// A sale whose accepted orders all wait in the outbox, on an empty Redis and its own ledger.
pub struct Backlog<'a> {
    servers: &'a Servers,
    plan: Plan,
    set: Vec<String>,
    pub offer: Offer,
    num_entries: u64,
    scratch: Folder,
}

impl<'a> Backlog<'a> {
    /// Opens a sale on an empty Redis and a new ledger; nothing is sold.
    pub async fn open(harness: &Harness, servers: &'a Servers, plan: Plan) -> Result<Self> {
        clear(&servers.redis)?;
        let entries = [
            format!("outbox.envelope_max={}", plan.envelope_max),
            format!("outbox.entries_max={}", plan.orders),
        ];
        // The final reads of all orders take long.
        let timeouts = ["redis.command_timeout_ms=60000", "http.answer_deadline_ms=120000"];
        let set = [servers.settings(NAMESPACE, &timeouts).await?, entries.to_vec()].concat();
        let stores = Stores::open(&set).await?;
        let offer = Offer::open(&stores, stock_for(plan.orders)?, plan.buckets).await?;
        let scratch = testkit::folder(&harness.args.parent())?;
        Ok(Self { servers, plan, set, offer, num_entries: 0, scratch })
    }

    /// Sells all planned orders while no relay runs.
    pub async fn fill(&mut self) -> Result<()> {
        let Plan { orders, buckets, .. } = self.plan;
        let sold = self.offer.sell(CONCURRENCY_PER_BUCKET * usize::from(buckets), orders).await?;
        if sold.accepted != orders {
            bail!("{orders} requested, {} accepted", sold.accepted);
        }
        let OutboxStatus { num_waiting, claimed, .. } = self.offer.entries().await?;
        self.num_entries = num_waiting + claimed.iter().map(|(_, count)| count).sum::<u64>();
        Ok(())
    }

    /// [`Self::open`] and [`Self::fill`].
    pub async fn filled(harness: &Harness, servers: &'a Servers, plan: Plan) -> Result<Self> {
        let mut backlog = Self::open(harness, servers, plan).await?;
        backlog.fill().await?;
        Ok(backlog)
    }

    /// Starts a process of this installation.
    pub async fn serve(&self, role: &str) -> Result<ServerChild> {
        let settings = [&self.set[..], &[format!("role={role}")]].concat();
        ServerChild::serve(self.scratch.path(), &settings).await
    }

    /// Waits until a relay process has drained the outbox. Measures orders, from the first observed
    /// publish until all messages are confirmed.
    pub async fn drain(&self, harness: &mut Harness, relay: &ServerChild) -> Result<RoundSample> {
        let (admin, all) = (relay.admin()?, self.num_entries);
        let begun = published(&admin, 1).await?;
        let (redis, rabbit) = (self.servers.redis.id(), self.servers.rabbit()?.id());
        let processes = [("relay", relay.id()), ("redis", redis), ("rabbitmq", rabbit)];
        ensure!(
            begun <= all / 2,
            "{begun} of {all} messages were published before the measurement: too many"
        );
        let (published, metered) = harness.meter(&processes, published(&admin, all)).await?;
        let orders = (published - begun) * self.plan.orders / all.max(1);
        self.await_empty().await?;
        Ok(metered.sample(metered.rate(orders), orders))
    }

    /// Waits until no entry is queued or claimed.
    pub async fn await_empty(&self) -> Result<()> {
        let check = async || {
            let entries = self.offer.entries().await?;
            let is_empty = entries.num_waiting == 0 && entries.claimed.is_empty();
            Ok((entries, is_empty))
        };
        let (entries, is_empty) = poll(TIMEOUT, check).await?;
        ensure!(is_empty, "the outbox does not become empty: {entries:?}");
        Ok(())
    }

    /// The table is void unless the queue has a message for each entry, all orders can be committed
    /// like a consumer commits them, and the audit holds.
    pub async fn verify(self, harness: &mut Harness) -> Result<()> {
        let Self { servers, plan, offer, num_entries, .. } = &self;
        let topology = Topology::new(NAMESPACE, 1, 1);
        let queue = topology.queue(Route::Orders(0)).context("no order queue")?;
        let found = raw::purge(servers.rabbit()?, &queue.name).await?;
        harness.void_unless(found >= *num_entries, || {
            format!("{}: {num_entries} entries published, {found} in the queue", offer.sale)
        });
        offer.check(harness, plan.orders, plan.orders).await?;
        offer.stores.ledger.close().await;
        Ok(())
    }
}

/// Drains a new backlog with one relay process in default configuration, and verifies it.
pub async fn steady(harness: &mut Harness, servers: &Servers, plan: Plan) -> Result<RoundSample> {
    let backlog = Backlog::filled(harness, servers, plan).await?;
    let relay = backlog.serve("relay").await?;
    let drained = backlog.drain(harness, &relay).await?;
    drop(relay);
    backlog.verify(harness).await?;
    Ok(drained)
}

/// Waits until a relay process has published at least `min` messages; returns their number.
pub async fn published(relay: &Admin, min: u64) -> Result<u64> {
    let check = async || {
        let published = relay.metrics().await?.count("floodgate_relay_published_total");
        Ok((published, published >= min))
    };
    let (published, is_enough) = poll(TIMEOUT, check).await?;
    ensure!(is_enough, "a relay published {published} of {min} messages in {TIMEOUT:?}");
    Ok(published)
}

/// Measures both goals; the raw publish loop of a round is the baseline of both.
pub async fn relay(harness: &mut Harness) -> Result<()> {
    let servers = Servers::pipeline(harness)?;
    let mut sides = Vec::new();
    for (id, envelope_max) in GOALS {
        if harness.is_selected(id) {
            let orders = (CALIBRATION_ORDERS * envelope_max as u64).min(ORDERS_MAX / 4);
            let plan = Plan { orders, buckets: BUCKETS, envelope_max };
            let rate = steady(harness, &servers, plan).await?.value;
            let orders = for_seconds(rate, harness.args.seconds, (orders, ORDERS_MAX));
            sides.push((id, Plan { orders, ..plan }));
        }
    }
    let rate = raw_loop(&servers, harness, CALIBRATION_ORDERS).await?.value;
    let messages = for_seconds(rate, harness.args.seconds, (CALIBRATION_ORDERS, u64::MAX));
    for _ in 0..harness.args.rounds {
        let raw = raw_loop(&servers, harness, messages).await?;
        let remark = format!(
            "at most {WINDOW} messages unconfirmed on both sides; core-µs of the raw loop in the \
             last round: {}",
            shown(raw.costs.get(1..).unwrap_or_default())
        );
        for &(id, plan) in &sides {
            let sample = steady(harness, &servers, plan).await?;
            harness.remark(id, format!("{remark}; for each order: {}", shown(&sample.costs)));
            harness.pair(id, sample, raw.clone());
        }
    }
    Ok(())
}

/// A round of the baseline.
async fn raw_loop(servers: &Servers, harness: &mut Harness, messages: u64) -> Result<RoundSample> {
    let rabbit = servers.rabbit()?;
    let publishing = raw::publish(rabbit, messages);
    let (elapsed, metered) = harness.meter(&[("rabbitmq", rabbit.id())], publishing).await?;
    // The loop runs in this process; its costs are compared with the relay's.
    let costs = [vec![("loop", metered.own_us(messages))], metered.each(messages)].concat();
    Ok(RoundSample { costs, ..per_second(messages, elapsed).into() })
}
