//! The life of orders as a port: changes, the feed of their events, and refunds.
//!
//! Events are numbered after their commit, by one transaction at a time: a number that the database
//! drew before the commit would become visible late, and a reader would have passed it.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;

use super::order_changes::{cancel, end_due};
use super::payments::{open, record, refund_result, started};
use super::statements::{IN_LIST_MAX, in_lists};
use super::{Database, SqlLedger, TransactionEnd, readable_rows};
use crate::db::failure_rows::FailureRow;
use crate::db::life_rows::{Cause, OrderEventRow};
use crate::db::rows::{OrderRow, unstorable};
use crate::db::{Error, FeedEvent, FeedPage, OrderChanges, Refunds};
use crate::domain::{
    Actor, AttemptKey, CancelOutcome, DueOrder, DueRefund, Failure, ListedPayment, Money,
    OpenPayment, Order, OrderKey, OrderState, Payment, PaymentEvent, PaymentRecorded, PaymentState,
    PaymentTerms, RefundResult, StartedPayment,
};

/// The counter of feed numbers. Its row is locked while events are numbered.
const FEED: &str = "feed";

/// Feed numbers that one read of changes looks at.
const NUMBERS_PER_PAGE: i64 = 100_000;

/// Orders that one transaction ends.
const ENDED_PER_TRANSACTION: usize = IN_LIST_MAX;

#[async_trait]
impl<D: Database> OrderChanges for SqlLedger<D> {
    async fn open_payment(
        &self,
        order: OrderKey,
        terms: PaymentTerms,
    ) -> Result<OpenPayment, Error> {
        let job = move |conn: &mut D, now_ms| open(conn, order, &terms, now_ms);
        self.write_at("opening a payment", job).await
    }

    async fn payment_started(
        &self,
        attempt: AttemptKey,
        answer: StartedPayment,
    ) -> Result<(), Error> {
        let job = move |conn: &mut D, now_ms| started(conn, attempt, answer, now_ms);
        self.write_at("storing a payment's start", job).await
    }

    async fn record_payment(&self, event: PaymentEvent) -> Result<PaymentRecorded, Error> {
        let job = move |conn: &mut D, now_ms| record(conn, &event, now_ms);
        self.write_at("recording a payment", job).await
    }

    async fn end_due(
        &self,
        mut orders: Vec<OrderKey>,
        extension_max_ms: i64,
    ) -> Result<Vec<Order>, Error> {
        orders.sort_unstable();
        let mut ended = Vec::new();
        for chunk in orders.chunks(ENDED_PER_TRANSACTION) {
            let chunk = chunk.to_vec();
            let of_chunk = self.write("ending due orders", move |conn, fence, clock| {
                end_due(conn, fence, &chunk, extension_max_ms, clock.wall_ms())
            });
            ended.extend(of_chunk.await?);
        }
        Ok(ended)
    }

    async fn cancel(&self, order: OrderKey) -> Result<CancelOutcome, Error> {
        self.write_at("cancelling an order", move |conn, at_ms| {
            let actor = Actor::Buyer;
            cancel(conn, order, Cause { at_ms, actor, reason: None, payment_id: None })
        })
        .await
    }

    async fn due_orders(
        &self,
        state: OrderState,
        until_ms: i64,
        limit: u32,
    ) -> Result<Vec<DueOrder>, Error> {
        self.read("reading due orders", move |conn| {
            let rows = conn.due_orders(state.to_db(), until_ms, limit)?;
            let orders: Vec<Order> = readable_rows(rows, Order::try_from);
            let paying = |order: &&Order| order.state == OrderState::Paying;
            let paying: Vec<OrderKey> = orders.iter().filter(paying).map(Order::key).collect();
            let mut open: HashMap<OrderKey, Payment> = HashMap::new();
            for payment in readable_rows(&conn.payments_of(&paying)?, Payment::try_from) {
                if payment.state == PaymentState::Started {
                    open.insert(payment.key.order, payment);
                }
            }
            let with_open = |order: Order| DueOrder { open: open.remove(&order.key()), order };
            Ok(orders.into_iter().map(with_open).collect())
        })
        .await
    }

