//! Operators' routes for payments: those that wait for an operator, and their next try.

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::db::EventCursor;
use crate::domain::named::schema_of;
use crate::domain::{
    AttemptKey, ListedPayment, OrderState, PaymentEvent, PaymentRecorded, PaymentReport,
    PaymentState, UnmatchedEvent, VerbSubject,
};
use crate::http::buyers::views::{page_cursor, page_cut, page_limit, rfc3339};
use crate::http::middleware::body::{UnreadCall, VerbBody};
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::operators::verbs::record;
use crate::http::state::{HttpState, State};
use crate::services::order_life::OrderError;

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 500;

/// Open attempts that their orders do not wait for with a deadline.
const IN_DOUBT: &str = "in_doubt";

/// Reports of no known attempt.
const UNMATCHED: &str = "unmatched";

/// Those of them that an operator has resolved.
const RESOLVED: &str = "resolved";

/// A verb that found nothing left to do.
const ALREADY: &str = "already";

/// Filter and page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PaymentsQuery {
    /// Default `refund_failed`.
    #[param(schema_with = listed_states)]
    state: Option<String>,
    /// Most payments in the answer: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

fn followed_states() -> Object {
    schema_of(PaymentState::ALL.map(PaymentState::name).into_iter().chain([UNMATCHED, RESOLVED]))
}

fn listed_states() -> Object {
    let special = [IN_DOUBT, UNMATCHED, RESOLVED];
    schema_of(PaymentState::ALL.map(PaymentState::name).into_iter().chain(special))
}

/// A payment, or a report of a payment that is not known.
#[derive(Default, Serialize, ToSchema)]
pub struct FollowedPaymentView {
    /// `<sku>-<buyer>-<request>-<attempt>`; of a report `event:<provider>:<event>`.
    id: String,
    #[schema(schema_with = followed_states)]
    state: &'static str,
    provider: String,
    /// Absent: the provider did not answer the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    payment_id: Option<String>,
    /// Of an unmatched report: the request that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sale_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buyer_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_state: Option<OrderState>,
    /// The received money; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    refunded_total: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_attempts: Option<u16>,
    /// When the refund is tried next.
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_at: Option<String>,
    /// Why the refund was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When an unmatched report was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_at: Option<String>,
}

/// A page of payments.
#[derive(Serialize, ToSchema)]
pub struct FollowedPaymentsView {
    payments: Vec<FollowedPaymentView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// What a retry, or a resolution, did.
#[derive(Serialize, ToSchema)]
pub struct RetriedView {
    /// `refund_due`: the refund is tried now; `asked`: the provider answered, and its answer is
    /// recorded; the effect of a report (`applied`, `late`, `unmatched`, ..); `already`: there is
    /// nothing to do; `resolved`: an operator has settled it.
    done: &'static str,
}

/// Payments in one state, in the order of their ids; unmatched reports oldest first.
#[utoipa::path(
    get, path = "/admin/v1/payments",
    operation_id = "adminListPayments", tag = "operators", params(PaymentsQuery),
    responses((status = 200, description = "a page", body = FollowedPaymentsView)),
)]
pub async fn list(state: State, query: web::Query<PaymentsQuery>) -> Handled {
    let limit = page_limit(query.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let name = query.state.as_deref().unwrap_or(PaymentState::RefundFailed.name());
    let cursor = query.cursor.as_deref();
    let ledger = &state.deps.ledger;
    if let UNMATCHED | RESOLVED = name {
        let after = page_cursor(cursor, event_cursor)?;
        let is_resolved = name == RESOLVED;
        let mut rows = ledger.unmatched_events(is_resolved, after, limit + 1).await?;
        let next_cursor =
            page_cut(&mut rows, limit, |last| format!("{}:{}", last.at_ms, last.event.event_id));
        let state_name = if is_resolved { RESOLVED } else { UNMATCHED };
        let payments = rows.into_iter().map(|row| of_event(&state, row, state_name)).collect();
        return Ok(HttpResponse::Ok().json(FollowedPaymentsView { payments, next_cursor }));
    }
    let after = page_cursor(cursor, |text| text.parse().ok())?;
    let mut rows = if name == IN_DOUBT {
        let in_doubt = ledger.payments_in_doubt(i64::MAX, after, limit + 1).await?;
        in_doubt.into_iter().map(ListedPayment::from).collect()
    } else {
        let unknown = || Problem::invalid("state must be a state of payments");
        let known = PaymentState::from_name(name).ok_or_else(unknown)?;
        ledger.payments_in(known, after, limit + 1).await?
    };
    let next_cursor = page_cut(&mut rows, limit, |last| last.payment.key.to_string());
    let payments = rows.into_iter().map(|row| of_payment(&state, row)).collect();
    Ok(HttpResponse::Ok().json(FollowedPaymentsView { payments, next_cursor }))
}

/// Tries the next step of a payment now: its refund, a question to the provider, or the match of
/// an unmatched report. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/payments/{payment}/retry",
    operation_id = "adminRetryPayment", tag = "operators",
    params(("payment" = String, Path, description = "`id` of the list")),
    request_body = Option<VerbBody>,
    responses((status = 200, description = "what was done", body = RetriedView)),
)]
pub async fn retry(mut call: UnreadCall, payment: web::Path<String>, state: State) -> Handled {
    let by = call.by_body().await?;
    let unknown = || not_found(&payment, "No payment has this id.");
    let (subject, done) = if let Some((provider, event_id)) = report_id(&payment) {
        let recorded = state.deps.orders.match_event(provider.clone(), event_id.clone()).await?;
        let done = match recorded.ok_or_else(unknown)? {
            PaymentRecorded::Known => ALREADY,
            PaymentRecorded::Recorded(outcome, _) => outcome.name(),
        };
        (VerbSubject::Report { provider, event_id }, done)
    } else {
        let key = payment.parse::<AttemptKey>().ok().ok_or_else(unknown)?;
        (VerbSubject::Payment(key), retry_attempt(&state, key).await?.ok_or_else(unknown)?)
    };
    if done != ALREADY && done != UNMATCHED {
        record(&state, &[subject], "retry", by).await;
    }
    Ok(HttpResponse::Ok().json(RetriedView { done }))
}

