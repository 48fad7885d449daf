//! The broker's queue of dead letters.

use std::sync::Arc;

use super::CollectorDeps;
use super::source_collector::{DeadLetterSource, Pending, PendingDeadLetter};
use crate::broker::{self, Inbox, Route};
use crate::services::dead_letters::new_dead_letter;

/// The broker's queue. A key is a delivery tag; pending dead letters are unacknowledged.
pub(super) struct QueueSource {
    deps: Arc<CollectorDeps>,
    inbox: Option<Inbox>,
}

impl DeadLetterSource for QueueSource {
    type Key = u64;

    const FAILURE: &'static str = "dead letters not stored, retrying";
    const IS_POLLED: bool = false;

    async fn receive(&mut self, pending: &mut Pending<u64>) -> Result<(), String> {
        self.take_deliveries(pending).await.map_err(|error| {
            // Without a subscription the broker redelivers all unacknowledged dead letters.
            self.inbox = None;
            pending.clear();
            error.to_string()
        })
    }

    async fn remove(&mut self, stored: Vec<u64>, num_pending: usize) -> Result<(), String> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let acks = inbox.acks();
        for tag in stored {
            acks.one(tag).await;
        }
        if self.deps.capacity(num_pending) > 0 {
            return Ok(());
        }
        // The ledger rejected each of them, or the round ended first: back off.
        Err("no more dead letters are received until one of those held is stored".to_owned())
    }
}

impl QueueSource {
    pub(super) fn new(deps: Arc<CollectorDeps>) -> Self {
        Self { deps, inbox: None }
    }

    /// Subscribes if necessary, waits up to [`CollectorDeps::every`] for a delivery, and takes
    /// those that are already there.
    async fn take_deliveries(&mut self, pending: &mut Pending<u64>) -> Result<(), broker::Error> {
        let deps = &self.deps;
        let inbox = match &mut self.inbox {
            Some(inbox) => inbox,
            none => {
                let (subscriber, max) = (&deps.pipeline.subscriber, deps.dead_letters_max());
                none.insert(Inbox::open(subscriber, Route::Dead, max, &deps.clock).await?)
            }
        };
        for delivery in inbox.next_batch(deps.every(), pending.len()).await? {
            let (reader, now_ms) = (&deps.pipeline.reader, deps.clock.wall_ms());
            let dead_letter = new_dead_letter::from_delivery(&delivery, reader, now_ms);
            pending.push(PendingDeadLetter::new(dead_letter, delivery.tag));
        }
        Ok(())
    }
}
