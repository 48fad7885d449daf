//! The life of orders on the ledgers of this folder.

use async_trait::async_trait;
use floodgate::db::{
    Error, EventCursor, FeedEvent, FeedPage, FollowUps, OrderChanges, Refunds, Retakes,
};
use floodgate::domain::{
    AttemptKey, ByOperator, CancelOutcome, DueOrder, DueRefund, DueRetake, ListedPayment,
    OpenPayment, Order, OrderKey, OrderState, Payment, PaymentEvent, PaymentRecorded, PaymentState,
    PaymentTerms, RefundResult, RequestId, RetakeEnd, RetakeOutcome, StartedPayment,
    UnmatchedEvent,
};

use super::defective_ledger::DefectiveLedger;
use super::faulty_ledger::FaultyLedger;

/// [`DefectiveLedger`] places orders and never changes them.
const PLACES_ONLY: Error = Error::ReadOnly { operation: "changing orders" };

#[async_trait]
impl OrderChanges for FaultyLedger {
    async fn open_payment(
        &self,
        order: OrderKey,
        terms: PaymentTerms,
    ) -> Result<OpenPayment, Error> {
        self.begin_write().await?;
        let answer = self.inner.open_payment(order, terms).await?;
        self.end("open payment").map(|()| answer)
    }

    async fn payment_started(
        &self,
        attempt: AttemptKey,
        started: StartedPayment,
    ) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.payment_started(attempt, started).await?;
        self.end("payment started")
    }

    async fn record_payment(&self, event: PaymentEvent) -> Result<PaymentRecorded, Error> {
        self.begin_write().await?;
        self.begin_event(&event.event_id)?;
        let answer = self.inner.record_payment(event).await?;
        self.end("record payment").map(|()| answer)
    }

    async fn end_due(
        &self,
        orders: Vec<OrderKey>,
        extension_max_ms: i64,
    ) -> Result<Vec<Order>, Error> {
        self.begin_write().await?;
        let answer = self.inner.end_due(orders, extension_max_ms).await?;
        self.end("end due").map(|()| answer)
    }

    async fn cancel(&self, order: OrderKey) -> Result<CancelOutcome, Error> {
        self.begin_write().await?;
        let answer = self.inner.cancel(order).await?;
        self.end("cancel").map(|()| answer)
    }

    async fn due_orders(
        &self,
        state: OrderState,
        until_ms: i64,
        limit: u32,
    ) -> Result<Vec<DueOrder>, Error> {
        self.begin().await?;
        let answer = self.inner.due_orders(state, until_ms, limit).await?;
        self.end("due orders").map(|()| answer)
    }

    async fn number_events(&self, limit: u32) -> Result<u32, Error> {
        self.begin_write().await?;
        let answer = self.inner.number_events(limit).await?;
        self.end("number events").map(|()| answer)
    }

    async fn events_after(&self, feed_no: i64, limit: u32) -> Result<Vec<FeedEvent>, Error> {
        self.begin().await?;
        let answer = self.inner.events_after(feed_no, limit).await?;
        self.end("events after").map(|()| answer)
    }

    async fn changes_after(&self, feed_no: i64, limit: u32) -> Result<FeedPage, Error> {
        self.begin().await?;
        let answer = self.inner.changes_after(feed_no, limit).await?;
        self.end("changes after").map(|()| answer)
    }

    async fn last_feed_no(&self) -> Result<i64, Error> {
        self.begin().await?;
        let answer = self.inner.last_feed_no().await?;
        self.end("last feed number").map(|()| answer)
    }

    async fn cursor(&self, reader: &'static str) -> Result<i64, Error> {
        self.begin().await?;
        let answer = self.inner.cursor(reader).await?;
        self.end("cursor").map(|()| answer)
    }

    async fn move_cursor(&self, reader: &'static str, feed_no: i64) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.move_cursor(reader, feed_no).await?;
        self.end("move cursor")
    }
}

#[async_trait]
impl Refunds for FaultyLedger {
    async fn due_refunds(&self, until_ms: i64, limit: u32) -> Result<Vec<DueRefund>, Error> {
        self.begin().await?;
        let answer = self.inner.due_refunds(until_ms, limit).await?;
        self.end("due refunds").map(|()| answer)
    }

    async fn refund_result(&self, refund: AttemptKey, result: RefundResult) -> Result<bool, Error> {
        self.begin_write().await?;
        let answer = self.inner.refund_result(refund, result).await?;
        self.end("refund result").map(|()| answer)
    }
}

#[async_trait]
impl Retakes for FaultyLedger {
    async fn due_retakes(&self, limit: u32) -> Result<Vec<DueRetake>, Error> {
        self.begin().await?;
        let answer = self.inner.due_retakes(limit).await?;
        self.end("due retakes").map(|()| answer)
    }

    async fn exempt_retake(&self, retake: OrderKey, successor: RequestId) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.exempt_retake(retake, successor).await?;
        self.end("exempt retake")
    }

    async fn end_retake(&self, retake: AttemptKey, end: RetakeEnd) -> Result<RetakeOutcome, Error> {
        self.begin_write().await?;
        let answer = self.inner.end_retake(retake, end).await?;
        self.end("end retake").map(|()| answer)
    }
}

#[async_trait]
impl OrderChanges for DefectiveLedger {
    async fn open_payment(&self, _: OrderKey, _: PaymentTerms) -> Result<OpenPayment, Error> {
        Err(PLACES_ONLY)
    }

    async fn payment_started(&self, _: AttemptKey, _: StartedPayment) -> Result<(), Error> {
        Err(PLACES_ONLY)
    }

