//! Buys again with the price of timed-out orders that arrived late ([`crate::domain::retake`]).
//!
//! Each pass asks the gate for each purchase, which is always the same request, and ends those that
//! are decided: placed, refused, or not accepted within `payment.retake_within_s`. A purchase that
//! was accepted and waits for the ledger is waited for. Runs in every process that sells or
//! maintains; two at once buy the same request, and the ledger ends each once. Limits: purchases
//! per pass, and at once. On error and on crash: the money still waits, and the next pass repeats
//! the purchase. May repeat: everything.

use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::BATCHES_LEFT_MAX;
use crate::actors::periodic::{RunResult, Task};
use crate::config::{LatePayment, PaymentSettings};
use crate::db::{self, Ledger};
use crate::domain::{DueRetake, Order, RequestId, RetakeEnd, RetakeOutcome};
use crate::observe::metrics::{Metrics, OutcomeLabel};
use crate::runtime::clock::SharedClock;
use crate::services::order_life::OrdersChanged;

/// Most purchases at once.
const AT_ONCE: usize = 16;

/// The gate's answer to a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purchase {
    /// In the ledger.
    Placed,
    /// For good.
    Refused(String),
    /// The ledger has not decided.
    Queued,
    /// Nothing was accepted: it may be later.
    NotAccepted,
}

/// Buys the units of a timed-out order again.
#[async_trait]
pub trait Repurchase: Send + Sync {
    /// The request that buys an order's units again; `None` until its sale is known here.
    fn successor(&self, order: &Order) -> Option<RequestId>;

    /// Buys the order's units with this request; repeat-safe.
    async fn buy(&self, order: &Order, successor: RequestId) -> Purchase;
}

/// Buys again with late money.
pub struct Retaker {
    pub ledger: Arc<dyn Ledger>,
    pub shop: Arc<dyn Repurchase>,
    pub settings: PaymentSettings,
    pub changed: OrdersChanged,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl Task for Retaker {
    /// Purchases of the last pass that were not decided.
    type State = Cell<u32>;

    const FAILURE: &'static str = "late money not decided, retrying";

    async fn run(&self, undecided: &Cell<u32>) -> RunResult {
        let batch = self.settings.batch;
        // Those that are not decided, the oldest, hide no others.
        let num_before = undecided.get().min(batch.saturating_mul(BATCHES_LEFT_MAX));
        let due = self.ledger.due_retakes(batch.saturating_add(num_before)).await?;
        let mut num_waiting = 0;
        for chunk in due.chunks(AT_ONCE) {
            let retakes = join_all(chunk.iter().map(|due| self.retake(due))).await;
            for (due, decided) in chunk.iter().zip(retakes) {
                let is_decided = match decided {
                    // One that the ledger refuses delays no others.
                    Err(error) if error.class() == db::ErrorClass::Bug => {
                        tracing::error!(payment = %due.key, %error, "late money: not decided");
                        false
                    }
                    decided => decided?,
                };
                num_waiting += u32::from(!is_decided);
            }
        }
        undecided.set(num_waiting);
        self.metrics.retakes_waiting.set(num_waiting.into());
        Ok(())
    }
}

impl Retaker {
    /// Takes the next step of one purchase; returns whether it is decided.
    async fn retake(&self, due: &DueRetake) -> Result<bool, db::Error> {
        if self.settings.late_payment == LatePayment::Refund {
            let refunds = RetakeEnd::Refused("payment.late_payment is refund".to_owned());
            return self.end(due, refunds).await.map(|()| true);
        }
        let purchase = match self.shop.successor(&due.order) {
            Some(successor) => {
                self.ledger.exempt_retake(due.order.key(), successor).await?;
                (self.shop.buy(&due.order, successor).await, Some(successor))
            }
            None => (Purchase::NotAccepted, None),
        };
        let end = match purchase {
            // Crash here [retake_placed_not_paid]: the successor is an unpaid order; the next pass
            // buys it again, reads that it is placed, and pays it.
            (Purchase::Placed, Some(successor)) => RetakeEnd::Placed(successor),
            (Purchase::Refused(reason), _) => RetakeEnd::Refused(reason),
            (Purchase::NotAccepted, _) if self.is_over(due) => {
                RetakeEnd::Refused("no gate decided in payment.retake_within_s".to_owned())
            }
            _ => return Ok(false),
        };
        self.end(due, end).await.map(|()| true)
    }

    fn is_over(&self, due: &DueRetake) -> bool {
        let within_ms = i64::from(self.settings.retake_within_s) * 1_000;
        due.received_ms.saturating_add(within_ms) <= self.clock.wall_ms()
    }

    async fn end(&self, due: &DueRetake, end: RetakeEnd) -> Result<(), db::Error> {
        let request = due.order.request;
        let outcome = match self.ledger.end_retake(due.key, end.clone()).await? {
            RetakeOutcome::Applied(successor) => {
                let paid = successor.request;
                tracing::info!(%request, %paid, "late payment: bought again");
                "retaken"
            }
            RetakeOutcome::Owed => {
                tracing::info!(%request, ?end, "late payment: to be paid back");
                "refund_due"
            }
            RetakeOutcome::Known => return Ok(()),
        };
        self.metrics.late_payments.get_or_create(&OutcomeLabel { outcome }).inc();
        (self.changed)();
        Ok(())
    }
}
