//! Starts the actors around payments: deadlines, late money, refunds, and events from the broker.

use std::sync::Arc;

use super::payment_consumer::PaymentConsumer;
use super::payment_timer::repurchase::{GateRepurchase, NextRequest};
use super::payment_timer::{
    ClockWatcher, HintConsumer, HintPublisher, PaymentInquirer, PaymentTimer, RefundWorker,
    Retaker, TimerDeps,
};
use super::system::ActorSystem;
use crate::config::PaymentBackend;
use crate::payment::Payments;
use crate::services::order_life::{OrderService, OrdersChanged};
use crate::tier::Pipeline;

/// Interval between reads of a queue; a read waits for the first message.
const QUEUE_EVERY_MS: u64 = 200;

impl ActorSystem {
    /// Starts the actors that end unpaid orders and pay money back, in processes that maintain; in
    /// others the one that watches the clock.
    pub fn start_payment_timer(&self, orders: &OrderService) {
        let (engine, every_ms) = (&self.engine, self.settings.payment.every_ms);
        let time = Arc::clone(&self.time);
        if !self.settings.role.maintains() {
            self.start_periodic("clock_watcher", engine, every_ms, ClockWatcher(time));
            return;
        }
        let deps = Arc::new(TimerDeps {
            orders: orders.for_tasks(),
            ledger: Arc::clone(&self.backends.ledger),
            settings: self.settings.payment.clone(),
            time,
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
        });
        self.start_periodic("payment_timer", engine, every_ms, PaymentTimer(Arc::clone(&deps)));
        let inquirer = PaymentInquirer(Arc::clone(&deps));
        self.start_periodic("payment_inquirer", engine, every_ms, inquirer);
        if self.settings.payment.provider != PaymentBackend::None {
            let refunds = RefundWorker(Arc::clone(&deps));
            self.start_periodic("refund_worker", engine, every_ms, refunds);
        }
        if let Some(pipeline) = &self.backends.pipeline {
            self.start_hints(pipeline, deps);
        }
    }

    /// Starts the actors of the delay queues, if there are any.
    fn start_hints(&self, pipeline: &Pipeline, deps: Arc<TimerDeps>) {
        let windows_s = self.settings.payment.delay_windows_s();
        if windows_s.is_empty() {
            return;
        }
        let publisher = |lease| HintPublisher {
            ledger: Arc::clone(&self.backends.ledger),
            publisher: Arc::clone(&pipeline.publisher),
            lease,
            windows_s,
            window: self.settings.relay.confirm_window,
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
        };
        let every_ms = self.settings.maintenance.every_ms;
        self.start_leased("hint_publisher", &self.engine, every_ms, publisher);
        let consumer = HintConsumer { deps, subscriber: Arc::clone(&pipeline.subscriber) };
        self.start_periodic("hint_consumer", &self.engine, QUEUE_EVERY_MS, consumer);
    }

    /// Starts the actor that consumes payment events from their queue, in processes that write
    /// orders.
    pub fn start_payment_consumer(&self, orders: &OrderService, payments: Option<&Payments>) {
        let (Some(pipeline), Some(payments)) = (&self.backends.pipeline, payments) else { return };
        if !self.settings.payment.queue || !self.settings.role.consumes() {
            return;
        }
        let consumer = PaymentConsumer {
            subscriber: Arc::clone(&pipeline.subscriber),
            publisher: Arc::clone(&pipeline.publisher),
            webhooks: Arc::clone(&payments.webhooks),
            orders: orders.clone(),
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
        };
        self.start_periodic("payment_consumer", &self.engine, QUEUE_EVERY_MS, consumer);
    }

    /// Starts the actor that buys again with late money, in processes that sell or maintain and
    /// have a payment provider.
    pub fn start_retaker(&self, next: NextRequest, changed: OrdersChanged) {
        let (role, settings) = (self.settings.role, &self.settings.payment);
        let takes_part = role.sells() || role.maintains();
        if !takes_part || settings.provider == PaymentBackend::None {
            return;
        }
        let shop = GateRepurchase {
            gates: self.gates(),
            catalog: Arc::clone(&self.catalog),
            stock: Arc::clone(&self.backends.stock),
            next,
            clock: Arc::clone(&self.clock),
        };
        let retaker = Retaker {
            ledger: Arc::clone(&self.backends.ledger),
            shop: Arc::new(shop),
            settings: settings.clone(),
            changed,
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
        };
        self.start_periodic("retaker", &self.engine, settings.every_ms, retaker);
    }
}
