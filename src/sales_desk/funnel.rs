//! Where the requests of a sale are: every stage of the way, with count and oldest age.

use serde::Serialize;

use super::{DeskError, SalesDesk};
use crate::broker;
use crate::domain::{BucketNo, SaleId, Sku};
use crate::stock::BucketKey;
use crate::tier::Pipeline;

/// One stage of the way from click to ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stage {
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

impl Stage {
    const fn new(stage: &'static str, unit: &'static str, count: u64) -> Self {
        Self { stage, count: Some(count), unit, oldest_age_ms: None }
    }

    fn since(mut self, now_ms: i64, oldest_ms: Option<i64>) -> Self {
        self.oldest_age_ms = oldest_ms.map(|then| (now_ms - then).max(0));
        self
    }
}

impl SalesDesk {
    /// Every stage of a sale with count and oldest age, in the order of the way.
    ///
    /// # Errors
    /// [`DeskError::Unknown`], or what the ledger, the stock or the outbox said. A broker that
    /// cannot be asked is a stage without a count.
    pub async fn funnel(&self, id: &SaleId) -> Result<Vec<Stage>, DeskError> {
        let listed = self.catalog.sale(id.as_str()).ok_or(DeskError::Unknown)?;
        let now_ms = self.clock.wall_ms();
        let (mut left, mut unsettled, mut landed, mut failed) = (0, 0, 0, 0);
        let mut oldest: Option<i64> = None;
        for sku in &listed.skus {
            if let Some(gates) = self.backends.stock.facts(sku.no).await? {
                unsettled += gates.num_unsettled;
                oldest = [oldest, gates.oldest_unsettled_ms].into_iter().flatten().min();
            }
            let tally = self.backends.ledger.tally(sku.no).await?;
            left += u64::from(tally.available);
            landed += tally.num_orders;
            failed += tally.num_failures;
        }
        let mut stages = vec![
            Stage::new("left", "units", left),
            Stage::new("unsettled", "requests", unsettled).since(now_ms, oldest),
        ];
        if let Some(pipeline) = &self.backends.pipeline {
            stages.extend(in_outbox(pipeline, &listed.skus, now_ms).await?);
            stages.extend(in_broker(pipeline).await);
        }
        stages.push(Stage::new("landed", "requests", landed));
        stages.push(Stage::new("failed", "requests", failed));
        Ok(stages)
    }
}

/// What waits in the outbox, and what relays have in hand.
async fn in_outbox(
    pipeline: &Pipeline,
    skus: &[std::sync::Arc<Sku>],
    now_ms: i64,
) -> Result<[Stage; 3], DeskError> {
    let (mut waiting, mut in_hand, mut dead) = (0, 0, 0);
    let (mut oldest_waiting, mut oldest_in_hand) = (None, None);
    for sku in skus {
        for bucket in (0..sku.buckets).map(BucketNo) {
            let found = pipeline.outbox.standing(BucketKey { sku: sku.no, bucket }).await?;
            waiting += found.num_waiting;
            in_hand += found.in_hand.iter().map(|(_, count)| count).sum::<u64>();
            dead += found.num_dead;
            oldest_waiting = earlier(oldest_waiting, found.oldest_waiting_ms);
            oldest_in_hand = earlier(oldest_in_hand, found.oldest_in_hand_ms);
        }
    }
    Ok([
        Stage::new("outbox", "entries", waiting).since(now_ms, oldest_waiting),
        Stage::new("relay", "entries", in_hand).since(now_ms, oldest_in_hand),
        Stage::new("relay_dead", "entries", dead),
    ])
}

fn earlier(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    [one, other].into_iter().flatten().min()
}

/// What waits in the broker's queues.
async fn in_broker(pipeline: &Pipeline) -> Vec<Stage> {
    let mut stages =
        ["broker", "retry", "unroutable", "dead"].map(|stage| Stage::new(stage, "messages", 0));
    match pipeline.subscriber.depths().await {
        Ok(depths) => {
            for depth in depths {
                let name = stage_of(&depth);
                let stage = stages.iter_mut().find(|stage| stage.stage == name);
                if let Some(count) = stage.and_then(|stage| stage.count.as_mut()) {
                    *count += depth.num_ready;
                }
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the broker's queues cannot be counted");
            for stage in &mut stages {
                stage.count = None;
            }
        }
    }
    stages.into()
}

fn stage_of(depth: &broker::Depth) -> &'static str {
    match depth.queue.split('.').next() {
        Some("orders") => "broker",
        Some("retry") => "retry",
        Some("unroutable") => "unroutable",
        _ => "dead",
    }
}
