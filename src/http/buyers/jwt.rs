//! Verifies HS256 bearer tokens and reads the buyer from their claims. The crypto provider of
//! `jsonwebtoken` is built on `hmac` and `sha2`, which are dependencies already.

use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Validation};
use serde::Deserialize;
use serde_json::Value;
use sha2::Sha256;

use crate::domain::BuyerId;

/// Tolerated difference between the clocks of issuer and server, seconds.
const LEEWAY_S: f64 = 30.0;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: new_signer,
    verifier_factory: new_verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Why a token was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JWT, another algorithm, or another secret.
    #[error("the bearer token is not a JWT signed with HS256 and the secret of this server")]
    NotOurs,
    /// `exp` has passed.
    #[error("the bearer token has expired")]
    Expired,
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
}

/// Verifies tokens and reads their buyers.
pub struct TokenReader {
    key: DecodingKey,
    validation: Validation,
}

impl TokenReader {
    /// Accepts HS256 tokens signed with `secret`, and no other algorithm.
    pub fn new(secret: &[u8]) -> Self {
        // Fails if a provider is installed already: this one, by an earlier call.
        let _ = PROVIDER.install_default();
        let mut validation = Validation::new(Algorithm::HS256);
        // `exp` and `nbf` are checked in `buyer`, against the injected clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        Self { key: DecodingKey::from_secret(secret), validation }
    }

    /// The buyer in `sub`. `exp` and `nbf` are checked if present.
    pub fn buyer(&self, token: &str, now_ms: i64) -> std::result::Result<BuyerId, TokenError> {
        let decoded = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation);
        let Ok(decoded) = decoded else { return Err(TokenError::NotOurs) };
        let claims = decoded.claims;
        let now_s = now_ms as f64 / 1000.0;
        if claims.exp.is_some_and(|exp| exp + LEEWAY_S <= now_s) {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|nbf| nbf - LEEWAY_S > now_s) {
            return Err(TokenError::NotYet);
        }
        claims.sub.as_str().and_then(|sub| sub.parse().ok()).ok_or(TokenError::NoBuyer)
    }
}

struct Hs256(Hmac<Sha256>);

/// Tokens are verified here, never signed.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if *algorithm != Algorithm::HS256 {
        return Err(ErrorKind::UnsupportedAlgorithm.into());
    }
    if key.family() != AlgorithmFamily::Hmac {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let keyed = Hmac::new_from_slice(key.try_get_as_bytes()?);
    Ok(Box::new(Hs256(keyed.map_err(|_length| ErrorKind::InvalidKeyFormat)?)))
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], mac: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = self.0.clone().chain_update(message).verify_slice(mac);
        verified.map_err(signature::Error::from_source)
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
