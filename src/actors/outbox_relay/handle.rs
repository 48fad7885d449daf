//! Notifications to the relay workers of the same process: a bucket has entries, or the broker is
//! available again.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::BucketKey;

/// Wakes relay workers; cheap to clone and to call, never waits. Pokes of one bucket are merged
/// until a worker takes them. A lost notification delays its entries until the next poll.
#[derive(Debug, Clone, Default)]
pub struct RelayHandle {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bounded by the number of buckets.
    notified: Mutex<HashSet<BucketKey>>,
    notify: Notify,
    recovered: Notify,
}

impl RelayHandle {
    /// Tells the workers that the outbox of this bucket has entries.
    pub fn notify(&self, bucket: BucketKey) {
        let is_new = self.shared.notified.lock().insert(bucket);
        if is_new {
            self.shared.notify.notify_one();
        }
    }

    /// Waits for a notification; returns at once if one arrived while no worker waited.
    pub(super) async fn notified(&self) {
        self.shared.notify.notified().await;
    }

    /// Wakes the workers that wait for the broker: a publish has succeeded.
    pub(super) fn notify_recovered(&self) {
        self.shared.recovered.notify_waiters();
    }

    /// Waits until another worker reports that the broker is available.
    pub(super) async fn recovered(&self) {
        self.shared.recovered.notified().await;
    }

    /// Takes the buckets that were notified since the last call.
    pub(super) fn take_poked(&self) -> HashSet<BucketKey> {
        std::mem::take(&mut *self.shared.notified.lock())
    }
}
