//! Middleware of every route except the purchase: trace context, request metrics, operator
//! authentication, and problem documents for all errors.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse};

use super::problem::{Problem, ProblemCode};
use super::trace_context::{TRACEPARENT, TraceContext};
use crate::http::routes::RouteAccess;
use crate::http::state::State;
use crate::observe::metrics::{RouteLabel, RouteStatus};

/// The route label of paths without a route.
const UNMATCHED: &str = "unmatched";

/// The trace that [`watch`] stored, or the one in the headers.
pub fn trace_of(request: &HttpRequest) -> TraceContext {
    let stored = request.extensions().get::<TraceContext>().copied();
    stored.unwrap_or_else(|| TraceContext::of(request.headers()))
}

/// Authorizes, runs and measures one request of `route`.
pub async fn watch(
    route: &'static str,
    access: RouteAccess,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let trace = TraceContext::of(request.headers());
    request.extensions_mut().insert(trace);
    let Some(state) = request.app_data::<State>().cloned() else {
        return Ok(request.into_response(Problem::from(ProblemCode::Internal).respond(&trace)));
    };
    let started = state.deps.clock.now();
    let allowed = match access {
        RouteAccess::Admin => state.admin_auth.check(request.headers()),
        RouteAccess::Open | RouteAccess::Buyer => Ok(()),
    };
    let mut answer = match allowed {
        Ok(()) => as_problem(next.call(request).await?.map_into_boxed_body(), &trace),
        Err(problem) => request.into_response(problem.respond(&trace)),
    };
    answer.headers_mut().insert(TRACEPARENT, trace.header());
    let took = state.deps.clock.now().duration_since(started).as_secs_f64();
    let metrics = &state.deps.metrics;
    let status = answer.status().as_u16();
    metrics.http_requests.get_or_create(&RouteStatus { route, status }).inc();
    metrics.http_request_duration.get_or_create(&RouteLabel { route }).observe(took);
    Ok(answer)
}

/// Replaces a failed answer with a problem document that has this trace.
fn as_problem(answer: ServiceResponse, trace: &TraceContext) -> ServiceResponse {
    let Some(error) = answer.response().error() else { return answer };
    let replaced = match error.as_error::<Problem>() {
        Some(problem) => problem.respond(trace),
        None => problem_of(error).respond(trace),
    };
    answer.into_response(replaced)
}

/// Maps an error of actix-web: 4xx to `invalid-request`, others to `internal`.
fn problem_of(error: &Error) -> Problem {
    let status = error.as_response_error().status_code();
    if status.is_client_error() {
        return Problem::invalid(error.to_string());
    }
    tracing::error!(%error, "actix-web: request failed");
    ProblemCode::Internal.into()
}

/// 404 for paths without a route.
pub async fn no_such_path(request: HttpRequest, state: State) -> HttpResponse {
    let problem = Problem::from(ProblemCode::NotFound)
        .with_detail("There is no such path. See /openapi.json.");
    let label = RouteStatus { route: UNMATCHED, status: ProblemCode::NotFound.status() };
    state.deps.metrics.http_requests.get_or_create(&label).inc();
    problem.respond(&trace_of(&request))
}
