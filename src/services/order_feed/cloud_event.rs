//! Order events in the format of CloudEvents 1.0.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::db::FeedEvent;
use crate::domain::{
    Failure, Order, OrderEvent, OrderState, Payment, PaymentState, Refusal, Sale, SaleId, Sku,
    SkuId,
};
use crate::runtime::clock::rfc3339;

/// A change of an order, or the refusal of an accepted request, as a CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CloudEvent {
    /// `1.0`.
    specversion: &'static str,
    /// `<request>.<version>`: a repeat has the same. A refused request has version 0.
    pub id: String,
    /// `/floodgate/<installation>/<sale>`.
    source: String,
    /// `order.placed`; `order.` with the new state of a changed order; `order.paid_unfulfilled` for
    /// an ended order whose late money is to be paid back; `request.refused` for an accepted
    /// request that became no order.
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
    /// The routing key in the broker: `<type>.<sale>.<sku>`.
    #[serde(skip)]
    pub topic: String,
}

/// What changed: `order` or `request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct OrderEventData {
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<OrderAfterEvent>,
    /// Of `request.refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RefusedRequest>,
    /// Of an event that a payment caused.
    #[serde(skip_serializing_if = "Option::is_none")]
    payment: Option<EventPayment>,
    /// `buyer`, `timer` or `provider`; of `request.refused` `ledger`, `buyer`
    /// (cancelled), `timer` (queued for too long) or `operator` (discarded).
    actor: &'static str,
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
    state: OrderState,
    placed_at: String,
    /// The payment deadline that the buyer sees; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_by: Option<String>,
    /// When the order ends unless it is paid; absent once that is decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
}

/// An accepted request that became no order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct RefusedRequest {
    /// The request's number.
    request_id: String,
    sale_id: String,
    sku_id: String,
    buyer_id: String,
    quantity: u32,
    /// The code of a problem.
    reason: &'static str,
}

/// A payment, as it is when the feed is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct EventPayment {
    payment_id: String,
    provider: String,
    state: PaymentState,
    refunded_total: i64,
}

impl CloudEvent {
    /// The event of an order or request of this sale; one of these payments may have caused it.
    pub(super) fn new(
        installation: &str,
        (sale, sku): (&Sale, &Sku),
        event: FeedEvent,
        payments: &HashMap<String, Payment>,
    ) -> Self {
        let feed_no = event.feed_no();
        let (request, version, at_ms, kind, data) = match event {
            FeedEvent::Order(event) => {
                let (Order { request, version, state, .. }, at_ms) = (event.order, event.at_ms);
                let kind = match (version, state) {
                    _ if event.is_unfulfilled => "paid_unfulfilled",
                    (0, OrderState::PendingPayment) => "placed",
                    (_, state) => state.name(),
                };
                let data = OrderEventData::of_order(sale, sku, event, payments);
                (request, version, at_ms, format!("order.{kind}"), data)
            }
            FeedEvent::Refused { failure, .. } => {
                let data = OrderEventData::of_failure(sale, sku, &failure);
                (failure.request, 0, failure.recorded_at_ms, "request.refused".to_owned(), data)
            }
        };
        Self {
            specversion: "1.0",
            id: format!("{request}.{version}"),
            source: format!("/floodgate/{installation}/{}", sale.id),
            topic: topic(&kind, &sale.id, &sku.id),
            kind,
            subject: request.to_string(),
            time: rfc3339(at_ms),
            sequence: feed_no.to_string(),
            datacontenttype: "application/json",
            data,
            feed_no,
        }
    }
}

/// A routing key. Dots separate its words, so that a dot of an id is a `:`, which no id has; a
/// longer escape would not fit into the 255 bytes of a key.
fn topic(kind: &str, sale: &SaleId, sku: &SkuId) -> String {
    let word = |id: &str| id.replace('.', ":");
    format!("{kind}.{}.{}", word(sale.as_str()), word(sku.as_str()))
}

impl OrderEventData {
    fn of_order(
        sale: &Sale,
        sku: &Sku,
        event: OrderEvent,
        payments: &HashMap<String, Payment>,
    ) -> Self {
        let order = event.order;
        let payment = event.payment_id.as_ref().and_then(|id| payments.get(id));
        let payment = payment.filter(|payment| payment.key.order == order.key());
        let payment = payment.zip(event.payment_id).map(|(payment, payment_id)| EventPayment {
            payment_id,
            provider: payment.provider.clone(),
            state: payment.state,
            refunded_total: payment.refunded_total,
        });
        let order = OrderAfterEvent {
            request_id: order.request.to_string(),
            version: order.version,
            sale_id: sale.id.to_string(),
            sku_id: sku.id.to_string(),
            buyer_id: order.buyer.to_string(),
            quantity: order.quantity,
            amount: order.amount,
            currency: sale.currency.to_string(),
            state: order.state,
            placed_at: rfc3339(order.placed_at_ms),
            pay_by: order.pay_by_ms.map(rfc3339),
            due_at: order.due_ms.map(rfc3339),
        };
        let (actor, reason) = (event.actor.name(), event.reason);
        Self { order: Some(order), request: None, payment, actor, reason }
    }

    fn of_failure(sale: &Sale, sku: &Sku, failure: &Failure) -> Self {
        let actor = match failure.reason {
            Refusal::CancelledByBuyer => "buyer",
            Refusal::QueueTimeout => "timer",
            Refusal::Discarded => "operator",
            _ => "ledger",
        };
        let reason = failure.reason.code();
        let request = RefusedRequest {
            request_id: failure.request.to_string(),
            sale_id: sale.id.to_string(),
            sku_id: sku.id.to_string(),
            buyer_id: failure.buyer.to_string(),
            quantity: failure.quantity,
            reason,
        };
        let reason = Some(reason.to_owned());
        Self { order: None, request: Some(request), payment: None, actor, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::TEXT_ID_BYTES_MAX;

    fn topic_of(sale: &str, sku: &str) -> String {
        topic("order.paid_unfulfilled", &sale.parse().unwrap(), &sku.parse().unwrap())
    }

    #[test]
    fn each_pair_of_ids_has_its_own_routing_key() {
        let keys = [("a.b", "c"), ("a", "b.c")].map(|(sale, sku)| topic_of(sale, sku));
        assert_eq!(keys, ["order.paid_unfulfilled.a:b.c", "order.paid_unfulfilled.a.b:c"]);
        // AMQP's limit.
        let longest = format!("{}a", ".".repeat(TEXT_ID_BYTES_MAX - 1));
        assert!(topic_of(&longest, &longest).len() <= 255);
    }
}
