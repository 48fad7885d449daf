//! Liveness and readiness probes. Not authenticated, so they expose nothing else.

use std::time::{Duration, Instant};

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::ToSchema;

use crate::http::buyers::views::no_store_json;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpDeps, State};
use crate::runtime::clock::Clock;

/// Time-out of the ping of the ledger and of the stock.
const PING_DEADLINE: Duration = Duration::from_secs(2);

/// How long the answers of ledger and stock are used again: anybody may ask.
const ANSWERS_FOR: Duration = Duration::from_secs(1);

/// Whether ledger and stock answer; asked at most once in [`ANSWERS_FOR`].
#[derive(Debug, Default)]
pub struct StorePings(Mutex<Option<StoresAnswer>>);

#[derive(Debug, Clone, Copy)]
struct StoresAnswer {
    at: Instant,
    ledger: bool,
    stock: bool,
}

impl StorePings {
    async fn read(&self, deps: &HttpDeps) -> StoresAnswer {
        self.read_by(&*deps.clock, async || {
            tokio::join!(answers(deps.ledger.ping()), answers(deps.stock.ping()))
        })
        .await
    }

    /// Callers that come together wait for one answer.
    async fn read_by(
        &self,
        clock: &dyn Clock,
        ask: impl AsyncFnOnce() -> (bool, bool),
    ) -> StoresAnswer {
        let mut last = self.0.lock().await;
        if let Some(answer) = *last
            && clock.now().duration_since(answer.at) < ANSWERS_FOR
        {
            return answer;
        }
        let (ledger, stock) = ask().await;
        *last.insert(StoresAnswer { at: clock.now(), ledger, stock })
    }
}

/// Whether a store answers its ping. Readers do not fill the ledger's queue of pings: if it is
/// full, the pings before had no answer.
async fn answers<E>(ping: impl Future<Output = Result<(), E>>) -> bool {
    let answer = tokio::time::timeout(PING_DEADLINE, ping).await;
    matches!(answer, Ok(Ok(())))
}

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
    get, path = "/livez", operation_id = "checkLiveness", tag = "probes",
    responses((status = 200, description = "alive", body = HealthView)),
)]
pub async fn live() -> HttpResponse {
    no_store_json(HealthView { status: "ok", checks: None })
}

/// Readiness: this process can do the work of its role.
#[utoipa::path(
    get, path = "/readyz", operation_id = "checkReadiness", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn ready(query: web::Query<Detail>, state: State) -> Handled {
    let StoresAnswer { ledger, stock, .. } = state.store_pings.read(&state.deps).await;
    // With an outbox, a process that sells or relays works without the ledger.
    let role = state.settings.role;
    let required = state.deps.pipeline.is_none() || !(role.sells() || role.relays());
    let check = |name, ok| CheckView { name, ok, required: true };
    let checks = vec![
        check("accepting", state.is_ready()),
        check("actors", state.deps.actors.supervisor.all_up()),
        CheckView { required, ..check("ledger", ledger) },
        check("stock", stock),
    ];
    if checks.iter().all(|check| check.ok || !check.required) {
        let checks = query.verbose.is_some().then_some(checks);
        return Ok(no_store_json(HealthView { status: "ok", checks }));
    }
    let checks = serde_json::to_value(checks).unwrap_or_default();
    Err(Problem::from(ProblemCode::NotReady).with("checks", checks))
}

/// Alias of `/readyz`.
#[utoipa::path(
    get, path = "/healthz", operation_id = "checkHealth", tag = "probes", params(Detail),
    responses((status = 200, description = "ready", body = HealthView)),
)]
pub async fn healthz(query: web::Query<Detail>, state: State) -> Handled {
    ready(query, state).await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::db;
    use crate::runtime::clock::ManualClock;

    #[tokio::test]
    async fn the_stores_are_asked_once_a_second_however_many_probes_come() {
        let (pings, clock) = (StorePings::default(), ManualClock::new(0));
        let mut num_asked = 0;
        for (advance_ms, expected) in [(0, 1), (0, 1), (999, 1), (1, 2), (500, 2), (500, 3)] {
            clock.advance(Duration::from_millis(advance_ms));
            let answer = pings.read_by(&clock, async || {
                num_asked += 1;
                (true, false)
            });
            let answer = answer.await;
            assert!(answer.ledger && !answer.stock);
            assert_eq!(num_asked, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_answers_no_ping_is_away() {
        assert!(answers(ready(Ok::<_, db::Error>(()))).await);
        assert!(!answers(ready(Err(db::Error::Full))).await);
        assert!(!answers(ready(Err(db::Error::TimedOut { operation: "a ping" }))).await);
        assert!(!answers::<db::Error>(pending()).await);
    }
}
