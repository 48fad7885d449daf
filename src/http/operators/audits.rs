//! Operators' routes for audits and repairs.

use actix_web::http::header::LOCATION;
use actix_web::{HttpMessage, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::domain::named::schema_of;
use crate::domain::{AuditVerdict, Repair, RepairAction, RepairOutcome, SaleId};
use crate::http::buyers::views::{no_store_json, page_limit, rfc3339};
use crate::http::middleware::body::UnreadCall;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::operators::auth::Operator;
use crate::http::operators::verbs::VERB_BYTES_MAX;
use crate::http::state::State;
use crate::services::audit::{self, AuditJob, AuditReport, AuditRequest, RepairMode};
use crate::services::lost_requests;

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;

/// Scope of an audit.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditBody {
    /// Only this sale; default: all sales.
    #[schema(value_type = Option<String>)]
    sale_id: Option<SaleId>,
    /// Repair what can be repaired, while the sale goes on.
    #[serde(default)]
    repair: bool,
    /// Report what a repair would do; overrides `repair`.
    #[serde(default)]
    dry_run: bool,
    /// Recorded with who repaired; at most 1000 characters.
    reason: Option<String>,
}

/// The audit that a body asks for.
async fn asked_for(mut call: UnreadCall) -> Result<AuditRequest, Problem> {
    let sent: AuditBody = call.optional_body(VERB_BYTES_MAX).await?;
    let mode = match (sent.dry_run, sent.repair) {
        (true, _) => RepairMode::DryRun,
        (false, true) => RepairMode::Repair,
        (false, false) => RepairMode::Report,
    };
    if mode == RepairMode::Repair {
        let operator = call.request.extensions().get::<Operator>().cloned();
        operator.ok_or(ProblemCode::Forbidden)?.check_operate()?;
    }
    Ok(AuditRequest { sale: sent.sale_id, mode, by: call.by(sent.reason)? })
}

fn audit_states() -> Object {
    schema_of(["running", "done", "failed"])
}

/// An audit in the background.
#[derive(Serialize, ToSchema)]
pub struct AuditView<'a> {
    audit_id: String,
    #[schema(schema_with = audit_states)]
    state: &'static str,
    began_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    report: Option<&'a AuditReport>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> From<&'a AuditJob> for AuditView<'a> {
    fn from(job: &'a AuditJob) -> Self {
        let (state, report, error) = match &job.result {
            None => ("running", None, None),
            Some(Ok(report)) => ("done", Some(report.as_ref()), None),
            Some(Err(error)) => ("failed", None, Some(error.as_str())),
        };
        let began_at = rfc3339(job.began_at_ms);
        Self { audit_id: job.no.to_string(), state, began_at, report, error }
    }
}

/// A repair.
#[derive(Serialize, ToSchema)]
pub struct RepairView {
    repair_id: String,
    /// The SKU's number in the ledger.
    sku_no: String,
    /// The request's number, of a repair that is about one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    verdict: AuditVerdict,
    action: RepairAction,
    outcome: RepairOutcome,
    detail: String,
    at: String,
}

impl From<(i32, Repair)> for RepairView {
    fn from((no, repair): (i32, Repair)) -> Self {
        Self {
            repair_id: no.to_string(),
            sku_no: repair.sku.to_string(),
            request: repair.request.map(|request| request.to_string()),
            verdict: repair.verdict,
            action: repair.action,
            outcome: repair.outcome,
            detail: repair.detail,
            at: rfc3339(repair.at_ms),
        }
    }
}

/// A page of repairs.
#[derive(Serialize, ToSchema)]
pub struct RepairsView {
    /// Newest first.
    repairs: Vec<RepairView>,
}

/// Page of the repairs.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RepairsQuery {
    /// Only repairs before this `repair_id`.
    before: Option<i32>,
    /// Most repairs in the answer: 1 to 1000, default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Checks every invariant, and repairs if asked to: only that needs the scope `operate`. An empty
/// body audits all sales.
#[utoipa::path(
    post, path = "/admin/v1/audit",
    operation_id = "adminRunAudit", tag = "operators", request_body = Option<AuditBody>,
    responses((status = 200, description = "`holds`, `could_tell`, every violation and repair",
        body = Object)),
)]
pub async fn check(call: UnreadCall, state: State) -> Handled {
    let audit = asked_for(call).await?;
    Ok(HttpResponse::Ok().json(state.audits.run(&audit).await?))
}

/// Begins the same in the background. One runs at a time in each process.
#[utoipa::path(
    post, path = "/admin/v1/audits",
    operation_id = "adminStartAudit", tag = "operators", request_body = Option<AuditBody>,
    responses((status = 202, description = "its report is at `Location`", body = AuditView<'_>,
        headers(("Location" = String)))),
)]
pub async fn start(call: UnreadCall, state: State) -> Handled {
    let audit = asked_for(call).await?;
    if let Some(sale) = &audit.sale
        && !state.deps.ledger.sales().await?.iter().any(|stored| stored.id == *sale)
    {
        return Err(ProblemCode::UnknownSku.into());
    }
    let job = state.audits.begin().ok_or(audit::Error::Running)?;
    state.deps.shutdown.spawn_here(state.audits.clone().run_job(job.no, audit));
    Ok(HttpResponse::Accepted()
        .insert_header((LOCATION, format!("/admin/v1/audits/{}", job.no)))
        .json(AuditView::from(&job)))
}

/// An audit that this process began. The last 16 are kept until it ends.
#[utoipa::path(
    get, path = "/admin/v1/audits/{audit_id}", operation_id = "adminShowAudit", tag = "operators",
    params(("audit_id" = String, Path, description = "from `POST /admin/v1/audits`")),
    responses((status = 200, description = "its state, and its report", body = AuditView<'_>)),
)]
pub async fn show(audit_id: web::Path<String>, state: State) -> Handled {
    let job = audit_id.parse().ok().and_then(|no| state.audits.job(no));
    let job = job.ok_or(ProblemCode::NotFound)?;
    Ok(no_store_json(AuditView::from(&job)))
}

/// What audits and the reconciler repaired, or could not repair; newest first.
#[utoipa::path(
    get, path = "/admin/v1/repairs",
    operation_id = "adminListRepairs", tag = "operators", params(RepairsQuery),
    responses((status = 200, description = "a page of them", body = RepairsView)),
)]
pub async fn repairs(state: State, query: web::Query<RepairsQuery>) -> Handled {
    let limit = page_limit(query.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let repairs = state.deps.ledger.repairs(query.before, limit).await?;
    let repairs = repairs.into_iter().map(RepairView::from).collect();
    Ok(no_store_json(RepairsView { repairs }))
}

impl From<audit::Error> for Problem {
    fn from(error: audit::Error) -> Self {
        match error {
            audit::Error::UnknownSale(_) => ProblemCode::UnknownSku.into(),
            audit::Error::Ledger(error) => error.into(),
            audit::Error::Stock(error) => error.into(),
            audit::Error::Outbox(error) => error.into(),
            audit::Error::Load(error) => error.into(),
            audit::Error::Submit(error) => match error {
                lost_requests::Error::Ledger { source, .. } => source.into(),
                lost_requests::Error::Stock(error) => error.into(),
                lost_requests::Error::Contradiction { .. } => ProblemCode::Internal.into(),
            },
            audit::Error::Running => Self::from(ProblemCode::Busy).with_detail(error.to_string()),
        }
    }
}
