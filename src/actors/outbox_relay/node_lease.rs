//! Holds the lease of this process's relays, so that nobody takes their entries while they work.
//!
//! Ticks on a timer. Renews after a third of the time. A lease that ended is never taken up again:
//! somebody may have given the hands back since, so the node goes on under a new name, and its
//! workers begin anew. On error: the lease lasts until its end, and is asked for again. On death:
//! the next one goes on with the same name, if it is still held.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use super::node::{Node, Tenure, lease_of};
use crate::actors::child::{ExitReason, Life, Living, end, spawn_step, step};
use crate::clock::SharedClock;
use crate::lease::{self, Hold, Lease};
use crate::messages::{Quiet, Stop, reply};

/// What holds a node's name.
#[derive(Clone)]
pub struct NodeParts {
    /// Where leases are held.
    pub lease: Arc<dyn Lease>,
    /// Who is told.
    pub node: Arc<Node>,
    /// The lease ends so long after it was renewed last.
    pub ttl: Duration,
    /// The time of leases.
    pub clock: SharedClock,
}

/// Holds a node's name.
pub struct NodeLease {
    life: Life,
    parts: NodeParts,
    asking: bool,
    is_quiet: bool,
    /// The last error, until the lease is held; for one log line at each change.
    trouble: Option<String>,
}

impl NodeLease {
    /// A holder that has not asked yet.
    #[must_use]
    pub fn new(life: Life, parts: NodeParts) -> Self {
        Self { life, parts, asking: false, is_quiet: false, trouble: None }
    }

    fn ask(&mut self, ctx: &mut Context<Self>) {
        if self.asking || self.is_quiet {
            return;
        }
        self.asking = true;
        let NodeParts { lease, ttl, .. } = self.parts.clone();
        let name = self.kept().unwrap_or_else(fresh_name);
        let work = async move {
            let held = lease.hold(&lease_of(&name), &name, ttl).await;
            (name, held)
        };
        spawn_step(self, ctx, work, |holder, ctx, (name, held)| {
            holder.asking = false;
            holder.told(&name, held);
            let is_ours = holder.parts.node.name(holder.parts.clock.now()).is_some();
            let wait = holder.parts.ttl / if is_ours { 3 } else { 30 };
            ctx.run_later(wait, |holder, ctx| step(holder, ctx, Self::ask));
        });
    }

    /// The name that this node has, unless it lost it.
    fn kept(&self) -> Option<Arc<str>> {
        let (node, now) = (&self.parts.node, self.parts.clock.now());
        let kept = node.name(now);
        if let Some(lost) = node.tenure().filter(|_| kept.is_none()) {
            tracing::warn!(
                node = &*lost.name,
                "the lease ended before it was renewed: the hands of this node are others' now"
            );
            node.tell(None);
        }
        kept
    }

    fn told(&mut self, name: &Arc<str>, held: Result<Hold, lease::Error>) {
        let NodeParts { node, clock, .. } = &self.parts;
        if self.is_quiet {
            // The name was given up; an answer that comes late does not bring it back.
            return;
        }
        match held {
            Ok(Hold::Held { until }) => {
                if self.trouble.take().is_some() || node.tenure().is_none() {
                    tracing::info!(node = &**name, "relays work under this name");
                }
                // An answer that came late is no lease: the next question finds it ended.
                node.tell(Some(Tenure { name: Arc::clone(name), until }));
            }
            Ok(Hold::Taken { by }) => {
                tracing::warn!(node = &**name, by, "this node was taken for dead");
                node.tell(None);
            }
            Err(error) => {
                let said = error.to_string();
                if self.trouble.as_ref() != Some(&said) {
                    let is_held = node.name(clock.now()).is_some();
                    tracing::warn!(said, is_held, "the relays' lease is not renewed");
                    self.trouble = Some(said);
                }
            }
        }
    }
}

/// No two starts of a process share a name.
fn fresh_name() -> Arc<str> {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into()
}

impl Living for NodeLease {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for NodeLease {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, Self::ask);
    }
}

impl Handler<Quiet> for NodeLease {
    type Result = ();

    /// Gives the name up; to be told after the workers are quiet.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |holder, ctx| {
            holder.is_quiet = true;
            let NodeParts { lease, node, .. } = holder.parts.clone();
            let tenure = node.tenure();
            node.tell(None);
            let work = async move {
                let Some(Tenure { name, .. }) = tenure else { return Ok(()) };
                lease.release(&lease_of(&name), &name).await
            };
            spawn_step(holder, ctx, work, |_, _, released| {
                if let Err(error) = released {
                    tracing::warn!(error = &error as &dyn std::error::Error, "it ends by itself");
                }
                reply(quiet.done, ());
            });
        });
    }
}

impl Handler<Stop> for NodeLease {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
