//! Authentication of buyers: by the credentials, never by the request's body.

use actix_web::http::header::{AUTHORIZATION, AsHeaderName, HeaderMap, HeaderName};

use super::jwt::TokenReader;
use crate::config::{AuthMode, AuthSettings};
use crate::domain::BuyerId;
use crate::http::middleware::problem::{Problem, ProblemCode};

/// The header that is trusted in mode `header`.
const BUYER_ID: HeaderName = HeaderName::from_static("x-buyer-id");

/// How buyers authenticate.
pub enum BuyerAuth {
    /// `X-Buyer-Id`, trusted without proof: for development and tests.
    Header,
    /// A bearer token whose `sub` is the buyer.
    Jwt(Box<TokenReader>),
}

impl BuyerAuth {
    /// Without any key mode `jwt` refuses every token.
    pub fn new(settings: &AuthSettings) -> Self {
        match settings.mode {
            AuthMode::Header => Self::Header,
            AuthMode::Jwt => Self::Jwt(Box::new(TokenReader::new(settings))),
        }
    }

    /// The buyer that the headers authenticate.
    ///
    /// # Errors
    /// `unauthenticated`; `forbidden` for a forwarded request in mode `header`.
    pub fn buyer(&self, headers: &HeaderMap, now_ms: i64) -> Result<BuyerId, Problem> {
        match self {
            Self::Header => {
                if is_forwarded(headers) {
                    let detail = "auth.mode = \"header\" believes every caller, and is refused \
                                  behind a proxy: set auth.mode = \"jwt\"";
                    return Err(Problem::from(ProblemCode::Forbidden).with_detail(detail));
                }
                let buyer = single(headers, BUYER_ID).and_then(|id| id.parse().ok());
                buyer.ok_or_else(|| {
                    let detail =
                        "X-Buyer-Id must be one decimal number from 1 to 9223372036854775807";
                    Problem::unauthenticated(detail, "X-Buyer-Id")
                })
            }
            Self::Jwt(reader) => {
                let token = bearer(headers).ok_or_else(|| {
                    let detail = "a bearer token is needed: Authorization: Bearer <JWT>";
                    Problem::unauthenticated(detail, "Bearer realm=\"floodgate\"")
                })?;
                reader.buyer(token, now_ms).map_err(|error| {
                    let challenge = "Bearer realm=\"floodgate\", error=\"invalid_token\"";
                    Problem::unauthenticated(error.to_string(), challenge)
                })
            }
        }
    }
}

/// Whether a proxy says that it forwarded the request: its real sender is not on this machine.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    const NAMES: [&str; 6] = [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "via",
        "x-forwarded-host",
        "x-forwarded-proto",
    ];
    headers.keys().any(|name| NAMES.contains(&name.as_str()))
}

/// The token of `Authorization: Bearer`, if the request has exactly one such header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = single(headers, AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start())
}

/// The header's value. A request with two such headers is ambiguous and has none.
pub fn single(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}
