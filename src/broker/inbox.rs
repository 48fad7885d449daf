//! Reads a subscription in batches, and ends it if the broker has forgotten it: the connection is
//! up, messages are ready in the queue, and none is delivered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::{Acknowledger, Delivery, Error, Route, Subscriber, Subscription};
use crate::runtime::clock::SharedClock;

/// Time without a delivery after which the queue's depth is read.
const SILENT_MAX: Duration = Duration::from_secs(20);

/// A subscription and what its reader needs.
pub struct Inbox {
    subscriber: Arc<dyn Subscriber>,
    subscription: Box<dyn Subscription>,
    source: Route,
    prefetch: u16,
    clock: SharedClock,
    /// The last time at which a delivery arrived or was unacknowledged, or the depth was read.
    silent_since: Instant,
    /// Whether messages were ready then.
    were_ready: bool,
}

impl Inbox {
    /// Subscribes; at most `prefetch` deliveries are unacknowledged at any time.
    ///
    /// # Errors
    /// As [`Subscriber::subscribe`].
    pub async fn open(
        subscriber: &Arc<dyn Subscriber>,
        source: Route,
        prefetch: u16,
        clock: &SharedClock,
    ) -> Result<Self, Error> {
        let subscription = subscriber.subscribe(source, prefetch).await?;
        Ok(Self {
            subscriber: Arc::clone(subscriber),
            subscription,
            source,
            prefetch,
            clock: Arc::clone(clock),
            silent_since: clock.now(),
            were_ready: false,
        })
    }

    /// The acknowledging side.
    pub fn acks(&self) -> Box<dyn Acknowledger> {
        self.subscription.acks()
    }

    /// Waits up to `wait` for a delivery. `num_held`: deliveries that the caller has not
    /// acknowledged.
    ///
    /// # Errors
    /// The subscription has ended, or was forgotten; open another one.
    pub async fn next(
        &mut self,
        wait: Duration,
        num_held: usize,
    ) -> Result<Option<Delivery>, Error> {
        let next = timeout(wait, self.subscription.next()).await.ok().transpose()?;
        if next.is_some() || num_held > 0 {
            (self.silent_since, self.were_ready) = (self.clock.now(), false);
        } else if self.clock.now().duration_since(self.silent_since) >= SILENT_MAX {
            self.check_ready().await?;
        }
        Ok(next)
    }

    /// Waits up to `wait` for a delivery, and takes those that are already there.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_batch(
        &mut self,
        mut wait: Duration,
        num_held: usize,
    ) -> Result<Vec<Delivery>, Error> {
        let max = usize::from(self.prefetch).saturating_sub(num_held).max(1);
        let mut deliveries = Vec::new();
        while deliveries.len() < max
            && let Some(delivery) = self.next(wait, num_held + deliveries.len()).await?
        {
            deliveries.push(delivery);
            wait = Duration::ZERO;
        }
        Ok(deliveries)
    }

    /// Ends the subscription if messages are ready in its queue, as they were [`SILENT_MAX`] ago.
    async fn check_ready(&mut self) -> Result<(), Error> {
        // A failed query proves nothing about the queue.
        let depth = self.subscriber.depth(self.source).await;
        let are_ready = depth.is_ok_and(|depth| depth.num_ready > 0);
        self.silent_since = self.clock.now();
        if std::mem::replace(&mut self.were_ready, are_ready) && are_ready {
            let reason = "messages are ready and none is delivered".to_owned();
            return Err(Error::Ended { reason });
        }
        Ok(())
    }
}
