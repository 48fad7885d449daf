//! Rows of orders, and the conversion of columns to and from the domain.
//!
//! Every row is validated: a value that no version of this program writes is an error that names
//! the row, not a panic and not a guess.

use std::fmt::Display;

use diesel::prelude::*;
use diesel::sqlite::Sqlite;

use super::Error;
use super::schema::orders;
use crate::domain::{
    BuyerId, Epoch, Order, OrderIntent, OrderKey, OrderState, OrderTimeline, RequestId, SkuNo,
    TraceId,
};

/// The converted value of a column; `Unreadable` with row, column and value for `None`.
pub(super) fn readable<T>(
    converted: Option<T>,
    row: impl FnOnce() -> String,
    column: &str,
    value: impl Display,
) -> Result<T, Error> {
    converted.ok_or_else(|| Error::Unreadable { what: format!("{}: {column} is {value}", row()) })
}

/// The error of a value that is out of the range of its column.
pub(super) fn unstorable<T>(name: &str, value: impl Display) -> Result<T, Error> {
    Err(Error::Unstorable { what: format!("{name} {value}") })
}

/// A number as the type of its column; `Unstorable` if it is out of its range.
pub(super) fn narrow<N, T>(name: &str, value: N) -> Result<T, Error>
where
    N: Display + Copy,
    T: TryFrom<N>,
{
    T::try_from(value).or_else(|_| unstorable(name, value))
}

/// A number from its column; `Unreadable` if it is out of the range of its type.
pub(super) fn number<N, T>(row: impl FnOnce() -> String, column: &str, value: N) -> Result<T, Error>
where
    N: Display + Copy,
    T: TryFrom<N>,
{
    readable(T::try_from(value).ok(), row, column, value)
}

/// The key of an order from its columns.
pub(super) fn order_key(sku: i32, buyer: i64, request: i64) -> Result<OrderKey, Error> {
    let name = || format!("order {request} of sku {sku}");
    Ok(OrderKey {
        sku: SkuNo(sku),
        buyer: readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?,
        request: readable(RequestId::from_db(request), name, "request_id", request)?,
    })
}

/// A row of `orders`, without the columns of its timeline.
#[derive(Debug, Clone, Copy, Queryable, Selectable)]
#[diesel(table_name = orders)]
pub struct OrderRow {
    pub(super) sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) slot: i64,
    pub(super) request_id: i64,
    epoch: i64,
    quantity: i32,
    amount: i64,
    state: i16,
    placed_at_ms: i64,
    pay_by_ms: i64,
    version: i32,
    due_ms: Option<i64>,
    counts_for_limit: i16,
}

/// The columns of [`OrderRow`], and their types, for statements that diesel cannot express.
pub(super) const ORDER_COLUMNS: &str = "sku_no, buyer_id, slot, request_id, epoch, quantity, \
     amount, state, placed_at_ms, pay_by_ms, version, due_ms, counts_for_limit";
pub(super) type OrderColumns =
    <<OrderRow as Selectable<Sqlite>>::SelectExpression as Expression>::SqlType;

impl TryFrom<OrderRow> for Order {
    type Error = Error;

    fn try_from(row: OrderRow) -> Result<Self, Error> {
        let name = || format!("order {} of sku {}", row.request_id, row.sku_no);
        let OrderKey { sku, buyer, request } = order_key(row.sku_no, row.buyer_id, row.request_id)?;
        Ok(Self {
            request,
            sku,
            epoch: Epoch(row.epoch),
            buyer,
            quantity: number(name, "quantity", row.quantity)?,
            slot: row.slot,
            amount: row.amount,
            state: readable(OrderState::from_db(row.state), name, "state", row.state)?,
            placed_at_ms: row.placed_at_ms,
            pay_by_ms: (row.pay_by_ms > 0).then_some(row.pay_by_ms),
            version: number(name, "version", row.version)?,
            due_ms: row.due_ms,
            counts_for_limit: row.counts_for_limit != 0,
        })
    }
}

/// A row of `orders` with the columns of its timeline.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = orders)]
pub struct OrderTimelineRow {
    #[diesel(embed)]
    order: OrderRow,
    trace_id: Vec<u8>,
    published_at_ms: Option<i64>,
    recorded_at_ms: i64,
}

impl TryFrom<OrderTimelineRow> for OrderTimeline {
    type Error = Error;

    fn try_from(row: OrderTimelineRow) -> Result<Self, Error> {
        let order = Order::try_from(row.order)?;
        let trace = <[u8; 16]>::try_from(row.trace_id.as_slice()).ok();
        let length = format_args!("{} bytes long", row.trace_id.len());
        let trace = readable(trace, || format!("order {}", order.request), "trace_id", length)?;
        Ok(Self {
            order,
            trace: TraceId(u128::from_be_bytes(trace)),
            published_at_ms: row.published_at_ms,
            recorded_at_ms: row.recorded_at_ms,
        })
    }
}

/// The columns of [`NewOrder`], in the order of its fields.
pub(super) const NEW_ORDER_COLUMNS: &str = "sku_no, buyer_id, slot, request_id, epoch, quantity, \
     amount, state, placed_at_ms, pay_by_ms, trace_id, published_at_ms, recorded_at_ms, due_ms";

/// A row to be inserted into `orders`.
#[derive(Debug, Clone, Copy)]
pub struct NewOrder {
    pub(super) numbers: [i64; 10],
    pub(super) trace_id: [u8; 16],
    pub(super) published_at_ms: Option<i64>,
    pub(super) recorded_at_ms: i64,
    pub(super) due_ms: Option<i64>,
}

impl NewOrder {
    /// The row of the order that an intent writes at `now_ms`.
    pub(super) fn of(intent: &OrderIntent, now_ms: i64) -> Result<Self, Error> {
        let Order { pay_by_ms, due_ms, .. } = intent.order(now_ms);
        Ok(Self {
            numbers: [
                intent.sku.0.into(),
                intent.buyer.to_db(),
                intent.slot,
                intent.request.to_db(),
                intent.epoch.0,
                narrow::<_, i32>("quantity", intent.quantity)?.into(),
                intent.amount,
                OrderState::PendingPayment.to_db().into(),
                intent.placed_at_ms,
                pay_by_ms.unwrap_or(0),
            ],
            trace_id: intent.trace.0.to_be_bytes(),
            published_at_ms: intent.published_at_ms,
            recorded_at_ms: now_ms,
            due_ms,
        })
    }

    pub(super) fn slot(&self) -> i64 {
        let [_, _, slot, ..] = self.numbers;
        slot
    }

    pub(super) fn is_of_same_sku(&self, other: &Self) -> bool {
        self.numbers.first() == other.numbers.first()
    }

    /// SKU, buyer and request.
    pub(super) fn key(&self) -> (i32, i64, i64) {
        let [sku_no, buyer_id, _, request_id, ..] = self.numbers;
        // Made from 32 bits.
        (i32::try_from(sku_no).unwrap_or_default(), buyer_id, request_id)
    }
}
