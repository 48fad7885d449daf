//! Operators' routes for sales: list, show, create, open, pause, close, funnel, rebuild.

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::{Phase, Policy, Sale, SaleDraft, SaleId, Sku, SkuDraft, SkuId};
use crate::http::buyers::views::{SkuView, no_store, no_store_json, rfc3339, stock_left};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::services::sales::{FunnelStage, SalesError};

/// Ample for a sale with 200 SKUs.
const SALE_BYTES_MAX: usize = 256 * 1024;

/// The body of a rebuild has one short member.
const REBUILD_BYTES_MAX: usize = 4 * 1024;

/// Default of `payment_window_s`, seconds.
const PAYMENT_WINDOW_S: i32 = 900;

/// Body of a new sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleBody {
    /// 1 to 64 characters out of `A-Z a-z 0-9 . _ -`.
    #[schema(value_type = String)]
    sale_id: SaleId,
    /// Shown to buyers.
    title: String,
    /// First instant of the window.
    #[schema(value_type = String, format = DateTime)]
    starts_at: DateTime<Utc>,
    /// First instant after the window.
    #[schema(value_type = String, format = DateTime)]
    ends_at: DateTime<Utc>,
    /// Must be `false`: this version has no tickets.
    #[serde(default)]
    ticket_required: bool,
    /// 1 to 200 SKUs.
    skus: Vec<SkuBody>,
}

/// A SKU of a new sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuBody {
    /// Unique within the sale; the same characters as `sale_id`.
    #[schema(value_type = String)]
    sku_id: SkuId,
    /// Shown to buyers.
    title: String,
    /// Price of one unit, in the currency's smallest unit.
    price: i64,
    /// Units for sale.
    initial_stock: u32,
    /// Purchase limit of a buyer.
    policy: PolicyBody,
    /// Number of buckets that share the stock: 1 to 256, default 1.
    #[serde(default = "one")]
    buckets: u16,
    /// How long an order may stay unpaid, seconds; default 900.
    #[serde(default = "payment_window_s")]
    payment_window_s: i32,
    /// Whether a buyer who lets an order time out is barred from the sale.
    #[serde(default)]
    bar_lapsed: bool,
}

/// Purchase policy of a new SKU.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyBody {
    /// `one_per_buyer`, `unlimited` or `quota`.
    kind: String,
    /// Most units over all orders of a buyer; required for `quota`, not allowed otherwise.
    limit: Option<u32>,
    /// Most units in one order; default 1.
    max_quantity: Option<u32>,
}

fn one() -> u16 {
    1
}

fn payment_window_s() -> i32 {
    PAYMENT_WINDOW_S
}

/// Operators' view of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSaleView {
    sale_id: String,
    title: String,
    /// `draft`, `open`, `paused` or `closed`.
    phase: &'static str,
    /// Number of the latest opening; 0: never opened.
    epoch: i64,
    starts_at: String,
    ends_at: String,
    ticket_required: bool,
    skus: Vec<AdminSkuView>,
}

/// Operators' view of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSkuView {
    #[serde(flatten)]
    sku: SkuView,
    /// Number of the SKU in the ledger: the middle part of its request ids.
    sku_no: i32,
    initial_stock: u32,
    buckets: u16,
    payment_window_s: i32,
    bar_lapsed: bool,
}

/// All sales.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSalesView {
    /// Oldest first.
    sales: Vec<AdminSaleView>,
}

/// Accepted requests of a sale, counted by stage.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunnelView {
    sale_id: String,
    /// Time of the count.
    at: String,
    /// `{stage, count, oldest_age_ms}`, in the order of the flow.
    #[schema(value_type = Vec<Object>)]
    stages: Vec<FunnelStage>,
}

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
    sale_id: String,
    /// The SKUs whose buckets were loaded from the ledger.
    skus: Vec<String>,
}

impl SaleBody {
    fn into_draft(self) -> Result<SaleDraft, Problem> {
        if self.ticket_required {
            return Err(Problem::invalid(
                "ticket_required must be false: this version has no tickets",
            ));
        }
        let skus = self.skus.into_iter().map(SkuBody::into_draft);
        Ok(SaleDraft {
            id: self.sale_id,
            title: self.title,
            starts_at_ms: self.starts_at.timestamp_millis(),
            ends_at_ms: self.ends_at.timestamp_millis(),
            skus: skus.collect::<Result<_, _>>()?,
        })
    }
}

impl SkuBody {
    fn into_draft(self) -> Result<SkuDraft, Problem> {
        let PolicyBody { kind, limit, max_quantity } = self.policy;
        let policy = Policy::from_parts(&kind, limit, max_quantity)
            .map_err(|fault| Problem::invalid(format!("sku {}: {fault}", self.sku_id)))?;
        Ok(SkuDraft {
            no: (),
            id: self.sku_id,
            title: self.title,
            price: self.price,
            initial: self.initial_stock,
            policy,
            buckets: self.buckets,
            payment_window_s: self.payment_window_s,
            bar_lapsed: self.bar_lapsed,
        })
    }
}

impl AdminSaleView {
    fn new(sale: &Sale, state: &HttpState) -> Self {
        let sku_view = |sku: &Sku| AdminSkuView {
            sku: SkuView::new(sku, stock_left(state, sale.phase, sku)),
            sku_no: sku.no.0,
            initial_stock: sku.initial,
            buckets: sku.buckets,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: sku.bar_lapsed,
        };
        Self {
            sale_id: sale.id.to_string(),
            title: sale.title.clone(),
            phase: sale.phase.name(),
            epoch: sale.epoch.0,
            starts_at: rfc3339(sale.starts_at_ms),
            ends_at: rfc3339(sale.ends_at_ms),
            ticket_required: false,
            skus: sale.skus.iter().map(sku_view).collect(),
        }
    }
}

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
