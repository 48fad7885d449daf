//! Authentication of buyers: by the credentials, never by the request's body.

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use secrecy::ExposeSecret;

use super::jwt::TokenReader;
use crate::config::{AuthMode, AuthSettings};
use crate::domain::BuyerId;
use crate::http::middleware::problem::Problem;

/// The header that is trusted in mode `header`.
const BUYER_ID: &str = "x-buyer-id";

/// How buyers authenticate.
pub enum BuyerAuth {
    /// `X-Buyer-Id`, trusted without proof: for development and tests.
    Header,
    /// An HS256 bearer token whose `sub` is the buyer.
    Jwt(Box<TokenReader>),
}

/// Mode `jwt` is configured without its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "auth.mode = \"jwt\" needs auth.jwt_secret_file: a file with the secret of your login service"
)]
pub struct NoSecret;

impl BuyerAuth {
    /// # Errors
    /// [`NoSecret`] in mode `jwt` without a secret.
    pub fn new(settings: &AuthSettings) -> Result<Self, NoSecret> {
        match settings.mode {
            AuthMode::Header => Ok(Self::Header),
            AuthMode::Jwt => {
                let secret = settings.jwt_secret.as_ref().ok_or(NoSecret)?;
                Ok(Self::Jwt(Box::new(TokenReader::new(secret.expose_secret().as_bytes()))))
            }
        }
    }

    /// The buyer that the headers authenticate.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn buyer(&self, headers: &HeaderMap, now_ms: i64) -> Result<BuyerId, Problem> {
        match self {
            Self::Header => {
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

/// The token of `Authorization: Bearer`, if the request has exactly one such header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = single(headers, AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start())
}

/// The header's value. A request with two such headers is ambiguous and has none.
pub fn single<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}
