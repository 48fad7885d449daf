//! Payments: every transaction first locks the order, so that the attempts of an order are changed
//! one after the other.

use super::order_changes::{change, lock, skus_of};
use super::verbs::record_by;
use super::{Database, TransactionEnd, inserted};
use crate::db::Error;
use crate::db::life_rows::Cause;
use crate::db::payment_rows::{PaymentEventRow, PaymentRow};
use crate::db::rows::{readable, unstorable};
use crate::domain::text::clip;
use crate::domain::{
    Actor, AttemptKey, ByOperator, Money, OpenPayment, Order, OrderKey, OrderState, OrderTrigger,
    Payment, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport, PaymentState,
    PaymentTerms, RefundResult, StartedPayment, UnmatchedEvent, VerbSubject, payment,
};

/// The attempt that a `paying` order waits for.
pub(super) fn open_attempt<D: Database>(
    conn: &mut D,
    order: &Order,
) -> Result<Option<Payment>, Error> {
    if order.state != OrderState::Paying {
        return Ok(None);
    }
    let all = conn.payments_of(&[order.key()])?;
    let all = all.iter().map(Payment::try_from).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().rev().find(|payment| payment.state == PaymentState::Started))
}

/// The number of the next attempt of a locked order.
pub(super) fn next_no<D: Database>(conn: &mut D, key: OrderKey) -> Result<u16, Error> {
    let largest = conn.payments_of(&[key])?.iter().map(|row| row.id().3).max().unwrap_or(0);
    Ok(u16::try_from(largest).unwrap_or(u16::MAX).saturating_add(1))
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
    let no = next_no(conn, key)?;
    let PaymentTerms { paying_window_ms, extension_max_ms, .. } = *terms;
    let opened = OrderTrigger::PaymentOpened { attempt: no, paying_window_ms, extension_max_ms };
    let cause = Cause { at_ms: now_ms, actor: Actor::Buyer, reason: None, payment_id: None };
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
pub(super) fn locked_attempt<D: Database>(
    conn: &mut D,
    key: AttemptKey,
) -> Result<Option<(Order, PaymentRow, Payment)>, Error> {
    locked_payment(conn, key, None)
}

pub(super) fn record<D: Database>(
    conn: &mut D,
    event: &PaymentEvent,
    now_ms: i64,
) -> Result<TransactionEnd<PaymentRecorded>, Error> {
    if conn.payment_event(&event.provider, &event.event_id)?.is_some() {
        return Ok(TransactionEnd::RollBack(PaymentRecorded::Known));
    }
    let (recorded, order) = apply(conn, event, now_ms)?;
    let row = PaymentEventRow::of(event, order, recorded.outcome(), now_ms)?;
    Ok(if inserted(conn.insert_payment_event(&row))?.is_some() {
        TransactionEnd::Commit(recorded)
    } else {
        TransactionEnd::RollBack(PaymentRecorded::Known)
    })
}

/// Records an unmatched report again.
pub(super) fn match_again<D: Database>(
    conn: &mut D,
    provider: &str,
    event_id: &str,
    now_ms: i64,
) -> Result<TransactionEnd<Option<PaymentRecorded>>, Error> {
    let Some(row) = conn.payment_event(provider, event_id)? else {
        return Ok(TransactionEnd::RollBack(None));
    };
    if !row.is_unmatched() {
        return Ok(TransactionEnd::RollBack(Some(PaymentRecorded::Known)));
    }
    let UnmatchedEvent { event, .. } = row.try_into()?;
    let (recorded, order) = apply(conn, &event, now_ms)?;
    let Some(order) = order else { return Ok(TransactionEnd::RollBack(Some(recorded))) };
    let (outcome, request) = (recorded.outcome().to_db(), order.request.to_db());
    Ok(if conn.set_matched(provider, event_id, outcome, request)? {
        TransactionEnd::Commit(Some(recorded))
    } else {
        TransactionEnd::RollBack(Some(PaymentRecorded::Known))
    })
}

/// Resolves an unmatched report; see `FollowUps::resolve_event`.
pub(super) fn resolve<D: Database>(
    conn: &mut D,
    provider: &str,
    event_id: &str,
    by: &ByOperator,
    now_ms: i64,
) -> Result<TransactionEnd<Option<bool>>, Error> {
    if conn.set_resolved(provider, event_id, now_ms)? {
        let (provider, event_id) = (provider.to_owned(), event_id.to_owned());
        let subject = VerbSubject::Report { provider, event_id };
        record_by(conn, &subject, "resolve", None, Some(by), now_ms)?;
        return Ok(TransactionEnd::Commit(Some(true)));
    }
    let row = conn.payment_event(provider, event_id)?;
    let is_resolved = row.is_some_and(|row| row.is_resolved());
    Ok(TransactionEnd::RollBack(is_resolved.then_some(false)))
}

/// Applies a report to its payment: the one with its id, else the attempt that it names. Returns
/// the order, which is locked.
fn apply<D: Database>(
    conn: &mut D,
    event: &PaymentEvent,
    now_ms: i64,
) -> Result<(PaymentRecorded, Option<OrderKey>), Error> {
    let mut found = reported(conn, event)?;
    if found.is_none() {
        // Moved to its successor between the read and the lock; no payment moves twice.
        found = reported(conn, event)?;
    }
    let Some((order, row, mut payment)) = found else {
        return Ok((PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None), None));
    };
    let started = payment.started.get_or_insert_with(|| StartedPayment {
        payment_id: event.payment_id.clone(),
        url: String::new(),
    });
    let (after, payment, outcome) = if started.payment_id == event.payment_id {
        add_report(conn, (order, row, &payment), &event.report, now_ms)?
    } else if event.report == PaymentReport::Closed {
        // It brought no money, and the attempt waits for the payment that it knows.
        (order, payment, PaymentOutcome::Unchanged)
    } else {
        let payment = payment.beside(next_no(conn, order.key())?, &event.payment_id);
        let row = PaymentRow::new(&payment, now_ms)?;
        conn.insert_payment(&row)?;
        add_report(conn, (order, row, &payment), &event.report, now_ms)?
    };
    let found = Box::new((after, payment));
    Ok((PaymentRecorded::Recorded(outcome, Some(found)), Some(order.key())))
}

