//! Purchases with late money. Each transaction first locks the order that timed out, as every
//! change of its payments does, and its successor with it.

use async_trait::async_trait;

use super::order_changes::{change, lock, readable_orders};
use super::payments::{locked_attempt, next_no};
use super::statements::buyer_of;
use super::{Database, SqlLedger, TransactionEnd, readable_rows};
use crate::db::life_rows::Cause;
use crate::db::payment_rows::PaymentRow;
use crate::db::rows::unstorable;
use crate::db::{Error, Retakes};
use crate::domain::{
    Actor, AttemptKey, DueRetake, Order, OrderKey, OrderTrigger, Payment, PaymentState, RequestId,
    RetakeEnd, RetakeOutcome, retake,
};

#[async_trait]
impl<D: Database> Retakes for SqlLedger<D> {
    async fn due_retakes(&self, limit: u32) -> Result<Vec<DueRetake>, Error> {
        self.read("reading late money", move |conn| due(conn, limit)).await
    }

    async fn exempt_retake(&self, retake: OrderKey, successor: RequestId) -> Result<(), Error> {
        self.write_at("exempting a purchase", move |conn, _| {
            let (sku, buyer) = buyer_of(&retake);
            conn.exempt((sku, buyer, retake.request.to_db()), successor.to_db())?;
            Ok(TransactionEnd::Commit(()))
        })
        .await
    }

    async fn end_retake(&self, retake: AttemptKey, end: RetakeEnd) -> Result<RetakeOutcome, Error> {
        let job = move |conn: &mut D, now_ms| end_retake(conn, retake, &end, now_ms);
        self.write_at("ending a purchase", job).await
    }
}

fn due<D: Database>(conn: &mut D, limit: u32) -> Result<Vec<DueRetake>, Error> {
    // Due at once, whenever the money came.
    let rows = conn.due_payments(PaymentState::Retaking, i64::MAX, limit)?;
    let waiting = readable_rows(&rows, |row| Ok((Payment::try_from(row)?.key, row.refund_due_ms)));
    let keys: Vec<OrderKey> = waiting.iter().map(|(key, _)| key.order).collect();
    let orders = readable_orders(conn, &keys)?;
    let with_order = |(key, received_ms): (AttemptKey, Option<i64>)| {
        let order = *orders.get(&key.order)?;
        Some(DueRetake { key, order, received_ms: received_ms? })
    };
    Ok(waiting.into_iter().filter_map(with_order).collect())
}

fn end_retake<D: Database>(
    conn: &mut D,
    key: AttemptKey,
    end: &RetakeEnd,
    now_ms: i64,
) -> Result<TransactionEnd<RetakeOutcome>, Error> {
    let successor = match end {
        RetakeEnd::Placed(request) => {
            let wanted = OrderKey { request: *request, ..key.order };
            // Both in the order of their keys, so that two processes do not deadlock.
            lock(conn, &[key.order, wanted])?.into_iter().find(|order| order.key() == wanted)
        }
        RetakeEnd::Refused(_) => None,
    };
    let Some((order, mut row, mut payment)) = locked_attempt(conn, key)? else {
        return Ok(TransactionEnd::RollBack(RetakeOutcome::Known));
    };
    if payment.state != PaymentState::Retaking {
        return Ok(TransactionEnd::RollBack(RetakeOutcome::Known));
    }
    let payment_id = payment.started.as_ref().map(|started| started.payment_id.clone());
    let payment_id = payment_id.as_deref();
    let cause = |reason| Cause { at_ms: now_ms, actor: Actor::Provider, reason, payment_id };
    if let Some(successor) = successor.filter(|successor| retake::pays(&payment, successor)) {
        let reason = format!("late payment of request {}", order.request);
        let paid = changed(conn, successor, OrderTrigger::PaymentApplied, cause(Some(&reason)))?;
        let no = next_no(conn, successor.key())?;
        let from = row.id();
        payment.state = PaymentState::Applied;
        row.set(&payment, now_ms)?;
        row.move_to(successor.key(), no);
        conn.move_payment(from, &row)?;
        // The attempt stays without a payment: a second charge under it is recorded and owed.
        let (started, received, state) = (None, None, PaymentState::Closed);
        let left = Payment { started, state, received, ..payment };
        conn.insert_payment(&PaymentRow::new(&left, now_ms)?)?;
        return Ok(TransactionEnd::Commit(RetakeOutcome::Applied(paid)));
    }
    let reason = match end {
        RetakeEnd::Placed(_) => "the order that was placed for it cannot be paid with it",
        RetakeEnd::Refused(reason) => reason,
    };
    payment.state = PaymentState::RefundDue;
    row.set(&payment, now_ms)?;
    conn.update_payment(&row)?;
    changed(conn, order, OrderTrigger::MoneyOwed, cause(Some(reason)))?;
    Ok(TransactionEnd::Commit(RetakeOutcome::Owed))
}

/// The order after a change that its state allows.
fn changed<D: Database>(
    conn: &mut D,
    order: Order,
    trigger: OrderTrigger,
    cause: Cause<'_>,
) -> Result<Order, Error> {
    match change(conn, &[order], trigger, cause)?.pop() {
        Some(change) => Ok(change.after),
        None => unstorable("a change of order", order.request),
    }
}