/// Resolves an unmatched report whose money an operator has settled elsewhere: it no longer waits,
/// and no payment that becomes known takes it. Who and why is recorded. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/payments/{payment}/resolve",
    operation_id = "adminResolvePayment", tag = "operators",
    params(("payment" = String, Path, description = "`id` of an unmatched report")),
    request_body = VerbBody,
    responses((status = 200, description = "`resolved` or `already`", body = RetriedView)),
)]
pub async fn resolve(mut call: UnreadCall, payment: web::Path<String>, state: State) -> Handled {
    let by = call.by_body().await?.ok_or(ProblemCode::Internal)?;
    if by.reason.is_none() {
        return Err(Problem::invalid("reason must say how the money was settled"));
    }
    let unknown = || not_found(&payment, "No unmatched report has this id.");
    let (provider, event) = report_id(&payment).ok_or_else(unknown)?;
    let resolved = state.deps.ledger.resolve_event(provider, event, by).await?;
    let done = if resolved.ok_or_else(unknown)? { RESOLVED } else { ALREADY };
    Ok(HttpResponse::Ok().json(RetriedView { done }))
}

fn not_found(payment: &str, detail: &'static str) -> Problem {
    Problem::from(ProblemCode::NotFound).with_detail(detail).with("payment", payment)
}

/// `None`: there is no such payment.
async fn retry_attempt(
    state: &HttpState,
    key: AttemptKey,
) -> Result<Option<&'static str>, Problem> {
    let ledger = &state.deps.ledger;
    let payments = ledger.payments_of(vec![key.order]).await?;
    let Some(payment) = payments.into_iter().find(|payment| payment.key == key) else {
        return Ok(None);
    };
    match payment.state {
        PaymentState::RefundDue | PaymentState::RefundFailed => {
            let is_due = ledger.refund_again(key).await?;
            Ok(Some(if is_due { "refund_due" } else { ALREADY }))
        }
        PaymentState::Started => {
            let Some(order) = ledger.order(key.order).await? else { return Ok(None) };
            match state.deps.orders.follow_up(&order, &payment).await {
                Ok(()) | Err(OrderError::Refused(_)) => Ok(Some("asked")),
                Err(OrderError::Ledger(error)) => Err(error.into()),
                Err(error) => Err(Problem::from(ProblemCode::Busy).with_detail(error.to_string())),
            }
        }
        PaymentState::Retaking
        | PaymentState::Closed
        | PaymentState::Applied
        | PaymentState::Refunded => Ok(Some(ALREADY)),
    }
}

/// The provider and the id of an unmatched report.
fn report_id(id: &str) -> Option<(String, String)> {
    let (provider, event) = id.strip_prefix("event:")?.split_once(':')?;
    Some((provider.to_owned(), event.to_owned()))
}

fn event_cursor(text: &str) -> Option<EventCursor> {
    let (at_ms, event_id) = text.split_once(':')?;
    Some(EventCursor { at_ms: at_ms.parse().ok()?, event_id: event_id.to_owned() })
}

fn of_payment(state: &HttpState, listed: ListedPayment) -> FollowedPaymentView {
    let ListedPayment { payment, refund_attempts, refund_due_ms, reason, order_state } = listed;
    FollowedPaymentView {
        id: payment.key.to_string(),
        state: payment.state.name(),
        provider: payment.provider,
        payment_id: payment.started.map(|started| started.payment_id),
        request_id: Some(payment.key.order.request.to_string()),
        sale_id: state.deps.names_of(payment.key.order.sku).map(|(sale, _)| sale),
        buyer_id: Some(payment.key.order.buyer.to_string()),
        order_state,
        amount: payment.received.map(|money| money.amount),
        currency: payment.received.map(|money| money.currency.to_string()),
        refunded_total: payment.refunded_total,
        refund_attempts: Some(refund_attempts),
        refund_at: refund_due_ms.map(rfc3339),
        reason,
        ..FollowedPaymentView::default()
    }
}

fn of_event(
    state: &HttpState,
    unmatched: UnmatchedEvent,
    state_name: &'static str,
) -> FollowedPaymentView {
    let UnmatchedEvent { event, at_ms } = unmatched;
    let PaymentEvent { provider, event_id, payment_id, attempt, report } = event;
    let (received, refunded_total) = match report {
        PaymentReport::Closed => (None, 0),
        PaymentReport::Succeeded(money) => (Some(money), 0),
        PaymentReport::Refunded { received, total } => (Some(received), total),
    };
    let names = attempt.and_then(|attempt| state.deps.names_of(attempt.order.sku));
    FollowedPaymentView {
        id: format!("event:{provider}:{event_id}"),
        state: state_name,
        provider,
        payment_id: Some(payment_id),
        request_id: attempt.map(|attempt| attempt.order.request.to_string()),
        sale_id: names.map(|(sale, _)| sale),
        buyer_id: attempt.map(|attempt| attempt.order.buyer.to_string()),
        amount: received.map(|money| money.amount),
        currency: received.map(|money| money.currency.to_string()),
        refunded_total,
        recorded_at: Some(rfc3339(at_ms)),
        ..FollowedPaymentView::default()
    }
}
