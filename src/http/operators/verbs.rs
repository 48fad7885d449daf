//! Who did what, and why: the operator of a verb, its record in the ledger, and the list of them.

use actix_web::{HttpMessage, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use crate::db;
use crate::domain::operator_verb::REASON_CHARS_MAX;
use crate::domain::{ByOperator, OperatorVerb, VerbSubject};
use crate::http::buyers::views::{no_store_json, page_cursor, page_cut, page_limit, rfc3339};
use crate::http::middleware::body::{UnreadCall, VerbBody};
use crate::http::middleware::problem::{Handled, Problem};
use crate::http::middleware::watch::give_reason;
use crate::http::state::{HttpState, State};

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 500;

/// Most bytes of the body of a verb. JSON may write a character of its reason with twelve.
pub(super) const VERB_BYTES_MAX: usize = 16 * 1024;

/// How a [`VerbSubject`] begins.
const SUBJECTS: [&str; 3] = ["sale:", "dead_letter:", "payment:"];

impl UnreadCall {
    /// Who calls, with the reason that the body gives; `None`: the route is not an operator's.
    pub(super) fn by(&self, reason: Option<String>) -> Result<Option<ByOperator>, Problem> {
        if reason.as_deref().is_some_and(|reason| reason.trim().is_empty()) {
            return Err(Problem::invalid("reason must not be empty"));
        }
        check_length(reason.as_deref(), REASON_CHARS_MAX)?;
        give_reason(&self.request, reason.as_deref());
        let extensions = self.request.extensions();
        let name = extensions.get::<Operator>().map(|operator| operator.name.to_string());
        Ok(name.map(|name| ByOperator { name, reason }))
    }

    /// Who calls, with the reason of a body that has nothing else.
    pub(super) async fn by_body(&mut self) -> Result<Option<ByOperator>, Problem> {
        let body: VerbBody = self.optional_body(VERB_BYTES_MAX).await?;
        self.by(body.reason)
    }
}

pub(super) fn check_length(reason: Option<&str>, max: usize) -> Result<(), Problem> {
    if reason.is_some_and(|reason| reason.chars().count() > max) {
        return Err(Problem::invalid(format!("reason must have at most {max} characters")));
    }
    Ok(())
}

/// Records a verb on each subject after its effect. The effect stands also if the record fails; the
/// log has both.
pub(super) async fn record(
    state: &HttpState,
    subjects: &[VerbSubject],
    verb: &str,
    by: Option<ByOperator>,
) {
    let Some(by) = by else { return };
    let at_ms = state.deps.clock.wall_ms();
    let verbs = subjects.iter().map(|subject| OperatorVerb::new(subject, verb, &by, at_ms));
    if let Err(error) = state.deps.ledger.record_verbs(verbs.collect()).await {
        tracing::warn!(%error, verb, operator = by.name, "operator: verb not recorded");
    }
}

/// Filter and page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct VerbsQuery {
    /// `sale:<sale_id>`, `dead_letter:<id>` or `payment:<id>`; default: all.
    subject: Option<String>,
    /// Most verbs in the answer: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A verb that changed something.
#[derive(Serialize, ToSchema)]
pub struct VerbView {
    verb_id: String,
    /// `sale:<sale_id>`, `dead_letter:<id>` or `payment:<id>`.
    subject: String,
    /// As in the path, such as `close`; `create` for a new sale, `change` for `PATCH`.
    verb: String,
    /// The name of the token; `local` without tokens.
    operator: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Old and new values of `change`, units of `stock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    at: String,
}

impl From<(i32, OperatorVerb)> for VerbView {
    fn from((no, verb): (i32, OperatorVerb)) -> Self {
        Self {
            verb_id: no.to_string(),
            subject: verb.subject,
            verb: verb.verb,
            operator: verb.by.name,
            reason: verb.by.reason,
            detail: verb.detail,
            at: rfc3339(verb.at_ms),
        }
    }
}

/// A page of verbs.
#[derive(Serialize, ToSchema)]
pub struct VerbsView {
    verbs: Vec<VerbView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// What operators changed, newest first: who, when and why.
#[utoipa::path(
    get, path = "/admin/v1/verbs", operation_id = "adminListVerbs",
    tag = "operators", params(VerbsQuery),
    responses((status = 200, description = "newest first", body = VerbsView)),
)]
pub async fn list(state: State, query: web::Query<VerbsQuery>) -> Handled {
    let VerbsQuery { subject, limit, cursor } = query.into_inner();
    let limit = page_limit(limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    if subject.as_deref().is_some_and(|it| !SUBJECTS.iter().any(|kind| it.starts_with(kind))) {
        return Err(Problem::invalid(
            "subject must begin with `sale:`, `dead_letter:` or `payment:`",
        ));
    }
    let before = page_cursor(cursor.as_deref(), |text| text.parse().ok())?;
    let reading = state.deps.ledger.verbs(subject, before, limit + 1);
    let mut rows = db::with_timeout("a list of verbs", reading).await?;
    let next_cursor = page_cut(&mut rows, limit, |(no, _)| no.to_string());
    let verbs = rows.into_iter().map(VerbView::from).collect();
    Ok(no_store_json(VerbsView { verbs, next_cursor }))
}
