//! Where the requests of a sale are: every stage of the way, with count and oldest age.

use std::sync::Arc;

use serde::Serialize;

use super::{SalesError, SalesService};
use crate::db::{self, Ledger};
use crate::domain::{SaleId, Sku};
use crate::stock::{self, BucketKey, Stock};
use crate::tier::Pipeline;
use crate::{broker, outbox};

/// One stage of the way from click to ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FunnelStage {
    /// Which one, in the order of the way.
    pub stage: &'static str,
    /// How many are there; of what, says `unit`. `None`: nobody could tell.
    pub count: Option<u64>,
    /// `units`, `requests`, `entries` (of the outbox) or `messages` (of the broker, all sales
    /// together); entries and messages hold up to `outbox.envelope_max` requests each.
    pub unit: &'static str,
    /// How long the oldest of them has been accepted, milliseconds; `None` where there is none, or
    /// where the stage cannot be looked into.
    pub oldest_age_ms: Option<i64>,
}

/// What is at one stage: how many, and when the oldest of them was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StageCount {
    count: u64,
    oldest_ms: Option<i64>,
}

impl StageCount {
    fn add(&mut self, count: u64, oldest_ms: Option<i64>) {
        self.count += count;
        self.oldest_ms = [self.oldest_ms, oldest_ms].into_iter().flatten().min();
    }
}

impl SalesService {
    /// Every stage of a sale with count and oldest age, in the order of the way. The stages of what
    /// cannot be asked are without a count: the others are what an operator then looks for.
    pub async fn funnel(&self, id: &SaleId) -> Result<Vec<FunnelStage>, SalesError> {
        let listed = self.catalog.sale(id.as_str()).ok_or(SalesError::Unknown)?;
        let skus = &listed.skus[..];
        let now_ms = self.clock.wall_ms();
        let in_ledger = in_ledger(&*self.backends.ledger, skus);
        let in_ledger = db::look("a count", in_ledger).await;
        let [left, landed, failed] =
            told(["left", "landed", "failed"], "requests", in_ledger, now_ms);
        let in_stock = in_stock(&*self.backends.stock, skus).await;
        let [unsettled] = told(["unsettled"], "requests", in_stock, now_ms);
        let mut stages = vec![FunnelStage { unit: "units", ..left }, unsettled];
        if let Some(pipeline) = &self.backends.pipeline {
            let in_outbox = in_outbox(pipeline, skus).await;
            stages.extend(told(["outbox", "relay", "relay_dead"], "entries", in_outbox, now_ms));
            let in_broker = in_broker(pipeline).await;
            stages.extend(told(QUEUES, "messages", in_broker, now_ms));
        }
        stages.extend([landed, failed]);
        Ok(stages)
    }
}

/// Stages as they are told; what could not be found out has no counts, and a line in the log.
fn told<const N: usize>(
    names: [&'static str; N],
    unit: &'static str,
    found: Result<[StageCount; N], impl std::error::Error + 'static>,
    now_ms: i64,
) -> [FunnelStage; N] {
    let mut found = match found {
        Ok(found) => found.map(Some),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, stage = names[0], "a part of the funnel cannot be counted");
            [None; N]
        }
    }
    .into_iter();
    names.map(|stage| {
        let found = found.next().flatten();
        let age = |then: i64| (now_ms - then).max(0);
        let oldest_age_ms = found.and_then(|found| found.oldest_ms).map(age);
        FunnelStage { stage, count: found.map(|found| found.count), unit, oldest_age_ms }
    })
}

/// Units that are left, orders, failures.
async fn in_ledger(ledger: &dyn Ledger, skus: &[Arc<Sku>]) -> Result<[StageCount; 3], db::Error> {
    let [mut left, mut landed, mut failed] = [StageCount::default(); 3];
    for sku in skus {
        let tally = ledger.tally(sku.no).await?;
        left.add(tally.available.into(), None);
        landed.add(tally.num_orders, None);
        failed.add(tally.num_failures, None);
    }
    Ok([left, landed, failed])
}

/// What gates have accepted and the ledger has not answered.
async fn in_stock(stock: &dyn Stock, skus: &[Arc<Sku>]) -> Result<[StageCount; 1], stock::Error> {
    let mut unsettled = StageCount::default();
    for sku in skus {
        if let Some(gates) = stock.facts(sku.no).await? {
            unsettled.add(gates.num_unsettled, gates.oldest_unsettled_ms);
        }
    }
    Ok([unsettled])
}

/// What waits in the outbox, what relays have in hand, and what they gave up.
async fn in_outbox(
    pipeline: &Pipeline,
    skus: &[Arc<Sku>],
) -> Result<[StageCount; 3], outbox::Error> {
    let [mut waiting, mut in_hand, mut dead] = [StageCount::default(); 3];
    for sku in skus {
        for key in BucketKey::all_of(sku) {
            let found = pipeline.outbox.standing(key).await?;
            waiting.add(found.num_waiting, found.oldest_waiting_ms);
            let held = found.in_hand.iter().map(|(_, count)| count).sum();
            in_hand.add(held, found.oldest_in_hand_ms);
            dead.add(found.num_dead, None);
        }
    }
    Ok([waiting, in_hand, dead])
}

/// The stages in the broker, by the first word of their queues' names.
const QUEUES: [&str; 2] = ["broker", "dead"];

/// What waits in the broker's queues.
async fn in_broker(pipeline: &Pipeline) -> Result<[StageCount; 2], broker::Error> {
    let mut found = [StageCount::default(); 2];
    for depth in pipeline.subscriber.depths().await? {
        let stage = match depth.family() {
            "orders" => "broker",
            family => family,
        };
        let mut stages = QUEUES.iter().zip(&mut found);
        if let Some((_, there)) = stages.find(|(name, _)| **name == stage) {
            there.add(depth.num_ready, None);
        }
    }
    Ok(found)
}
