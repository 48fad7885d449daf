//! The broker's queue of dead letters.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::LetterKeeperParts;
use super::storing::{InHand, Stored, store};
use crate::backoff::Backoff;
use crate::broker::{self, Acks, Delivery, Source, Subscription};
use crate::dead_letters::seal;

/// A subscription with what was delivered on it and is not acknowledged.
struct Open {
    subscription: Box<dyn Subscription>,
    acks: Box<dyn Acks>,
}

/// The lane of the queue.
pub(super) struct Consuming {
    open: Option<Open>,
    /// Letters to be stored, by delivery.
    hand: Vec<InHand<u64>>,
    backoff: Backoff,
    fresh: Backoff,
    /// The last trouble, until a round succeeds; for one log line at each change.
    trouble: Option<String>,
}

impl Consuming {
    /// A lane without a subscription.
    pub(super) fn new(parts: &LetterKeeperParts) -> Self {
        let backoff = Backoff::new(parts.backoff_min_ms, parts.backoff_max_ms);
        Self { open: None, hand: Vec::new(), backoff, fresh: backoff, trouble: None }
    }

    /// Takes what is delivered, stores it, acknowledges it. Returns how long to rest after trouble.
    pub(super) async fn round(&mut self, parts: &LetterKeeperParts) -> Option<Duration> {
        match self.try_round(parts).await {
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

    async fn try_round(&mut self, parts: &LetterKeeperParts) -> Result<(), String> {
        self.gather(parts).await.map_err(|error| error.to_string())?;
        let Some(open) = &self.open else { return Ok(()) };
        let Stored { kept, away } = store(parts, &mut self.hand).await;
        // Crash here [letter_kept_not_acked]: the letter is in the ledger and still in its queue;
        // it is delivered again and known by its digest.
        for tag in kept {
            open.acks.one(tag).await;
        }
        match away {
            Some(error) => Err(format!("{error} ({:?})", error.class())),
            // Nothing more is taken, so there is nothing to wait for but the time.
            None if self.room(parts) == 0 => {
                Err("every letter in hand was refused by the ledger".to_owned())
            }
            None => Ok(()),
        }
    }

    /// How many deliveries more may be in hand.
    fn room(&self, parts: &LetterKeeperParts) -> usize {
        usize::from(parts.letters_max).saturating_sub(self.hand.len())
    }

    /// Waits for a delivery, not for long, and takes with it those that are there already.
    async fn gather(&mut self, parts: &LetterKeeperParts) -> Result<(), broker::Error> {
        if self.open.is_none() {
            let subscriber = &parts.pipeline.subscriber;
            let subscription = subscriber.subscribe(Source::Dead, parts.letters_max).await?;
            let acks = subscription.acks();
            self.open = Some(Open { subscription, acks });
        }
        let mut patience = Duration::from_millis(parts.every_ms.max(1));
        while self.room(parts) > 0 {
            let Some(open) = &mut self.open else { break };
            let next = match open.subscription.next().now_or_never() {
                Some(next) => next,
                None => match timeout(patience, open.subscription.next()).await {
                    Ok(next) => next,
                    Err(_elapsed) => break,
                },
            };
            match next {
                Ok(delivery) => self.take(parts, &delivery),
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

    fn take(&mut self, parts: &LetterKeeperParts, delivery: &Delivery) {
        let now_ms = parts.clock.wall_ms();
        let letter = seal::of_dead(delivery, &parts.pipeline.installation, now_ms);
        self.hand.push(InHand::new(letter, delivery.tag));
    }

    /// The subscription is over: everything that was not acknowledged comes again.
    fn drop_all(&mut self) {
        self.open = None;
        self.hand.clear();
    }
}
