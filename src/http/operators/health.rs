//! Liveness and readiness probes. Not authenticated, so they expose nothing else.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::State;

/// Time-out of the ping of the ledger and of the stock.
const PING_DEADLINE: Duration = Duration::from_secs(2);

/// Result of a probe.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// Always `ok`; a failure is a problem document.
    status: &'static str,
    /// All checks; only with `?verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<CheckView>>,
}

/// A check of the readiness probe.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckView {
    /// `accepting` (not shutting down), `actors`, `ledger` or `stock`.
    name: &'static str,
    ok: bool,
    /// Whether readiness requires this check. In tier `pipeline` buyers are served without the
    /// ledger.
    required: bool,
}

/// Query of the readiness probe.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Detail {
    /// List all checks; any value.
    verbose: Option<String>,
}

/// Liveness: the HTTP server answers. No other component is checked.
#[utoipa::path(
    get, path = "/livez", tag = "probes",
    responses((status = 200, description = "alive", body = HealthView)),
)]
pub async fn live() -> HttpResponse {
    HttpResponse::Ok().json(HealthView { status: "ok", checks: None })
}

/// Readiness: this process can do the work of its role.
#[utoipa::path(
    get, path = "/readyz", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn ready(query: web::Query<Detail>, state: State) -> Handled {
    let ledger = tokio::time::timeout(PING_DEADLINE, state.deps.ledger.ping());
    let stock = tokio::time::timeout(PING_DEADLINE, state.deps.stock.ping());
    let (ledger, stock) = tokio::join!(ledger, stock);
    // With an outbox, a process that sells or relays works without the ledger.
    let role = state.settings.role;
    let required = state.deps.pipeline.is_none() || !(role.sells() || role.relays());
    let check = |name, ok| CheckView { name, ok, required: true };
    let checks = vec![
        check("accepting", state.is_ready()),
        check("actors", state.deps.actors.supervisor.all_up()),
        CheckView { required, ..check("ledger", matches!(ledger, Ok(Ok(())))) },
        check("stock", matches!(stock, Ok(Ok(())))),
    ];
    if checks.iter().all(|check| check.ok || !check.required) {
        let checks = query.verbose.is_some().then_some(checks);
        return Ok(HttpResponse::Ok().json(HealthView { status: "ok", checks }));
    }
    let checks = serde_json::to_value(checks).unwrap_or_default();
    Err(Problem::from(ProblemCode::NotReady).with("checks", checks))
}

/// Alias of `/readyz`.
#[utoipa::path(
    get, path = "/healthz", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn healthz(query: web::Query<Detail>, state: State) -> Handled {
    ready(query, state).await
}
