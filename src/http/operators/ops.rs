//! Operators' routes for metrics, actors and statistics.

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::web::ReqData;
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::AdminScope;
use crate::domain::Phase;
use crate::http::buyers::views::{rfc3339, stock_left};
use crate::http::operators::auth::Operator;
use crate::http::state::State;
use crate::observe::metrics::{EXPOSITION_TYPE, SaleSku};
use crate::runtime::progress::ChildReport;

/// The supervised actors of this process.
#[derive(Serialize, ToSchema)]
pub struct ActorsView {
    /// Whether all actors are running.
    all_up: bool,
    /// `{name, kind, state, restarts, panics, stalls, steps, last_exit}`.
    #[schema(value_type = Vec<Object>)]
    actors: Vec<ChildReport>,
}

/// Statistics of this process, for monitoring.
#[derive(Serialize, ToSchema)]
pub struct StatsView {
    version: &'static str,
    /// Prefix of this installation's keys, exchanges and queues.
    namespace: String,
    /// Whose token the caller has sent; `local` without tokens.
    operator: String,
    scope: AdminScope,
    tier: &'static str,
    role: &'static str,
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
    phase: Phase,
    initial_stock: u32,
    stock_left: u32,
    sold_out: bool,
}

/// Every metric in the `OpenMetrics` text format.
#[utoipa::path(
    get, path = "/metrics", operation_id = "readMetrics", tag = "probes",
    responses((status = 200, description = "see docs/operate/metrics.md", body = String,
        content_type = "application/openmetrics-text")),
)]
pub async fn metrics(state: State) -> HttpResponse {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    for sale in deps.catalog.all() {
        let is_dormant = sale.is_dormant(now_ms);
        for sku in &sale.skus {
            let labels = SaleSku { sale: sale.id.to_string(), sku: sku.id.to_string() };
            if is_dormant {
                deps.metrics.stock_left.remove(&labels);
            } else {
                let left = stock_left(&state, &sale, sku);
                deps.metrics.stock_left.get_or_create(&labels).set(i64::from(left));
            }
        }
    }
    let num_inside = deps.actors.directory.num_inside();
    deps.metrics.inside(num_inside, deps.actors.ledger_writer.permits.num_taken());
    deps.metrics.ledger_breaker.set(i64::from(deps.actors.breaker.is_open()));
    deps.metrics.actors(&deps.actors.supervisor.restarts());
    let content_type = (CONTENT_TYPE, HeaderValue::from_static(EXPOSITION_TYPE));
    HttpResponse::Ok().insert_header(content_type).body(deps.metrics.exposition())
}

/// The supervised actors of this process, with their restarts.
#[utoipa::path(
    get, path = "/admin/v1/actors", operation_id = "adminListActors", tag = "operators",
    responses((status = 200, description = "every actor", body = ActorsView)),
)]
pub async fn actors(state: State) -> HttpResponse {
    let supervisor = &state.deps.actors.supervisor;
    HttpResponse::Ok().json(ActorsView { all_up: supervisor.all_up(), actors: supervisor.report() })
}

/// Statistics of this process.
#[utoipa::path(
    get, path = "/admin/v1/stats", operation_id = "adminShowStats", tag = "operators",
    responses((status = 200, description = "as of now", body = StatsView)),
)]
pub async fn stats(operator: ReqData<Operator>, state: State) -> HttpResponse {
    let deps = &state.deps;
    let mut skus = Vec::new();
    for sale in deps.catalog.all() {
        skus.extend(sale.skus.iter().map(|sku| SkuStats {
            sale_id: sale.id.to_string(),
            sku_id: sku.id.to_string(),
            phase: sale.phase,
            initial_stock: sku.initial,
            stock_left: stock_left(&state, &sale, sku),
            sold_out: deps.stock.is_sold_out(sku.no),
        }));
    }
    HttpResponse::Ok().json(StatsView {
        version: env!("CARGO_PKG_VERSION"),
        namespace: state.settings.namespace.clone(),
        operator: operator.name.to_string(),
        scope: operator.scope,
        tier: state.settings.tier.name(),
        role: state.settings.role.name(),
        ready: state.is_ready(),
        uptime_s: deps.clock.now().duration_since(state.started_at).as_secs(),
        at: rfc3339(deps.clock.wall_ms()),
        orders_placed: deps.metrics.orders_placed.get(),
        inside_gates: deps.actors.directory.num_inside(),
        inside_consumer: deps.actors.ledger_writer.permits.num_taken(),
        skus,
    })
}
