//! Operators' routes for sales: list, show, create, open, pause, close, funnel, rebuild.

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};

use super::sale_views::{
    AdminSaleView, AdminSalesView, FunnelView, RebuildBody, RebuiltView, SaleBody,
};
use crate::domain::{Phase, SaleId};
use crate::http::buyers::views::{no_store, no_store_json, rfc3339};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::services::sales::SalesError;

/// Ample for a sale with 200 SKUs.
const SALE_BYTES_MAX: usize = 256 * 1024;

/// The body of a rebuild has one short member.
const REBUILD_BYTES_MAX: usize = 4 * 1024;

impl From<SalesError> for Problem {
    fn from(error: SalesError) -> Self {
        match error {
            SalesError::Exists => ProblemCode::SaleExists.into(),
            SalesError::Unknown => ProblemCode::UnknownSku.into(),
            SalesError::NotAllowed { from, to } => Self::from(ProblemCode::PhaseConflict)
                .with("from", from.name())
                .with("to", to.name()),
            SalesError::NoBuckets => ProblemCode::NoBuckets.into(),
            SalesError::NotRebuilt { .. } => {
                Self::from(ProblemCode::Busy).with_detail(error.to_string())
            }
            SalesError::LedgerBehind { .. } => {
                Self::from(ProblemCode::LedgerBehind).with_detail(error.to_string())
            }
            SalesError::Faults(faults) => Self::invalid(faults.join("; ")).with("faults", faults),
            SalesError::Ledger(error) => error.into(),
            SalesError::Stock(error) => error.into(),
        }
    }
}

/// All sales with their configuration.
#[utoipa::path(
    get, path = "/admin/v1/sales", tag = "operators",
    responses((status = 200, description = "oldest first", body = AdminSalesView)),
)]
pub async fn list(state: State) -> HttpResponse {
    let all = state.deps.catalog.all();
    let sales = all.iter().map(|listed| AdminSaleView::new(&listed.sale, &state)).collect();
    no_store_json(AdminSalesView { sales })
}

/// One sale with its configuration.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}", tag = "operators",
    responses((status = 200, description = "the sale", body = AdminSaleView)),
)]
pub async fn show(sale_id: web::Path<String>, state: State) -> Handled {
    let listed = state.deps.catalog.sale(&sale_id).ok_or(ProblemCode::UnknownSku)?;
    Ok(no_store_json(AdminSaleView::new(&listed.sale, &state)))
}

/// Creates a sale in phase draft.
#[utoipa::path(
    post, path = "/admin/v1/sales", tag = "operators", request_body = SaleBody,
    responses((status = 201, description = "created, in phase draft", body = AdminSaleView)),
)]
pub async fn create(request: HttpRequest, payload: web::Payload, state: State) -> Handled {
    let bytes = body::read(payload, SALE_BYTES_MAX).await?;
    let draft = body::parse::<SaleBody>(request.headers(), &bytes)?.into_draft()?;
    let sale = state.deps.sales.create(draft).await?;
    let location = (LOCATION, format!("/admin/v1/sales/{}", sale.id));
    let view = AdminSaleView::new(&sale, &state);
    Ok(HttpResponse::Created().insert_header(location).insert_header(no_store()).json(view))
}

/// Defines the handlers that set the phase of a sale.
macro_rules! phase_handlers {
    ($($(#[$doc:meta])* $verb:ident $path:literal => $phase:ident;)+) => {$(
        $(#[$doc])*
        #[utoipa::path(
            post, path = $path, tag = "operators",
            responses((status = 200, description = "the sale afterwards", body = AdminSaleView)),
        )]
        pub async fn $verb(
            sale_id: web::Path<String>,
            state: State,
        ) -> Handled {
            set_phase(&sale_id, Phase::$phase, &state).await
        }
    )+};
}

phase_handlers! {
    /// Opens a sale: it sells inside its window. Idempotent.
    open "/admin/v1/sales/{sale_id}/open" => Open;
    /// Pauses a sale; it may be opened again. Idempotent.
    pause "/admin/v1/sales/{sale_id}/pause" => Paused;
    /// Closes a sale for good. Idempotent.
    close "/admin/v1/sales/{sale_id}/close" => Closed;
}

async fn set_phase(sale_id: &str, next: Phase, state: &HttpState) -> Handled {
    let sale = state.deps.sales.set_phase(&parse_sale_id(sale_id)?, next).await?;
    Ok(no_store_json(AdminSaleView::new(&sale, state)))
}

/// Count and oldest age of each stage. The count of an unavailable store is null.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}/funnel", tag = "operators",
    responses((status = 200, description = "in the order of the flow", body = FunnelView)),
)]
pub async fn funnel(sale_id: web::Path<String>, state: State) -> Handled {
    let stages = state.deps.sales.funnel(&parse_sale_id(&sale_id)?).await?;
    let (sale_id, at) = (sale_id.into_inner(), rfc3339(state.deps.clock.wall_ms()));
    Ok(no_store_json(FunnelView { sale_id, at, stages }))
}

/// Reloads the buckets of a sale from the ledger while the sale runs. Purchases are answered `busy`
/// meanwhile; accepted requests stay accepted. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/rebuild", tag = "operators",
    request_body = Option<RebuildBody>,
    responses((status = 200, description = "the buckets are loaded and open", body = RebuiltView)),
)]
pub async fn rebuild(
    sale_id: web::Path<String>,
    request: HttpRequest,
    payload: web::Payload,
    state: State,
) -> Handled {
    let id = parse_sale_id(&sale_id)?;
    let scope: RebuildBody = body::optional(&request, payload, REBUILD_BYTES_MAX).await?;
    let rebuilt = state.deps.sales.rebuild(&id, scope.sku_id.as_ref()).await?;
    let skus = rebuilt.iter().map(|sku| sku.id.to_string()).collect();
    Ok(no_store_json(RebuiltView { sale_id: sale_id.into_inner(), skus }))
}

/// # Errors
/// `unknown-sku`: an invalid sale id matches no sale.
fn parse_sale_id(sale_id: &str) -> Result<SaleId, Problem> {
    sale_id.parse().map_err(|_invalid| ProblemCode::UnknownSku.into())
}
