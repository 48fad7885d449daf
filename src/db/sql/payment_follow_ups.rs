//! Payments that wait for a provider or for an operator, as a port.

use std::collections::HashMap;

use async_trait::async_trait;

use super::payments::{match_again, refund_again, resolve};
use super::{Database, SqlLedger, readable_rows};
use crate::db::payment_rows::{PaymentCursor, PaymentEventRow, PaymentRow};
use crate::db::{Error, EventCursor, FollowUps};
use crate::domain::{
    AttemptKey, ByOperator, ListedPayment, Order, OrderKey, Payment, PaymentRecorded, PaymentState,
    UnmatchedEvent,
};

/// The condition of open attempts in doubt: their order is not `paying` (5), or has no deadline.
const IN_DOUBT: &str = "EXISTS (SELECT 1 FROM orders o WHERE o.sku_no = payments.sku_no \
     AND o.buyer_id = payments.buyer_id AND o.request_id = payments.request_id \
     AND (o.state <> 5 OR o.due_ms IS NULL))";

/// The condition of the payments after this one, in the order of their keys.
fn after_key(after: Option<PaymentCursor>) -> String {
    let Some((sku, buyer, request, no)) = after else { return "1 = 1".to_owned() };
    format!(
        "(payments.sku_no > {sku} OR (payments.sku_no = {sku} AND (payments.buyer_id > {buyer} \
         OR (payments.buyer_id = {buyer} AND (payments.request_id > {request} \
         OR (payments.request_id = {request} AND payments.attempt_no > {no}))))))"
    )
}

fn cursor(AttemptKey { order, no }: AttemptKey) -> PaymentCursor {
    (order.sku.0, order.buyer.to_db(), order.request.to_db(), no.into())
}

/// The items after a cursor, `limit` of them unless there are no more: a row that cannot be read is
/// left out, and hides none behind it. `page` returns the items of up to so many rows, and the
/// cursor of the last row unless no row follows.
fn filled<T, C>(
    limit: u32,
    after: Option<C>,
    mut page: impl FnMut(Option<C>, u32) -> Result<(Vec<T>, Option<C>), Error>,
) -> Result<Vec<T>, Error> {
    let (mut items, mut next) = page(after, limit)?;
    while next.is_some() {
        let missing = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
        if missing == 0 {
            break;
        }
        let (more, last) = page(next, missing)?;
        items.extend(more);
        next = last;
    }
    Ok(items)
}

/// The cursor of the last row of a full page.
fn last_of<R, C>(rows: &[R], limit: u32, cursor: impl FnOnce(&R) -> C) -> Option<C> {
    let is_full = u32::try_from(rows.len()).is_ok_and(|num| num >= limit);
    rows.last().filter(|_| is_full).map(cursor)
}

/// The orders of these payments that can be read.
fn orders_of<D: Database>(
    conn: &mut D,
    payments: &[Payment],
) -> Result<HashMap<OrderKey, Order>, Error> {
    let keys: Vec<OrderKey> = payments.iter().map(|payment| payment.key.order).collect();
    let orders = readable_rows(conn.orders_by_key(&keys)?, Order::try_from);
    Ok(orders.into_iter().map(|order| (order.key(), order)).collect())
}

#[async_trait]
impl<D: Database> FollowUps for SqlLedger<D> {
    async fn payments_in_doubt(
        &self,
        after: Option<AttemptKey>,
        limit: u32,
    ) -> Result<Vec<(Order, Payment)>, Error> {
        self.read("reading payments in doubt", move |conn| {
            filled(limit, after.map(cursor), |after, limit| {
                let condition = format!("{} AND {IN_DOUBT}", after_key(after));
                let rows = conn.payments_in(PaymentState::Started, &condition, limit)?;
                let last = last_of(&rows, limit, PaymentRow::cursor);
                let payments = readable_rows(&rows, Payment::try_from);
                let orders = orders_of(conn, &payments)?;
                let with_order = |payment: Payment| {
                    orders.get(&payment.key.order).map(|order| (*order, payment))
                };
                Ok((payments.into_iter().filter_map(with_order).collect(), last))
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
            filled(limit, after.map(cursor), |after, limit| {
                let rows = conn.payments_in(state, &after_key(after), limit)?;
                let last = last_of(&rows, limit, PaymentRow::cursor);
                let orders = orders_of(conn, &readable_rows(&rows, Payment::try_from))?;
                let listed = readable_rows(&rows, |row: &PaymentRow| {
                    let listed = row.listed(None)?;
                    let order = orders.get(&listed.payment.key.order);
                    Ok(ListedPayment { order_state: order.map(|order| order.state), ..listed })
                });
                Ok((listed, last))
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
