//! The relay workers of one process.

use std::sync::Arc;

use actix_rt::ArbiterHandle;
use futures_util::future::join_all;

use super::{OutboxRelay, RelayDeps, WorkerNames};
use crate::actors::supervisor::supervised::{Address, quiet_one};
use crate::actors::supervisor::{ChildSpec, Supervisor};
use crate::runtime::fault_injection::FaultInjector;

/// Room for `Quiet` and `Stop`.
const MAILBOX: usize = 16;

/// The relay workers of one process.
#[derive(Debug)]
pub struct RelayPool {
    workers: Vec<Address<OutboxRelay>>,
}

impl RelayPool {
    /// Starts `relay.workers` supervised workers. A restarted worker gets a new name, and the names
    /// of its predecessors.
    pub fn start(
        deps: &RelayDeps,
        supervisor: &Supervisor,
        arbiter: &ArbiterHandle,
        fault_injector: FaultInjector,
    ) -> Self {
        let start = |index| {
            let (deps, names) = (deps.clone(), WorkerNames::new(&deps.process, index));
            supervisor.start(ChildSpec {
                name: format!("outbox_relay/{index}"),
                kind: "outbox_relay",
                arbiter: arbiter.clone(),
                mailbox: MAILBOX,
                fault_injector,
                factory: Arc::new(move |incarnation| {
                    OutboxRelay::new(incarnation, deps.clone(), names.clone())
                }),
            })
        };
        Self { workers: (0..deps.settings.workers).map(start).collect() }
    }

    /// Waits until every worker has finished its round and given its entries back. The entries of a
    /// worker that crashes meanwhile are reclaimed by a rescuer. The caller sets the deadline.
    pub async fn quiet(&self) {
        join_all(self.workers.iter().map(quiet_one)).await;
    }
}
