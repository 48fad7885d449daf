//! Flow step 9/12: ledger -> ledger writer's rows -> stock returner.
//!
//! Ends the orders that were not paid by their deadline: their units return to the stock.
//!
//! Each pass reads the due orders and ends them in batches; at once again while a batch was full.
//! [`inquirer`] stops the payments of due orders that are `paying`, [`refunds`] pays back money of
//! ended orders. All run in every process that maintains; two at once end each order once, because
//! the ledger compares versions. Limits: orders per batch. On error and on crash: the orders are
//! still due, and the next pass ends them. May repeat: everything.
//!
//! Nothing ends while the clock is not trusted ([`TrustedTime`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::periodic::Task;
use crate::config::PaymentSettings;
use crate::db::{self, Ledger};
use crate::domain::OrderState;
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::runtime::clock_guard::ClockGuard;
use crate::services::orders::OrderService;

pub mod inquirer;
pub mod refunds;

pub use inquirer::PaymentInquirer;
pub use refunds::RefundWorker;

/// What the tasks of this folder share.
pub struct TimerDeps {
    pub orders: OrderService,
    pub ledger: Arc<dyn Ledger>,
    pub settings: PaymentSettings,
    pub time: TrustedTime,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl TimerDeps {
    #[must_use]
    pub fn new(
        orders: OrderService,
        ledger: Arc<dyn Ledger>,
        settings: &PaymentSettings,
        clock: SharedClock,
        metrics: Arc<Metrics>,
    ) -> Self {
        let guard = ClockGuard::new(Arc::clone(&clock), settings.clock_skew_max_ms);
        let is_trusted = AtomicBool::new(true);
        let time = TrustedTime { guard, is_trusted };
        Self { orders, ledger, settings: settings.clone(), time, clock, metrics }
    }

    /// The time, epoch milliseconds; `None` while the clock is not trusted.
    pub(super) async fn now_ms(&self) -> Result<Option<i64>, db::Error> {
        let asked = self.time.guard.read();
        let checked = self.time.guard.check(asked, self.ledger.time_ms().await?);
        let was_trusted = self.time.is_trusted.swap(checked.is_ok(), Ordering::SeqCst);
        self.metrics.clock_not_trusted.set(i64::from(checked.is_err()));
        match checked {
            Err(fault) if was_trusted => {
                tracing::warn!(%fault, "payment timer: no order ends until the clock is right");
            }
            Ok(()) if !was_trusted => {
                tracing::warn!("payment timer: the clock is right again");
            }
            _ => {}
        }
        Ok(checked.is_ok().then(|| self.clock.wall_ms()))
    }
}

/// The clock, compared with the ledger's. Outlives the incarnations of the actors: a clock that
/// stepped is not trusted because an actor crashed.
pub struct TrustedTime {
    guard: ClockGuard,
    is_trusted: AtomicBool,
}

/// Ends unpaid orders.
pub struct PaymentTimer(pub Arc<TimerDeps>);

impl Task for PaymentTimer {
    type State = ();
    type Error = db::Error;

    const FAILURE: &'static str = "unpaid orders not ended, retrying";

    async fn run(&self, (): &()) -> Result<(), db::Error> {
        let deps = &self.0;
        while let Some(now_ms) = deps.now_ms().await? {
            let batch = deps.settings.batch;
            let due = deps.ledger.due_orders(OrderState::PendingPayment, now_ms, batch).await?;
            let is_full = due.len() >= usize::try_from(batch).unwrap_or(usize::MAX);
            let num_ended =
                deps.orders.end_due(due.iter().map(|due| due.order.key()).collect()).await?;
            deps.metrics.orders_timed_out.inc_by(num_ended as u64);
            if !is_full || num_ended == 0 {
                break;
            }
        }
        Ok(())
    }
}
