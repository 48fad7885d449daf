//! Operators' routes for sales: list, show, create, open, pause, close, funnel, rebuild.

use actix_web::http::header::LOCATION;
use actix_web::{HttpResponse, web};
use serde_json::json;

use super::retention::OpenEndView;
use super::sale_views::{
    AdminSaleView, AdminSalesView, BucketsView, FunnelView, RebuildBody, RebuiltView, SaleBody,
};
use crate::domain::{ByOperator, Phase, SaleId, VerbSubject};
use crate::http::buyers::sales::SalesQuery;
use crate::http::buyers::views::{no_store_json, rfc3339};
use crate::http::middleware::body::{UnreadCall, VerbBody};
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::operators::verbs::{VERB_BYTES_MAX, record};
use crate::http::state::{HttpState, State};
use crate::services::sales::SalesError;

/// Ample for a sale with 200 SKUs.
const SALE_BYTES_MAX: usize = 256 * 1024;

impl From<SalesError> for Problem {
    fn from(error: SalesError) -> Self {
        let detail = error.to_string();
        let explained = |code: ProblemCode| Self::from(code).with_detail(detail);
        match error {
            SalesError::Exists => ProblemCode::SaleExists.into(),
            SalesError::Unknown => ProblemCode::UnknownSku.into(),
            SalesError::NotAllowed { from, to, .. } => explained(ProblemCode::PhaseConflict)
                .with("from", from.name())
                .with("to", to.name()),
            SalesError::NoBuckets => ProblemCode::NoBuckets.into(),
            SalesError::LedgerBehind { .. } => explained(ProblemCode::LedgerBehind),
            SalesError::IsClosed => ProblemCode::SaleClosed.into(),
            SalesError::ChangeConflict => ProblemCode::ChangeConflict.into(),
            SalesError::NotRebuilt { .. }
            | SalesError::NotWithdrawn
            | SalesError::NotApplied { .. } => explained(ProblemCode::Busy),
            SalesError::Unfinished(open) => {
                Self::from(ProblemCode::SaleUnfinished).with("open", json!(OpenEndView::all(&open)))
            }
            SalesError::ArchiveDiffers(_) => explained(ProblemCode::ArchiveDiffers),
            SalesError::Purged(digest) => {
                explained(ProblemCode::SalePurged).with("archive_digest", digest.to_string())
            }
            SalesError::Faults(faults) => Self::invalid(faults.join("; ")).with("faults", faults),
            SalesError::Ledger(error) => error.into(),
            SalesError::Stock(error) => error.into(),
        }
    }
}

/// All sales with their configuration.
#[utoipa::path(
    get, path = "/admin/v1/sales", operation_id = "adminListSales", tag = "operators",
    params(SalesQuery),
    responses((status = 200, description = "oldest first", body = AdminSalesView)),
)]
pub async fn list(query: web::Query<SalesQuery>, state: State) -> Handled {
    let mut sales = state.deps.catalog.all();
    let next_cursor = query.page(&mut sales)?;
    let sales = sales.iter().map(|sale| AdminSaleView::new(sale, &state)).collect();
    Ok(no_store_json(AdminSalesView { sales, next_cursor }))
}

/// One sale with its configuration.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}", operation_id = "adminShowSale", tag = "operators",
    responses((status = 200, description = "the sale", body = AdminSaleView)),
)]
pub async fn show(sale_id: web::Path<String>, state: State) -> Handled {
    let sale = state.sale(|catalog| catalog.sale(&sale_id)).await?;
    Ok(no_store_json(AdminSaleView::new(&sale, &state)))
}

/// Creates a sale in phase draft.
#[utoipa::path(
    post, path = "/admin/v1/sales",
    operation_id = "adminCreateSale", tag = "operators", request_body = SaleBody,
    responses((status = 201, description = "created, in phase draft", body = AdminSaleView,
        headers(("Location" = String, description = "the sale")))),
)]
pub async fn create(mut call: UnreadCall, state: State) -> Handled {
    let mut body: SaleBody = call.body(SALE_BYTES_MAX).await?;
    let by = call.by(body.reason.take())?;
    let sale = state.deps.sales.create(body.into_draft()?).await?;
    record(&state, &[VerbSubject::Sale(sale.id.clone())], "create", by).await;
    let location = (LOCATION, format!("/admin/v1/sales/{}", sale.id));
    let view = AdminSaleView::new(&sale, &state);
    Ok(HttpResponse::Created().insert_header(location).json(view))
}