/// The payment that a report is about, with its locked order.
fn reported<D: Database>(
    conn: &mut D,
    event: &PaymentEvent,
) -> Result<Option<(Order, PaymentRow, Payment)>, Error> {
    let by_id = conn.payment_by_id(&event.provider, &event.payment_id)?;
    let by_id = by_id.as_ref().map(Payment::try_from).transpose()?;
    let is_known = by_id.is_some();
    let found = match by_id.map(|payment| payment.key).or(event.attempt) {
        Some(key) => locked_payment(conn, key, Some(&event.payment_id))?,
        None => None,
    };
    // A known payment that moved after it was read has left its attempt without an id.
    Ok(found.filter(|(_, row, payment)| {
        payment.provider == event.provider && (!is_known || row.has_id(&event.payment_id))
    }))
}

/// The order of an attempt, which is locked, and of its payments the one with this id, else the
/// attempt.
fn locked_payment<D: Database>(
    conn: &mut D,
    key: AttemptKey,
    payment_id: Option<&str>,
) -> Result<Option<(Order, PaymentRow, Payment)>, Error> {
    let Some(order) = lock(conn, &[key.order])?.pop() else { return Ok(None) };
    let rows = conn.payments_of(&[key.order])?;
    let has_id = rows.iter().position(|row| payment_id.is_some_and(|id| row.has_id(id)));
    let is_named = |row: &PaymentRow| row.id().3 == i32::from(key.no);
    let found = has_id.or_else(|| rows.iter().position(is_named));
    let Some(row) = found.and_then(|at| rows.into_iter().nth(at)) else { return Ok(None) };
    let payment = Payment::try_from(&row)?;
    Ok(Some((order, row, payment)))
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
    let cause = Cause { at_ms: now_ms, actor: Actor::Provider, reason: None, payment_id };
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
) -> Result<TransactionEnd<bool>, Error> {
    let Some((order, mut row, payment)) = locked_attempt(conn, key)? else {
        return unstorable("the refund of an unknown attempt", key.no);
    };
    let is_open = matches!(payment.state, PaymentState::RefundDue | PaymentState::RefundFailed);
    let Some(received) = payment.received.filter(|_| is_open) else {
        return Ok(TransactionEnd::RollBack(false));
    };
    match result {
        RefundResult::Done => {
            let report = PaymentReport::Refunded { received, total: received.amount };
            add_report(conn, (order, row, &payment), &report, now_ms)?;
        }
        // Another process has tried it meanwhile.
        RefundResult::Again { .. } if row.refund_due_ms.is_some_and(|due_ms| due_ms > now_ms) => {
            return Ok(TransactionEnd::RollBack(false));
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
            row.reason = Some(clip(reason, 255));
            conn.update_payment(&row)?;
        }
    }
    Ok(TransactionEnd::Commit(true))
}

/// Makes a refund due now; `false`: the payment has none.
pub(super) fn refund_again<D: Database>(
    conn: &mut D,
    key: AttemptKey,
    now_ms: i64,
) -> Result<TransactionEnd<bool>, Error> {
    let Some((_, mut row, payment)) = locked_attempt(conn, key)? else {
        return Ok(TransactionEnd::RollBack(false));
    };
    if !matches!(payment.state, PaymentState::RefundDue | PaymentState::RefundFailed) {
        return Ok(TransactionEnd::RollBack(false));
    }
    row.set(&Payment { state: PaymentState::RefundDue, ..payment }, now_ms)?;
    (row.refund_due_ms, row.refund_attempts, row.reason) = (Some(now_ms), 0, None);
    conn.update_payment(&row)?;
    Ok(TransactionEnd::Commit(true))
}
