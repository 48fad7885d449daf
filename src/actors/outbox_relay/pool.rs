//! The relays of one process: its workers, and the way to quiet them.

use std::sync::Arc;

use actix_rt::ArbiterHandle;
use futures_util::future::join_all;

use super::{OutboxRelay, RelayDeps, WorkerNames};
use crate::actors::supervisor::supervised::{Address, quiet_one};
use crate::actors::supervisor::{ChildSpec, Supervisor};
use crate::runtime::fault_injection::FaultInjector;

/// Room for `Quiet` and `Stop`.
const MAILBOX: usize = 16;

/// The relays of one process.
#[derive(Debug)]
pub struct RelayPool {
    workers: Vec<Address<OutboxRelay>>,
}

impl RelayPool {
    /// Starts them. Each supervised actor that replaces a crashed one gets a name of its own, and
    /// the names of its predecessors.
    pub fn start(
        deps: &RelayDeps,
        supervisor: &Supervisor,
        arbiter: &ArbiterHandle,
        drill: FaultInjector,
    ) -> Self {
        let start = |place| {
            let (deps, names) = (deps.clone(), WorkerNames::new(&deps.process, place));
            supervisor.start(ChildSpec {
                name: format!("outbox_relay/{place}"),
                kind: "outbox_relay",
                arbiter: arbiter.clone(),
                mailbox: MAILBOX,
                drill,
                factory: Arc::new(move |life| OutboxRelay::new(life, deps.clone(), names.clone())),
            })
        };
        Self { workers: (0..deps.settings.workers).map(start).collect() }
    }

    /// Lets every worker finish its round and give back what it claimed. A worker that crashes
    /// meanwhile leaves its entries to a rescuer. The caller has a deadline.
    pub async fn quiet(&self) {
        join_all(self.workers.iter().map(quiet_one)).await;
    }
}
