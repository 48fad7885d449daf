//! Order events in the format of CloudEvents 1.0.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::{OrderEvent, OrderState, Payment, PaymentState, Sku};
use crate::runtime::clock::rfc3339;
use crate::services::catalog::CatalogSale;

/// A change of an order, as a CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CloudEvent {
    /// `1.0`.
    specversion: &'static str,
    /// `<request>.<version>`: a repeat has the same.
    pub id: String,
    /// `/floodgate/<installation>/<sale>`.
    source: String,
    /// `order.placed`; `order.` with the new state of a changed order; `order.paid_unfulfilled` for
    /// an ended order whose late money is to be paid back.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request's number.
    subject: String,
    time: String,
    /// The feed number: ascending; without gaps, except for events of purged sales.
    sequence: String,
    datacontenttype: &'static str,
    data: OrderEventData,
    /// The number of `sequence`.
    #[serde(skip)]
    pub feed_no: i64,
    /// The routing key in the broker.
    #[serde(skip)]
    pub topic: String,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct OrderEventData {
    order: OrderAfterEvent,
    /// Of an event that a payment caused.
    #[serde(skip_serializing_if = "Option::is_none")]
    payment: Option<EventPayment>,
    /// `buyer`, `timer`, `provider` or `operator:<name>`.
    actor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// An order as the event left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct OrderAfterEvent {
    /// The request's number.
    request_id: String,
    /// 0 when placed; each change increments it.
    version: u16,
    sale_id: String,
    sku_id: String,
    buyer_id: String,
    quantity: u32,
    /// Price times quantity.
    amount: i64,
    currency: String,
    #[schema(value_type = OrderState)]
    state: &'static str,
    placed_at: String,
    /// The payment deadline that the buyer sees; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_by: Option<String>,
    /// When the order ends unless it is paid; absent once that is decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
}

/// A payment, as it is when the feed is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct EventPayment {
    payment_id: String,
    provider: String,
    #[schema(value_type = PaymentState)]
    state: &'static str,
    refunded_total: i64,
}

impl CloudEvent {
    /// The event of an order of this sale; `payment` is the one that caused it.
    pub(super) fn new(
        installation: &str,
        (listed, sku): (&CatalogSale, &Sku),
        event: OrderEvent,
        payment: Option<&Payment>,
    ) -> Self {
        let (order, sale) = (event.order, &listed.sale);
        let kind = match (order.version, order.state) {
            _ if event.is_unfulfilled => "paid_unfulfilled",
            (0, OrderState::PendingPayment) => "placed",
            (_, state) => state.name(),
        };
        let payment = payment.zip(event.payment_id).map(|(payment, payment_id)| EventPayment {
            payment_id,
            provider: payment.provider.clone(),
            state: payment.state.name(),
            refunded_total: payment.refunded_total,
        });
        Self {
            specversion: "1.0",
            id: format!("{}.{}", order.request, order.version),
            source: format!("/floodgate/{installation}/{}", sale.id),
            kind: format!("order.{kind}"),
            subject: order.request.to_string(),
            time: rfc3339(event.at_ms),
            sequence: event.feed_no.to_string(),
            datacontenttype: "application/json",
            data: OrderEventData {
                order: OrderAfterEvent {
                    request_id: order.request.to_string(),
                    version: order.version,
                    sale_id: sale.id.to_string(),
                    sku_id: sku.id.to_string(),
                    buyer_id: order.buyer.to_string(),
                    quantity: order.quantity,
                    amount: order.amount,
                    currency: sale.currency.to_string(),
                    state: order.state.name(),
                    placed_at: rfc3339(order.placed_at_ms),
                    pay_by: order.pay_by_ms.map(rfc3339),
                    due_at: order.due_ms.map(rfc3339),
                },
                payment,
                actor: event.actor.to_string(),
                reason: event.reason,
            },
            feed_no: event.feed_no,
            topic: format!("order.{kind}.{}.{}", sale.id, sku.id),
        }
    }
}
