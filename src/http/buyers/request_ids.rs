//! Issues request ids before the purchase. The request id distinguishes a repeat of a purchase from
//! a second purchase.

use std::borrow::Cow;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use utoipa::ToSchema;

use super::views::{RequestIdView, no_store_json, rfc3339};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpState;

/// The SKU that the request id is for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestIdQuery<'b> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    sku_id: Cow<'b, str>,
}

/// Issues a request id. For `one_per_buyer` it is the same at every call and is valid until the
/// sale ends.
#[utoipa::path(
    post, path = "/v1/sales/{sale_id}/request-ids", tag = "buyers",
    params(("sale_id" = String, Path)),
    request_body = RequestIdQuery<'_>,
    responses((status = 200, description = "for one purchase", body = RequestIdView)),
)]
pub async fn create(
    request: HttpRequest,
    sale_id: web::Path<String>,
    payload: web::Payload,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    let buyer = state.buyer_auth.buyer(request.headers(), now_ms)?;
    let listed = deps.catalog.sale(&sale_id).ok_or(ProblemCode::UnknownSku)?;
    let bytes = body::read(payload, state.settings.http.body_max_bytes).await?;
    let query: RequestIdQuery<'_> = body::parse(request.headers(), &bytes)?;
    let sku = listed.sku(&query.sku_id).ok_or(ProblemCode::UnknownSku)?;
    let sale = &listed.sale;
    let (number, expires_at_ms) = if sku.policy.derives_request_id() {
        (state.tokens.derive(&sale.id, sku.no, buyer), sale.ends_at_ms)
    } else {
        let number = state.tokens.issue(now_ms);
        (number, state.tokens.expires_at_ms(number))
    };
    Ok(no_store_json(RequestIdView {
        request_id: state.tokens.show(number, &sale.id, sku.no, buyer),
        expires_at: rfc3339(expires_at_ms),
    }))
}
