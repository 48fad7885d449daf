//! The broker's queue of dead letters.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::CollectorDeps;
use crate::actors::dead_letter_collector::store::{PendingDeadLetter, StoreOutcome, store};
use crate::broker::{self, Acknowledger, Delivery, Source, Subscription};
use crate::runtime::backoff::Backoff;
use crate::services::dead_letters::headers;

/// A subscription with what was delivered on it and is not acknowledged.
struct OpenSubscription {
    subscription: Box<dyn Subscription>,
    acks: Box<dyn Acknowledger>,
}

/// The lane of the queue.
pub(super) struct QueueCollector {
    open: Option<OpenSubscription>,
    /// Letters to be stored, by delivery.
    hand: Vec<PendingDeadLetter<u64>>,
    backoff: Backoff,
    fresh: Backoff,
    /// The last trouble, until a round succeeds; for one log line at each change.
    trouble: Option<String>,
}

impl QueueCollector {
    /// A lane without a subscription.
    pub(super) fn new(deps: &CollectorDeps) -> Self {
        let backoff = Backoff::new(deps.backoff_min_ms, deps.backoff_max_ms);
        Self { open: None, hand: Vec::new(), backoff, fresh: backoff, trouble: None }
    }

    /// Takes what is delivered, stores it, acknowledges it. Returns how long to rest after trouble.
    pub(super) async fn round(&mut self, deps: &CollectorDeps) -> Option<Duration> {
        match self.try_round(deps).await {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    tracing::info!("dead letters are kept again");
                }
                self.backoff = self.fresh;
                None
            }
            Err(said) => {
                if self.trouble.as_ref() != Some(&said) {
                    tracing::warn!(said, "dead letters wait");
                    self.trouble = Some(said);
                }
                Some(self.backoff.next_wait(fastrand::f64()))
            }
        }
    }

    async fn try_round(&mut self, deps: &CollectorDeps) -> Result<(), String> {
        self.gather(deps).await.map_err(|error| error.to_string())?;
        let Some(open) = &self.open else { return Ok(()) };
        let StoreOutcome { kept, away } = store(deps, &mut self.hand).await;
        // Crash here [letter_kept_not_acked]: the letter is in the ledger and still in its queue;
        // it is delivered again and known by its digest.
        for tag in kept {
            open.acks.one(tag).await;
        }
        match away {
            Some(error) => Err(format!("{error} ({:?})", error.class())),
            // Nothing more is taken, so there is nothing to wait for but the time.
            None if self.room(deps) == 0 => {
                Err("every letter in hand was refused by the ledger".to_owned())
            }
            None => Ok(()),
        }
    }

    /// How many deliveries more may be in hand.
    fn room(&self, deps: &CollectorDeps) -> usize {
        usize::from(deps.letters_max).saturating_sub(self.hand.len())
    }

    /// Waits for a delivery, not for long, and takes with it those that are there already.
    async fn gather(&mut self, deps: &CollectorDeps) -> Result<(), broker::Error> {
        if self.open.is_none() {
            let subscriber = &deps.pipeline.subscriber;
            let subscription = subscriber.subscribe(Source::Dead, deps.letters_max).await?;
            let acks = subscription.acks();
            self.open = Some(OpenSubscription { subscription, acks });
        }
        let mut patience = Duration::from_millis(deps.every_ms.max(1));
        while self.room(deps) > 0 {
            let Some(open) = &mut self.open else { break };
            let next = match open.subscription.next().now_or_never() {
                Some(next) => next,
                None => match timeout(patience, open.subscription.next()).await {
                    Ok(next) => next,
                    Err(_elapsed) => break,
                },
            };
            match next {
                Ok(delivery) => self.take(deps, &delivery),
                Err(error) => {
                    self.drop_all();
                    return Err(error);
                }
            }
            // Whoever came first does not wait for the next one.
            patience = Duration::ZERO;
        }
        Ok(())
    }

    fn take(&mut self, deps: &CollectorDeps, delivery: &Delivery) {
        let now_ms = deps.clock.wall_ms();
        let letter = headers::of_dead(delivery, &deps.pipeline.installation, now_ms);
        self.hand.push(PendingDeadLetter::new(letter, delivery.tag));
    }

    /// The subscription is over: everything that was not acknowledged comes again.
    fn drop_all(&mut self) {
        self.open = None;
        self.hand.clear();
    }
}
