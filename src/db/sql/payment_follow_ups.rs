//! Payments that wait for a provider or for an operator, as a port.

use async_trait::async_trait;

use super::order_changes::readable_orders;
use super::payments::{match_again, refund_again, resolve};
use super::statements::after;
use super::{Database, SqlLedger, filled, last_of, readable_rows};
use crate::db::payment_rows::{PaymentEventRow, PaymentId, PaymentRow};
use crate::db::{Error, EventCursor, FollowUps};
use crate::domain::{
    AttemptKey, ByOperator, ListedPayment, Order, OrderKey, Payment, PaymentRecorded, PaymentState,
    UnmatchedEvent,
};

/// The condition of open attempts in doubt: their order is not `paying` (5), or not due by then.
fn in_doubt(due_by_ms: i64) -> String {
    format!(
        "EXISTS (SELECT 1 FROM orders o WHERE o.sku_no = payments.sku_no \
         AND o.buyer_id = payments.buyer_id AND o.request_id = payments.request_id \
         AND (o.state <> 5 OR o.due_ms IS NULL OR o.due_ms > {due_by_ms}))"
    )
}

/// A payment with its order, if that can be read.
type WithOrder = (ListedPayment, Option<Order>);

/// The columns of a payment's key.
fn key_columns(AttemptKey { order, no }: AttemptKey) -> PaymentId {
    (order.sku.0, order.buyer.to_db(), order.request.to_db(), no.into())
}

/// The payments in this state and with this SQL condition after one of them, in the order of their
/// keys and each with its order, as far as they can be read; and the last row of a full page.
fn page<D: Database>(
    conn: &mut D,
    state: PaymentState,
    condition: &str,
    after_row: Option<PaymentId>,
    limit: u32,
) -> Result<(Vec<WithOrder>, Option<PaymentId>), Error> {
    let key = after_row.map_or_else(Vec::new, |(sku, buyer, request, no)| {
        vec![sku.into(), buyer, request, no.into()]
    });
    let is_later = after(&["sku_no", "buyer_id", "request_id", "attempt_no"], &key);
    let rows = conn.payments_in(state, &format!("{condition} AND {is_later}"), limit)?;
    let last = last_of(&rows, limit, PaymentRow::id);
    let listed = readable_rows(&rows, ListedPayment::try_from);
    let keys: Vec<OrderKey> = listed.iter().map(|one| one.payment.key.order).collect();
    let orders = readable_orders(conn, &keys)?;
    let with_order = |one: ListedPayment| {
        let order = orders.get(&one.payment.key.order).copied();
        (ListedPayment { order_state: order.map(|order| order.state), ..one }, order)
    };
    Ok((listed.into_iter().map(with_order).collect(), last))
}

#[async_trait]
impl<D: Database> FollowUps for SqlLedger<D> {
    async fn payments_in_doubt(
        &self,
        due_by_ms: i64,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<(Order, Payment)>, Error> {
        self.read("reading payments in doubt", move |conn| {
            let condition = in_doubt(due_by_ms);
            filled(limit, after.map(key_columns), |after, limit| {
                let (found, last) = page(conn, PaymentState::Started, &condition, after, limit)?;
                let with_order = |(one, order): WithOrder| Some((order?, one.payment));
                Ok((found.into_iter().filter_map(with_order).collect(), last))
            })
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
            filled(limit, after.map(key_columns), |after, limit| {
                let (found, last) = page(conn, state, "TRUE", after, limit)?;
                Ok((found.into_iter().map(|(listed, _)| listed).collect(), last))
            })
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
            filled(limit, after, |after, limit| {
                let rows = conn.unmatched_events(is_resolved, after, limit)?;
                let last = last_of(&rows, limit, PaymentEventRow::cursor);
                Ok((readable_rows(rows, UnmatchedEvent::try_from), last))
            })
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
