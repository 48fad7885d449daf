use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ring::signature::Ed25519KeyPair;
use secrecy::SecretString;
use serde_json::json;
use sha2::Sha256;

use super::*;
use crate::config::{JwtKeys, PublicJwk, Settings};
use crate::domain::ids::ID_MAX;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const NOW_MS: i64 = 1_800_000_000_000;
const NOW_S: i64 = NOW_MS / 1000;

fn token(claims: &Value) -> String {
    token_with(&json!({"alg": "HS256"}), claims)
}

fn token_with(header: &Value, claims: &Value) -> String {
    signed(header, claims, |text| hs256(SECRET.as_bytes(), text))
}

fn hs256(key: &[u8], text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(text);
    mac.finalize().into_bytes().to_vec()
}

fn signed(header: &Value, claims: &Value, sign: impl Fn(&str) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(header), part(claims));
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign(&text)))
}

/// The defaults with these keys: no claim is required.
fn settings(jwt_keys: JwtKeys) -> AuthSettings {
    AuthSettings { jwt_keys, ..Settings::with_ledger("sqlite://./x.db").auth }
}

fn reader(keys: JwtKeys) -> TokenReader {
    TokenReader::new(&settings(keys))
}

fn read(token: &str) -> Result<u64, TokenError> {
    reader(JwtKeys::of_secret(SECRET)).buyer(token, NOW_MS).map(BuyerId::get)
}

/// The payload of the examples of RFC 7515.
const JOE: &str = concat!(
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnV",
    "lfQ",
);

fn decoded(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).unwrap()
}

