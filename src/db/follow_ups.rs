//! Payments that wait for something else than a webhook: for a provider that did not answer, for an
//! attempt that becomes known, or for an operator.

use async_trait::async_trait;

use super::Error;
use crate::domain::{
    AttemptKey, ByOperator, ListedPayment, Order, Payment, PaymentRecorded, PaymentState,
    UnmatchedEvent,
};

/// The last report of the previous page of unmatched ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCursor {
    pub at_ms: i64,
    pub event_id: String,
}

/// See the module. Pages of payments are in the order of their keys, and begin after `after`.
#[async_trait]
pub trait FollowUps: Send + Sync {
    /// Open attempts that no deadline of an order brings to the provider's attention, each with
    /// its order: of orders that are paid by another attempt, have ended, or have no deadline up to
    /// `due_by_ms`.
    async fn payments_in_doubt(
        &self,
        due_by_ms: i64,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<(Order, Payment)>, Error>;

    /// Payments in this state.
    async fn payments_in(
        &self,
        state: PaymentState,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<ListedPayment>, Error>;

    /// Makes a refund due now that was given up or waits for its next try, with all its tries;
    /// `false`: the payment has no such refund.
    async fn refund_again(&self, refund: AttemptKey) -> Result<bool, Error>;

    /// Reports of no known attempt, oldest first: those that no operator has resolved, or the
    /// resolved ones.
    async fn unmatched_events(
        &self,
        is_resolved: bool,
        after: Option<EventCursor>,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error>;

    /// The number of reports of no known attempt: those that no operator has resolved, and the
    /// resolved ones.
    async fn num_unmatched_events(&self) -> Result<(u64, u64), Error>;

    /// Unresolved ones, recorded at or after `since_ms`, whose payment is known by now.
    async fn matchable_events(
        &self,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error>;

    /// Records an unmatched report again. `Known`: it has had its effect, or an operator resolved
    /// it; `None`: there is no such report.
    async fn match_event(
        &self,
        provider: String,
        event_id: String,
    ) -> Result<Option<PaymentRecorded>, Error>;

    /// Resolves an unmatched report: an operator has settled its money elsewhere. `false`: it is
    /// resolved already; `None`: there is no such report, or it has had its effect.
    async fn resolve_event(
        &self,
        provider: String,
        event_id: String,
        by: ByOperator,
    ) -> Result<Option<bool>, Error>;
}
