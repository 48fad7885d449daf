//! Request ids, which distinguish a repeat of a purchase from a second purchase, and the status of
//! their requests. Read from the stock, never from the ledger. Only a cancellation asks the ledger,
//! which decides it.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::mine::BuyerSku;
use super::views::{RequestView, no_store_json, rfc3339};
use crate::domain::{BuyerId, RecordState, Refusal, RequestId, RequestRecord};
use crate::http::admission::LimitedCall;
use crate::http::buyers::request_ids::RequestIds;
use crate::http::middleware::body::UnreadCall;
use crate::http::middleware::problem::{Handled, NO_STORE, Problem, ProblemCode, retry_later};
use crate::http::state::{HttpDeps, HttpState, State};

/// A request id: newly issued, or the only one of this buyer for this SKU.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestIdView {
    /// To be sent with the purchase and with each repeat.
    request_id: String,
    /// After this, the id is accepted only for a request that was accepted before.
    expires_at: String,
}

/// What the request id is for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRequestId {
    sku_id: String,
}

/// Issues a request id, until the sale ends. For `one_per_buyer` it is the same at every call.
#[utoipa::path(
    post, path = "/v1/sales/{sale_id}/request-ids", operation_id = "issueRequestId", tag = "buyers",
    request_body = NewRequestId,
    responses((status = 200, description = "for one purchase", body = RequestIdView)),
)]
pub async fn create(mut call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    let buyer = state.admit(&call.request, LimitedCall::RequestId)?;
    let sale = state.sale(|catalog| catalog.announced(&sale_id)).await?;
    if sale.retention.is_purged() {
        return Err(ProblemCode::UnknownSku.into());
    }
    let query: NewRequestId = call.body(state.settings.http.body_max_bytes).await?;
    let sku = sale.sku(&query.sku_id).ok_or(ProblemCode::UnknownSku)?;
    if sale.is_over(now_ms) {
        return Err(ProblemCode::Ended.into());
    }
    let skus = std::slice::from_ref(sku);
    state.admit_shared(&call.request, LimitedCall::RequestId, buyer, skus).await?;
    let ids = &deps.request_ids;
    let (number, expires_at_ms) = if sku.policy.derives_request_id() {
        (ids.derive(&sale.id, sku.no, buyer), sale.ends_at_ms)
    } else {
        let number = ids.issue(now_ms);
        (number, ids.expires_at_ms(number))
    };
    Ok(no_store_json(RequestIdView {
        request_id: ids.sign(number, &sale.id, sku.no, buyer),
        expires_at: rfc3339(expires_at_ms),
    }))
}

/// A request of the authenticated buyer.
pub struct BuyerRequest {
    /// The signed request id.
    pub id: String,
    pub number: RequestId,
    pub own: BuyerSku,
}

impl BuyerRequest {
    /// Verifies that this id was issued to the buyer, who is authenticated.
    ///
    /// # Errors
    /// `not-found` for every fault of the id; `busy` if the ledger cannot be asked for its sale.
    pub async fn verified(sent: &str, buyer: BuyerId, state: &HttpState) -> Result<Self, Problem> {
        let deps = &state.deps;
        let unknown = || not_found(sent);
        let id = RequestIds::read(sent).ok_or_else(unknown)?;
        let found = deps.sales.find(|catalog| catalog.of_sku(id.sku_no)).await?;
        let (sale, sku) = found.ok_or_else(unknown)?;
        if !deps.request_ids.verify(&id, &sale.id, sku.no, buyer) {
            return Err(unknown());
        }
        let own = BuyerSku { sale, sku, buyer };
        Ok(Self { id: sent.to_owned(), number: id.number, own })
    }

    /// The record of the request in the stock; `not-found` if it was never accepted.
    async fn record(&self, deps: &HttpDeps) -> Result<RequestRecord, Problem> {
        self.own.record(deps, self.number).await?.ok_or_else(|| not_found(&self.id))
    }

    /// The request as the stock has it; `not-found` if it was never accepted.
    pub async fn poll(&self, deps: &HttpDeps) -> Result<RequestView, Problem> {
        Ok(self.view(deps, &self.record(deps).await?).await)
    }

    /// The request with this record, and with what its buyer may still buy.
    pub async fn view(&self, deps: &HttpDeps, record: &RequestRecord) -> RequestView {
        let mut view = RequestView::new(self.id.clone(), &self.own, record);
        if let RecordState::Failed(reason) = &record.state {
            view.again = self.own.again(deps, self.number, reason);
        }
        self.own.add_limit(&mut view, deps).await;
        view
    }
}

fn not_found(sent_id: &str) -> Problem {
    Problem::from(ProblemCode::NotFound)
        .with_detail("No request of yours with this id was accepted.")
        .with("state", "not_found")
        .with("request_id", sent_id)
}

/// Status of a request.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}", operation_id = "showRequest", tag = "buyers",
    responses((status = 200, description = "`queued`, `success` or `failed`", body = RequestView,
        headers(("Retry-After" = Option<u32>, description = "seconds; while it is `queued`")))),
)]
pub async fn show(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let owned = BuyerRequest::verified(&request_id, state.buyer(&request)?, &state).await?;
    let view = owned.poll(&state.deps).await?;
    let mut answer = HttpResponse::Ok();
    answer.insert_header(NO_STORE);
    if view.poll_after_ms > 0 {
        answer.insert_header(retry_later());
    }
    Ok(answer.json(view))
}

/// Cancels a request that is still queued; its units are free again, and the buyer's limit returns.
#[utoipa::path(
    delete, path = "/v1/requests/{request_id}", operation_id = "cancelRequest", tag = "buyers",
    responses((status = 200, description = "cancelled, now or before", body = RequestView)),
)]
pub async fn cancel(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let buyer = state.admit_to_store(&request, LimitedCall::OrderChange).await?;
    let owned = BuyerRequest::verified(&request_id, buyer, &state).await?;
    let record = owned.record(&state.deps).await?;
    let cancelled = state.deps.requests.cancel(&owned.own.sku, owned.number, &record).await;
    let record = cancelled.map_err(|error| {
        Problem::from(error)
            .with_detail("The ledger did not answer: the request may be cancelled. Ask again.")
    })?;
    if record.state == RecordState::Failed(Refusal::CancelledByBuyer) {
        return Ok(no_store_json(owned.view(&state.deps, &record).await));
    }
    let view = RequestView::new(owned.id, &owned.own, &record);
    let decided = Problem::from(ProblemCode::AlreadyDecided)
        .with("request_id", view.request_id)
        .with("state", view.state);
    Err(match view.reason {
        Some(reason) => decided.with("reason", reason),
        None => decided,
    })
}
