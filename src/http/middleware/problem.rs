//! Every refusal and failure of the HTTP interface, as RFC 9457 problem details.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use actix_web::{HttpResponse, ResponseError};
use serde_json::Value;

pub use super::problem_code::ProblemCode;
use super::trace_context::{TRACEPARENT, TraceContext};
use crate::services::sales::NotRead;
use crate::{db, outbox, stock, tickets};

/// Set on every answer that repeats an earlier one.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Keeps caches from storing an answer.
pub const NO_STORE: (HeaderName, HeaderValue) =
    (CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// Keeps browsers from guessing the type of an answer.
pub const NO_SNIFF: (HeaderName, HeaderValue) =
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// `Retry-After` of 503, seconds.
const RETRY_AFTER_S: RangeInclusive<u32> = 1..=3;

/// `Retry-After` of a paused sale, seconds: an operator pauses for minutes rather than seconds.
const PAUSED_S: RangeInclusive<u32> = 5..=10;

/// `Retry-After` of a request without a final state, seconds.
const PENDING_S: RangeInclusive<u32> = 1..=2;

/// `Retry-After` of a request without a final state.
pub fn retry_later() -> (HeaderName, HeaderValue) {
    retry_after(PENDING_S)
}

/// `Retry-After` within these seconds. Each answer draws one, so that no crowd comes back in step.
pub fn retry_after(seconds: RangeInclusive<u32>) -> (HeaderName, HeaderValue) {
    (RETRY_AFTER, HeaderValue::from(fastrand::u32(seconds)))
}

/// What a handler returns.
pub type Handled = Result<HttpResponse, Problem>;

/// One refusal or failure, to be sent as an answer.
#[must_use]
#[derive(Debug)]
pub struct Problem {
    code: ProblemCode,
    replayed: bool,
    /// Instead of the code's detail.
    detail: Option<Cow<'static, str>>,
    /// Extension members.
    members: Vec<(&'static str, Value)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl From<ProblemCode> for Problem {
    fn from(code: ProblemCode) -> Self {
        Self { code, replayed: false, detail: None, members: Vec::new(), headers: Vec::new() }
    }
}

impl Problem {
    /// `invalid-request`. `detail` names the fault and the valid values.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::from(ProblemCode::InvalidRequest).with_detail(detail)
    }

    /// `unauthenticated`. `challenge` becomes `WWW-Authenticate`.
    pub fn unauthenticated(detail: impl Into<Cow<'static, str>>, challenge: &'static str) -> Self {
        let problem = Self::from(ProblemCode::Unauthenticated).with_detail(detail);
        problem.with_header(WWW_AUTHENTICATE, challenge)
    }

    /// Replaces the default detail of the code.
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds an extension member.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    /// Adds a header; a value that no header may have is left out.
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        self
    }

    /// Sets `Idempotent-Replayed` on the answer.
    pub fn replayed(mut self, replayed: bool) -> Self {
        self.replayed = replayed;
        self
    }

    /// The outcome of a purchase with this problem, in metrics.
    pub fn outcome(&self) -> &'static str {
        if self.replayed { "replayed" } else { self.code.as_str() }
    }

    /// Builds the answer with status, headers and body.
    pub fn respond(&self, trace: &TraceContext) -> HttpResponse {
        let mut answer = HttpResponse::build(self.status_code());
        answer
            .insert_header((CONTENT_TYPE, PROBLEM_JSON))
            .insert_header(NO_STORE)
            .insert_header(NO_SNIFF)
            .insert_header((TRACEPARENT, trace.header()));
        if self.replayed {
            answer.insert_header((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
        }
        if let Some(seconds) = self.retry_after_s() {
            answer.insert_header(retry_after(seconds));
        }
        for header in &self.headers {
            answer.insert_header(header.clone());
        }
        answer.body(self.body(trace))
    }

    fn retry_after_s(&self) -> Option<RangeInclusive<u32>> {
        match self.code {
            ProblemCode::Paused => Some(PAUSED_S),
            code => (code.status() == 503).then_some(RETRY_AFTER_S),
        }
    }

    fn body(&self, trace: &TraceContext) -> String {
        let mut body = String::with_capacity(512);
        body.push_str(self.code.body_head());
        // Writing into a string does not fail.
        let _ = match &self.detail {
            None => write!(body, "\"{}\"", self.code.detail()),
            Some(detail) => write!(body, "{}", Value::from(detail.as_ref())),
        };
        let _ = write!(body, ",\"trace_id\":\"{}\"", trace.trace);
        for (name, value) in &self.members {
            let _ = write!(body, ",\"{name}\":{value}");
        }
        body.push('}');
        body
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.detail.as_deref().unwrap_or(self.code.detail());
        write!(f, "{}: {detail}", self.code.as_str())
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Fallback for errors outside of a watched route. Otherwise `watch` answers with the request's
    /// trace.
    fn error_response(&self) -> HttpResponse {
        self.respond(&TraceContext::new_root())
    }
}

impl From<db::Error> for Problem {
    /// Logs the error: the client receives only `busy` or `internal`.
    fn from(error: db::Error) -> Self {
        let class = error.class();
        tracing::warn!(?class, error = &error as &dyn std::error::Error, "ledger: call failed");
        match class {
            db::ErrorClass::Retry | db::ErrorClass::Down | db::ErrorClass::Unknown => {
                Self::from(ProblemCode::Busy)
                    .with_detail("The ledger does not answer, or refuses. Ask again later.")
            }
            db::ErrorClass::Bug => ProblemCode::Internal.into(),
        }
    }
}

impl From<stock::Error> for Problem {
    fn from(error: stock::Error) -> Self {
        unavailable("stock", &error)
    }
}

impl From<tickets::Error> for Problem {
    fn from(error: tickets::Error) -> Self {
        unavailable("record of used tickets", &error)
    }
}

impl From<NotRead> for Problem {
    fn from(error: NotRead) -> Self {
        unavailable("ledger", &error)
    }
}

impl From<outbox::Error> for Problem {
    fn from(error: outbox::Error) -> Self {
        unavailable("outbox", &error)
    }
}

/// Logs the error: the client receives only `busy`.
fn unavailable(store: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::warn!(error, "{store}: call failed");
    Problem::from(ProblemCode::Busy)
        .with_detail(format!("The {store} does not answer, or refuses. Ask again later."))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::TraceId;

    /// A trace id with leading zeros.
    fn parsed(problem: &Problem) -> Value {
        let trace = TraceContext { trace: TraceId(1), ..TraceContext::new_root() };
        serde_json::from_str(&problem.body(&trace)).unwrap()
    }

    #[test]
    fn the_body_of_every_code_is_complete() {
        for code in ProblemCode::ALL {
            let body = parsed(&Problem::from(*code));
            assert_eq!(body["type"], format!("/problems/{}", code.as_str()));
            assert!(!body["title"].as_str().unwrap().is_empty());
            assert_eq!(body["status"], code.status());
            assert_eq!(body["code"], code.as_str());
            assert_eq!(body["detail"], code.detail());
            assert_eq!(body["trace_id"], "00000000000000000000000000000001");
            assert!(StatusCode::from_u16(code.status()).is_ok());
        }
    }

    /// A crowd that was refused together does not come back in step.
    #[test]
    fn the_time_to_come_again_is_drawn_for_each_answer() {
        for (code, expected) in [
            (ProblemCode::Busy, 1..=3),
            (ProblemCode::NotReady, 1..=3),
            (ProblemCode::Paused, 5..=10),
        ] {
            let drawn = (0..500).map(|_| {
                let answer = Problem::from(code).respond(&TraceContext::new_root());
                answer.headers().get(RETRY_AFTER).unwrap().to_str().unwrap().parse::<u32>().unwrap()
            });
            let drawn: BTreeSet<u32> = drawn.collect();
            assert_eq!(drawn, expected.collect(), "{}", code.as_str());
        }
        let final_one = Problem::from(ProblemCode::SoldOut).respond(&TraceContext::new_root());
        assert!(!final_one.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn a_crowd_of_queued_requests_does_not_poll_in_step() {
        let drawn: BTreeSet<_> = (0..100).map(|_| retry_later().1.as_bytes().to_vec()).collect();
        assert_eq!(drawn, BTreeSet::from([b"1".to_vec(), b"2".to_vec()]));
    }

    #[test]
    fn a_ledger_that_fails_may_answer_and_refuse() {
        let error = db::Error::TimedOut { operation: "a ping" };
        let detail = "The ledger does not answer, or refuses. Ask again later.";
        assert_eq!(parsed(&Problem::from(error))["detail"], detail);
    }

    #[test]
    fn client_input_in_the_detail_is_escaped() {
        let problem = Problem::invalid("unknown field `\"},{\n\u{0}`").with("faults", vec!["a\"b"]);
        let body = parsed(&problem);
        assert_eq!(body["detail"], "unknown field `\"},{\n\u{0}`");
        assert_eq!(body["faults"][0], "a\"b");
    }
}