    async fn number_events(&self, limit: u32) -> Result<u32, Error> {
        self.write_at("numbering order events", move |conn, _| number(conn, limit)).await
    }

    async fn events_after(&self, feed_no: i64, limit: u32) -> Result<Vec<FeedEvent>, Error> {
        let mut after = feed_no;
        // A page whose orders are all missing is not the end of the feed.
        loop {
            let page = move |conn: &mut D| events(conn, after, limit);
            let (events, read_to) = self.read("reading order events", page).await?;
            if !events.is_empty() || read_to == after {
                return Ok(events);
            }
            after = read_to;
        }
    }

    async fn changes_after(&self, feed_no: i64, limit: u32) -> Result<FeedPage, Error> {
        self.read("reading changes of orders", move |conn| changes(conn, feed_no, limit)).await
    }

    async fn last_feed_no(&self) -> Result<i64, Error> {
        let last = |conn: &mut D| Ok(conn.token(FEED)?.unwrap_or(0));
        self.read("reading the last feed number", last).await
    }

    async fn cursor(&self, reader: &'static str) -> Result<i64, Error> {
        self.read("reading a cursor", move |conn| Ok(conn.cursor(reader)?.unwrap_or(0))).await
    }

    async fn move_cursor(&self, reader: &'static str, feed_no: i64) -> Result<(), Error> {
        self.write_at("moving a cursor", move |conn, _| {
            Ok(TransactionEnd::Commit(conn.move_cursor(reader, feed_no)?))
        })
        .await
    }
}

#[async_trait]
impl<D: Database> Refunds for SqlLedger<D> {
    async fn due_refunds(&self, until_ms: i64, limit: u32) -> Result<Vec<DueRefund>, Error> {
        self.read("reading due refunds", move |conn| {
            let mut due = Vec::new();
            let rows = conn.due_payments(PaymentState::RefundDue, until_ms, limit)?;
            for ListedPayment { payment, refund_attempts: attempts, .. } in
                readable_rows(&rows, ListedPayment::try_from)
            {
                let Payment { key, provider, started, received, refunded_total, .. } = payment;
                // Received money has both: its report names the payment.
                let (Some(started), Some(received)) = (started, received) else { continue };
                let money = Money { amount: received.amount - refunded_total, ..received };
                let payment_id = started.payment_id;
                due.push(DueRefund { key, provider, payment_id, money, attempts });
            }
            Ok(due)
        })
        .await
    }

    async fn refund_result(&self, refund: AttemptKey, result: RefundResult) -> Result<bool, Error> {
        let job = move |conn: &mut D, now_ms| refund_result(conn, refund, &result, now_ms);
        self.write_at("storing a refund", job).await
    }
}

/// The lock of the counter's row makes the numbers visible in ascending order without gaps.
fn number<D: Database>(conn: &mut D, limit: u32) -> Result<TransactionEnd<u32>, Error> {
    let mut last = conn.raise_token(FEED, "token")?;
    let rows = conn.unnumbered_events(limit)?;
    if rows.is_empty() {
        return Ok(TransactionEnd::RollBack(0));
    }
    let mut by_version: BTreeMap<i32, Vec<(i64, i64)>> = BTreeMap::new();
    for (request, version, num_orders) in &rows {
        last += i64::from(*num_orders);
        by_version.entry(*version).or_default().push((*request, last));
    }
    for (version, numbers) in by_version {
        for chunk in numbers.chunks(IN_LIST_MAX) {
            if conn.set_feed_numbers(version, chunk)? != chunk.len() {
                return unstorable("feed numbers up to", last);
            }
        }
    }
    conn.raise_token(FEED, &last.to_string())?;
    Ok(TransactionEnd::Commit(u32::try_from(rows.len()).unwrap_or(limit)))
}

