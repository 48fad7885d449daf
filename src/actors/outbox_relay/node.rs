//! The name under which the relays of one process work, and how long it is theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::watch;

use crate::outbox::Worker;

/// The lease that says that a node is alive.
#[must_use]
pub fn lease_of(node: &str) -> String {
    format!("relay/{node}")
}

/// A name, and how long nobody else may take its hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// Unique over all processes and starts of processes.
    pub name: Arc<str>,
    /// The lease's end, unless it is renewed.
    pub until: Instant,
}

/// The node of one process: told by its `NodeLease`, read by its relays.
#[derive(Debug, Default)]
pub struct Node {
    tenure: watch::Sender<Option<Tenure>>,
    lives: AtomicU64,
}

impl Node {
    /// The name, while it is ours.
    #[must_use]
    pub fn name(&self, now: Instant) -> Option<Arc<str>> {
        let tenure = self.tenure.borrow();
        tenure.as_ref().filter(|tenure| now < tenure.until).map(|tenure| Arc::clone(&tenure.name))
    }

    /// The last word of the lease, ended or not.
    #[must_use]
    pub fn tenure(&self) -> Option<Tenure> {
        self.tenure.borrow().clone()
    }

    pub(super) fn tell(&self, tenure: Option<Tenure>) {
        self.tenure.send_replace(tenure);
    }

    /// Waits until there is another word of the lease.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let mut tenure = self.tenure.subscribe();
        async move {
            // An error only when the node is gone, and then the process is ending.
            drop(tenure.changed().await);
        }
    }

    /// A new life of the worker in this place.
    pub(super) fn worker(&self, name: &str, place: usize) -> Worker {
        let life = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        Worker { name: format!("{name}/{place}").into(), life }
    }
}
