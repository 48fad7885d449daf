//! Payment, cancellation and time-out of orders: what is committed before which call to the
//! provider.
//!
//! A payment: the attempt is committed, the provider is called, its answer is stored. A
//! cancellation of an order that is being paid: the provider stops the payment, its answer is
//! recorded, the order is cancelled. On crash between two steps the order keeps its units, and the
//! repeat of the call continues: the provider knows the attempt, and a recorded answer changes
//! nothing.

use std::sync::Arc;

use crate::config::PaymentSettings;
use crate::db::{self, Ledger};
use crate::domain::{
    CancelOutcome, DueRefund, OpenPayment, Order, OrderKey, OrderState, Payment, PaymentEvent,
    PaymentOutcome, PaymentRecorded, PaymentReport, PaymentTerms, StartedPayment,
};
use crate::payment::{
    FindAnswer, PaymentProvider, PaymentStart, Payments, Refund, RefundAnswer, StartAnswer,
    StopAnswer,
};

/// Most payments of one order that one cancellation stops: the buyer may open others meanwhile.
const STOPS_MAX: u32 = 4;

/// Why a payment or a cancellation did nothing more. A repeat continues what did not finish.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The buyer has no such order.
    #[error("no such order")]
    Unknown,
    /// The order is paid or has ended.
    #[error("the order is {}", .0.state.name())]
    Decided(Order),
    /// No provider, or it does not take the payment.
    #[error("{0}")]
    Refused(String),
    /// The provider did not answer: a repeat continues.
    #[error("the payment provider did not answer")]
    ProviderAway,
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
}

/// A payment that the buyer can make now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayablePayment {
    pub order: Order,
    pub started: StartedPayment,
}

/// Tells the component that brings changes of orders to the buckets that there is one. It also
/// polls: a lost call only delays.
pub type OrdersChanged = Arc<dyn Fn() + Send + Sync>;

/// Payment and cancellation of orders. Cheap to clone.
#[derive(Clone)]
pub struct OrderService {
    ledger: Arc<dyn Ledger>,
    provider: Option<Arc<dyn PaymentProvider>>,
    provider_of_tasks: Option<Arc<dyn PaymentProvider>>,
    paying_window_ms: i64,
    extension_max_ms: i64,
    changed: OrdersChanged,
}

impl OrderService {
    pub fn new(
        ledger: Arc<dyn Ledger>,
        payments: Option<Payments>,
        settings: &PaymentSettings,
        changed: OrdersChanged,
    ) -> Self {
        let paying_window_ms = i64::from(settings.paying_window_s) * 1_000;
        let extension_max_ms = i64::from(settings.extension_max_s) * 1_000;
        let providers = payments.map(|payments| (payments.provider, payments.provider_of_tasks));
        let (provider, provider_of_tasks) = providers.unzip();
        Self { ledger, provider, provider_of_tasks, paying_window_ms, extension_max_ms, changed }
    }

    /// The same for tasks, whose calls of the provider can wait.
    #[must_use]
    pub fn for_tasks(&self) -> Self {
        Self { provider: self.provider_of_tasks.clone(), ..self.clone() }
    }

    /// Opens a payment of the order, or returns the open one.
    pub async fn pay(&self, key: OrderKey) -> Result<PayablePayment, OrderError> {
        let Some(provider) = &self.provider else {
            return Err(OrderError::Refused("There is no payment provider here.".to_owned()));
        };
        let terms = PaymentTerms {
            provider: provider.name().to_owned(),
            paying_window_ms: self.paying_window_ms,
            extension_max_ms: self.extension_max_ms,
        };
        let (order, payment) = match self.ledger.open_payment(key, terms).await? {
            OpenPayment::Open(order, payment) => (order, payment),
            OpenPayment::NotPayable(order) => return Err(OrderError::Decided(order)),
            OpenPayment::UnknownOrder => return Err(OrderError::Unknown),
        };
        (self.changed)();
        let started = self.started(self.provider_of(&payment)?, &order, &payment).await?;
        Ok(PayablePayment { order, started })
    }

