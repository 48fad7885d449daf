//! Funnel of a sale: the requests of every stage, with count and oldest age.

use std::sync::Arc;

use serde::Serialize;

use super::{SalesError, SalesService};
use crate::db::{self, Ledger};
use crate::domain::{BucketKey, SaleId, Sku};
use crate::stock::{self, Stock};
use crate::tier::Pipeline;
use crate::{broker, outbox};

/// A stage between purchase and ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FunnelStage {
    pub stage: &'static str,
    /// Count in `unit`; `None` if the store is unavailable, or has lost its buckets.
    pub count: Option<u64>,
    /// `units`, `requests`, `entries` (of the outbox) or `messages` (of the broker, over all
    /// sales). An entry or message holds up to `outbox.envelope_max` requests.
    pub unit: &'static str,
    /// Milliseconds since the oldest was accepted; `None` if the stage is empty or its entries
    /// cannot be read.
    pub oldest_age_ms: Option<i64>,
    /// Of stage `broker`: order queues from which no process consumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconsumed_queues: Option<u64>,
}

/// Count of one stage, and when its oldest request was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StageCount {
    count: u64,
    oldest_ms: Option<i64>,
    unconsumed: Option<u64>,
}

impl StageCount {
    fn add(&mut self, count: u64, oldest_ms: Option<i64>) {
        self.count += count;
        self.oldest_ms = [self.oldest_ms, oldest_ms].into_iter().flatten().min();
    }
}

impl SalesService {
    /// All stages of a sale, in the order of the flow. The stages of an unavailable store have no
    /// counts; the others are still returned.
    pub async fn funnel(&self, id: &SaleId) -> Result<Vec<FunnelStage>, SalesError> {
        let sale = self.catalog.sale(id.as_str()).ok_or(SalesError::Unknown)?;
        let skus = &sale.skus[..];
        let now_ms = self.clock.wall_ms();
        let in_ledger = in_ledger(&*self.backends.ledger, skus);
        let in_ledger = db::with_timeout("a count", in_ledger).await;
        let [left, ordered, failed] =
            stages_of(["left", "committed", "failed"], "requests", in_ledger, now_ms);
        let is_loaded = self.is_synced(&sale) && self.is_due(&sale);
        let loaded = if is_loaded { skus } else { &[] };
        let in_stock = in_stock(&*self.backends.stock, loaded).await;
        let [unsettled] = stages_of(["unsettled"], "requests", in_stock, now_ms);
        let mut stages = vec![FunnelStage { unit: "units", ..left }, unsettled];
        if let Some(pipeline) = &self.backends.pipeline {
            let in_outbox = in_outbox(pipeline, skus).await;
            stages.extend(stages_of(["outbox", "relay"], "entries", in_outbox, now_ms));
            let in_broker = in_broker(pipeline).await;
            stages.extend(stages_of(["broker", "dead"], "messages", in_broker, now_ms));
        }
        stages.extend([ordered, failed]);
        Ok(stages)
    }
}

/// The stages of one store. If it could not be read, they have no counts and the error is logged.
fn stages_of<const N: usize>(
    names: [&'static str; N],
    unit: &'static str,
    counts: Result<[StageCount; N], impl std::error::Error + 'static>,
    now_ms: i64,
) -> [FunnelStage; N] {
    let mut counts = match counts {
        Ok(counts) => counts.map(Some),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, stage = names[0], "funnel: stage not counted");
            [None; N]
        }
    }
    .into_iter();
    names.map(|stage| {
        let stage_count = counts.next().flatten();
        let age = |placed_at_ms: i64| (now_ms - placed_at_ms).max(0);
        let oldest_age_ms = stage_count.and_then(|it| it.oldest_ms).map(age);
        let unconsumed_queues = stage_count.and_then(|it| it.unconsumed);
        let count = stage_count.map(|it| it.count);
        FunnelStage { stage, count, unit, oldest_age_ms, unconsumed_queues }
    })
}

/// Units left, orders, failures.
async fn in_ledger(ledger: &dyn Ledger, skus: &[Arc<Sku>]) -> Result<[StageCount; 3], db::Error> {
    let [mut left, mut ordered, mut failed] = [StageCount::default(); 3];
    for sku in skus {
        let counts = ledger.ledger_size(sku.no).await?;
        left.add(counts.available.into(), None);
        ordered.add(counts.num_orders, None);
        failed.add(counts.num_failures, None);
    }
    Ok([left, ordered, failed])
}

/// Accepted requests without a result of the ledger.
async fn in_stock(stock: &dyn Stock, skus: &[Arc<Sku>]) -> Result<[StageCount; 1], stock::Error> {
    let mut unsettled = StageCount::default();
    for sku in skus {
        let gates = stock.facts(sku.no).await?;
        unsettled.add(gates.num_unsettled, gates.oldest_unsettled_ms);
    }
    Ok([unsettled])
}

/// Outbox entries: waiting, claimed by relays.
async fn in_outbox(
    pipeline: &Pipeline,
    skus: &[Arc<Sku>],
) -> Result<[StageCount; 2], outbox::Error> {
    let [mut waiting, mut claimed] = [StageCount::default(); 2];
    for sku in skus {
        for key in BucketKey::all_of(sku) {
            let entries = pipeline.outbox.status(key).await?;
            waiting.add(entries.num_waiting, entries.oldest_waiting_ms);
            let num_claimed = entries.claimed.iter().map(|(_, count)| count).sum();
            claimed.add(num_claimed, entries.oldest_claimed_ms);
        }
    }
    Ok([waiting, claimed])
}

/// Ready messages in the broker's queues: orders, dead letters; and the queues of orders that no
/// process consumes.
async fn in_broker(pipeline: &Pipeline) -> Result<[StageCount; 2], broker::Error> {
    let [mut orders, mut dead] = [StageCount::default(); 2];
    for depth in pipeline.subscriber.depths().await? {
        match depth.family() {
            "orders" => {
                orders.add(depth.num_ready, None);
                let unconsumed = orders.unconsumed.get_or_insert(0);
                *unconsumed += u64::from(depth.num_consumers == 0);
            }
            "dead" => dead.add(depth.num_ready, None),
            _ => {}
        }
    }
    Ok([orders, dead])
}
