//! Flow step 7/12: broker -> order consumer.
//!
//! One consumer per order queue of a process. Its worker (`worker.rs`) reads the queue and
//! validates what it reads (`deliveries`). Each submission to the ledger writer is a task that ends
//! with its outcome (`submission`). Up to the prefetch, many are in progress at once; the ledger
//! writer gathers them into transactions.
//!
//! A delivery is acknowledged (`ack_window`) when each of its intents is an order or a recorded
//! refusal in the ledger, or a confirmed dead letter. The ledger writer writes the results to the
//! stock; the consumer does not wait for them.
//!
//! Owns: unacknowledged deliveries. Limits: `consumer.prefetch` unacknowledged deliveries, and the
//! permits of the ledger writer. On error: while the ledger fails, deliveries stay unacknowledged
//! and are retried one submission at a time, so that the prefetch stops the broker; an order that
//! fails by itself becomes a dead letter after `consumer.attempts_max` counted failures
//! (`evidence`). On crash: the broker redelivers what was not acknowledged. May repeat: every
//! delivery; the ledger answers `Repeat`, which is a success.

use std::sync::Arc;

use actix::{Actor, Context, Handler};
use futures_util::future::BoxFuture;

use crate::actors::ledger_writer::LedgerWriterHandle;
use crate::actors::supervisor::supervised::{Incarnation, spawn_wait, step, supervised};
use crate::broker::{Publisher, Subscriber};
use crate::config::ConsumerSettings;
use crate::db::Ledger;
use crate::messages::Quiet;
use crate::messages::envelope::EnvelopeReader;
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::watermark::Watermarks;

mod ack_window;
mod dead_letter_publisher;
mod deliveries;
mod evidence;
mod submission;
mod worker;

pub use deliveries::validate;
use worker::ConsumerWorker;

/// Brings the catalog up to date with the ledger. The error is a text for operators.
pub type CatalogSync = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Dependencies of an order consumer; shared by all its incarnations.
#[derive(Clone)]
pub struct ConsumerDeps {
    /// Number of the order queue.
    pub queue: u16,
    pub subscriber: Arc<dyn Subscriber>,
    /// Publishes dead letters.
    pub publisher: Arc<dyn Publisher>,
    pub ledger_writer: LedgerWriterHandle,
    pub catalog: Arc<Catalog>,
    /// Called when the catalog lacks a SKU or an epoch.
    pub refresh: CatalogSync,
    /// Commits the canary when no order shows whether the ledger commits.
    pub ledger: Arc<dyn Ledger>,
    /// Tells whether the ledger fails, and how often it has committed.
    pub breaker: Breaker,
    /// Receives the watermark of this consumer.
    pub watermarks: Arc<dyn Watermarks>,
    pub reader: EnvelopeReader,
    pub settings: ConsumerSettings,
    /// Most dead letters that are published and not confirmed.
    pub confirm_window: usize,
    /// Waits before a retry at the broker.
    pub reconnect: Backoff,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl ConsumerDeps {
    /// Waits before a retry at ledger or catalog.
    fn retry_backoff(&self) -> Backoff {
        Backoff::new(self.settings.retry_backoff_min_ms, self.settings.retry_backoff_max_ms)
    }
}

/// The actor that runs the rounds of one worker.
pub struct OrderConsumer {
    incarnation: Incarnation,
    deps: Arc<ConsumerDeps>,
    /// Whether the worker is quiet and has finished its work in flight; final.
    has_ended: bool,
}

impl OrderConsumer {
    /// A consumer without a subscription; subscribes when started.
    pub fn new(incarnation: Incarnation, deps: ConsumerDeps) -> Self {
        Self { incarnation, deps: Arc::new(deps), has_ended: false }
    }

    /// Starts the next round. A round waits for tasks, and is never a stall; a call of a task may
    /// be.
    fn start_round(&mut self, ctx: &mut Context<Self>, mut worker: Box<ConsumerWorker>) {
        let work = async move {
            worker.round().await;
            // Its drop closes the subscription, which returns the other deliveries to the queue.
            (!worker.has_ended()).then_some(worker)
        };
        spawn_wait(self, ctx, work, |consumer, ctx, worker| {
            if let Some(worker) = worker {
                consumer.start_round(ctx, worker);
            } else {
                consumer.has_ended = true;
                consumer.incarnation.report_quiet();
            }
        });
    }
}

supervised!(OrderConsumer);

impl Actor for OrderConsumer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, ctx| {
            let (deps, supervision) =
                (Arc::clone(&consumer.deps), consumer.incarnation.supervision());
            let worker = ConsumerWorker::new(deps, supervision);
            consumer.start_round(ctx, Box::new(worker));
        });
    }
}

impl Handler<Quiet> for OrderConsumer {
    type Result = ();

    /// Finishes the submissions inside the ledger writer, and replies.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, _| {
            consumer.incarnation.quiet(quiet);
            if consumer.has_ended {
                consumer.incarnation.report_quiet();
            }
        });
    }
}