/// The key of RFC 7515, appendix A.2.
fn rsa() -> KeyMaterial {
    let n = decoded(concat!(
        "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0",
        "Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXnd",
        "S5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5Ihl",
        "JH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    ));
    KeyMaterial::Rsa { n, e: vec![1, 0, 1] }
}

/// The key of RFC 7515, appendix A.3.
fn p256() -> KeyMaterial {
    let x = decoded("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU");
    let y = decoded("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0");
    KeyMaterial::P256([vec![4], x, y].concat())
}

/// The key of RFC 8037, appendix A.
fn ed25519() -> KeyMaterial {
    KeyMaterial::Ed25519(decoded("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"))
}

fn ed25519_sign(text: &str) -> Vec<u8> {
    let seed = decoded("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A");
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
    pair.sign(text.as_bytes()).as_ref().to_vec()
}

fn named(keys: Vec<(&str, KeyMaterial)>) -> Vec<PublicJwk> {
    let named = |(kid, material): (&str, KeyMaterial)| PublicJwk { kid: kid.to_owned(), material };
    keys.into_iter().map(named).collect()
}

#[test]
fn the_signatures_of_rfc_7515_and_8037_verify_with_their_algorithm_only() {
    let rs256 = concat!(
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2",
        "Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjt",
        "QBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6",
        "IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    );
    let es256 =
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    let eddsa =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let example = "RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    jwt_crypto::install();
    let examples = [
        (rsa(), Algorithm::RS256, format!("eyJhbGciOiJSUzI1NiJ9.{JOE}"), rs256),
        (p256(), Algorithm::ES256, format!("eyJhbGciOiJFUzI1NiJ9.{JOE}"), es256),
        (ed25519(), Algorithm::EdDSA, format!("eyJhbGciOiJFZERTQSJ9.{example}"), eddsa),
    ];
    for (material, algorithm, text, signature) in &examples {
        let key = TokenKey::public(material).key;
        let verify = |signature: &str, text: &str, algorithm| {
            jsonwebtoken::crypto::verify(signature, text.as_bytes(), &key, algorithm)
        };
        assert!(verify(signature, text, *algorithm).unwrap(), "{algorithm:?}");
        assert!(!verify(signature, &text[1..], *algorithm).unwrap(), "{algorithm:?}");
        assert!(!verify(&signature[4..], text, *algorithm).unwrap(), "{algorithm:?}");
        for other in [Algorithm::HS256, Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA] {
            assert!(other == *algorithm || verify(signature, text, other).is_err(), "{other:?}");
        }
        assert!(verify(signature, text, Algorithm::PS256).is_err());
        assert!(verify(signature, text, Algorithm::ES384).is_err());
    }
    assert_eq!(URL_SAFE_NO_PAD.encode(ed25519_sign(&examples[2].2)), eddsa);
}

#[test]
fn the_kid_chooses_the_key_and_the_key_the_algorithm() {
    let public = named(vec![("a", ed25519()), ("b", p256()), ("c", rsa())]);
    let secrets = vec![SecretString::from("another secret, long enough: 32b"), SECRET.into()];
    let claims = json!({"sub": "7"});
    let eddsa = |header: Value| signed(&header, &claims, ed25519_sign);
    let header = |kid: &str| json!({"alg": "EdDSA", "kid": kid});
    let both = reader(JwtKeys { secrets: secrets.clone(), public: public.clone() });
    let read = |token: &str| both.buyer(token, NOW_MS).map(BuyerId::get);
    assert_eq!(read(&eddsa(header("a"))), Ok(7));
    assert_eq!(read(&eddsa(header("b"))), Err(TokenError::NotOurs), "another key");
    assert_eq!(read(&eddsa(header("d"))), Err(TokenError::UnknownKey));
    assert_eq!(read(&eddsa(json!({"alg": "EdDSA"}))), Err(TokenError::NotOurs), "no kid");
    for secret in &secrets {
        let sign = |text: &str| hs256(secret.expose_secret().as_bytes(), text);
        for header in [json!({"alg": "HS256"}), json!({"alg": "HS256", "kid": "of the issuer"})] {
            assert_eq!(read(&signed(&header, &claims, sign)), Ok(7), "{header}");
        }
        let named = signed(&json!({"alg": "HS256", "kid": "a"}), &claims, sign);
        assert_eq!(read(&named), Err(TokenError::NotOurs), "a secret under the kid of a key");
    }
    // The public key, taken for a secret: the confusion that must be impossible.
    for (kid, material) in [("a", ed25519()), ("b", p256()), ("c", rsa())] {
        let (KeyMaterial::Ed25519(bytes)
        | KeyMaterial::P256(bytes)
        | KeyMaterial::Rsa { n: bytes, .. }) = material;
        let confused = json!({"alg": "HS256", "kid": kid});
        let token = signed(&confused, &claims, |text| hs256(&bytes, text));
        assert_eq!(read(&token), Err(TokenError::NotOurs), "{kid}");
        for algorithm in ["none", "RS256", "ES256", "EdDSA", "PS256", "ES384"] {
            let token = signed(&json!({"alg": algorithm, "kid": kid}), &claims, |_| Vec::new());
            assert_eq!(read(&token), Err(TokenError::NotOurs), "{algorithm}");
        }
    }
    let public_only = reader(JwtKeys { secrets: Vec::new(), public });
    assert_eq!(public_only.buyer(&token(&claims), NOW_MS), Err(TokenError::NotOurs));
    assert!(public_only.buyer(&eddsa(header("a")), NOW_MS).is_ok());
}

#[test]
fn a_token_of_another_type_is_refused() {
    for (typ, expected) in [
        (json!("JWT"), Ok(1)),
        (json!("jwt"), Ok(1)),
        (json!("at+jwt"), Ok(1)),
        (json!("application/at+jwt"), Ok(1)),
        (json!("password-reset+jwt"), Err(TokenError::OtherService)),
        (json!("logout+jwt"), Err(TokenError::OtherService)),
    ] {
        let header = json!({"alg": "HS256", "typ": typ});
        assert_eq!(read(&token_with(&header, &json!({"sub": "1"}))), expected, "{typ}");
    }
}

#[test]
fn the_example_of_rfc_7515_verifies() {
    let secret = decoded(concat!(
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1",
        "Z9CAow",
    ));
    let token = concat!(
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
        ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19y",
        "b290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    );
    // The secret is no text: only keys of a file are.
    let mut reader = reader(JwtKeys::default());
    reader.secrets = vec![TokenKey::new(Algorithm::HS256, DecodingKey::from_secret(&secret))];
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

#[test]
fn critical_extensions_are_refused() {
    for crit in [json!(["b64"]), json!([])] {
        let header = json!({"alg": "HS256", "crit": crit, "b64": false});
        assert_eq!(read(&token_with(&header, &json!({"sub": "1"}))), Err(TokenError::NotOurs));
    }
    assert_eq!(
        read(&token_with(&json!({"alg": "HS256", "kid": "7"}), &json!({"sub": "1"}))),
        Ok(1)
    );
}

#[test]
fn required_claims_must_be_there_and_match() {
    let reader = TokenReader::new(&AuthSettings {
        jwt_require_exp: true,
        jwt_audience: "shop".to_owned(),
        jwt_issuer: "login".to_owned(),
        ..settings(JwtKeys::of_secret(SECRET))
    });
    let good = json!({"sub": "1", "exp": NOW_S + 60, "aud": "shop", "iss": "login"});
    let read = |changed: Value| {
        let mut claims = good.clone();
        for (name, value) in changed.as_object().unwrap() {
            claims[name] = value.clone();
        }
        reader.buyer(&token(&claims), NOW_MS).map(BuyerId::get)
    };
    assert_eq!(read(json!({})), Ok(1));
    assert_eq!(read(json!({"aud": ["mail", "shop"]})), Ok(1));
    for other in [json!("mail"), json!(["mail"]), json!([]), json!(null), json!(1)] {
        assert_eq!(read(json!({"aud": other})), Err(TokenError::OtherService));
    }
    for other in [json!("evil"), json!(null), json!(["login"])] {
        assert_eq!(read(json!({"iss": other})), Err(TokenError::OtherService));
    }
    assert_eq!(read(json!({"exp": null})), Err(TokenError::NoExpiry));
    assert_eq!(read(json!({"exp": NOW_S - 60})), Err(TokenError::Expired));
}

/// From `iat`, but at most from 30 seconds after now, to `exp`.
#[test]
fn a_token_that_is_valid_for_too_long_is_refused() {
    let keys = JwtKeys::of_secret(SECRET);
    let reader = TokenReader::new(&AuthSettings { jwt_lifetime_max_s: 3_600, ..settings(keys) });
    let cases = [
        (json!({"iat": NOW_S - 1_800, "exp": NOW_S + 1_800}), Ok(1)),
        (json!({"iat": NOW_S - 1_800, "exp": NOW_S + 1_801}), Err(TokenError::TooLong)),
        (json!({"iat": NOW_S + 3_600, "exp": NOW_S + 3_631}), Err(TokenError::TooLong)),
        (json!({"exp": NOW_S + 3_630}), Ok(1)),
        (json!({"exp": NOW_S + 3_631}), Err(TokenError::TooLong)),
        (json!({"iat": "today", "exp": NOW_S + 3_631}), Err(TokenError::TooLong)),
        (json!({"exp": 1e308}), Err(TokenError::TooLong)),
        (json!({"iat": NOW_S}), Err(TokenError::NoExpiry)),
        (json!({"exp": null}), Err(TokenError::NoExpiry)),
    ];
    for (mut claims, expected) in cases {
        claims["sub"] = json!("1");
        assert_eq!(reader.buyer(&token(&claims), NOW_MS).map(BuyerId::get), expected, "{claims}");
    }
}
