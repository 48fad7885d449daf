//! Payment providers: the port that orders are paid through, and the webhooks that report payments.
//!
//! An attempt is committed in the ledger before its provider is called, and is the provider's
//! idempotency key: a call whose outcome is unknown is repeated with the same attempt. Money is
//! known from webhooks and from [`PaymentProvider::find`]; both are recorded as events in the
//! ledger, in any order and any number of times.
//!
//! | file | holds |
//! |---|---|
//! | `bounded` | the limits of calls to a provider |
//! | `demo` | a provider inside this process, with its own page |
//! | `event` | the JSON of a webhook |
//! | `signature` | the signatures of webhooks |

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::{AttemptKey, Money, PaymentReport, StartedPayment};

mod bounded;
pub mod demo;
mod event;
mod signature;

pub use bounded::BoundedProvider;
pub use demo::DemoProvider;
pub use event::{EventBody, WebhookReader};
pub use signature::{BODY_BYTES_MAX, WebhookError, WebhookVerifier};

/// A payment to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaymentStart {
    pub attempt: AttemptKey,
    pub price: Money,
    /// Until when the buyer can pay, epoch milliseconds; `None`: no limit.
    pub expires_at_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartAnswer {
    /// The payment is open; also the answer to a repeat.
    Started(StartedPayment),
    /// The provider does not take this payment.
    Refused(String),
    /// The payment may be open: repeat with the same attempt.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindAnswer {
    Found {
        started: StartedPayment,
        /// `None`: the buyer has not paid yet and still can.
        report: Option<PaymentReport>,
    },
    /// The provider has no payment of this attempt.
    NotFound,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopAnswer {
    /// The buyer did not pay and cannot pay any more.
    Stopped,
    /// The buyer paid before.
    TooLate(PaymentReport),
    Unknown,
}

/// Money to be paid back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refund {
    /// The provider's idempotency key.
    pub refund_id: String,
    pub payment_id: String,
    pub amount: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefundAnswer {
    Done,
    /// Accepted; [`PaymentProvider::find`] or a webhook tells when it is done.
    Pending,
    Refused(String),
    /// Repeat with the same refund id.
    Unknown,
}

/// A payment provider. Every call is repeat-safe and never fails: what could not be learnt is
/// `Unknown`.
#[async_trait]
pub trait PaymentProvider: Send + Sync {
    /// Stored with each payment.
    fn name(&self) -> &'static str;

    /// Opens a payment.
    async fn start(&self, start: PaymentStart) -> StartAnswer;

    /// What the provider knows of an attempt.
    async fn find(&self, attempt: AttemptKey) -> FindAnswer;

    /// Closes a payment, so that the buyer cannot pay it any more.
    async fn stop(&self, payment_id: &str) -> StopAnswer;

    /// Pays money back.
    async fn refund(&self, refund: Refund) -> RefundAnswer;
}

/// The payment backend of a process.
#[derive(Clone)]
pub struct Payments {
    /// As buyers call it.
    pub provider: Arc<dyn PaymentProvider>,
    /// As tasks call it, whose calls can wait.
    pub provider_of_tasks: Arc<dyn PaymentProvider>,
    pub webhooks: Arc<WebhookReader>,
    /// The provider itself, if it is inside this process: for its page and its webhooks.
    pub demo: Option<Arc<DemoProvider>>,
}
