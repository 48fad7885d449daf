use serde_json::json;

use super::*;

/// RFC 7515, appendix A.2.1.
const N: &str = concat!(
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt",
    "0Bm4d4",
    "QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMd",
    "bBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK",
    "-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
);

fn rsa_key() -> Json {
    json!({"kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": N, "e": "AQAB"})
}

/// RFC 7515, appendix A.3.1.
fn ec_key() -> Json {
    json!({
        "kty": "EC", "kid": "e", "crv": "P-256", "key_ops": ["verify"],
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    })
}

/// RFC 8037, appendix A.2.
fn ed_key() -> Json {
    json!({
        "kty": "OKP", "kid": "d", "crv": "Ed25519",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    })
}

fn read(keys: &[Json]) -> Result<Vec<PublicJwk>, String> {
    public_keys(&json!({"keys": keys}).to_string())
}

#[test]
fn keys_of_each_type_are_read() {
    let keys = read(&[rsa_key(), ec_key(), ed_key()]).unwrap();
    let kids: Vec<&str> = keys.iter().map(|key| key.kid.as_str()).collect();
    assert_eq!(kids, ["r", "e", "d"]);
    let KeyMaterial::Rsa { n, e } = &keys[0].material else { panic!("{keys:?}") };
    assert_eq!((n.len(), e.as_slice()), (256, &[1, 0, 1][..]));
    let KeyMaterial::P256(point) = &keys[1].material else { panic!("{keys:?}") };
    assert_eq!((point.len(), point[0]), (65, 4));
    let KeyMaterial::Ed25519(x) = &keys[2].material else { panic!("{keys:?}") };
    assert_eq!(x.len(), 32);
}

#[test]
fn a_faulty_key_is_named_with_what_is_wrong() {
    let with = |mut key: Json, name: &str, value: Json| {
        key[name] = value;
        key
    };
    let small = URL_SAFE_NO_PAD.encode([0xff; 128]);
    let cases = [
        (with(rsa_key(), "d", json!("AQ")), "is a private key"),
        (with(ec_key(), "d", json!("AQ")), "is a private key"),
        (with(ed_key(), "d", json!("AQ")), "is a private key"),
        (json!({"kty": "oct", "kid": "s", "k": "AQ"}), "is a secret"),
        (with(rsa_key(), "use", json!("enc")), "its use is not"),
        (with(ec_key(), "key_ops", json!(["sign"])), "its key_ops lack"),
        (with(ec_key(), "key_ops", json!("verify")), "its key_ops lack"),
        (with(rsa_key(), "alg", json!("HS256")), "another alg than RS256"),
        (with(rsa_key(), "alg", json!("RS512")), "another alg than RS256"),
        (with(ec_key(), "alg", json!("RS256")), "another alg than ES256"),
        (with(ed_key(), "alg", json!("none")), "another alg than EdDSA"),
        (with(rsa_key(), "kid", json!(null)), "has no kid"),
        (with(rsa_key(), "kid", json!("")), "has no kid"),
        (with(rsa_key(), "n", json!(small)), "a modulus of 1024 bits"),
        (with(rsa_key(), "n", json!("a+b=")), "no member n in base64url"),
        (with(rsa_key(), "e", json!("AQ")), "exponent e"),
        (with(rsa_key(), "e", json!("Ag")), "exponent e"),
        (with(rsa_key(), "e", json!("")), "exponent e"),
        (with(ec_key(), "crv", json!("P-384")), "is none of"),
        (with(ec_key(), "y", json!("AQAB")), "member y of other than 32 bytes"),
        (with(ec_key(), "y", json!("A".repeat(43))), "no point of P-256"),
        (with(ed_key(), "crv", json!("X25519")), "is none of"),
        (with(ed_key(), "x", json!(null)), "no member x"),
        (json!("key"), "is not an object"),
    ];
    for (key, expected) in cases {
        let fault = read(&[ec_key(), key.clone()]).unwrap_err();
        assert!(fault.starts_with("key 2") && fault.contains(expected), "{key}: {fault}");
        assert!(!fault.contains(N) && !fault.contains("11qYAYKx"), "{fault}");
    }
    let twice = read(&[ec_key(), with(ed_key(), "kid", json!("e"))]).unwrap_err();
    assert_eq!(twice, "key 2 (kid \"e\") has the kid of another key");
}

#[test]
fn other_texts_than_a_key_set_are_refused() {
    for (text, expected) in [
        ("", "is not JSON"),
        ("{\"keys\": [", "is not JSON"),
        ("[]", "is not a JSON Web Key Set"),
        ("{\"kty\": \"OKP\"}", "is not a JSON Web Key Set"),
        ("{\"keys\": {}}", "is not a JSON Web Key Set"),
        ("{\"keys\": []}", "holds 0 keys"),
    ] {
        assert!(public_keys(text).unwrap_err().starts_with(expected), "{text}");
    }
}

#[test]
fn secrets_are_lines() {
    let lines = secrets(&SecretString::from("old secret\n\n new secret \n"));
    let lines: Vec<&str> = lines.iter().map(ExposeSecret::expose_secret).collect();
    assert_eq!(lines, ["old secret", "new secret"]);
}
