//! The operators' verb that loads the buckets of a sale anew.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::{SaleId, SkuId};
use crate::http::buyers::views::fresh;
use crate::http::middleware::body;
use crate::http::middleware::problem::Problem;
use crate::http::operators::sales::known;
use crate::http::state::HttpState;

/// One short member.
const BODY_MAX_BYTES: usize = 4 * 1024;

/// What is to be rebuilt.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildBody {
    /// Only this article; all of the sale when left out.
    #[schema(value_type = Option<String>)]
    sku_id: Option<SkuId>,
}

/// What was rebuilt.
#[derive(Debug, Serialize, ToSchema)]
pub struct RebuiltView {
    #[schema(value_type = String)]
    sale_id: SaleId,
    /// The articles whose buckets were loaded from the ledger.
    #[schema(value_type = Vec<String>)]
    skus: Vec<SkuId>,
}

/// Loads the buckets of a sale from the ledger while everything runs: buyers hear `busy` meanwhile,
/// and what was accepted stays accepted. Repeat-safe.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/rebuild", tag = "operators",
    params(("sale_id" = String, Path)), request_body = Option<RebuildBody>,
    responses((status = 200, description = "the buckets are loaded and open", body = RebuiltView)),
)]
pub async fn rebuild(
    sale_id: web::Path<String>,
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let sale_id = known(&sale_id)?;
    let asked: RebuildBody =
        body::optional(&request, payload, BODY_MAX_BYTES).await?.unwrap_or_default();
    let rebuilt = state.deps.desk.rebuild(&sale_id, asked.sku_id.as_ref()).await?;
    let skus = rebuilt.iter().map(|sku| sku.id.clone()).collect();
    Ok(fresh(RebuiltView { sale_id, skus }))
}
