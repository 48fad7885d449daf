//! Collects dead letters from the broker's queue.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::CollectorDeps;
use crate::actors::dead_letter_collector::store::{PendingDeadLetter, StoreOutcome, store};
use crate::broker::{self, Acknowledger, Delivery, Source, Subscription};
use crate::runtime::backoff::Backoff;
use crate::services::dead_letters::headers;

struct OpenSubscription {
    subscription: Box<dyn Subscription>,
    acks: Box<dyn Acknowledger>,
}

/// Collects from the broker's queue.
pub(super) struct QueueCollector {
    open: Option<OpenSubscription>,
    /// Unacknowledged dead letters, by delivery tag.
    pending: Vec<PendingDeadLetter<u64>>,
    backoff: Backoff,
    initial_backoff: Backoff,
    /// The last error, until a round succeeds. Logged when it changes.
    last_error: Option<String>,
}

impl QueueCollector {
    pub(super) fn new(deps: &CollectorDeps) -> Self {
        let backoff = Backoff::new(deps.backoff_min_ms, deps.backoff_max_ms);
        Self {
            open: None,
            pending: Vec::new(),
            backoff,
            initial_backoff: backoff,
            last_error: None,
        }
    }

    /// Receives, stores and acknowledges dead letters. Returns the pause after an error.
    pub(super) async fn round(&mut self, deps: &CollectorDeps) -> Option<Duration> {
        match self.try_round(deps).await {
            Ok(()) => {
                if self.last_error.take().is_some() {
                    tracing::info!("dead letters stored again");
                }
                self.backoff = self.initial_backoff;
                None
            }
            Err(error) => {
                if self.last_error.as_ref() != Some(&error) {
                    tracing::warn!(error, "dead letters not stored, retrying");
                    self.last_error = Some(error);
                }
                Some(self.backoff.next_wait(fastrand::f64()))
            }
        }
    }

    async fn try_round(&mut self, deps: &CollectorDeps) -> Result<(), String> {
        self.receive(deps).await.map_err(|error| error.to_string())?;
        let Some(open) = &self.open else { return Ok(()) };
        let StoreOutcome { stored, unavailable } = store(deps, &mut self.pending).await;
        // Crash here [letter_kept_not_acked]: the dead letter is in the ledger and in its queue; it
        // is redelivered, and recognized by its digest.
        for tag in stored {
            open.acks.one(tag).await;
        }
        match unavailable {
            Some(error) => Err(format!("{error} ({:?})", error.class())),
            // Nothing more can be received: pause until a dead letter that was set aside is due.
            None if self.capacity(deps) == 0 => {
                Err("the ledger rejected every unacknowledged dead letter".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Number of dead letters that may still be received.
    fn capacity(&self, deps: &CollectorDeps) -> usize {
        usize::from(deps.dead_letters_max).saturating_sub(self.pending.len())
    }

    /// Subscribes if necessary, waits up to `every_ms` for a delivery, and takes those that are
    /// already there.
    async fn receive(&mut self, deps: &CollectorDeps) -> Result<(), broker::Error> {
        if self.open.is_none() {
            let subscriber = &deps.pipeline.subscriber;
            let subscription = subscriber.subscribe(Source::Dead, deps.dead_letters_max).await?;
            let acks = subscription.acks();
            self.open = Some(OpenSubscription { subscription, acks });
        }
        let mut wait = Duration::from_millis(deps.every_ms.max(1));
        while self.capacity(deps) > 0 {
            let Some(open) = &mut self.open else { break };
            let next = match open.subscription.next().now_or_never() {
                Some(next) => next,
                None => match timeout(wait, open.subscription.next()).await {
                    Ok(next) => next,
                    Err(_elapsed) => break,
                },
            };
            match next {
                Ok(delivery) => self.add(deps, &delivery),
                Err(error) => {
                    self.close();
                    return Err(error);
                }
            }
            // Only the first delivery is waited for.
            wait = Duration::ZERO;
        }
        Ok(())
    }

    fn add(&mut self, deps: &CollectorDeps, delivery: &Delivery) {
        let now_ms = deps.clock.wall_ms();
        let dead_letter = headers::from_delivery(delivery, &deps.pipeline.installation, now_ms);
        self.pending.push(PendingDeadLetter::new(dead_letter, delivery.tag));
    }

    /// Drops the subscription: the broker redelivers all unacknowledged dead letters.
    fn close(&mut self) {
        self.open = None;
        self.pending.clear();
    }
}
