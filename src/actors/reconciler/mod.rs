//! Flow step 11/12: stock, ledger -> ledger, stock.
//!
//! Compares the requests that buckets call `queued` with the ledger and repairs differences: writes
//! missing results to the bucket, and submits lost requests to the ledger (`bucket_walk` defines
//! when a request is lost), even if their sale is closed. A request that was queued for longer than
//! its SKU allows is ended, wherever it is.
//!
//! A lease selects one process of the installation. Limits: pages and lookups of one pass, after
//! which the next pass resumes. On error: the bucket is skipped and counted as blocked, the other
//! buckets are reconciled; a request that the ledger does not write stays queued and is submitted
//! again. On crash: the next reconciler starts from the beginning, here or in another process. May
//! repeat: everything; of two reconcilers at once, and of a message that arrives late, the ledger
//! makes one order for each request id.

use std::cell::Cell;
use std::sync::Arc;

use super::periodic::{BucketRotation, RunResult, Task};
use crate::config::Settings;
use crate::domain::named::named_enum;
use crate::lease::TaskLease;
use crate::observe::metrics::{Metrics, ReasonLabel};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::services::request_ending::RequestService;
use crate::tier::{Backends, Pipeline};

mod bucket_walk;
mod pass;

use pass::Pass;

/// Repairs differences between Redis and ledger.
pub struct Reconciler {
    pub backends: Backends,
    pub pipeline: Pipeline,
    pub catalog: Arc<Catalog>,
    pub requests: RequestService,
    pub lease: TaskLease,
    pub settings: Arc<Settings>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl Reconciler {
    /// Requests queued for less than this time are not reconciled, milliseconds.
    fn after_ms(&self) -> i64 {
        i64::try_from(self.settings.reconciler.after_ms).unwrap_or(i64::MAX)
    }
}

/// The progress of one incarnation.
#[derive(Default)]
pub struct ReconcilerState {
    rotation: BucketRotation,
    pass: Cell<Pass>,
}

impl Task for Reconciler {
    type State = ReconcilerState;

    const FAILURE: &'static str = "reconciler lease not available, retrying";

    /// Makes a pass over the buckets, if this process has the lease.
    async fn run(&self, state: &ReconcilerState) -> RunResult {
        let buckets = state.rotation.next(&self.catalog, self.clock.wall_ms());
        let mut pass = state.pass.take();
        let held = self.lease.acquire().await;
        match held {
            Ok(true) => pass.run(self, &buckets).await,
            // Another process reconciles, or may do so: the progress of this one is outdated then.
            _ => pass.forget_progress(self).await,
        }
        for reason in Blocked::ALL {
            let num_buckets = pass.blocked().filter(|blocked| *blocked == reason).count();
            let label = ReasonLabel { reason: reason.name() };
            let gauge = self.metrics.reconcile_blocked.get_or_create(&label);
            gauge.set(i64::try_from(num_buckets).unwrap_or(i64::MAX));
        }
        state.pass.set(pass);
        held?;
        Ok(())
    }

    async fn release(&self) {
        self.lease.release().await;
    }
}

named_enum! {
    /// Why a bucket cannot be reconciled completely: the label of the metric and of the log.
    Blocked {
        /// Its order queue has no running consumer.
        NoConsumer => "no_consumer",
        /// The consumers of its order queue are far behind, or a delivery is unacknowledged for
        /// long.
        ConsumersBehind => "consumers_behind",
        /// The watermark of its order queue cannot be read.
        Watermark => "watermark",
        /// Its outbox cannot be read.
        Outbox => "outbox",
        /// A page of its records cannot be read completely.
        Records => "records",
        /// The ledger does not answer.
        Ledger => "ledger",
        /// Results cannot be written to the bucket.
        Results => "results",
        /// The ledger rejects the order of a lost request, or its sale contradicts it.
        Order => "order",
    }
}
