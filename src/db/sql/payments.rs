//! Payments: every transaction first locks the order, so that the attempts of an order are changed
//! one after the other.

use super::order_changes::{change, lock, skus_of};
use super::transaction::inserted;
use super::{Database, TransactionEnd};
use crate::db::Error;
use crate::db::life_rows::{Cause, PaymentEventRow, PaymentRow};
use crate::db::rows::{readable, unstorable};
use crate::domain::{
    Actor, AttemptKey, Money, OpenPayment, Order, OrderKey, OrderState, OrderTrigger, Payment,
    PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport, PaymentState, PaymentTerms,
    RefundResult, StartedPayment, payment,
};

/// The attempts of an order, oldest first.
fn attempts<D: Database>(conn: &mut D, key: OrderKey) -> Result<Vec<PaymentRow>, Error> {
    let buyer = (key.sku.0, key.buyer.to_db());
    Ok(conn.payments_of(&[buyer], &[key.request.to_db()])?)
}

/// The attempt that a `paying` order waits for.
pub(super) fn open_attempt<D: Database>(
    conn: &mut D,
    order: &Order,
) -> Result<Option<Payment>, Error> {
    let last = attempts(conn, order.key())?.pop();
    let last = last.as_ref().map(Payment::try_from).transpose()?;
    let is_paying = order.state == OrderState::Paying;
    Ok(last.filter(|last| is_paying && last.state == PaymentState::Started))
}

pub(super) fn open<D: Database>(
    conn: &mut D,
    key: OrderKey,
    terms: &PaymentTerms,
    now_ms: i64,
) -> Result<TransactionEnd<OpenPayment>, Error> {
    let Some(order) = lock(conn, &[key])?.pop() else {
        return Ok(TransactionEnd::RollBack(OpenPayment::UnknownOrder));
    };
    if let Some(open) = open_attempt(conn, &order)? {
        return Ok(TransactionEnd::RollBack(OpenPayment::Open(order, open)));
    }
    let no = u16::try_from(attempts(conn, key)?.len()).unwrap_or(u16::MAX).saturating_add(1);
    let PaymentTerms { paying_window_ms, extension_max_ms, .. } = *terms;
    let opened = OrderTrigger::PaymentOpened { attempt: no, paying_window_ms, extension_max_ms };
    let cause = Cause { at_ms: now_ms, actor: &Actor::Buyer, reason: None, payment_id: None };
    let Some(changed) = change(conn, &[order], opened, cause)?.pop() else {
        return Ok(TransactionEnd::RollBack(OpenPayment::NotPayable(order)));
    };
    let currency = skus_of(conn, &[order])?.remove(&key.sku.0).map(|(_, currency)| currency);
    let currency = readable(currency, || format!("sku {}", key.sku), "currency", "missing")?;
    let payment = Payment {
        key: AttemptKey { order: key, no },
        provider: terms.provider.clone(),
        started: None,
        price: Money { amount: order.amount, currency },
        state: PaymentState::Started,
        received: None,
        refunded_total: 0,
    };
    conn.insert_payment(&PaymentRow::new(&payment, now_ms)?)?;
    Ok(TransactionEnd::Commit(OpenPayment::Open(changed.after, payment)))
}

pub(super) fn started<D: Database>(
    conn: &mut D,
    key: AttemptKey,
    started: StartedPayment,
    now_ms: i64,
) -> Result<TransactionEnd<()>, Error> {
    let Some((_, mut row, mut payment)) = locked_attempt(conn, key)? else {
        return unstorable("the start of an unknown attempt", &started.payment_id);
    };
    let known = payment.started.as_ref();
    if known.is_some_and(|known| known.payment_id != started.payment_id) {
        return unstorable("a second payment id of one attempt", &started.payment_id);
    }
    payment.started = Some(started);
    row.set(&payment, now_ms)?;
    conn.update_payment(&row)?;
    Ok(TransactionEnd::Commit(()))
}

/// The order and the attempt with this key; the order is locked.
fn locked_attempt<D: Database>(
    conn: &mut D,
    key: AttemptKey,
) -> Result<Option<(Order, PaymentRow, Payment)>, Error> {
    let Some(order) = lock(conn, &[key.order])?.pop() else { return Ok(None) };
    for row in attempts(conn, key.order)? {
        let payment = Payment::try_from(&row)?;
        if payment.key == key {
            return Ok(Some((order, row, payment)));
        }
    }
    Ok(None)
}

