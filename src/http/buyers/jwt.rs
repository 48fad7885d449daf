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
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::domain::ids::ID_MAX;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW_MS: i64 = 1_800_000_000_000;
    const NOW_S: i64 = NOW_MS / 1000;

    fn token(claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
        let mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap().chain_update(&signed);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    fn read(token: &str) -> std::result::Result<u64, TokenError> {
        TokenReader::new(SECRET).buyer(token, NOW_MS).map(BuyerId::get)
    }

    #[test]
    fn the_example_of_rfc_7515_verifies() {
        let secret = URL_SAFE_NO_PAD
            .decode(concat!(
                "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1",
                "Z9CAow",
            ))
            .unwrap();
        let token = concat!(
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19y",
            "b290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        );
        let reader = TokenReader::new(&secret);
        assert_eq!(reader.buyer(token, 1_300_819_380_000), Err(TokenError::NoBuyer));
        assert_eq!(reader.buyer(token, NOW_MS), Err(TokenError::Expired));
    }

    #[test]
    fn the_buyer_is_read_and_exp_and_nbf_are_checked_with_30_seconds_leeway() {
        let cases = [
            (json!({"sub": "42"}), Ok(42)),
            (json!({"sub": ID_MAX.to_string(), "exp": NOW_S, "aud": "y"}), Ok(ID_MAX)),
            (json!({"sub": "1", "exp": NOW_S - 29}), Ok(1)),
            (json!({"sub": "1", "exp": NOW_S - 30}), Err(TokenError::Expired)),
            (json!({"sub": "1", "exp": NOW_S as f64 + 0.5}), Ok(1)),
            (json!({"sub": "1", "nbf": NOW_S + 30}), Ok(1)),
            (json!({"sub": "1", "nbf": NOW_S + 31}), Err(TokenError::NotYet)),
        ];
        for (claims, expected) in cases {
            assert_eq!(read(&token(&claims)), expected, "{claims}");
        }
    }
}