    /// Starts the attempt, unless the provider's answer is stored already.
    async fn started(
        &self,
        provider: &dyn PaymentProvider,
        order: &Order,
        payment: &Payment,
    ) -> Result<StartedPayment, OrderError> {
        // A webhook that was faster than the provider's answer names no page.
        if let Some(started) = payment.started.as_ref().filter(|known| !known.url.is_empty()) {
            return Ok(started.clone());
        }
        let (attempt, price) = (payment.key, payment.price);
        let start = PaymentStart { attempt, price, expires_at_ms: order.due_ms };
        // Crash here [payment_opened_not_started]: the open attempt is in the ledger; the buyer's
        // repeat starts it again at the provider, which knows it by its key.
        match provider.start(start).await {
            StartAnswer::Started(started) => {
                self.ledger.payment_started(attempt, started.clone()).await?;
                Ok(started)
            }
            StartAnswer::Refused(reason) => {
                let payment_id = format!("refused-{attempt}");
                self.record_answer(payment, payment_id, PaymentReport::Closed).await?;
                Err(OrderError::Refused(reason))
            }
            StartAnswer::Unknown => Err(OrderError::ProviderAway),
        }
    }

    /// Cancels an unpaid order; stops its open payment first.
    pub async fn cancel(&self, key: OrderKey) -> Result<Order, OrderError> {
        for _ in 0..STOPS_MAX {
            match self.ledger.cancel(key).await? {
                CancelOutcome::Cancelled(order) => {
                    (self.changed)();
                    return Ok(order);
                }
                CancelOutcome::Paying(order, payment) => self.stop(&order, &payment).await?,
                CancelOutcome::Decided(order) => return Err(OrderError::Decided(order)),
                CancelOutcome::UnknownOrder => return Err(OrderError::Unknown),
            }
        }
        tracing::warn!(request = %key.request, "cancellation: payments are opened again and again");
        Err(OrderError::ProviderAway)
    }

    /// Ends those of these orders that are due; returns how many.
    ///
    /// # Errors
    /// The ledger's: the orders are still due, or have ended.
    pub async fn end_due(&self, orders: Vec<OrderKey>) -> Result<usize, db::Error> {
        if orders.is_empty() {
            return Ok(0);
        }
        let ended = self.ledger.end_due(orders, self.extension_max_ms).await?;
        // Crash here [orders_ended_not_told]: the events are in the ledger; the buckets learn them
        // from its feed.
        if !ended.is_empty() {
            (self.changed)();
        }
        Ok(ended.len())
    }

    /// Asks the provider for news of an open attempt, whose webhook may be lost, and records them.
    pub async fn inquire(&self, payment: &Payment) -> Result<(), OrderError> {
        match self.provider_of(payment)?.find(payment.key).await {
            FindAnswer::Found { started, report: Some(report) } => {
                self.record_answer(payment, started.payment_id, report).await?;
                Ok(())
            }
            FindAnswer::Found { report: None, .. } | FindAnswer::NotFound => Ok(()),
            FindAnswer::Unknown => Err(OrderError::ProviderAway),
        }
    }

    /// Asks the provider to pay back what is left of a payment's money.
    pub async fn refund(&self, due: &DueRefund) -> RefundAnswer {
        let is_of_due = |provider: &&Arc<dyn PaymentProvider>| provider.name() == due.provider;
        let Some(provider) = self.provider.as_ref().filter(is_of_due) else {
            return RefundAnswer::Unknown;
        };
        let refund = Refund {
            refund_id: format!("refund-{}", due.key),
            payment_id: due.payment_id.clone(),
            amount: due.money.amount,
        };
        provider.refund(refund).await
    }

