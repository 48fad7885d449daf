//! Database rows and their conversion to and from the domain.
//!
//! Every row is validated: a value that no version of this program writes is an error that names
//! the row, not a panic and not a guess.

use std::fmt::Display;

use diesel::prelude::*;

use super::Error;
use super::schema::{failed_requests, orders, sales, skus};
use crate::domain::{
    BuyerId, Epoch, Failure, Order, OrderIntent, OrderState, OrderTimeline, Phase, Policy, Refusal,
    RequestId, Sale, Sku, SkuDraft, SkuNo, TraceId,
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

/// Converts to a signed 32-bit column.
pub(super) fn narrow(name: &str, value: u32) -> Result<i32, Error> {
    i32::try_from(value).or_else(|_| unstorable(name, value))
}

/// Converts from a signed 32-bit column; `Unreadable` if negative.
pub(super) fn units(row: impl FnOnce() -> String, column: &str, value: i32) -> Result<u32, Error> {
    readable(u32::try_from(value).ok(), row, column, value)
}

/// A row of `orders`, without the columns of its timeline.
#[derive(Debug, Clone, Copy, Queryable, Selectable)]
#[diesel(table_name = orders)]
pub struct OrderRow {
    sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) slot: i64,
    pub(super) request_id: i64,
    epoch: i64,
    quantity: i32,
    amount: i64,
    state: i16,
    placed_at_ms: i64,
    pay_by_ms: i64,
}

impl TryFrom<OrderRow> for Order {
    type Error = Error;

