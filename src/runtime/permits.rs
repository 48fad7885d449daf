//! Permits bound the work inside an actor: a permit is taken before the work is sent and returned
//! when the work is answered.
//!
//! actix mailboxes bound nothing (every clone of an address adds a slot, and a send to a full
//! mailbox succeeds), so a mailbox has at least as many slots as there are permits, and only
//! holders of a permit send.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A fixed number of permits.
#[derive(Debug, Clone)]
pub struct Permits {
    semaphore: Arc<Semaphore>,
    total: usize,
}

/// One or more permits, held until drop.
pub type Permit = OwnedSemaphorePermit;

impl Permits {
    /// `total` free permits, at least one.
    pub fn new(total: usize) -> Self {
        let total = total.clamp(1, u32::MAX as usize >> 3);
        Self { semaphore: Arc::new(Semaphore::new(total)), total }
    }

    /// Takes one permit if one is free; never waits.
    #[must_use]
    pub fn try_take(&self) -> Option<Permit> {
        Arc::clone(&self.semaphore).try_acquire_owned().ok()
    }

    /// Waits for `amount` permits, at most for all of them.
    pub async fn take(&self, amount: usize) -> Option<Permit> {
        let amount = u32::try_from(amount.clamp(1, self.total)).unwrap_or(1);
        Arc::clone(&self.semaphore).acquire_many_owned(amount).await.ok()
    }

    pub fn num_taken(&self) -> usize {
        self.total - self.semaphore.available_permits()
    }

    pub fn total(&self) -> usize {
        self.total
    }
}
