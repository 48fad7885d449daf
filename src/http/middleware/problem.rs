//! Every refusal and failure of the HTTP interface, as RFC 9457 problem details.
//!
//! One table holds the codes. The constant part of each body is built at compile time: a sold-out
//! answer formats only its trace id.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use actix_web::http::StatusCode;
use actix_web::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use actix_web::{HttpResponse, ResponseError};
use serde_json::{Map, Value};

use super::trace_context::TraceContext;
use crate::domain::Refusal;
use crate::{db, outbox, stock};

/// Set on every answer that repeats an earlier one.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Value of `Retry-After` in answers with status 503, seconds.
const RETRY_AFTER_S: u32 = 1;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $status:literal, $code:literal, $title:literal,
        $detail:literal;)+) => {
        /// The stable problem codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ProblemCode {
            $($(#[$doc])* $variant,)+
        }

        impl ProblemCode {
            /// Every code, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// Constant summary of the problem type.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// Default explanation, used if the answer has no more specific one.
            #[must_use]
            pub const fn detail(self) -> &'static str {
                match self { $(Self::$variant => $detail,)+ }
            }

            /// The body up to the value of `trace_id`; `"}` completes it.
            const fn body_head(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!(
                        "{\"type\":\"/problems/", $code, "\",\"title\":\"", $title,
                        "\",\"status\":", $status, ",\"code\":\"", $code,
                        "\",\"detail\":\"", $detail, "\",\"trace_id\":\"",
                    ),)+
                }
            }
        }
    };
}

codes! {
    /// Malformed, or outside the limits of the sale.
    InvalidRequest => 400, "invalid-request", "Invalid request",
        "The request is malformed or outside the limits of the sale.";
    /// Missing or invalid credentials.
    Unauthenticated => 401, "unauthenticated", "Unauthenticated",
        "Valid credentials are needed.";
    /// The request id was not issued for this buyer and SKU, or it has expired.
    RequestIdInvalid => 403, "request-id-invalid", "Request id not valid",
        "This request id was not issued for this buyer and SKU, or it has expired. Get a new one.";
    /// Before the window, or paused.
    NotStarted => 403, "not-started", "Not started",
        "The sale is not open now.";
    /// A page of another origin called the internal listener.
    Forbidden => 403, "forbidden", "Forbidden",
        "Requests from pages of other sites are refused here.";
    /// Unknown sale or SKU.
    UnknownSku => 404, "unknown-sku", "No such sale or SKU",
        "There is no such sale, or it does not offer this SKU.";
    /// Unknown request, or another buyer's.
    NotFound => 404, "not-found", "Not found",
        "There is nothing here.";
    /// Operators: no dead letter has this number.
    UnknownLetter => 404, "unknown-letter", "No such dead letter",
        "No dead letter has this number. See /admin/v1/dead-letters.";
    /// The path exists, the method does not.
    MethodNotAllowed => 405, "method-not-allowed", "Method not allowed",
        "This path does not answer to this method. See the Allow header.";
    /// No units left.
    SoldOut => 409, "sold-out", "Sold out",
        "Fewer units are left than were asked for.";
    /// `one_per_buyer`: the buyer has an order already.
    AlreadyPurchased => 409, "already-purchased", "Already purchased",
        "This buyer has an order for this SKU. See request_id.";
    /// `quota`: the order would exceed it.
    QuotaExceeded => 409, "quota-exceeded", "Quota exceeded",
        "The order would exceed what one buyer may have. See owned and limit.";
    /// An operator discarded the request.
    Discarded => 409, "discarded", "Discarded",
        "This request could not be carried out. Nothing was bought; buy anew.";
    /// Operators: the sale id is taken.
    SaleExists => 409, "sale-exists", "Sale exists",
        "A sale of this name exists. Choose another name.";
    /// Operators: the transition is not allowed from the sale's phase.
    PhaseConflict => 409, "phase-conflict", "Phase conflict",
        "The sale cannot move to this phase from where it stands.";
    /// Operators: the dead letter is truncated, foreign or malformed.
    LetterNotReplayable => 409, "letter-not-replayable", "Dead letter not replayable",
        "The dead letter cannot be replayed. Show it, then park it.";
    /// Operators: the dead letter changed concurrently.
    LetterConflict => 409, "letter-conflict", "Dead letter changed",
        "The dead letter was replayed, or changed meanwhile. Show it again.";
    /// Operators: nothing to discard, every request is an order.
    LetterOrdered => 409, "letter-ordered", "Requests are orders",
        "Every request of the dead letter is an order. Replay marks it as resolved.";
    /// Operators: this process has no broker connection.
    NoBroker => 409, "no-broker", "No broker",
        "Dead letters are replayed by processes of tier pipeline only.";
    /// Operators: the sale has no buckets in Redis.
    NoBuckets => 409, "no-buckets", "Nothing to rebuild",
        "The sale is a draft, not prepared yet or long over, or its tier has no buckets in Redis.";
    /// After the window, or closed.
    Ended => 410, "ended", "Ended",
        "The sale is over.";
    /// The same request id was sent with other content.
    RequestIdReused => 422, "request-id-reused", "Request id used before",
        "This request id was used with other content. Use a new one for another purchase.";
    /// A bug in this program.
    Internal => 500, "internal", "Internal error",
        "Something went wrong here. Ask again with the same request id.";
    /// Nothing was reserved; retry later.
    Busy => 503, "busy", "Busy",
        "Nothing was taken. Ask again with the same request id after Retry-After.";
    /// Operators: the broker refused or did not confirm the message.
    BrokerAway => 503, "broker-away", "Broker away",
        "The broker did not confirm it. Nothing was changed; try again, repeats do no harm.";
    /// Health: a required dependency of this role is unavailable.
    NotReady => 503, "not-ready", "Not ready",
        "This process cannot do its work now. See checks.";
}

