//! Bounds. A bound is a permit: taken before work is sent, returned when it is answered.
//!
//! actix mailboxes do not bound anything (every clone of an address adds a slot, and a send to a
//! full mailbox goes through), so mailboxes are made at least as large as the number of permits,
//! and only holders of a permit send.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A fixed number of permits.
#[derive(Debug, Clone)]
pub struct Permits {
    semaphore: Arc<Semaphore>,
    total: usize,
}

/// The right to have a certain amount of work inside; returned on drop.
#[derive(Debug)]
pub struct Permit {
    _held: OwnedSemaphorePermit,
}

impl Permits {
    /// `total` permits, all free.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let total = total.clamp(1, u32::MAX as usize >> 3);
        Self { semaphore: Arc::new(Semaphore::new(total)), total }
    }

    /// One permit, if one is free now.
    #[must_use]
    pub fn try_take(&self) -> Option<Permit> {
        let held = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        Some(Permit { _held: held })
    }

    /// Waits for `amount` permits, or for all of them when more are asked for than exist.
    pub async fn take(&self, amount: usize) -> Option<Permit> {
        let amount = u32::try_from(amount.clamp(1, self.total)).unwrap_or(1);
        let held = Arc::clone(&self.semaphore).acquire_many_owned(amount).await.ok()?;
        Some(Permit { _held: held })
    }

    /// How many are taken.
    #[must_use]
    pub fn num_taken(&self) -> usize {
        self.total - self.semaphore.available_permits()
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}
