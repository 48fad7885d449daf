//! Payments that wait for a provider or for an operator, as a port.

use std::collections::HashMap;

use async_trait::async_trait;

use super::order_changes::read;
use super::payments::{match_again, refund_again, resolve};
use super::statements::IN_LIST_MAX;
use super::{Database, SqlLedger, readable_rows};
use crate::db::payment_rows::PaymentRow;
use crate::db::{Error, EventCursor, FollowUps};
use crate::domain::{
    AttemptKey, ByOperator, ListedPayment, Order, OrderKey, Payment, PaymentRecorded, PaymentState,
    UnmatchedEvent,
};

/// The orders of these payments.
fn orders_of<D: Database>(
    conn: &mut D,
    payments: &[Payment],
) -> Result<HashMap<OrderKey, Order>, Error> {
    let mut orders = HashMap::new();
    for chunk in payments.chunks(IN_LIST_MAX) {
        let keys: Vec<OrderKey> = chunk.iter().map(|payment| payment.key.order).collect();
        orders.extend(read(conn, &keys)?.into_iter().map(|order| (order.key(), order)));
    }
    Ok(orders)
}

#[async_trait]
impl<D: Database> FollowUps for SqlLedger<D> {
    async fn payments_in_doubt(
        &self,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<(Order, Payment)>, Error> {
        self.read("reading payments in doubt", move |conn| {
            let rows = conn.payments_in_doubt(after, limit)?;
            let payments = readable_rows(&rows, Payment::try_from);
            let orders = orders_of(conn, &payments)?;
            let with_order = |payment: Payment| Some((*orders.get(&payment.key.order)?, payment));
            Ok(payments.into_iter().filter_map(with_order).collect())
        })
        .await
    }

    async fn payments_in(
        &self,
        state: PaymentState,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<ListedPayment>, Error> {
        self.read("listing payments", move |conn| {
            let rows = conn.payments_in(state.to_db(), after, limit)?;
            let orders = orders_of(conn, &readable_rows(&rows, Payment::try_from))?;
            Ok(readable_rows(&rows, |row: &PaymentRow| {
                let listed = row.listed(None)?;
                let order = orders.get(&listed.payment.key.order);
                Ok(ListedPayment { order_state: order.map(|order| order.state), ..listed })
            }))
        })
        .await
    }

    async fn refund_again(&self, refund: AttemptKey) -> Result<bool, Error> {
        let job = move |conn: &mut D, now_ms| refund_again(conn, refund, now_ms);
        self.write_at("making a refund due", job).await
    }

    async fn unmatched_events(
        &self,
        is_resolved: bool,
        after: Option<EventCursor>,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error> {
        self.read("reading unmatched payment events", move |conn| {
            let rows = conn.unmatched_events(is_resolved, after, limit)?;
            Ok(readable_rows(rows, UnmatchedEvent::try_from))
        })
        .await
    }

    async fn num_unmatched_events(&self) -> Result<(u64, u64), Error> {
        self.read("counting unmatched payment events", |conn| {
            let mut count = |is_resolved| conn.num_unmatched_events(is_resolved);
            Ok((count(false)?.unsigned_abs(), count(true)?.unsigned_abs()))
        })
        .await
    }

    async fn matchable_events(
        &self,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<UnmatchedEvent>, Error> {
        self.read("reading matchable payment events", move |conn| {
            Ok(readable_rows(conn.matchable_events(since_ms, limit)?, UnmatchedEvent::try_from))
        })
        .await
    }

    async fn match_event(
        &self,
        provider: String,
        event_id: String,
    ) -> Result<Option<PaymentRecorded>, Error> {
        let job = move |conn: &mut D, now_ms| match_again(conn, &provider, &event_id, now_ms);
        self.write_at("matching a payment event", job).await
    }

    async fn resolve_event(
        &self,
        provider: String,
        event_id: String,
        by: ByOperator,
    ) -> Result<Option<bool>, Error> {
        let job = move |conn: &mut D, now_ms| resolve(conn, &provider, &event_id, &by, now_ms);
        self.write_at("resolving a payment event", job).await
    }
}