impl From<&Refusal> for ProblemCode {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::SoldOut => Self::SoldOut,
            Refusal::AlreadyPurchased { .. } => Self::AlreadyPurchased,
            Refusal::QuotaExceeded { .. } => Self::QuotaExceeded,
            Refusal::RequestIdReused => Self::RequestIdReused,
            Refusal::NotStarted => Self::NotStarted,
            Refusal::Ended => Self::Ended,
            Refusal::Discarded => Self::Discarded,
        }
    }
}

/// Everything beyond the code: the specific detail, extension members and one header.
#[derive(Debug, Default)]
struct ProblemDetails {
    detail: Option<Cow<'static, str>>,
    members: Map<String, Value>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// One refusal or failure, to be sent as an answer.
#[derive(Debug)]
pub struct Problem {
    code: ProblemCode,
    replayed: bool,
    more: Option<Box<ProblemDetails>>,
}

impl From<ProblemCode> for Problem {
    fn from(code: ProblemCode) -> Self {
        Self { code, replayed: false, more: None }
    }
}

impl Problem {
    /// `invalid-request`. `detail` names the fault and the valid values.
    #[must_use]
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::from(ProblemCode::InvalidRequest).with_detail(detail)
    }

    /// `unauthenticated`. `challenge` becomes `WWW-Authenticate`.
    #[must_use]
    pub fn unauthenticated(detail: impl Into<Cow<'static, str>>, challenge: &'static str) -> Self {
        let header = (WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        Self::from(ProblemCode::Unauthenticated).with_detail(detail).with_header(header)
    }

    /// `method-not-allowed`. `allow` becomes the header of that name.
    #[must_use]
    pub fn method_not_allowed(allow: &str) -> Self {
        let problem = Self::from(ProblemCode::MethodNotAllowed);
        match HeaderValue::try_from(allow) {
            Ok(allow) => problem.with_header((ALLOW, allow)),
            Err(_) => problem,
        }
    }

    /// Replaces the default detail of the code.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.more().detail = Some(detail.into());
        self
    }

    /// Adds an extension member.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more().members.insert(name.to_owned(), value.into());
        self
    }

    /// Sets `Idempotent-Replayed` on the answer.
    #[must_use]
    pub fn replayed(mut self, replayed: bool) -> Self {
        self.replayed = replayed;
        self
    }

    #[must_use]
    pub fn code(&self) -> ProblemCode {
        self.code
    }

    fn with_header(mut self, header: (HeaderName, HeaderValue)) -> Self {
        self.more().header = Some(header);
        self
    }

    fn more(&mut self) -> &mut ProblemDetails {
        self.more.get_or_insert_default()
    }

    /// Builds the answer with status, headers and body.
    #[must_use]
    pub fn respond(&self, trace: &TraceContext) -> HttpResponse {
        let mut answer = HttpResponse::build(self.status_code());
        answer.insert_header((CONTENT_TYPE, PROBLEM_JSON)).insert_header((CACHE_CONTROL, NO_STORE));
        if self.replayed {
            answer.insert_header((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
        }
        if self.code.status() == 503 {
            answer.insert_header((RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S)));
        }
        match &self.more {
            None => answer.body(constant_body(self.code, trace)),
            Some(more) => {
                if let Some((name, value)) = &more.header {
                    answer.insert_header((name.clone(), value.clone()));
                }
                answer.body(self.body(more, trace))
            }
        }
    }

    fn body(&self, more: &ProblemDetails, trace: &TraceContext) -> String {
        let code = self.code;
        let detail = more.detail.as_deref().unwrap_or(code.detail());
        let mut members = Map::from_iter(
            [
                ("type", Value::from(format!("/problems/{}", code.as_str()))),
                ("title", Value::from(code.title())),
                ("status", Value::from(code.status())),
                ("code", Value::from(code.as_str())),
                ("detail", Value::from(detail)),
                ("trace_id", Value::from(trace.trace.to_string())),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        members.extend(more.members.clone());
        Value::Object(members).to_string()
    }
}

/// The body of a code without details.
fn constant_body(code: ProblemCode, trace: &TraceContext) -> String {
    let head = code.body_head();
    let mut body = String::with_capacity(head.len() + 34);
    body.push_str(head);
    // Writing into a string does not fail.
    let _ = write!(body, "{}", trace.trace);
    body.push_str("\"}");
    body
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.more.as_ref().and_then(|more| more.detail.as_deref());
        write!(f, "{}: {}", self.code.as_str(), detail.unwrap_or(self.code.detail()))
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
                    .with_detail("The ledger did not answer. Ask again later.")
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

impl From<outbox::Error> for Problem {
    fn from(error: outbox::Error) -> Self {
        unavailable("outbox", &error)
    }
}

/// Logs the error: the client receives only `busy`.
fn unavailable(store: &str, error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::warn!(error, "{store}: call failed");
    Problem::from(ProblemCode::Busy)
        .with_detail(format!("The {store} did not answer. Ask again later."))
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
