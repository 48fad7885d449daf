//! Operators' routes that change a sale while it runs: title, end, terms, and stock.

use actix_web::{http::header::HeaderValue, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::sale_views::AdminSaleView;
use super::sales::parse_sale_id;
use crate::domain::{SaleChange, SkuChange, SkuId};
use crate::http::buyers::views::no_store_json;
use crate::http::middleware::body::{JsonObject, SentTime, UnreadCall};
use crate::http::middleware::problem::{Handled, IDEMPOTENT_REPLAYED, Problem, ProblemCode};
use crate::http::operators::verbs::check_length;
use crate::http::state::State;
use crate::services::sales::StockOrder;

/// Ample for every SKU of a sale.
const CHANGE_BYTES_MAX: usize = 256 * 1024;

/// Most characters of a reason that is stored.
const REASON_CHARS_MAX: usize = 255;

/// What changes in a sale; a missing member stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleChangeBody {
    /// Shown to buyers.
    title: Option<String>,
    /// First instant after the window.
    #[schema(value_type = Option<String>, format = DateTime)]
    ends_at: Option<SentTime>,
    #[serde(default)]
    #[schema(value_type = Vec<SkuChange>)]
    skus: Vec<JsonObject<SkuChange>>,
    /// Recorded with who did it; at most 1000 characters.
    reason: Option<String>,
}

/// A change of the stock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StockChangeBody {
    /// Units to add; negative: to take out. Only free units are taken out.
    delta: i32,
    /// Names the change, 1 to 64 characters out of `A-Z a-z 0-9 . _ -`: a repeat changes nothing.
    change_id: String,
    /// Stored; at most 255 characters.
    reason: Option<String>,
}

/// A recorded change of the stock.
#[derive(Debug, Serialize, ToSchema)]
pub struct StockChangeView {
    sale_id: String,
    sku_id: String,
    change_id: String,
    delta: i32,
    /// The units that were added; negative: taken out. Fewer than `delta` if fewer were free.
    changed: i32,
    /// The stock afterwards: units ordered and left.
    initial_stock: u32,
    /// Those of it that are left, by the ledger.
    stock_left: u32,
}

/// Changes title, end and terms of a sale. Idempotent.
#[utoipa::path(
    patch, path = "/admin/v1/sales/{sale_id}",
    operation_id = "adminChangeSale", tag = "operators", request_body = SaleChangeBody,
    responses((status = 200, description = "the sale afterwards", body = AdminSaleView)),
)]
pub async fn change(mut call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let id = parse_sale_id(&sale_id)?;
    let body: SaleChangeBody = call.body(CHANGE_BYTES_MAX).await?;
    let change = SaleChange {
        by: call.by(body.reason)?,
        title: body.title,
        ends_at_ms: body.ends_at.map(|at| at.0),
        skus: body.skus.into_iter().map(|sku| sku.0).collect(),
    };
    let sale = state.deps.sales.change(&id, change).await?;
    Ok(no_store_json(AdminSaleView::new(&sale, &state)))
}

/// Changes the stock of a SKU, once per `change_id`. Units are added at once, also to a SKU that is
/// sold out. Only free units are taken out: `changed` tells how many.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/skus/{sku_id}/stock",
    operation_id = "adminChangeStock", tag = "operators",
    request_body = StockChangeBody,
    responses((status = 200, description = "the change, as recorded", body = StockChangeView,
        headers(("Idempotent-Replayed" = Option<bool>, description = "`true`: a repeat")))),
)]
pub async fn stock(
    mut call: UnreadCall,
    path: web::Path<(String, String)>,
    state: State,
) -> Handled {
    let (sale_id, sku_id) = path.into_inner();
    let body: StockChangeBody = call.body(CHANGE_BYTES_MAX).await?;
    check_length(body.reason.as_deref(), REASON_CHARS_MAX)?;
    if body.delta == 0 {
        return Err(Problem::invalid("delta must not be 0"));
    }
    // The form of every name.
    if body.change_id.parse::<SkuId>().is_err() {
        return Err(Problem::invalid(
            "change_id must be 1 to 64 characters out of A-Z a-z 0-9 . _ -",
        ));
    }
    let order = StockOrder {
        sale: parse_sale_id(&sale_id)?,
        sku: sku_id.parse().map_err(|_invalid| ProblemCode::UnknownSku)?,
        change_id: body.change_id.clone(),
        delta: body.delta,
        operator: call.by(body.reason.clone())?.map(|by| by.name),
        reason: body.reason,
    };
    let done = state.deps.sales.change_stock(order).await?;
    let mut answer = no_store_json(StockChangeView {
        sale_id,
        sku_id,
        change_id: body.change_id,
        delta: done.change.wanted,
        changed: done.change.units,
        initial_stock: done.sku.initial,
        stock_left: done.left,
    });
    if done.is_repeat {
        answer.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(answer)
}
