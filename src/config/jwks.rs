//! The keys that bearer tokens are signed with: secrets, one a line, and public keys as a JSON Web
//! Key Set (RFC 7517). Each key has one algorithm, whatever a token says.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::crypto::ring::kx_group;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value as Json};

/// A rotation needs two of each; a set is searched by name, not tried key by key.
const PUBLIC_KEYS_MAX: usize = 64;

/// The valid lengths of an RSA modulus, bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Members of private keys (RFC 7518, sections 6.2.2 and 6.3.2; RFC 8037).
const PRIVATE: [&str; 7] = ["d", "p", "q", "dp", "dq", "qi", "oth"];

/// Length of a coordinate of P-256 and of a key of Ed25519.
const POINT_BYTES: usize = 32;

/// The keys of bearer tokens.
#[derive(Clone, Default)]
pub struct JwtKeys {
    /// For HS256; during a rotation two.
    pub secrets: Vec<SecretString>,
    /// For all other algorithms.
    pub public: Vec<PublicJwk>,
}

/// A public key and its name in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicJwk {
    pub kid: String,
    pub material: KeyMaterial,
}

/// A public key. Its type decides the algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyMaterial {
    /// RS256: modulus and exponent, big-endian, without leading zeros.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// ES256: an uncompressed point of P-256.
    P256(Vec<u8>),
    /// `EdDSA`: a key of Ed25519.
    Ed25519(Vec<u8>),
}

impl JwtKeys {
    /// One secret.
    pub fn of_secret(secret: &str) -> Self {
        Self { secrets: vec![secret.into()], public: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.public.is_empty()
    }
}

/// The secrets of a file, one a line; empty lines are skipped.
pub(super) fn secrets(text: &SecretString) -> Vec<SecretString> {
    let lines = text.expose_secret().lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).map(SecretString::from).collect()
}

/// Reads the keys of a JSON Web Key Set.
///
/// # Errors
/// The first fault and the key that has it, without the key.
pub(super) fn public_keys(text: &str) -> Result<Vec<PublicJwk>, String> {
    let set: Json = serde_json::from_str(text).map_err(|error| {
        format!("is not JSON: line {}, column {}", error.line(), error.column())
    })?;
    let Some(keys) = set.get("keys").and_then(Json::as_array) else {
        return Err("is not a JSON Web Key Set: an object with the list `keys`".to_owned());
    };
    if keys.is_empty() || keys.len() > PUBLIC_KEYS_MAX {
        return Err(format!("holds {} keys, not 1 to {PUBLIC_KEYS_MAX}", keys.len()));
    }
    let (mut public, mut kids) = (Vec::with_capacity(keys.len()), BTreeSet::new());
    for (number, jwk) in (1..).zip(keys) {
        let shown = jwk.get("kid").and_then(Json::as_str).map_or_else(String::new, |kid| {
            format!(" (kid {:?})", kid.chars().take(64).collect::<String>())
        });
        let key = public_key(jwk).map_err(|what| format!("key {number}{shown} {what}"))?;
        if !kids.insert(key.kid.clone()) {
            return Err(format!("key {number}{shown} has the kid of another key"));
        }
        public.push(key);
    }
    Ok(public)
}

fn public_key(jwk: &Json) -> Result<PublicJwk, String> {
    let Some(jwk) = jwk.as_object() else { return Err("is not an object".to_owned()) };
    let text = |name: &str| jwk.get(name).and_then(Json::as_str);
    if text("kty") == Some("oct") || jwk.contains_key("k") {
        return Err("is a secret: secrets belong into auth.jwt_secret_file".to_owned());
    }
    if PRIVATE.iter().any(|name| jwk.contains_key(*name)) {
        return Err("is a private key: remove it, its owner alone may have it".to_owned());
    }
    let kid = text("kid").filter(|kid| !kid.is_empty());
    let kid = kid.ok_or("has no kid, by which tokens name their key")?;
    if jwk.contains_key("use") && text("use") != Some("sig") {
        return Err("is not for signatures: its use is not \"sig\"".to_owned());
    }
    let verifies = |list: &Vec<Json>| list.iter().any(|operation| operation == "verify");
    if jwk.get("key_ops").is_some_and(|list| !list.as_array().is_some_and(verifies)) {
        return Err("is not for signatures: its key_ops lack \"verify\"".to_owned());
    }
    let (algorithm, material) = match (text("kty"), text("crv")) {
        (Some("RSA"), _) => ("RS256", rsa(jwk)?),
        (Some("EC"), Some("P-256")) => {
            let mut point = vec![4];
            point.extend(coordinate(jwk, "x")?);
            point.extend(coordinate(jwk, "y")?);
            if !is_on_curve(&point) {
                return Err("has an x and a y that are no point of P-256".to_owned());
            }
            ("ES256", KeyMaterial::P256(point))
        }
        (Some("OKP"), Some("Ed25519")) => ("EdDSA", KeyMaterial::Ed25519(coordinate(jwk, "x")?)),
        _ => return Err("is none of RSA, EC with P-256, OKP with Ed25519".to_owned()),
    };
    if jwk.contains_key("alg") && text("alg") != Some(algorithm) {
        return Err(format!("has another alg than {algorithm}, the one that is read for its type"));
    }
    Ok(PublicJwk { kid: kid.to_owned(), material })
}

/// Whether an uncompressed point is on P-256: an agreement of keys with another one fails.
fn is_on_curve(point: &[u8]) -> bool {
    kx_group::SECP256R1.start().and_then(|own| own.complete(point)).is_ok()
}

fn rsa(jwk: &Map<String, Json>) -> Result<KeyMaterial, String> {
    let (n, e) = (number(jwk, "n")?, number(jwk, "e")?);
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
        return Err(format!("has a modulus of {bits} bits, not {least} to {most}"));
    }
    let is_odd = e.last().is_some_and(|byte| byte % 2 == 1);
    if !is_odd || e == [1] || e.len() > 4 {
        return Err("has an exponent e that is not odd, 1, or larger than 32 bits".to_owned());
    }
    Ok(KeyMaterial::Rsa { n, e })
}

/// The bytes of a member.
fn bytes(jwk: &Map<String, Json>, name: &str) -> Result<Vec<u8>, String> {
    let encoded = jwk.get(name).and_then(Json::as_str);
    let decoded = encoded.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    decoded.ok_or_else(|| format!("has no member {name} in base64url without padding"))
}

fn number(jwk: &Map<String, Json>, name: &str) -> Result<Vec<u8>, String> {
    Ok(bytes(jwk, name)?.into_iter().skip_while(|byte| *byte == 0).collect())
}

fn coordinate(jwk: &Map<String, Json>, name: &str) -> Result<Vec<u8>, String> {
    let bytes = bytes(jwk, name)?;
    let fits = bytes.len() == POINT_BYTES;
    fits.then_some(bytes).ok_or_else(|| format!("has a member {name} of other than 32 bytes"))
}

#[cfg(test)]
#[path = "jwks_tests.rs"]
mod tests;
