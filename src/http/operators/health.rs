//! Whether this process lives, and whether it wants buyers. Open to probes: says nothing else.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpState;

/// How long the ledger and the stock may each take to answer a probe.
const PING_DEADLINE: Duration = Duration::from_secs(2);

/// The whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// Always `ok`; anything else is a problem.
    status: &'static str,
    /// Every check; only with `?verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<CheckView>>,
}

/// One check.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckView {
    /// `accepting` (not starting, not on the way down), `actors`, `ledger`, `stock`.
    name: &'static str,
    /// Whether it passed.
    ok: bool,
    /// Whether this process is not ready without it. In tier `pipeline` buyers are served without
    /// the ledger.
    required: bool,
}

/// How much to tell.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Detail {
    /// Present, with any value: list every check.
    verbose: Option<String>,
}

/// This process answers. Touches nothing else.
#[utoipa::path(
    get, path = "/livez", tag = "probes",
    responses((status = 200, description = "alive", body = HealthView)),
)]
pub async fn live() -> HttpResponse {
    HttpResponse::Ok().json(HealthView { status: "ok", checks: None })
}

/// This process wants buyers.
#[utoipa::path(
    get, path = "/readyz", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn ready(
    detail: web::Query<Detail>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let ledger = tokio::time::timeout(PING_DEADLINE, state.deps.ledger.ping());
    let stock = tokio::time::timeout(PING_DEADLINE, state.deps.stock.ping());
    let (ledger, stock) = tokio::join!(ledger, stock);
    let check = |name, ok| CheckView { name, ok, required: true };
    let checks = vec![
        check("accepting", state.is_ready()),
        check("actors", state.deps.actors.supervisor().all_up()),
        CheckView {
            required: needs_ledger(&state),
            ..check("ledger", matches!(ledger, Ok(Ok(()))))
        },
        check("stock", matches!(stock, Ok(Ok(())))),
    ];
    if checks.iter().all(|check| check.ok || !check.required) {
        let checks = detail.verbose.is_some().then_some(checks);
        return Ok(HttpResponse::Ok().json(HealthView { status: "ok", checks }));
    }
    let checks = serde_json::to_value(checks).unwrap_or_default();
    Err(Problem::from(ProblemCode::NotReady).with("checks", checks))
}

/// Whether nothing of this process's work gets done without the ledger: where an outbox is between
/// them, buyers are served and messages are published.
fn needs_ledger(state: &HttpState) -> bool {
    let role = state.settings.role;
    state.deps.pipeline.is_none() || !(role.sells() || role.relays())
}

/// The older name of `/readyz`.
#[utoipa::path(
    get, path = "/healthz", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn healthz(
    detail: web::Query<Detail>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    ready(detail, state).await
}