    /// The provider of a payment; [`OrderError::ProviderAway`]: it is not configured here.
    fn provider_of(&self, payment: &Payment) -> Result<&dyn PaymentProvider, OrderError> {
        let provider = self.provider.as_deref().ok_or(OrderError::ProviderAway)?;
        if provider.name() != payment.provider {
            tracing::warn!(provider = payment.provider, "payment: of a provider not configured");
            return Err(OrderError::ProviderAway);
        }
        Ok(provider)
    }

    /// Stops an open attempt and records the provider's answer, which may be that it was paid. An
    /// attempt that may not have reached the provider is started first, so that a start still on
    /// its way finds a stopped payment.
    pub async fn stop(&self, order: &Order, payment: &Payment) -> Result<(), OrderError> {
        let provider = self.provider_of(payment)?;
        let payment_id = match self.started(provider, order, payment).await {
            Ok(started) => started.payment_id,
            Err(OrderError::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Crash here [payment_stopped_not_recorded]: the payment is stopped and its order still
        // `paying`; the buyer's repeat gets the same answer from the provider.
        let report = match provider.stop(&payment_id).await {
            StopAnswer::Stopped => PaymentReport::Closed,
            StopAnswer::TooLate(report) => report,
            StopAnswer::Unknown => return Err(OrderError::ProviderAway),
        };
        self.record_answer(payment, payment_id, report).await?;
        Ok(())
    }

    /// Records an answer to a call as an event of its own.
    async fn record_answer(
        &self,
        payment: &Payment,
        payment_id: String,
        report: PaymentReport,
    ) -> Result<PaymentRecorded, db::Error> {
        let what = match &report {
            PaymentReport::Closed => "closed".to_owned(),
            PaymentReport::Succeeded(_) => "paid".to_owned(),
            PaymentReport::Refunded { total, .. } => format!("refunded-{total}"),
        };
        self.record(PaymentEvent {
            provider: payment.provider.clone(),
            event_id: format!("answer-{payment_id}-{what}"),
            payment_id,
            attempt: Some(payment.key),
            report,
        })
        .await
    }

    /// Records a report of the provider; committed when it returns.
    ///
    /// # Errors
    /// The ledger's: the provider repeats the report.
    pub async fn record(&self, event: PaymentEvent) -> Result<PaymentRecorded, db::Error> {
        let (event_id, payment_id) = (event.event_id.clone(), event.payment_id.clone());
        let recorded = self.ledger.record_payment(event).await?;
        self.tell(&event_id, &payment_id, &recorded);
        Ok(recorded)
    }

    /// Records a report again that no attempt was known for; `None`: there is no such report.
    ///
    /// # Errors
    /// The ledger's: the report is still unmatched.
    pub async fn match_event(
        &self,
        provider: String,
        event_id: String,
    ) -> Result<Option<PaymentRecorded>, db::Error> {
        let recorded = self.ledger.match_event(provider, event_id.clone()).await?;
        if let Some(recorded) = &recorded {
            let found = match recorded {
                PaymentRecorded::Recorded(_, Some(found)) => found.1.started.as_ref(),
                _ => None,
            };
            self.tell(&event_id, found.map_or("", |started| &started.payment_id), recorded);
        }
        Ok(recorded)
    }

    /// Asks the provider about an open attempt that no deadline brings up: an order that waits for
    /// it keeps it, any other is stopped.
    pub async fn follow_up(&self, order: &Order, payment: &Payment) -> Result<(), OrderError> {
        if order.state == OrderState::Paying {
            self.inquire(payment).await
        } else {
            self.stop(order, payment).await
        }
    }

    fn tell(&self, event_id: &str, payment_id: &str, recorded: &PaymentRecorded) {
        let PaymentRecorded::Recorded(outcome, _) = recorded else { return };
        let is_expected = !matches!(outcome, PaymentOutcome::Mismatch | PaymentOutcome::Unmatched);
        let outcome = outcome.name();
        if is_expected {
            tracing::info!(event_id, payment_id, outcome, "payment: event");
        } else {
            tracing::error!(event_id, payment_id, outcome, "payment: unexpected report");
        }
        (self.changed)();
    }
}
