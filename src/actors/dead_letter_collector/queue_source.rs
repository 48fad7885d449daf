//! The broker's queue of dead letters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::CollectorDeps;
use super::source_collector::{DeadLetterSource, PendingDeadLetter};
use crate::broker::{self, Acknowledger, Subscription};
use crate::services::dead_letters::headers;

struct OpenSubscription {
    subscription: Box<dyn Subscription>,
    acks: Box<dyn Acknowledger>,
}

/// The broker's queue. A key is a delivery tag; pending dead letters are unacknowledged.
pub(super) struct QueueSource {
    deps: Arc<CollectorDeps>,
    open: Option<OpenSubscription>,
}

impl DeadLetterSource for QueueSource {
    type Key = u64;

    const FAILURE: &'static str = "dead letters not stored, retrying";
    const IS_POLLED: bool = false;

    async fn receive(&mut self, pending: &mut Vec<PendingDeadLetter<u64>>) -> Result<(), String> {
        self.take_deliveries(pending).await.map_err(|error| {
            // Without a subscription the broker redelivers all unacknowledged dead letters.
            self.open = None;
            pending.clear();
            error.to_string()
        })
    }

    async fn remove(&mut self, stored: Vec<u64>, num_pending: usize) -> Result<(), String> {
        let Some(open) = &self.open else { return Ok(()) };
        for tag in stored {
            open.acks.one(tag).await;
        }
        if self.deps.capacity(num_pending) > 0 {
            return Ok(());
        }
        // Nothing more can be received: pause until a dead letter that was set aside is due.
        Err("the ledger rejected every unacknowledged dead letter".to_owned())
    }
}

impl QueueSource {
    pub(super) fn new(deps: Arc<CollectorDeps>) -> Self {
        Self { deps, open: None }
    }

    /// Subscribes if necessary, waits up to [`CollectorDeps::every`] for a delivery, and takes
    /// those that are already there.
    async fn take_deliveries(
        &mut self,
        pending: &mut Vec<PendingDeadLetter<u64>>,
    ) -> Result<(), broker::Error> {
        let deps = &self.deps;
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let subscriber = &deps.pipeline.subscriber;
                let source = broker::Source::Dead;
                let subscription = subscriber.subscribe(source, deps.dead_letters_max()).await?;
                let acks = subscription.acks();
                none.insert(OpenSubscription { subscription, acks })
            }
        };
        let mut wait = deps.every();
        while deps.capacity(pending.len()) > 0 {
            let delivery = match open.subscription.next().now_or_never() {
                Some(next) => next?,
                None => match timeout(wait, open.subscription.next()).await {
                    Ok(next) => next?,
                    Err(_elapsed) => break,
                },
            };
            let (reader, now_ms) = (&deps.pipeline.reader, deps.clock.wall_ms());
            let dead_letter = headers::from_delivery(&delivery, reader, now_ms);
            pending.push(PendingDeadLetter::new(dead_letter, delivery.tag));
            // Only the first delivery is waited for.
            wait = Duration::ZERO;
        }
        Ok(())
    }
}
