//! The life of orders on the ledgers of this folder.

use async_trait::async_trait;
use floodgate::db::{Error, OrderChanges, Refunds};
use floodgate::domain::{
    Actor, AttemptKey, CancelOutcome, DueOrder, DueRefund, OpenPayment, Order, OrderEvent,
    OrderKey, OrderState, PaymentEvent, PaymentRecorded, PaymentTerms, RefundResult,
    StartedPayment,
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

    async fn cancel(
        &self,
        order: OrderKey,
        by: Actor,
        reason: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        self.begin_write().await?;
        let answer = self.inner.cancel(order, by, reason).await?;
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

    async fn events_after(&self, feed_no: i64, limit: u32) -> Result<Vec<OrderEvent>, Error> {
        self.begin().await?;
        let answer = self.inner.events_after(feed_no, limit).await?;
        self.end("events after").map(|()| answer)
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

    async fn refund_result(&self, refund: AttemptKey, result: RefundResult) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.refund_result(refund, result).await?;
        self.end("refund result")
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

    async fn cancel(
        &self,
        _: OrderKey,
        _: Actor,
        _: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        Err(PLACES_ONLY)
    }

    async fn due_orders(&self, _: OrderState, _: i64, _: u32) -> Result<Vec<DueOrder>, Error> {
        Err(PLACES_ONLY)
    }

    async fn number_events(&self, _: u32) -> Result<u32, Error> {
        Err(PLACES_ONLY)
    }

    async fn events_after(&self, _: i64, _: u32) -> Result<Vec<OrderEvent>, Error> {
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

    async fn refund_result(&self, _: AttemptKey, _: RefundResult) -> Result<(), Error> {
        Err(PLACES_ONLY)
    }
}