    fn try_from(row: OrderRow) -> Result<Self, Error> {
        let name = || format!("order {} of sku {}", row.request_id, row.sku_no);
        let request = RequestId::from_db(row.request_id);
        let buyer = BuyerId::from_db(row.buyer_id);
        Ok(Self {
            request: readable(request, name, "request_id", row.request_id)?,
            sku: SkuNo(row.sku_no),
            epoch: Epoch(row.epoch),
            buyer: readable(buyer, name, "buyer_id", row.buyer_id)?,
            quantity: units(name, "quantity", row.quantity)?,
            slot: row.slot,
            amount: row.amount,
            state: readable(OrderState::from_db(row.state), name, "state", row.state)?,
            placed_at_ms: row.placed_at_ms,
            pay_by_ms: row.pay_by_ms,
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
    recorded_at_ms: Option<i64>,
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
     amount, state, placed_at_ms, pay_by_ms, trace_id, published_at_ms, recorded_at_ms";

/// A row to be inserted into `orders`.
#[derive(Debug, Clone, Copy)]
pub struct NewOrder {
    pub(super) numbers: [i64; 10],
    pub(super) trace_id: [u8; 16],
    pub(super) published_at_ms: Option<i64>,
    pub(super) recorded_at_ms: i64,
}

impl NewOrder {
    /// The row of the order that an intent writes at `now_ms`.
    pub(super) fn of(intent: &OrderIntent, now_ms: i64) -> Result<Self, Error> {
        Ok(Self {
            numbers: [
                intent.sku.0.into(),
                intent.buyer.to_db(),
                intent.slot,
                intent.request.to_db(),
                intent.epoch.0,
                narrow("quantity", intent.quantity)?.into(),
                intent.amount,
                OrderState::PendingPayment.to_db().into(),
                intent.placed_at_ms,
                intent.pay_by_ms,
            ],
            trace_id: intent.trace.0.to_be_bytes(),
            published_at_ms: intent.published_at_ms,
            recorded_at_ms: now_ms,
        })
    }
}

/// A row of `failed_requests`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = failed_requests, treat_none_as_default_value = false)]
pub struct FailureRow {
    pub(super) request_id: i64,
    sku_no: i32,
    buyer_id: i64,
    quantity: i32,
    reason: String,
    first_request_id: Option<i64>,
    owned: Option<i32>,
    quota: Option<i32>,
    recorded_at_ms: i64,
}

impl TryFrom<&Failure> for FailureRow {
    type Error = Error;

    fn try_from(failure: &Failure) -> Result<Self, Error> {
        let (mut first_request_id, mut owned, mut quota) = (None, None, None);
        match failure.reason {
            Refusal::AlreadyPurchased { first } => first_request_id = Some(first.to_db()),
            Refusal::QuotaExceeded { owned: units, limit } => {
                owned = Some(narrow("owned", units)?);
                quota = Some(narrow("limit", limit)?);
            }
            Refusal::SoldOut
            | Refusal::RequestIdReused
            | Refusal::NotStarted
            | Refusal::Ended
            | Refusal::Discarded => {}
        }
        Ok(Self {
            request_id: failure.request.to_db(),
            sku_no: failure.sku.0,
            buyer_id: failure.buyer.to_db(),
            quantity: narrow("quantity", failure.quantity)?,
            reason: failure.reason.code().to_owned(),
            first_request_id,
            owned,
            quota,
            recorded_at_ms: failure.recorded_at_ms,
        })
    }
}

impl FailureRow {
    fn name(&self) -> String {
        format!("failed request {}", self.request_id)
    }

    fn refusal(&self) -> Result<Refusal, Error> {
        let name = || self.name();
        let missing = format_args!("{} without details", self.reason);
        match self.reason.as_str() {
            "already-purchased" => {
                let first = self.first_request_id.and_then(RequestId::from_db);
                let first = readable(first, name, "reason", missing)?;
                Ok(Refusal::AlreadyPurchased { first })
            }
            "quota-exceeded" => {
                let details = self.owned.zip(self.quota);
                let (owned, limit) = readable(details, name, "reason", missing)?;
                Ok(Refusal::QuotaExceeded {
                    owned: units(name, "owned", owned)?,
                    limit: units(name, "quota", limit)?,
                })
            }
            code => readable(refusal_without_details(code), name, "reason", code),
        }
    }
}

/// The refusal of this code; `None` for unknown codes and for those with details.
pub(super) fn refusal_without_details(code: &str) -> Option<Refusal> {
    let refusals = [
        Refusal::SoldOut,
        Refusal::RequestIdReused,
        Refusal::NotStarted,
        Refusal::Ended,
        Refusal::Discarded,
    ];
    refusals.into_iter().find(|refusal| refusal.code() == code)
}

impl TryFrom<FailureRow> for Failure {
    type Error = Error;

    fn try_from(row: FailureRow) -> Result<Self, Error> {
        let name = || row.name();
        let request = RequestId::from_db(row.request_id);
        let buyer = BuyerId::from_db(row.buyer_id);
        Ok(Self {
            request: readable(request, name, "request_id", row.request_id)?,
            sku: SkuNo(row.sku_no),
            buyer: readable(buyer, name, "buyer_id", row.buyer_id)?,
            quantity: units(name, "quantity", row.quantity)?,
            reason: row.refusal()?,
            recorded_at_ms: row.recorded_at_ms,
        })
    }
}

/// A row of `sales`.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = sales)]
pub struct SaleRow {
    pub(super) sale_no: i32,
    sale_id: String,
    title: String,
    starts_at_ms: i64,
    ends_at_ms: i64,
    phase: i16,
    pub(super) epoch: i64,
    pub(super) opened_at_ms: i64,
}

impl SaleRow {
    fn name(&self) -> String {
        format!("sale {}", self.sale_no)
    }

    pub(super) fn phase(&self) -> Result<Phase, Error> {
        readable(Phase::from_db(self.phase), || self.name(), "phase", self.phase)
    }

    /// The sale with the SKUs of these rows.
    pub(super) fn with_skus(self, rows: Vec<SkuRow>) -> Result<Sale, Error> {
        let id = self.sale_id.parse().ok();
        Ok(Sale {
            no: self.sale_no,
            id: readable(id, || self.name(), "sale_id", &self.sale_id)?,
            phase: self.phase()?,
            title: self.title,
            starts_at_ms: self.starts_at_ms,
            ends_at_ms: self.ends_at_ms,
            epoch: Epoch(self.epoch),
            skus: rows.into_iter().map(Sku::try_from).collect::<Result<_, _>>()?,
        })
    }
}

/// A row of `skus`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = skus, treat_none_as_default_value = false)]
pub struct SkuRow {
    /// Numbered by the database.
    #[diesel(skip_insertion)]
    pub(super) sku_no: i32,
    pub(super) sale_no: i32,
    sku_id: String,
    title: String,
    price: i64,
    initial_stock: i32,
    pub(super) available: i32,
    policy_kind: String,
    policy_limit: Option<i32>,
    max_quantity: i32,
    buckets: i16,
    payment_window_s: i32,
    bar_lapsed: i16,
}

impl SkuRow {
    /// The row of a new SKU: all units are available.
    pub(super) fn new(sale_no: i32, sku: SkuDraft) -> Result<Self, Error> {
        let initial = narrow("initial_stock", sku.initial)?;
        Ok(Self {
            sku_no: 0,
            sale_no,
            sku_id: sku.id.as_str().to_owned(),
            title: sku.title,
            price: sku.price,
            initial_stock: initial,
            available: initial,
            policy_kind: sku.policy.kind().to_owned(),
            policy_limit: sku.policy.quota().map(|limit| narrow("limit", limit)).transpose()?,
            max_quantity: narrow("max_quantity", sku.policy.max_quantity())?,
            buckets: i16::try_from(sku.buckets).or_else(|_| unstorable("buckets", sku.buckets))?,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: i16::from(sku.bar_lapsed),
        })
    }
}

impl TryFrom<SkuRow> for Sku {
    type Error = Error;

    fn try_from(row: SkuRow) -> Result<Self, Error> {
        let name = || format!("sku {}", row.sku_no);
        let limit = row.policy_limit.map(|limit| units(name, "policy_limit", limit)).transpose()?;
        let max_quantity = units(name, "max_quantity", row.max_quantity)?;
        let policy = Policy::from_parts(&row.policy_kind, limit, Some(max_quantity))
            .or_else(|fault| readable(None, name, "policy", fault))?;
        Ok(Self {
            no: SkuNo(row.sku_no),
            id: readable(row.sku_id.parse().ok(), name, "sku_id", &row.sku_id)?,
            price: row.price,
            initial: units(name, "initial_stock", row.initial_stock)?,
            policy,
            buckets: readable(u16::try_from(row.buckets).ok(), name, "buckets", row.buckets)?,
            payment_window_s: row.payment_window_s,
            bar_lapsed: row.bar_lapsed != 0,
            title: row.title,
        })
    }
}