/// Defines the handlers that set the phase of a sale.
macro_rules! phase_handlers {
    ($($(#[$doc:meta])* $verb:ident $path:literal $id:literal => $phase:ident;)+) => {$(
        $(#[$doc])*
        #[utoipa::path(
            post, path = $path, tag = "operators", operation_id = $id,
            request_body = Option<VerbBody>,
            responses((status = 200, description = "the sale afterwards", body = AdminSaleView)),
        )]
        pub async fn $verb(
            mut call: UnreadCall,
            sale_id: web::Path<String>,
            state: State,
        ) -> Handled {
            let by = call.by_body().await?;
            set_phase(&sale_id, Phase::$phase, by, &state).await
        }
    )+};
}

phase_handlers! {
    /// Opens a sale: it sells inside its window. Idempotent.
    open "/admin/v1/sales/{sale_id}/open" "adminOpenSale" => Open;
    /// Pauses a sale; it may be opened again. Idempotent.
    pause "/admin/v1/sales/{sale_id}/pause" "adminPauseSale" => Paused;
    /// Closes a sale for good. Idempotent.
    close "/admin/v1/sales/{sale_id}/close" "adminCloseSale" => Closed;
}

async fn set_phase(
    sale_id: &str,
    next: Phase,
    by: Option<ByOperator>,
    state: &HttpState,
) -> Handled {
    let sale = state.deps.sales.set_phase(&parse_sale_id(sale_id)?, next, by).await?;
    Ok(no_store_json(AdminSaleView::new(&sale, state)))
}

/// Count and oldest age of each stage. The count of an unavailable store is null.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}/funnel",
    operation_id = "adminShowFunnel", tag = "operators",
    responses((status = 200, description = "in the order of the flow", body = FunnelView)),
)]
pub async fn funnel(sale_id: web::Path<String>, state: State) -> Handled {
    let stages = state.deps.sales.funnel(&parse_sale_id(&sale_id)?).await?;
    let (sale_id, at) = (sale_id.into_inner(), rfc3339(state.deps.clock.wall_ms()));
    Ok(no_store_json(FunnelView { sale_id, at, stages }))
}

/// The buckets of each SKU: whether they are loaded, and what they hold.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}/buckets",
    operation_id = "adminShowBuckets", tag = "operators",
    responses((status = 200, description = "in the order of the SKUs", body = BucketsView)),
)]
pub async fn buckets(sale_id: web::Path<String>, state: State) -> Handled {
    let skus = state.deps.sales.buckets(&parse_sale_id(&sale_id)?).await?;
    Ok(no_store_json(BucketsView { sale_id: sale_id.into_inner(), skus }))
}

/// Reloads the buckets of a sale from the ledger while the sale runs. Purchases are answered `busy`
/// meanwhile; accepted requests stay accepted. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/rebuild",
    operation_id = "adminRebuildSale", tag = "operators",
    request_body = Option<RebuildBody>,
    responses((status = 200, description = "the buckets are loaded and open", body = RebuiltView)),
)]
pub async fn rebuild(mut call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let id = parse_sale_id(&sale_id)?;
    let scope: RebuildBody = call.optional_body(VERB_BYTES_MAX).await?;
    let by = call.by(scope.reason)?;
    let rebuilt = state.deps.sales.rebuild(&id, scope.sku_id.as_ref(), scope.bucket).await;
    // Maintenance processes finish one that ended early.
    if !matches!(rebuilt, Err(SalesError::Unknown | SalesError::NoBuckets)) {
        record(&state, &[VerbSubject::Sale(id)], "rebuild", by).await;
    }
    let skus = rebuilt?.iter().map(|sku| sku.id.to_string()).collect();
    Ok(no_store_json(RebuiltView { sale_id: sale_id.into_inner(), skus }))
}

/// An invalid sale id matches no sale: `unknown-sku`.
pub(super) fn parse_sale_id(sale_id: &str) -> Result<SaleId, Problem> {
    sale_id.parse().map_err(|_invalid| ProblemCode::UnknownSku.into())
}
