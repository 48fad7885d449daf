//! A backlog of accepted orders in the outbox, the relay processes that drain it, and the check of
//! the queue afterwards.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use floodgate::broker::{Route, Topology};
use floodgate::domain::{BucketNo, SaleId};
use floodgate::redis::scripts::BucketKeys;
use redis::Commands;
use tempfile::TempDir;

use crate::admin::Admin;
use crate::crowd::{Offer, stock_for};
use crate::harness::Harness;
use crate::pipeline::Servers;
use crate::process::{ServerChild, poll};
use crate::raw;
use crate::stats::Sample;
use crate::stores::{self, Stores, settings};

/// With the defaults of 64 entries per bucket and 4 workers, at most 512 messages are unconfirmed,
/// as in the baseline.
pub const BUCKETS: u16 = 2;
/// Limit of unconfirmed messages of the baseline, see [`BUCKETS`].
pub const WINDOW: usize = 512;
/// Open purchases per bucket, enough for full batches.
const CONCURRENCY_PER_BUCKET: usize = 1_024;
const TIMEOUT: Duration = Duration::from_mins(5);
const NAMESPACE: &str = "bench";

/// The size of a backlog.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub orders: u64,
    pub buckets: u16,
    /// Orders per entry.
    pub envelope_max: usize,
}

/// A sale whose accepted orders all wait in the outbox, on an empty Redis and its own ledger.
pub struct Backlog {
    plan: Plan,
    set: Vec<String>,
    stores: Stores,
    offer: Offer,
    pub num_entries: u64,
    scratch: TempDir,
}

/// The entries in the outbox.
#[derive(Debug, Default)]
pub struct OutboxCounts {
    /// Entries that no worker has claimed.
    pub queued: u64,
    /// Claimed entries by worker, without workers that have none.
    pub claimed: Vec<(String, u64)>,
}

impl Servers {
    /// Opens a sale on an empty Redis and a new ledger; nothing is sold.
    pub async fn open(&self, harness: &Harness, plan: Plan) -> Result<Backlog> {
        self.redis.clear()?;
        let mut set = self.settings(NAMESPACE).await?;
        set.extend([
            // The final reads of all orders take long.
            "redis.command_timeout_ms=60000".to_owned(),
            "http.answer_deadline_ms=120000".to_owned(),
            format!("outbox.envelope_max={}", plan.envelope_max),
            format!("outbox.entries_max={}", plan.orders),
        ]);
        let stores = stores::open(&settings(&set)?).await?;
        let offer = Offer::open(&stores, stock_for(plan.orders)?, plan.buckets).await?;
        let scratch = testkit::folder(&harness.args.parent())?;
        Ok(Backlog { plan, set, stores, offer, num_entries: 0, scratch })
    }

    /// Sells all planned orders while no relay runs.
    pub async fn fill(&self, backlog: &mut Backlog) -> Result<()> {
        let Plan { orders, buckets, .. } = backlog.plan;
        let concurrency = CONCURRENCY_PER_BUCKET * usize::from(buckets);
        let sold = backlog.offer.sell(&backlog.stores, concurrency, orders).await?;
        if sold.accepted != orders {
            bail!("{orders} requested, {} accepted", sold.accepted);
        }
        let OutboxCounts { queued, claimed } = self.counts(backlog)?;
        backlog.num_entries = queued + claimed.iter().map(|(_, count)| count).sum::<u64>();
        Ok(())
    }

    /// [`Self::open`] and [`Self::fill`].
    pub async fn open_filled(&self, harness: &Harness, plan: Plan) -> Result<Backlog> {
        let mut backlog = self.open(harness, plan).await?;
        self.fill(&mut backlog).await?;
        Ok(backlog)
    }

    pub fn counts(&self, backlog: &Backlog) -> Result<OutboxCounts> {
        let mut connection = self.redis.connect()?;
        let mut counts = OutboxCounts::default();
        for bucket in (0..backlog.plan.buckets).map(BucketNo) {
            let keys = BucketKeys::new(NAMESPACE, backlog.offer.sku.no, bucket);
            let (queued, names): (u64, Vec<String>) =
                (connection.llen(keys.outbox())?, connection.smembers(keys.claimants())?);
            counts.queued += queued;
            for name in names {
                let count = connection.llen(keys.claimed(&name))?;
                if count > 0 {
                    counts.claimed.push((name, count));
                }
            }
        }
        Ok(counts)
    }

    /// Drains a new backlog with one relay process in default configuration, and verifies it.
    pub async fn steady(&self, harness: &mut Harness, plan: Plan) -> Result<Sample> {
        let backlog = self.open_filled(harness, plan).await?;
        let relay = backlog.serve("relay").await?;
        let drained = self.drain(harness, &backlog, &relay).await?;
        drop(relay);
        self.verify(harness, backlog).await?;
        Ok(drained)
    }

    /// Waits until a relay process has drained the outbox. Measures orders, from the first observed
    /// publish until all messages are confirmed.
    pub async fn drain(
        &self,
        harness: &mut Harness,
        backlog: &Backlog,
        relay: &ServerChild,
    ) -> Result<Sample> {
        let (admin, all) = (relay.admin()?, backlog.num_entries);
        let begun = published(&admin, 1).await?;
        let (redis, rabbit) = (self.redis.id(), self.rabbit.id());
        let processes = [("relay", relay.id()), ("redis", redis), ("rabbitmq", rabbit)];
        ensure!(
            begun <= all / 2,
            "{begun} of {all} messages were published before the measurement: too many"
        );
        let (published, metered) = harness.meter(&processes, published(&admin, all)).await?;
        let orders = (published - begun) * backlog.plan.orders / all.max(1);
        self.await_empty(backlog).await?;
        Ok(metered.sample(metered.rate(orders), orders))
    }

    /// Waits until no entry is queued or claimed.
    pub async fn await_empty(&self, backlog: &Backlog) -> Result<()> {
        let check = async || {
            let counts = self.counts(backlog)?;
            let is_empty = counts.queued == 0 && counts.claimed.is_empty();
            Ok((counts, is_empty))
        };
        let (counts, is_empty) = poll(TIMEOUT, check).await?;
        ensure!(is_empty, "the outbox does not become empty: {counts:?}");
        Ok(())
    }

    /// The table is void unless the queue has a message for each entry, all orders can be committed
    /// like a consumer commits them, and the audit holds.
    pub async fn verify(&self, harness: &mut Harness, backlog: Backlog) -> Result<()> {
        let Backlog { plan, stores, offer, num_entries, .. } = &backlog;
        let topology = Topology::new(NAMESPACE, 1, 1);
        let queue = topology.queue(Route::Orders(0)).context("no order queue")?;
        let found = raw::purge(&self.rabbit, &queue.name).await?;
        harness.void_unless(found >= *num_entries, || {
            format!("{}: {num_entries} entries published, {found} in the queue", offer.sale)
        });
        offer.check(harness, stores, plan.orders, plan.orders).await?;
        stores.ledger.close().await;
        Ok(())
    }
}

impl Backlog {
    pub fn sale(&self) -> &SaleId {
        &self.offer.sale
    }

    /// Starts a process of this installation.
    pub async fn serve(&self, role: &str) -> Result<ServerChild> {
        let settings = [&self.set[..], &[format!("role={role}")]].concat();
        ServerChild::serve(self.scratch.path(), &settings).await
    }
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
