//! Operators' routes for metrics, actors, statistics, audit, and the trace of one request.

use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::SaleId;
use crate::http::buyers::views::{rfc3339, stock_left};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::operators::trace;
use crate::http::operators::trace_stages::TraceView;
use crate::http::state::State;
use crate::observe::metrics::EXPOSITION_TYPE;
use crate::runtime::progress::ChildReport;
use crate::services::audit::{self, AuditSources};

/// The supervised actors of this process.
#[derive(Serialize, ToSchema)]
pub struct ActorsView {
    /// Whether all actors are running.
    all_up: bool,
    /// `{name, kind, state, restarts, panics, stalls, steps, last_exit}`.
    #[schema(value_type = Vec<Object>)]
    actors: Vec<ChildReport>,
}

/// Scope of an audit.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditBody {
    /// Only this sale; default: all sales.
    #[schema(value_type = Option<String>)]
    sale_id: Option<SaleId>,
    /// Must be `false`: this version reports and does not repair.
    #[serde(default)]
    repair: bool,
}

/// Statistics of this process, for monitoring.
#[derive(Serialize, ToSchema)]
pub struct StatsView {
    version: &'static str,
    tier: String,
    role: String,
    /// False during shutdown.
    ready: bool,
    uptime_s: u64,
    at: String,
    /// Orders committed since the process started.
    orders_placed: u64,
    /// Requests inside gates: undecided, or without a result of the ledger.
    inside_gates: usize,
    /// Intents inside the order consumer.
    inside_consumer: usize,
    skus: Vec<SkuStats>,
}

/// Statistics of one SKU.
#[derive(Serialize, ToSchema)]
pub struct SkuStats {
    sale_id: String,
    sku_id: String,
    /// `draft`, `open`, `paused` or `closed`.
    phase: &'static str,
    initial_stock: u32,
    stock_left: u32,
    sold_out: bool,
}

/// Every metric in the `OpenMetrics` text format.
#[utoipa::path(
    get, path = "/metrics", tag = "probes",
    responses((status = 200, description = "see docs/operate/metrics.md", body = String,
        content_type = "application/openmetrics-text")),
)]
pub async fn metrics(state: State) -> HttpResponse {
    let deps = &state.deps;
    for listed in deps.catalog.all() {
        for sku in &listed.skus {
            let (sale, sku_id) = (listed.sale.id.to_string(), sku.id.to_string());
            deps.metrics.stock_left(sale, sku_id, stock_left(&state, listed.sale.phase, sku));
        }
    }
    let num_inside = deps.actors.directory.num_inside();
    deps.metrics.inside(num_inside, deps.actors.orders.permits.num_taken());
    deps.metrics.ledger_breaker.set(i64::from(deps.actors.breaker.is_open()));
    deps.metrics.actors(&deps.actors.supervisor.report());
    let content_type = (CONTENT_TYPE, HeaderValue::from_static(EXPOSITION_TYPE));
    HttpResponse::Ok().insert_header(content_type).body(deps.metrics.exposition())
}

/// The supervised actors of this process, with their restarts.
#[utoipa::path(
    get, path = "/admin/v1/actors", tag = "operators",
    responses((status = 200, description = "every actor", body = ActorsView)),
)]
pub async fn actors(state: State) -> HttpResponse {
    let supervisor = &state.deps.actors.supervisor;
    HttpResponse::Ok().json(ActorsView { all_up: supervisor.all_up(), actors: supervisor.report() })
}

/// Statistics of this process.
#[utoipa::path(
    get, path = "/admin/v1/stats", tag = "operators",
    responses((status = 200, description = "as of now", body = StatsView)),
)]
pub async fn stats(state: State) -> HttpResponse {
    let deps = &state.deps;
    let mut skus = Vec::new();
    for listed in deps.catalog.all() {
        skus.extend(listed.skus.iter().map(|sku| SkuStats {
            sale_id: listed.sale.id.to_string(),
            sku_id: sku.id.to_string(),
            phase: listed.sale.phase.name(),
            initial_stock: sku.initial,
            stock_left: stock_left(&state, listed.sale.phase, sku),
            sold_out: deps.stock.is_sold_out(sku.no),
        }));
    }
    HttpResponse::Ok().json(StatsView {
        version: env!("CARGO_PKG_VERSION"),
        tier: state.settings.tier.to_string(),
        role: state.settings.role.to_string(),
        ready: state.is_ready(),
        uptime_s: deps.clock.now().duration_since(state.started_at).as_secs(),
        at: rfc3339(deps.clock.wall_ms()),
        orders_placed: deps.metrics.orders_placed.get(),
        inside_gates: deps.actors.directory.num_inside(),
        inside_consumer: deps.actors.orders.permits.num_taken(),
        skus,
    })
}

/// Checks every invariant. An empty body audits all sales.
#[utoipa::path(
    post, path = "/admin/v1/audit", tag = "operators", request_body = AuditBody,
    responses((status = 200, description = "`holds`, `could_tell`, and every violation",
        body = Object)),
)]
pub async fn check(request: HttpRequest, payload: web::Payload, state: State) -> Handled {
    let deps = &state.deps;
    let max = state.settings.http.body_max_bytes;
    let audit_body: AuditBody = body::optional(&request, payload, max).await?;
    if audit_body.repair {
        return Err(Problem::invalid("repair must be false: this version does not repair"));
    }
    let sources = AuditSources {
        ledger: deps.ledger.as_ref(),
        stock: Some(deps.stock.as_ref()),
        pipeline: deps.pipeline.as_ref(),
    };
    let (sale, now_ms) = (audit_body.sale_id.as_ref(), deps.clock.wall_ms());
    Ok(HttpResponse::Ok().json(audit::audit_all(sources, sale, now_ms).await?))
}

impl From<audit::Error> for Problem {
    fn from(error: audit::Error) -> Self {
        match error {
            audit::Error::UnknownSale(_) => ProblemCode::UnknownSku.into(),
            audit::Error::Ledger(error) => error.into(),
            audit::Error::Stock(error) => error.into(),
            audit::Error::Outbox(error) => error.into(),
        }
    }
}

/// Every stage that has a record of one request.
#[utoipa::path(
    get, path = "/admin/v1/requests/{request_id}/trace", tag = "operators",
    params(("request_id" = String, Path, description = "as the buyer has it, or its number")),
    responses((status = 200, description = "in the order of the flow", body = TraceView)),
)]
pub async fn trace(request_id: web::Path<String>, state: State) -> Handled {
    Ok(HttpResponse::Ok().json(trace::trace(&state.deps, &request_id).await?))
}
