//! Verifies HS256 bearer tokens and reads the buyer from their claims. The crypto provider of
//! `jsonwebtoken` is built on `hmac` and `sha2`, which are dependencies already.

use std::sync::Once;

use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self, Signer, Verifier};
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
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        install_provider();
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

/// Installs this module's HS256 as the crypto provider of `jsonwebtoken`. Idempotent.
pub fn install_provider() {
    static ONCE: Once = Once::new();
    // Fails only if another provider is installed already, which then stays in use.
    ONCE.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

struct Hs256(Hmac<Sha256>);

impl Hs256 {
    fn new(secret: &[u8], algorithm: Algorithm, family: AlgorithmFamily) -> Result<Self> {
        if algorithm != Algorithm::HS256 {
            return Err(ErrorKind::UnsupportedAlgorithm.into());
        }
        if family != AlgorithmFamily::Hmac {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        Ok(Self(Hmac::new_from_slice(secret).map_err(|_length| ErrorKind::InvalidKeyFormat)?))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Ok(Box::new(Hs256::new(key.as_bytes(), *algorithm, key.family())?))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    Ok(Box::new(Hs256::new(key.try_get_as_bytes()?, *algorithm, key.family())?))
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signature::Error> {
        Ok(self.0.clone().chain_update(message).finalize().into_bytes().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], mac: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = self.0.clone().chain_update(message).verify_slice(mac);
        verified.map_err(signature::Error::from_source)
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
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
    use jsonwebtoken::{Header, encode};
    use serde_json::json;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW_MS: i64 = 1_800_000_000_000;
    const NOW_S: i64 = NOW_MS / 1000;

    fn sign(secret: &[u8], claims: &Value) -> String {
        install_provider();
        encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    fn token(claims: &Value) -> String {
        sign(SECRET, claims)
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
    fn the_buyer_is_read_from_sub() {
        assert_eq!(read(&token(&json!({"sub": "42"}))), Ok(42));
        let claims =
            json!({"sub": "9223372036854775807", "exp": NOW_S + 60, "iss": "x", "aud": "y"});
        assert_eq!(read(&token(&claims)), Ok(9_223_372_036_854_775_807));
    }

    #[test]
    fn exp_and_nbf_are_checked_with_30_seconds_leeway() {
        let cases = [
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

    #[test]
    fn a_sub_that_is_not_a_buyer_id_is_rejected() {
        for sub in [json!("0"), json!("042"), json!("-1"), json!("x"), json!(42), json!(null)] {
            assert_eq!(read(&token(&json!({"sub": sub}))), Err(TokenError::NoBuyer), "{sub}");
        }
        assert_eq!(read(&token(&json!({}))), Err(TokenError::NoBuyer));
    }

    #[test]
    fn no_other_algorithm_is_accepted() {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = part(&json!({"sub": "42"}));
        for algorithm in ["none", "None", "HS384", "HS512", "RS256", "ES256"] {
            let header = part(&json!({"alg": algorithm, "typ": "JWT"}));
            let mac = Hmac::<Sha256>::new_from_slice(SECRET)
                .unwrap()
                .chain_update(format!("{header}.{claims}"))
                .finalize()
                .into_bytes();
            let signed = format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(mac));
            assert_eq!(read(&signed), Err(TokenError::NotOurs), "{algorithm}");
            assert_eq!(read(&format!("{header}.{claims}.")), Err(TokenError::NotOurs));
        }
    }

    #[test]
    fn a_modified_token_is_rejected() {
        let good = token(&json!({"sub": "42"}));
        let (rest, mac) = good.rsplit_once('.').unwrap();
        for forged in [
            String::new(),
            "a.b".to_owned(),
            "a.b.c".to_owned(),
            rest.to_owned(),
            format!("{rest}."),
            format!("{rest}.{}", &mac[..20]),
            good.replacen("ey", "ez", 1),
            sign(b"another secret of enough length!", &json!({"sub": "42"})),
        ] {
            assert_eq!(read(&forged), Err(TokenError::NotOurs), "{forged:?}");
        }
    }
}