/// Events of all kinds, and how far the feed was read; fails on one that is not readable, because
/// readers need every event.
fn events<D: Database>(
    conn: &mut D,
    after: i64,
    limit: u32,
) -> Result<(Vec<FeedEvent>, i64), Error> {
    let rows = conn.events_after(after, limit)?;
    let mut keys = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        for (feed_no, key) in row.keys()? {
            // A reader may have stopped within a placement.
            if feed_no > after {
                keys.push((feed_no, key, at));
            }
        }
    }
    keys.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let read_to = keys.last().map_or(after, |(feed_no, ..)| *feed_no);
    let events = with_orders(conn, &rows, keys)?.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((events, read_to))
}

/// Events without those of version 0. Reads a bounded part of the feed, which may have no others.
fn changes<D: Database>(conn: &mut D, after: i64, limit: u32) -> Result<FeedPage, Error> {
    // Read first: what gets a number later is after it.
    let last = conn.token(FEED)?.unwrap_or(0).min(after.saturating_add(NUMBERS_PER_PAGE));
    let rows = conn.changes_after(after, last, limit)?;
    let (mut keys, mut found) = (Vec::with_capacity(rows.len()), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        match row.keys() {
            Ok(of_row) => keys.extend(of_row.into_iter().map(|(feed_no, key)| (feed_no, key, at))),
            Err(error) => found.push(Err(error)),
        }
    }
    found.extend(with_orders(conn, &rows, keys)?);
    let num_found = found.len();
    let events = readable_rows(found, |event| event);
    let num_unreadable = num_found - events.len();
    let events = events.into_iter().filter_map(FeedEvent::into_order).collect();
    let is_full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let end = rows.last().and_then(|row| row.feed_no).unwrap_or(after);
    let read_to = if is_full { end } else { last.max(after) };
    Ok(FeedPage { events, num_unreadable, read_to })
}

/// Events by feed number, key, and position of their row, each with its order or its failure, or
/// the error of a row that is not readable.
fn with_orders<D: Database>(
    conn: &mut D,
    rows: &[OrderEventRow],
    keys: Vec<(i64, OrderKey, usize)>,
) -> Result<Vec<Result<FeedEvent, Error>>, Error> {
    let order_keys: Vec<OrderKey> = keys.iter().map(|(_, key, _)| *key).collect();
    let found = conn.orders_by_key(&order_keys)?.into_iter();
    let orders: HashMap<(i32, i64, i64), OrderRow> =
        found.map(|row| ((row.sku_no, row.buyer_id, row.request_id), row)).collect();
    let refusals = rows.iter().filter(|row| row.is_refusal());
    let refusals: Vec<i64> = refusals.map(|row| row.request_id).collect();
    let failures = in_lists(&refusals, |chunk| conn.failures_by_request(chunk))?.into_iter();
    let mut failures: HashMap<i64, FailureRow> =
        failures.map(|failure| (failure.request_id, failure)).collect();
    let mut events = Vec::with_capacity(keys.len());
    for (feed_no, key, at) in keys {
        let Some(row) = rows.get(at) else { continue };
        let request = key.request.to_db();
        let event = if row.is_refusal() {
            let failure = failures.remove(&request).map(Failure::try_from);
            failure.map(|read| read.map(|failure| FeedEvent::Refused { feed_no, failure }))
        } else {
            let order = orders.get(&(key.sku.0, key.buyer.to_db(), request)).copied();
            let event = |order| row.event(feed_no, order).map(FeedEvent::Order);
            order.map(|order| Order::try_from(order).and_then(event))
        };
        if let Some(event) = event {
            events.push(event);
        } else if !conn.is_purged(key.sku.0)? {
            tracing::error!(request = %key.request, feed_no, "event of a missing order or failure");
        }
    }
    Ok(events)
}
