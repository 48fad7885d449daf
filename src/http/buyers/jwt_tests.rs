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