    async fn record_payment(&self, _: PaymentEvent) -> Result<PaymentRecorded, Error> {
        Err(PLACES_ONLY)
    }

    async fn end_due(&self, _: Vec<OrderKey>, _: i64) -> Result<Vec<Order>, Error> {
        Err(PLACES_ONLY)
    }

    async fn cancel(&self, _: OrderKey) -> Result<CancelOutcome, Error> {
        Err(PLACES_ONLY)
    }

    async fn due_orders(&self, _: OrderState, _: i64, _: u32) -> Result<Vec<DueOrder>, Error> {
        Err(PLACES_ONLY)
    }

    async fn number_events(&self, _: u32) -> Result<u32, Error> {
        Err(PLACES_ONLY)
    }

    async fn events_after(&self, _: i64, _: u32) -> Result<Vec<FeedEvent>, Error> {
        Err(PLACES_ONLY)
    }

    async fn changes_after(&self, _: i64, _: u32) -> Result<FeedPage, Error> {
        Err(PLACES_ONLY)
    }

    async fn last_feed_no(&self) -> Result<i64, Error> {
        Err(PLACES_ONLY)
    }

    async fn cursor(&self, _: &'static str) -> Result<i64, Error> {
        Err(PLACES_ONLY)
    }

    async fn move_cursor(&self, _: &'static str, _: i64) -> Result<(), Error> {
        Err(PLACES_ONLY)
    }
}

#[async_trait]
impl Refunds for DefectiveLedger {
    async fn due_refunds(&self, _: i64, _: u32) -> Result<Vec<DueRefund>, Error> {
        Err(PLACES_ONLY)
    }

    async fn refund_result(&self, _: AttemptKey, _: RefundResult) -> Result<bool, Error> {
        Err(PLACES_ONLY)
    }
}

#[async_trait]
impl FollowUps for FaultyLedger {
    async fn payments_in_doubt(
        &self,
        due_by_ms: i64,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<(Order, Payment)>, Error> {
        self.begin().await?;
        self.inner.payments_in_doubt(due_by_ms, after, limit).await
    }

    async fn payments_in(
        &self,
        state: PaymentState,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<ListedPayment>, Error> {
        self.begin().await?;
        self.inner.payments_in(state, after, limit).await
    }

    async fn refund_again(&self, refund: AttemptKey) -> Result<bool, Error> {
        self.begin_write().await?;
        let answer = self.inner.refund_again(refund).await?;
        self.end("refund again").map(|()| answer)
    }

    async fn unmatched_events(
        &self,
        is_resolved: bool,
        after: Option<EventCursor>,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error> {
        self.begin().await?;
        self.inner.unmatched_events(is_resolved, after, limit).await
    }

    async fn num_unmatched_events(&self) -> Result<(u64, u64), Error> {
        self.begin().await?;
        self.inner.num_unmatched_events().await
    }

    async fn matchable_events(
        &self,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error> {
        self.begin().await?;
        self.inner.matchable_events(since_ms, limit).await
    }

    async fn match_event(
        &self,
        provider: String,
        event_id: String,
    ) -> Result<Option<PaymentRecorded>, Error> {
        self.begin_write().await?;
        let answer = self.inner.match_event(provider, event_id).await?;
        self.end("match event").map(|()| answer)
    }

    async fn resolve_event(
        &self,
        provider: String,
        event_id: String,
        by: ByOperator,
    ) -> Result<Option<bool>, Error> {
        self.begin_write().await?;
        let answer = self.inner.resolve_event(provider, event_id, by).await?;
        self.end("resolve event").map(|()| answer)
    }
}

#[async_trait]
impl FollowUps for DefectiveLedger {
    async fn payments_in_doubt(
        &self,
        _: i64,
        _: Option<AttemptKey>,
        _: u32,
    ) -> Result<Vec<(Order, Payment)>, Error> {
        Err(PLACES_ONLY)
    }

    async fn payments_in(
        &self,
        _: PaymentState,
        _: Option<AttemptKey>,
        _: u32,
    ) -> Result<Vec<ListedPayment>, Error> {
        Err(PLACES_ONLY)
    }

    async fn refund_again(&self, _: AttemptKey) -> Result<bool, Error> {
        Err(PLACES_ONLY)
    }

    async fn unmatched_events(
        &self,
        _: bool,
        _: Option<EventCursor>,
        _: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error> {
        Err(PLACES_ONLY)
    }

    /// None: this ledger records no payments.
    async fn num_unmatched_events(&self) -> Result<(u64, u64), Error> {
        Ok((0, 0))
    }

    async fn resolve_event(
        &self,
        _: String,
        _: String,
        _: ByOperator,
    ) -> Result<Option<bool>, Error> {
        Err(PLACES_ONLY)
    }

    async fn matchable_events(&self, _: i64, _: u32) -> Result<Vec<UnmatchedEvent>, Error> {
        Err(PLACES_ONLY)
    }

    async fn match_event(&self, _: String, _: String) -> Result<Option<PaymentRecorded>, Error> {
        Err(PLACES_ONLY)
    }
}

#[async_trait]
impl Retakes for DefectiveLedger {
    async fn due_retakes(&self, _: u32) -> Result<Vec<DueRetake>, Error> {
        Err(PLACES_ONLY)
    }

    async fn exempt_retake(&self, _: OrderKey, _: RequestId) -> Result<(), Error> {
        Err(PLACES_ONLY)
    }

    async fn end_retake(&self, _: AttemptKey, _: RetakeEnd) -> Result<RetakeOutcome, Error> {
        Err(PLACES_ONLY)
    }
}
