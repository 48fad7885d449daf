//! Payment and cancellation of a buyer's order, and the webhooks of the payment provider.

use std::time::Duration;

use actix_web::http::header::HeaderMap;
use actix_web::{HttpRequest, web};

use super::auth::single;
use super::orders::views_of;
use super::requests::BuyerRequest;
use super::views::{OrderView, PaymentEventView, PaymentStartView, no_store_json, rfc3339};
use crate::domain::{BucketNo, Order, OrderKey, PayBy, PaymentRecorded, StoreDeadLetterOutcome};
use crate::http::admission::LimitedCall;
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpDeps, State};
use crate::observe::metrics::{Metrics, ReasonLabel};
use crate::payment::{BODY_BYTES_MAX, EventBody, WebhookError};
use crate::services::dead_letters::new_dead_letter::from_webhook;
use crate::services::order_life::OrderError;

/// Longest wait of an answer for the bucket of its order.
const SETTLE_WAIT: Duration = Duration::from_millis(200);

impl BuyerRequest {
    fn order_key(&self) -> OrderKey {
        OrderKey { sku: self.own.sku.no, buyer: self.own.buyer, request: self.number }
    }

    fn problem(&self, error: OrderError) -> Problem {
        match error {
            OrderError::Unknown => Problem::from(ProblemCode::NotFound)
                .with_detail("There is no order of yours with this id.")
                .with("request_id", self.id.as_str()),
            OrderError::Decided(order) => Problem::from(ProblemCode::NotPayable)
                .with("request_id", self.id.as_str())
                .with("state", order.state.name()),
            OrderError::Refused(reason) => Problem::from(ProblemCode::NotPayable)
                .with_detail(reason)
                .with("request_id", self.id.as_str()),
            OrderError::ProviderAway => Problem::from(ProblemCode::Busy)
                .with_detail("The payment provider did not answer. Repeats do no harm."),
            OrderError::Ledger(error) => error.into(),
        }
    }
}

/// Brings a changed order to its bucket, so that the next answer to its buyer knows it. The stock
/// returner brings it there, too: an error, or a bucket that does not answer soon, only delays.
async fn settle(order: Order, deps: &HttpDeps) {
    let Some((_, sku)) = deps.catalog.of_sku(order.sku) else { return };
    let home = BucketNo::home_of(order.buyer, sku.buckets);
    let settling = deps.stock.settle(vec![(home, order)]);
    tokio::time::timeout(SETTLE_WAIT, settling).await.ok();
}

/// Begins the payment of an order, or continues the one that is open.
#[utoipa::path(
    post, path = "/v1/orders/{request_id}/payment", operation_id = "payOrder", tag = "buyers",
    responses((status = 200, description = "where the buyer pays", body = PaymentStartView)),
)]
pub async fn pay(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let buyer = state.admit_to_store(&request, LimitedCall::OrderChange).await?;
    let owned = BuyerRequest::verified(&request_id, buyer, &state).await?;
    let paid = state.deps.orders.pay(owned.order_key()).await;
    let payable = paid.map_err(|error| owned.problem(error))?;
    settle(payable.order, &state.deps).await;
    let page = payable.started.url;
    let url = if page.starts_with('/') {
        // A page of this server, as the buyer reaches it.
        let seen = request.connection_info();
        format!("{}://{}{page}", seen.scheme(), seen.host())
    } else {
        page
    };
    Ok(no_store_json(PaymentStartView {
        payment_id: payable.started.payment_id,
        url,
        expires_at: PayBy::from_ms(payable.order.pay_until_ms()).ms().map(rfc3339),
    }))
}

/// Cancels an unpaid order; its units are free again.
#[utoipa::path(
    delete, path = "/v1/orders/{request_id}", operation_id = "cancelOrder", tag = "buyers",
    responses((status = 200, description = "cancelled, now or before", body = OrderView)),
)]
pub async fn cancel(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let buyer = state.admit_to_store(&request, LimitedCall::OrderChange).await?;
    let owned = BuyerRequest::verified(&request_id, buyer, &state).await?;
    let cancelled = state.deps.orders.cancel(owned.order_key()).await;
    let order = cancelled.map_err(|error| owned.problem(error))?;
    settle(order, &state.deps).await;
    let view = views_of(&state, &[order]).await?.pop().ok_or(ProblemCode::NotFound)?;
    Ok(no_store_json(view))
}

/// A webhook of the payment provider. 200 once it is committed, also for a known event.
#[utoipa::path(
    post, path = "/v1/payments/events", operation_id = "receivePaymentEvent", tag = "providers",
    request_body(content = EventBody, description = "signed: see docs/api.md"),
    responses((status = 200, description = "committed", body = PaymentEventView)),
)]
pub async fn event(request: HttpRequest, payload: web::Payload, state: State) -> Handled {
    let payload = payload.into_inner();
    let bytes = body::read_or(ProblemCode::BodyTooLarge, payload, BODY_BYTES_MAX).await?;
    let payments = state.deps.payments.as_ref().ok_or(WebhookError::Signature);
    let header = |name: &str| single(request.headers(), name);
    let now_ms = state.deps.clock.wall_ms();
    let event = payments.and_then(|payments| payments.webhooks.read(header, &bytes, now_ms, false));
    if let Err(WebhookError::Body(reason)) = &event {
        // The provider says something of money: an operator must be able to find it.
        let unreadable = from_webhook(header, &bytes, reason, now_ms);
        let origin = unreadable.origin;
        let stored = state.deps.ledger.store_dead_letters(vec![unreadable], now_ms).await?;
        if !stored.contains(&StoreDeadLetterOutcome::AlreadyStored) {
            state.deps.metrics.dead_letter(origin);
        }
    }
    let event = event.map_err(|error| rejected(&error, request.headers(), &state.deps.metrics))?;
    let outcome = match event {
        None => "ignored",
        Some(event) => match state.deps.orders.record(event).await? {
            PaymentRecorded::Known => "known",
            PaymentRecorded::Recorded(outcome, found) => {
                if let Some((order, _)) = found.map(|found| *found) {
                    settle(order, &state.deps).await;
                }
                outcome.name()
            }
        },
    };
    Ok(no_store_json(PaymentEventView { outcome }))
}

/// `unauthenticated` for what another sender could have sent, else the fault. Only what is signed
/// is logged: anyone can send the rest, and choose its id.
fn rejected(error: &WebhookError, headers: &HeaderMap, metrics: &Metrics) -> Problem {
    if matches!(error, WebhookError::Body(_)) {
        tracing::warn!(%error, id = single(headers, "webhook-id"), "webhook: unreadable");
    }
    metrics.webhooks_rejected.get_or_create(&ReasonLabel { reason: error.reason() }).inc();
    match error {
        WebhookError::Time | WebhookError::Signature => {
            Problem::unauthenticated(error.to_string(), "Webhook-Signature")
        }
        WebhookError::Header(name) if !headers.contains_key(*name) => {
            Problem::unauthenticated(error.to_string(), "Webhook-Signature")
        }
        WebhookError::TooLarge => {
            Problem::from(ProblemCode::BodyTooLarge).with_detail(error.to_string())
        }
        WebhookError::Header(_) | WebhookError::Body(_) => Problem::invalid(error.to_string()),
    }
}
