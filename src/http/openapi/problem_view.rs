//! The schema of problem documents; the bodies are written by `middleware/problem.rs`.

use utoipa::ToSchema;

use crate::domain::Phase;
use crate::http::buyers::views::problem_codes;

/// RFC 9457 problem details; some codes add members, such as `request_id` or `starts_at`.
#[derive(ToSchema)]
#[schema(example = json!({
    "type": "/problems/sold-out", "title": "Sold out", "status": 409, "code": "sold-out",
    "detail": "Fewer units are left than were asked for.",
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
}))]
#[expect(dead_code, reason = "describes the body that `Problem` writes")]
pub struct ProblemView {
    /// `/problems/<code>`, a relative reference to a page that explains it.
    r#type: String,
    title: String,
    status: u16,
    /// Stable code, for programs.
    #[schema(schema_with = problem_codes)]
    code: String,
    /// Explanation, for people.
    detail: String,
    trace_id: String,
    /// Of the request that the problem is about: as sent, or the buyer's first one.
    #[schema(pattern = "^")]
    request_id: Option<String>,
    /// State of that request or order.
    state: Option<String>,
    /// Why that request failed.
    reason: Option<String>,
    /// With this request id the buyer buys again.
    again: Option<String>,
    /// Of `quota-exceeded`: the buyer's units.
    owned: Option<u32>,
    /// Of `quota-exceeded`: the most units.
    limit: Option<u32>,
    /// Of `not-started`: first instant of the window, which has not come.
    starts_at: Option<String>,
    /// Of `invalid-request`: each fault of a sale.
    faults: Option<Vec<String>>,
    /// Of `phase-conflict`: the present phase.
    from: Option<Phase>,
    /// Of `phase-conflict`: the wanted phase.
    to: Option<Phase>,
    /// Of `rate-limited`: the limits that are exceeded.
    #[schema(rename = "violated-policies")]
    violated_policies: Option<Vec<String>>,
    /// Of `not-ready`.
    #[schema(value_type = Option<Vec<Object>>)]
    checks: Option<Vec<()>>,
}
