//! The relays of one process: its name, its workers, and the way to wake and to quiet them.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::ArbiterHandle;
use tokio::sync::oneshot;

use super::{NodeLease, NodeParts, OutboxRelay, RelayParts};
use crate::actors::child::{Address, Living};
use crate::actors::drill::Drill;
use crate::actors::supervisor::{ChildSpec, Supervisor};
use crate::lease::Lease;
use crate::messages::Quiet;

/// Room for `Quiet` and `Stop`.
const MAILBOX: usize = 16;

/// The relays of one process.
#[derive(Debug)]
pub struct RelayCrew {
    lease: Address<NodeLease>,
    workers: Vec<Address<OutboxRelay>>,
}

impl RelayCrew {
    /// Starts them; `drill` tells how often each kind panics on purpose.
    pub fn start(
        parts: &RelayParts,
        lease: Arc<dyn Lease>,
        supervisor: &Supervisor,
        arbiter: &ArbiterHandle,
        drill: impl Fn(&str) -> Drill,
    ) -> Self {
        let node = NodeParts {
            lease,
            node: Arc::clone(&parts.node),
            ttl: Duration::from_millis(parts.settings.lease_ttl_ms),
            clock: Arc::clone(&parts.clock),
        };
        let lease = supervisor.start(ChildSpec {
            name: "node_lease".to_owned(),
            kind: "node_lease",
            arbiter: arbiter.clone(),
            mailbox: MAILBOX,
            drill: drill("node_lease"),
            factory: Arc::new(move |life| NodeLease::new(life, node.clone())),
        });
        let start = |place| {
            let parts = parts.clone();
            supervisor.start(ChildSpec {
                name: format!("outbox_relay/{place}"),
                kind: "outbox_relay",
                arbiter: arbiter.clone(),
                mailbox: MAILBOX,
                drill: drill("outbox_relay"),
                factory: Arc::new(move |life| OutboxRelay::new(life, parts.clone(), place)),
            })
        };
        Self { lease, workers: (0..parts.settings.workers).map(start).collect() }
    }

    /// Lets every worker finish its round and give back its hand, then gives up the node's lease,
    /// so that nothing of this process is left behind. The caller has a deadline.
    pub async fn quiet(&self) {
        // All are told before the first is waited for.
        let told: Vec<_> = self.workers.iter().filter_map(tell).collect();
        for done in told {
            // A worker that dies now leaves its hand to a rescuer.
            drop(done.await);
        }
        if let Some(done) = tell(&self.lease) {
            drop(done.await);
        }
    }
}

fn tell<A>(address: &Address<A>) -> Option<oneshot::Receiver<()>>
where
    A: Living + actix::Handler<Quiet>,
{
    let actor = address.get()?;
    let (done, idle) = oneshot::channel();
    actor.try_send(Quiet { done }).ok().map(|()| idle)
}
