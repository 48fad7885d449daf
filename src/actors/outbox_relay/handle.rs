//! The way from gates to the relays of the same process, and between these: a word that a bucket
//! has something, and that the broker is back.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::stock::BucketKey;

/// Wakes relays. Cheap to clone and to call; never waits. A word that gets lost costs a relay's
/// next look, no more: pokes of one bucket that nobody has heard yet are one.
#[derive(Debug, Clone, Default)]
pub struct RelayHandle {
    inside: Arc<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    /// Bounded by the number of buckets.
    poked: Mutex<HashSet<BucketKey>>,
    bell: Notify,
    recovered: Notify,
}

impl RelayHandle {
    /// Something was put into this bucket.
    pub fn poke(&self, bucket: BucketKey) {
        let is_news = self.inside.poked.lock().insert(bucket);
        if is_news {
            self.inside.bell.notify_one();
        }
    }

    /// Waits until somebody pokes; a poke that nobody waited for counts.
    pub(super) async fn poked(&self) {
        self.inside.bell.notified().await;
    }

    /// The broker takes messages again: whoever waits for it need not find out alone.
    pub(super) fn recover(&self) {
        self.inside.recovered.notify_waiters();
    }

    /// Waits until somebody says that the broker takes messages again.
    pub(super) async fn recovered(&self) {
        self.inside.recovered.notified().await;
    }

    /// The buckets that were poked since the last call.
    pub(super) fn take(&self) -> HashSet<BucketKey> {
        std::mem::take(&mut *self.inside.poked.lock())
    }
}
