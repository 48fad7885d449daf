//! Who is the buyer: decided by the credentials, never by the request's body.

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use secrecy::ExposeSecret;

use super::jwt::TokenReader;
use crate::config::{AuthMode, AuthSettings};
use crate::domain::BuyerId;
use crate::http::middleware::problem::Problem;

/// The header that is believed in mode `header`.
const BUYER_ID: &str = "x-buyer-id";

/// How buyers prove who they are.
pub enum BuyerAuth {
    /// `X-Buyer-Id`, believed as it is: development and tests.
    Header,
    /// An HS256 bearer token whose `sub` is the buyer.
    Jwt(Box<TokenReader>),
}

/// The secret that mode `jwt` needs was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "auth.mode = \"jwt\" needs auth.jwt_secret_file: a file with the secret of your login service"
)]
pub struct NoSecret;

impl BuyerAuth {
    /// The way that the settings ask for.
    pub fn new(settings: &AuthSettings) -> Result<Self, NoSecret> {
        match settings.mode {
            AuthMode::Header => Ok(Self::Header),
            AuthMode::Jwt => {
                let secret = settings.jwt_secret.as_ref().ok_or(NoSecret)?;
                Ok(Self::Jwt(Box::new(TokenReader::new(secret.expose_secret().as_bytes()))))
            }
        }
    }

    /// The buyer who sent a request with these headers.
    pub fn buyer(&self, headers: &HeaderMap, now_ms: i64) -> Result<BuyerId, Problem> {
        match self {
            Self::Header => believed(headers).ok_or_else(|| {
                let detail = "X-Buyer-Id must be one decimal number from 1 to 9223372036854775807";
                Problem::unauthenticated(detail, "X-Buyer-Id")
            }),
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

fn believed(headers: &HeaderMap) -> Option<BuyerId> {
    only(headers, BUYER_ID)?.parse().ok()
}

/// The token of `Authorization: Bearer`, where there is exactly one such header.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start())
}

/// The header's value; a request that sends two has not decided who it is.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn the_header_is_believed_when_there_is_exactly_one() {
        let auth = BuyerAuth::Header;
        let buyer = |pairs: &[_]| auth.buyer(&headers(pairs), 0).ok().map(BuyerId::get);
        assert_eq!(buyer(&[("x-buyer-id", "42")]), Some(42));
        assert_eq!(buyer(&[]), None);
        assert_eq!(buyer(&[("x-buyer-id", "")]), None);
        assert_eq!(buyer(&[("x-buyer-id", "042")]), None);
        assert_eq!(buyer(&[("x-buyer-id", "1"), ("x-buyer-id", "2")]), None);
    }

    #[test]
    fn the_scheme_of_a_bearer_token_has_no_case() {
        assert_eq!(bearer(&headers(&[("authorization", "Bearer a.b.c")])), Some("a.b.c"));
        assert_eq!(bearer(&headers(&[("authorization", "bearer  a.b.c")])), Some("a.b.c"));
        assert_eq!(bearer(&headers(&[("authorization", "Basic a.b.c")])), None);
        assert_eq!(bearer(&headers(&[("authorization", "Bearer")])), None);
    }
}
