//! The queries about payments and the reports of providers; see `queries`.

use diesel::dsl::{count_star, insert_into, sql, update};
use diesel::prelude::*;
use diesel::sql_types::Bool;

use super::queries::queries;
use super::statements::{in_lists, of_orders};
use crate::db::EventCursor;
use crate::db::payment_rows::{PaymentEventRow, PaymentRow};
use crate::db::schema::{payment_events, payments};
use crate::domain::{OrderKey, PaymentState};

/// The unmatched reports that no operator has resolved. A constant, so that SQLite uses its index
/// of these rows: the number of [`crate::domain::PaymentOutcome::Unmatched`].
const UNMATCHED: &str = "(payment_events.outcome = 8 AND payment_events.resolved_at_ms IS NULL)";

/// The unmatched reports that an operator has resolved.
const RESOLVED: &str = "(payment_events.outcome = 8 AND payment_events.resolved_at_ms IS NOT NULL)";

fn unmatched(is_resolved: bool) -> &'static str {
    if is_resolved { RESOLVED } else { UNMATCHED }
}

queries! {
/// The queries about payments.
trait PaymentQueries {
    /// The attempts of these orders; those of one order oldest first.
    fn payments_of(&mut self, keys: &[OrderKey]) -> QueryResult<Vec<PaymentRow>> {
        in_lists(keys, |keys| {
            let rows = payments::table.filter(sql::<Bool>(&of_orders(keys)));
            rows.order(payments::attempt_no).select(PaymentRow::as_select()).load(self)
        })
    }

    fn payment_by_id(
        &mut self, provider: &str, payment_id: &str
    ) -> QueryResult<Option<PaymentRow>> {
        let row = payments::table.filter(payments::provider.eq(provider));
        let row = row.filter(payments::payment_id.eq(payment_id));
        row.select(PaymentRow::as_select()).first(self).optional()
    }

    fn insert_payment(&mut self, row: &PaymentRow) -> QueryResult<()> {
        insert_into(payments::table).values(row).execute(self).map(drop)
    }

    fn update_payment(&mut self, row: &PaymentRow) -> QueryResult<()> {
        update(payments::table.find(row.id())).set(row).execute(self).map(drop)
    }

    /// Sets a payment whose key has changed; the order of its old key is locked.
    fn move_payment(&mut self, from: (i32, i64, i64, i32), row: &PaymentRow) -> QueryResult<()> {
        let (_, _, request, no) = row.id();
        let key = (payments::request_id.eq(request), payments::attempt_no.eq(no));
        update(payments::table.find(from)).set((key, row)).execute(self).map(drop)
    }

    /// The payments in this state that are due until a time, those due for longest first.
    fn due_payments(
        &mut self, state: PaymentState, until_ms: i64, limit: u32
    ) -> QueryResult<Vec<PaymentRow>> {
        payments::table
            .filter(payments::refund_due_ms.le(until_ms))
            .filter(payments::state.eq(state.to_db()))
            .order(payments::refund_due_ms)
            .limit(i64::from(limit))
            .select(PaymentRow::as_select())
            .load(self)
    }

    fn insert_payment_event(&mut self, row: &PaymentEventRow) -> QueryResult<()> {
        insert_into(payment_events::table).values(row).execute(self).map(drop)
    }

    /// The payments in this state that match `condition`, which is SQL, in the order of their keys.
    fn payments_in(
        &mut self, state: PaymentState, condition: &str, limit: u32
    ) -> QueryResult<Vec<PaymentRow>> {
        payments::table
            .filter(payments::state.eq(state.to_db()))
            .filter(sql::<Bool>(condition))
            .order((
                payments::sku_no, payments::buyer_id, payments::request_id, payments::attempt_no
            ))
            .limit(i64::from(limit))
            .select(PaymentRow::as_select())
            .load(self)
    }

    fn payment_event(
        &mut self, provider: &str, event: &str
    ) -> QueryResult<Option<PaymentEventRow>> {
        let row = payment_events::table.find((provider, event));
        row.select(PaymentEventRow::as_select()).first(self).optional()
    }

    /// Sets the effect of an unmatched report, and its request; returns whether it was unmatched.
    fn set_matched(
        &mut self, provider: &str, event: &str, outcome: i16, request: i64
    ) -> QueryResult<bool> {
        let row = payment_events::table.find((provider, event)).filter(sql::<Bool>(UNMATCHED));
        let set = (
            payment_events::outcome.eq(outcome), payment_events::request_id.eq(Some(request))
        );
        update(row).set(set).execute(self).map(|changed| changed == 1)
    }

    /// Resolves an unmatched report; returns whether it was one.
    fn set_resolved(&mut self, provider: &str, event: &str, now_ms: i64) -> QueryResult<bool> {
        let row = payment_events::table.find((provider, event)).filter(sql::<Bool>(UNMATCHED));
        let set = payment_events::resolved_at_ms.eq(Some(now_ms));
        update(row).set(set).execute(self).map(|changed| changed == 1)
    }

    fn num_unmatched_events(&mut self, is_resolved: bool) -> QueryResult<i64> {
        let rows = payment_events::table.filter(sql::<Bool>(unmatched(is_resolved)));
        rows.select(count_star()).get_result(self)
    }

    /// Unmatched reports after one of them, oldest first.
    fn unmatched_events(
        &mut self, is_resolved: bool, after: Option<EventCursor>, limit: u32
    ) -> QueryResult<Vec<PaymentEventRow>> {
        let mut page = payment_events::table
            .filter(sql::<Bool>(unmatched(is_resolved)))
            .order((payment_events::at_ms, payment_events::event_id))
            .limit(i64::from(limit))
            .select(PaymentEventRow::as_select())
            .into_boxed();
        if let Some(EventCursor { at_ms, event_id }) = after {
            let same_instant = payment_events::at_ms.eq(at_ms);
            let later = payment_events::at_ms.gt(at_ms);
            page = page.filter(later.or(same_instant.and(payment_events::event_id.gt(event_id))));
        }
        page.load(self)
    }

    /// Unmatched reports since a time whose payment has a row.
    fn matchable_events(
        &mut self, since_ms: i64, limit: u32
    ) -> QueryResult<Vec<PaymentEventRow>> {
        let of_payment = "EXISTS (SELECT 1 FROM payments p \
             WHERE p.provider = payment_events.provider \
             AND p.payment_id = payment_events.payment_id)";
        payment_events::table
            .filter(sql::<Bool>(UNMATCHED))
            .filter(payment_events::at_ms.ge(since_ms))
            .filter(sql::<Bool>(of_payment))
            .order((payment_events::at_ms, payment_events::event_id))
            .limit(i64::from(limit))
            .select(PaymentEventRow::as_select())
            .load(self)
    }
}
}
