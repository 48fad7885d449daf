//! Middleware of every route except the purchase: trace context, request metrics, operator
//! authentication, and problem documents for all errors.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse};

use super::problem::{NO_SNIFF, Problem, ProblemCode};
use super::trace_context::{TRACEPARENT, TraceContext};
use crate::http::operators::auth::{Operator, only_reads};
use crate::http::routes::RouteAccess;
use crate::http::state::{HttpState, State};
use crate::observe::metrics::{RouteLabel, RouteStatus};
use crate::runtime::shutdown::run_to_end;

/// The route label of paths without a route.
const UNMATCHED: &str = "unmatched";

/// No page of another site may load the answer.
const SAME_ORIGIN: (HeaderName, HeaderValue) = (
    HeaderName::from_static("cross-origin-resource-policy"),
    HeaderValue::from_static("same-origin"),
);

/// Why an operator did something.
struct Reason(String);

/// Adds the reason of a verb to its line in the log.
pub fn give_reason(request: &HttpRequest, reason: Option<&str>) {
    if let Some(reason) = reason {
        request.extensions_mut().insert(Reason(reason.to_owned()));
    }
}

struct VerbResult(String);

/// Adds the result of a verb on many to its line in the log.
pub fn give_result(request: &HttpRequest, result: String) {
    request.extensions_mut().insert(VerbResult(result));
}

/// The trace that [`watch`] stored, or the one in the headers.
pub fn trace_of(request: &HttpRequest) -> TraceContext {
    let stored = request.extensions().get::<TraceContext>().copied();
    stored.unwrap_or_else(|| TraceContext::of(request.headers()))
}

/// Authorizes, runs and measures one request of `route`. A verb of an operator is run to its end,
/// record and log line included, also if its caller hangs up.
pub async fn watch(
    route: &'static str,
    access: RouteAccess,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_verb = access == RouteAccess::Admin && !only_reads(request.method());
    let answer = run(route, access, request, next);
    if !is_verb {
        return answer.await;
    }
    run_to_end(answer).await.unwrap_or_else(|| Err(Problem::from(ProblemCode::Internal).into()))
}

async fn run(
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
    let is_admin = access == RouteAccess::Admin;
    let allowed = match access {
        RouteAccess::Admin => state.admin_auth.load().check(request.head()).and_then(|operator| {
            let allowed = operator.check(request.method(), route);
            request.extensions_mut().insert(operator);
            allowed
        }),
        RouteAccess::Open | RouteAccess::Buyer => Ok(()),
    };
    let answer = match allowed {
        Ok(()) => next.call(request).await?.map_into_boxed_body(),
        Err(problem) => request.error_response(problem),
    };
    let problem = answer.response().error().and_then(|error| error.as_error::<Problem>());
    // A handler may refuse, too: what an audit needs depends on its body.
    if let (true, Some(problem), 401 | 403) = (is_admin, problem, answer.status().as_u16()) {
        log_refused(&state, answer.request(), problem);
    }
    let mut answer = as_problem(answer, &trace);
    if is_admin {
        log_verb(&answer, &trace);
    }
    protect(answer.headers_mut(), access);
    answer.headers_mut().insert(TRACEPARENT, trace.header());
    let took = state.deps.clock.now().duration_since(started).as_secs_f64();
    let metrics = &state.deps.metrics;
    let status = answer.status().as_u16();
    metrics.http_requests.get_or_create(&RouteStatus { route, status }).inc();
    metrics.http_request_duration.get_or_create(&RouteLabel { route }).observe(took);
    Ok(answer)
}

/// Keeps browsers from guessing types, and caches and pages of other sites from what only operators
/// may see.
fn protect(headers: &mut HeaderMap, access: RouteAccess) {
    let (name, value) = NO_SNIFF;
    headers.insert(name, value);
    if access == RouteAccess::Admin {
        let (name, value) = SAME_ORIGIN;
        headers.insert(name, value);
        if !headers.contains_key(CACHE_CONTROL) {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
    }
}

/// One line per verb of an operator: who did what, why, with which result.
fn log_verb(answer: &ServiceResponse, trace: &TraceContext) {
    let (request, extensions) = (answer.request(), answer.request().extensions());
    let (method, path) = (request.method(), request.path());
    if !only_reads(method)
        && let Some(operator) = extensions.get::<Operator>()
    {
        let (operator, trace_id) = (&*operator.name, trace.trace);
        let peer = request.peer_addr().map(tracing::field::display);
        let status = answer.status().as_u16();
        let reason = extensions.get::<Reason>().map(|reason| reason.0.as_str());
        let result = extensions.get::<VerbResult>().map(|result| result.0.as_str());
        tracing::info!(
            operator, %method, %path, peer, status, reason, result, %trace_id, "operator: verb"
        );
    }
}

/// Counts a refused call of an operator; logs at most one line a second.
fn log_refused(state: &HttpState, request: &HttpRequest, problem: &Problem) {
    state.deps.metrics.admin_refused.inc();
    if state.admission.may_log_refusal(state.deps.clock.now()) {
        let (method, path) = (request.method(), request.path());
        let peer = request.peer_addr().map(tracing::field::display);
        tracing::warn!(%method, %path, peer, %problem, "operator: refused");
    }
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
