//! Operators' route that reloads the buckets of a sale from the ledger.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::{SaleId, SkuId};
use crate::http::buyers::views::no_store_json;
use crate::http::middleware::body;
use crate::http::middleware::problem::Problem;
use crate::http::operators::sales::parse_sale_id;
use crate::http::state::HttpState;

/// The body has one short member.
const BODY_MAX_BYTES: usize = 4 * 1024;

/// Scope of a rebuild.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildBody {
    /// Only this SKU; default: all SKUs of the sale.
    #[schema(value_type = Option<String>)]
    sku_id: Option<SkuId>,
}

/// Result of a rebuild.
#[derive(Debug, Serialize, ToSchema)]
pub struct RebuiltView {
    #[schema(value_type = String)]
    sale_id: SaleId,
    /// The SKUs whose buckets were loaded from the ledger.
    #[schema(value_type = Vec<String>)]
    skus: Vec<SkuId>,
}

/// Reloads the buckets of a sale from the ledger while the sale runs. Purchases are answered `busy`
/// meanwhile; accepted requests stay accepted. Idempotent.
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
    let sale_id = parse_sale_id(&sale_id)?;
    let scope: RebuildBody =
        body::optional(&request, payload, BODY_MAX_BYTES).await?.unwrap_or_default();
    let rebuilt = state.deps.sales.rebuild(&sale_id, scope.sku_id.as_ref()).await?;
    let skus = rebuilt.iter().map(|sku| sku.id.clone()).collect();
    Ok(no_store_json(RebuiltView { sale_id, skus }))
}
