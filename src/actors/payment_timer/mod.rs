//! Flow step 9/12: ledger -> stock returner.
//!
//! Ends the orders that were not paid by their deadline: their units return to the stock.
//!
//! Each pass reads the due orders and ends them in batches; at once again while a batch was full.
//! [`inquirer`] stops the payments of due orders that are `paying`, [`retaker`] buys again with
//! late money, [`refunds`] pays back money of ended orders. All run in every process that
//! maintains; two at once end each order once, because the ledger compares versions. Limits: orders
//! per batch. On error and on crash: the orders are still due, and the next pass ends them. May
//! repeat: everything.
//!
//! Where the broker has delay queues, [`hint_publisher`] and [`hint_consumer`] let it start a pass
//! when a payment window ends, and the timer's own passes skip orders that became due in the last
//! 2 s.
//!
//! Nothing ends while the clock is not trusted ([`TrustedTime`]). [`ClockWatcher`] reports that
//! where no orders end.

use std::sync::Arc;

use super::periodic::{RunResult, Task};
use crate::config::PaymentSettings;
use crate::db::{self, Ledger};
use crate::domain::{Order, OrderState};
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::runtime::clock_guard::SteadyTime;
use crate::services::order_life::OrderService;
use crate::services::trusted_time::TrustedTime;

mod doubts;
pub mod hint_consumer;
pub mod hint_publisher;
pub mod inquirer;
pub mod refunds;
pub mod repurchase;
pub mod retaker;

pub use hint_consumer::HintConsumer;
pub use hint_publisher::HintPublisher;
pub use inquirer::PaymentInquirer;
pub use refunds::RefundWorker;
pub use retaker::Retaker;

/// Time from the deadline of an order in which a hint of it is expected.
const HINT_LAG_MS: i64 = 2_000;

/// Most batches of orders or refunds that a run reads again because it could not do them.
const BATCHES_LEFT_MAX: u32 = 10;

/// What the tasks of this folder share.
pub struct TimerDeps {
    pub orders: OrderService,
    pub ledger: Arc<dyn Ledger>,
    pub settings: PaymentSettings,
    pub time: Arc<TrustedTime>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl TimerDeps {
    /// Calls of one task to the provider at once: as many as all tasks together may make.
    fn calls_at_once(&self) -> usize {
        (self.settings.calls_max / 2).max(1)
    }
}

/// Whether the deadline of the order has passed. A step of the clock after the order was placed
/// does not count as time to pay.
fn is_due(order: &Order, now: &SteadyTime) -> bool {
    order.due_ms.is_some_and(|due_ms| due_ms <= now.since(order.placed_at_ms))
}

/// Only compares the clock with the ledger's: gates and consumers give orders their times.
pub struct ClockWatcher(pub Arc<TrustedTime>);

impl Task for ClockWatcher {
    type State = ();

    const FAILURE: &'static str = "clock not compared with the ledger's, retrying";

    async fn run(&self, (): &()) -> RunResult {
        self.0.now().await?;
        Ok(())
    }
}

/// Ends unpaid orders.
pub struct PaymentTimer(pub Arc<TimerDeps>);

impl Task for PaymentTimer {
    type State = ();

    const FAILURE: &'static str = "unpaid orders not ended, retrying";

    async fn run(&self, (): &()) -> RunResult {
        // Due orders are left to the hints of the broker for a moment.
        let has_hints = !self.0.settings.delay_queues_s.is_empty();
        end_due_orders(&self.0, if has_hints { HINT_LAG_MS } else { 0 }, &mut 0).await?;
        Ok(())
    }
}

/// One pass: ends the unpaid orders that have been due for `lag_ms`. Adds their number to `total`,
/// also before an error.
async fn end_due_orders(deps: &TimerDeps, lag_ms: i64, total: &mut u64) -> Result<(), db::Error> {
    let batch = deps.settings.batch;
    // Orders that cannot be ended, or not yet, are the oldest again and hide no others.
    let mut num_left = 0;
    while let Some(now) = deps.time.now().await? {
        let limit = batch.saturating_add(num_left);
        let until_ms = now.wall_ms() - lag_ms;
        let due = deps.ledger.due_orders(OrderState::PendingPayment, until_ms, limit).await?;
        let is_full = due.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let orders = due.iter().map(|due| &due.order).filter(|order| is_due(order, &now));
        let num_ended = deps.orders.end_due(orders.map(Order::key).collect()).await?;
        deps.metrics.orders_timed_out.inc_by(num_ended as u64);
        *total += num_ended as u64;
        let left = u32::try_from(due.len().saturating_sub(num_ended)).unwrap_or(u32::MAX);
        let left = left.min(batch.saturating_mul(BATCHES_LEFT_MAX));
        if !is_full || (num_ended == 0 && left <= num_left) {
            break;
        }
        num_left = left;
    }
    Ok(())
}
