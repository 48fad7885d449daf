//! Verifies bearer tokens and reads the buyer from their claims. A token is verified with the key
//! that its `kid` names and that key's algorithm; without such a key with the secrets, HS256.

use std::collections::HashMap;

use jsonwebtoken::{Algorithm, DecodingKey, Header, TokenData, Validation};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::Value;

use super::jwt_crypto;
use crate::config::{AuthSettings, KeyMaterial};
use crate::domain::BuyerId;

/// Tolerated difference between the clocks of issuer and server, seconds.
const LEEWAY_S: f64 = 30.0;

/// The types of access tokens (RFC 7519, section 5.1; RFC 9068, section 2.1).
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// Why a token was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JWT, or a signature of another key or algorithm.
    #[error(
        "the bearer token is not a JWT signed with HS256 and a secret of this server, or by the \
         key that its kid names"
    )]
    NotOurs,
    /// `kid` names no key, and no secret fits.
    #[error("the kid of the bearer token names no key of this server")]
    UnknownKey,
    /// `exp` has passed.
    #[error("the bearer token has expired")]
    Expired,
    /// Valid for longer than tokens of this server may be.
    #[error("the bearer token is valid for too long")]
    TooLong,
    /// `exp` is missing where it is required.
    #[error("the bearer token has no exp")]
    NoExpiry,
    /// Another audience, issuer or type.
    #[error("the bearer token was issued for another service, or by another one")]
    OtherService,
    /// `nbf` is not yet reached.
    #[error("the bearer token is not valid yet")]
    NotYet,
    /// `sub` is missing or not a buyer id.
    #[error("the bearer token's sub must be a decimal string from 1 to 9223372036854775807")]
    NoBuyer,
}

/// The claims that are read; all others are ignored.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    sub: Value,
    exp: Option<f64>,
    nbf: Option<f64>,
    #[serde(default)]
    iat: Value,
    #[serde(default)]
    aud: Value,
    #[serde(default)]
    iss: Value,
}

impl Claims {
    /// Whether they have what the settings require.
    fn check(&self, required: &AuthSettings, now_s: f64) -> Result<(), TokenError> {
        let (audience, issuer) = (&required.jwt_audience, &required.jwt_issuer);
        let is_audience = |value: &Value| value.as_str() == Some(audience);
        let is_ours = match &self.aud {
            Value::Array(all) => all.iter().any(is_audience),
            one => is_audience(one),
        };
        if !(audience.is_empty() || is_ours) {
            return Err(TokenError::OtherService);
        }
        if !(issuer.is_empty() || self.iss.as_str() == Some(issuer)) {
            return Err(TokenError::OtherService);
        }
        let is_limited = required.jwt_lifetime_max_s > 0;
        let Some(exp) = self.exp else {
            let is_required = required.jwt_require_exp || is_limited;
            return if is_required { Err(TokenError::NoExpiry) } else { Ok(()) };
        };
        // A token from the future counts from now.
        let now_s = now_s + LEEWAY_S;
        let issued_s = self.iat.as_f64().map_or(now_s, |iat| iat.min(now_s));
        let is_too_long = is_limited && exp - issued_s > f64::from(required.jwt_lifetime_max_s);
        if is_too_long { Err(TokenError::TooLong) } else { Ok(()) }
    }
}

/// A key with its algorithm.
struct TokenKey {
    key: DecodingKey,
    validation: Validation,
}

impl TokenKey {
    fn new(algorithm: Algorithm, key: DecodingKey) -> Self {
        let mut validation = Validation::new(algorithm);
        // `exp` and `nbf` are checked in `buyer`, against the injected clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        Self { key, validation }
    }

    fn public(material: &KeyMaterial) -> Self {
        match material {
            KeyMaterial::Rsa { n, e } => {
                Self::new(Algorithm::RS256, DecodingKey::from_rsa_raw_components(n, e))
            }
            KeyMaterial::P256(point) => {
                Self::new(Algorithm::ES256, DecodingKey::from_ec_der(point))
            }
            KeyMaterial::Ed25519(x) => Self::new(Algorithm::EdDSA, DecodingKey::from_ed_der(x)),
        }
    }

    fn verified(&self, token: &str) -> Option<TokenData<Claims>> {
        jsonwebtoken::decode(token, &self.key, &self.validation).ok()
    }
}

/// Verifies tokens and reads their buyers.
pub struct TokenReader {
    /// In the order of their file.
    secrets: Vec<TokenKey>,
    /// By `kid`.
    public: HashMap<String, TokenKey>,
    /// What tokens must claim.
    required: AuthSettings,
}

impl TokenReader {
    pub fn new(settings: &AuthSettings) -> Self {
        jwt_crypto::install();
        let keys = &settings.jwt_keys;
        let secret =
            |text: &str| TokenKey::new(Algorithm::HS256, DecodingKey::from_secret(text.as_bytes()));
        let public = keys.public.iter();
        Self {
            secrets: keys.secrets.iter().map(|text| secret(text.expose_secret())).collect(),
            public: public.map(|jwk| (jwk.kid.clone(), TokenKey::public(&jwk.material))).collect(),
            required: settings.clone(),
        }
    }

    fn verified(&self, token: &str) -> Result<TokenData<Claims>, TokenError> {
        let header = jsonwebtoken::decode_header(token).map_err(|_fault| TokenError::NotOurs)?;
        let named = header.kid.as_deref().and_then(|kid| self.public.get(kid));
        if let Some(key) = named {
            return key.verified(token).ok_or(TokenError::NotOurs);
        }
        let names_none = header.kid.is_some() && !self.public.is_empty();
        let error = if names_none { TokenError::UnknownKey } else { TokenError::NotOurs };
        self.secrets.iter().find_map(|key| key.verified(token)).ok_or(error)
    }

    /// The buyer in `sub`. `exp` and `nbf` are checked if present; the required claims must be.
    pub fn buyer(&self, token: &str, now_ms: i64) -> Result<BuyerId, TokenError> {
        let TokenData { header, claims } = self.verified(token)?;
        if header.crit.is_some() {
            // Extensions that must be understood (RFC 7515, 4.1.11), and none is.
            return Err(TokenError::NotOurs);
        }
        if !is_access_token(&header) {
            return Err(TokenError::OtherService);
        }
        let now_s = now_ms as f64 / 1000.0;
        claims.check(&self.required, now_s)?;
        if claims.exp.is_some_and(|exp| exp + LEEWAY_S <= now_s) {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|nbf| nbf - LEEWAY_S > now_s) {
            return Err(TokenError::NotYet);
        }
        claims.sub.as_str().and_then(|sub| sub.parse().ok()).ok_or(TokenError::NoBuyer)
    }
}

/// Whether the token has no type, or one of access tokens: a service may sign others with the same
/// key, such as for the reset of a password.
fn is_access_token(header: &Header) -> bool {
    header.typ.as_ref().is_none_or(|typ| {
        let typ = typ.to_ascii_lowercase();
        TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
    })
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
