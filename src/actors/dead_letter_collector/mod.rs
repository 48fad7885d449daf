//! Flow step 10/12: outbox, broker -> ledger.
//!
//! Stores dead letters in the ledger, where operators find them: those of the broker's queue, and
//! the dead letters of the outboxes. They are acknowledged or removed only after COMMIT.
//!
//! Owns: nothing; every dead letter stays at its source until it is stored. Limits:
//! `maintenance.dead_letters_max` unacknowledged dead letters of each source, a mebibyte each. On
//! error: while the ledger is unavailable, all are held and retried; a dead letter that the ledger
//! rejects is set aside, unacknowledged, and the others are stored. On crash: unacknowledged dead
//! letters are redelivered, and recognized by their digest. May repeat: every dead letter.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Context};

use self::queue_source::QueueSource;
use self::source_collector::{DeadLetterSource, SourceCollector};
use crate::actors::periodic::{RunResult, Task};
use crate::actors::supervisor::supervised::{Incarnation, spawn_step, step_later, supervised};
use crate::config::Settings;
use crate::db::Ledger;
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::tier::Pipeline;

mod queue_source;
mod source_collector;

/// Rounds of the collector per count: the query reads all rows.
pub(super) const ROUNDS_PER_COUNT: u64 = 10;

/// Dependencies of the collector; shared by all its incarnations.
pub struct CollectorDeps {
    pub ledger: Arc<dyn Ledger>,
    /// The sources of dead letters.
    pub pipeline: Pipeline,
    /// The sales whose outboxes are read.
    pub catalog: Arc<Catalog>,
    pub settings: Arc<Settings>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl CollectorDeps {
    /// Interval between reads of the outboxes, and longest wait for a delivery.
    fn every(&self) -> Duration {
        Duration::from_millis(self.settings.maintenance.rescue_every_ms.max(1))
    }

    fn backoff(&self) -> Backoff {
        let amqp = &self.settings.amqp;
        Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms)
    }

    /// Most unacknowledged dead letters of one source.
    fn dead_letters_max(&self) -> u16 {
        self.settings.maintenance.dead_letters_max
    }

    /// Number of dead letters of one source that may be added to `pending` others.
    fn capacity(&self, num_pending: usize) -> usize {
        usize::from(self.dead_letters_max()).saturating_sub(num_pending)
    }
}

/// Stores dead letters. Each source is collected by itself, so that neither waits for the other.
pub struct DeadLetterCollector {
    incarnation: Incarnation,
    deps: Arc<CollectorDeps>,
}

impl DeadLetterCollector {
    pub fn new(incarnation: Incarnation, deps: Arc<CollectorDeps>) -> Self {
        Self { incarnation, deps }
    }

    /// Collects from one source, one round after the other.
    fn collect<S: DeadLetterSource>(
        &mut self,
        ctx: &mut Context<Self>,
        mut source: SourceCollector<S>,
    ) {
        let work = async move {
            let pause = source.round().await;
            (source, pause)
        };
        spawn_step(self, ctx, work, |collector, ctx, (source, pause)| {
            if pause.is_zero() {
                return collector.collect(ctx, source);
            }
            step_later(ctx, pause, |collector: &mut Self, ctx| collector.collect(ctx, source));
        });
    }
}

supervised!(DeadLetterCollector);

impl Actor for DeadLetterCollector {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let queue = QueueSource::new(Arc::clone(&self.deps));
        self.collect(ctx, SourceCollector::new(queue, Arc::clone(&self.deps)));
    }
}

/// Sets the gauges of dead letters, in every tier: a webhook that cannot be read is one, too.
pub struct DeadLetterCounter {
    pub ledger: Arc<dyn Ledger>,
    pub metrics: Arc<Metrics>,
}

impl Task for DeadLetterCounter {
    type State = ();

    const FAILURE: &'static str = "dead letters not counted, retrying";

    async fn run(&self, (): &()) -> RunResult {
        self.metrics.dead_letters(self.ledger.count_dead_letters().await?);
        Ok(())
    }
}