pub(super) fn record<D: Database>(
    conn: &mut D,
    event: &PaymentEvent,
    now_ms: i64,
) -> Result<TransactionEnd<PaymentRecorded>, Error> {
    if conn.has_payment_event(&event.provider, &event.event_id)? {
        return Ok(TransactionEnd::RollBack(PaymentRecorded::Known));
    }
    let by_id = conn.payment_by_id(&event.provider, &event.payment_id)?;
    let by_id = by_id.as_ref().map(Payment::try_from).transpose()?;
    let found = match by_id.map(|payment| payment.key).or(event.attempt) {
        Some(key) => locked_attempt(conn, key)?.filter(|(_, _, payment)| is_of(event, payment)),
        None => None,
    };
    let (recorded, order) = match found {
        None => (PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None), None),
        Some((order, row, mut payment)) => {
            payment.started.get_or_insert_with(|| StartedPayment {
                payment_id: event.payment_id.clone(),
                url: String::new(),
            });
            let (after, payment, outcome) =
                add_report(conn, (order, row, &payment), &event.report, now_ms)?;
            let found = Box::new((after, payment));
            (PaymentRecorded::Recorded(outcome, Some(found)), Some(order.key()))
        }
    };
    let outcome = match &recorded {
        PaymentRecorded::Recorded(outcome, _) => *outcome,
        PaymentRecorded::Known => PaymentOutcome::Unchanged,
    };
    let row = PaymentEventRow::of(event, order, outcome, now_ms)?;
    Ok(if inserted(conn.insert_payment_event(&row))? {
        TransactionEnd::Commit(recorded)
    } else {
        TransactionEnd::RollBack(PaymentRecorded::Known)
    })
}

fn is_of(event: &PaymentEvent, payment: &Payment) -> bool {
    let known = payment.started.as_ref();
    payment.provider == event.provider
        && known.is_none_or(|known| known.payment_id == event.payment_id)
}

/// Adds a report to an attempt of a locked order, and changes the order accordingly.
fn add_report<D: Database>(
    conn: &mut D,
    (order, mut row, payment): (Order, PaymentRow, &Payment),
    report: &PaymentReport,
    now_ms: i64,
) -> Result<(Order, Payment, PaymentOutcome), Error> {
    let (payment, trigger, outcome) = payment::record(&order, payment, report);
    row.set(&payment, now_ms)?;
    conn.update_payment(&row)?;
    let Some(trigger) = trigger else { return Ok((order, payment, outcome)) };
    let payment_id = payment.started.as_ref().map(|started| started.payment_id.as_str());
    let cause = Cause { at_ms: now_ms, actor: &Actor::Provider, reason: None, payment_id };
    let changed = change(conn, &[order], trigger, cause)?.pop();
    let name = || format!("order {}", order.request);
    let changed = readable(changed, name, "state", order.state.name())?;
    Ok((changed.after, payment, outcome))
}

pub(super) fn refund_result<D: Database>(
    conn: &mut D,
    key: AttemptKey,
    result: &RefundResult,
    now_ms: i64,
) -> Result<TransactionEnd<()>, Error> {
    let Some((order, mut row, payment)) = locked_attempt(conn, key)? else {
        return unstorable("the refund of an unknown attempt", key.no);
    };
    let is_open = matches!(payment.state, PaymentState::RefundDue | PaymentState::RefundFailed);
    let Some(received) = payment.received.filter(|_| is_open) else {
        return Ok(TransactionEnd::RollBack(()));
    };
    match result {
        RefundResult::Done => {
            let report = PaymentReport::Refunded { received, total: received.amount };
            add_report(conn, (order, row, &payment), &report, now_ms)?;
        }
        RefundResult::Again { next_ms } => {
            row.refund_attempts += 1;
            row.refund_due_ms = row.refund_due_ms.map(|_| *next_ms);
            conn.update_payment(&row)?;
        }
        RefundResult::Failed { reason } => {
            let payment = Payment { state: PaymentState::RefundFailed, ..payment };
            row.set(&payment, now_ms)?;
            row.refund_attempts += 1;
            row.reason = Some(reason.chars().take(255).collect());
            conn.update_payment(&row)?;
        }
    }
    Ok(TransactionEnd::Commit(()))
}
