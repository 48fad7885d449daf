//! Authentication of buyers and operators in every mode.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use floodgate::config::{AdminScope, AuthMode, JwtKeys, NamedToken};
use floodgate::http::{INTERNAL, RouteAccess};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use serde_json::{Value as Json, json};
use sha2::Sha256;

use super::{Case, cases, one_per_buyer, problem, selling, settings};
use crate::support::TestApp;
use crate::support::app::sale_body;
use crate::support::wait::until;

/// Of the tokens.
pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A signed token.
pub fn token(secret: &str, header: &Json, claims: &Json) -> String {
    let part = |json: &Json| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap().chain_update(&signed);
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn the_buyer_header_must_be_one_number() {
    let app = selling(one_per_buyer(), 5).await;
    let too_large = "9223372036854775808";
    let invalid = ["", "0", "x", "-1", "+1", "042", "1e3", too_large].map(|sent| vec![sent]);
    for sent in invalid.into_iter().chain([vec![], vec!["1", "2"]]) {
        let call = app.client.get(app.url("/v1/orders"));
        let call = sent.iter().fold(call, |call, one| call.header("x-buyer-id", *one));
        let answer = call.send().await.unwrap();
        assert_eq!(answer.headers()["www-authenticate"], "X-Buyer-Id", "{sent:?}");
        problem(answer, 401, "unauthenticated").await;
    }
    // Behind a proxy on this machine everybody would be believed.
    let of_proxies = ["x-forwarded-for", "forwarded", "x-real-ip", "via"];
    for header in of_proxies.into_iter().chain(["x-forwarded-host", "x-forwarded-proto"]) {
        let call = app.client.get(app.url("/v1/orders")).header("x-buyer-id", "1");
        let answer = call.header(header, "203.0.113.9").send().await.unwrap();
        problem(answer, 403, "forbidden").await;
    }
}

#[tokio::test]
async fn bearer_tokens_name_the_buyer_and_the_header_is_not_believed() {
    let (mut settings, _stores) = settings();
    settings.auth.mode = AuthMode::Jwt;
    settings.auth.jwt_keys = JwtKeys::of_secret(SECRET);
    let app = TestApp::start(settings);
    app.open_sale("sale", one_per_buyer(), 5, 1).await;
    let buy = |authorization: String| {
        let call = app.client.post(app.url("/v1/buy/sale")).header("x-buyer-id", "7");
        let call = call.header("authorization", authorization);
        call.json(&json!({"sku_id": "sku", "quantity": 1})).send()
    };
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let good = token(SECRET, &hs256, &json!({"sub": "42", "exp": 4_102_444_800_i64}));
    let bought = until("an order", async || {
        let bought = buy(format!("Bearer {good}")).await.unwrap();
        assert!(bought.status().is_success(), "{bought:?}");
        let bought: Json = bought.json().await.unwrap();
        bought.get("order").cloned()
    });
    assert_eq!(bought.await["buyer_id"], "42");

    let again = buy(format!("bearer  {good}")).await.unwrap();
    assert!(again.status().is_success(), "the scheme has no case: {again:?}");

    let (rest, mac) = good.rsplit_once('.').unwrap();
    let other_secret = token("another secret, long enough: 32b", &hs256, &json!({"sub": "1"}));
    let not_ours = [
        format!("{good}x"),
        "a.b".to_owned(),
        "a.b.c".to_owned(),
        rest.to_owned(),
        format!("{rest}."),
        format!("{rest}.{}", &mac[..20]),
        good.replacen("ey", "ez", 1),
        other_secret,
    ];
    let missing = [String::new(), "Bearer".to_owned(), format!("Basic {good}")];
    let mut bad = missing.map(|sent| (sent, "a bearer token is needed")).to_vec();
    let bearer = |token: &str| format!("Bearer {token}");
    bad.extend(not_ours.map(|forged| (bearer(&forged), "signed with HS256")));
    for algorithm in ["none", "None", "HS384", "HS512", "RS256", "ES256"] {
        let signed = token(SECRET, &json!({"alg": algorithm}), &json!({"sub": "1"}));
        let (unsigned, _) = signed.rsplit_once('.').unwrap();
        bad.push((bearer(&format!("{unsigned}.")), "signed with HS256"));
        bad.push((bearer(&signed), "signed with HS256"));
    }
    let expired = token(SECRET, &hs256, &json!({"sub": "1", "exp": 1_000_000_000}));
    bad.push((bearer(&expired), "expired"));
    for sub in [json!("0"), json!("042"), json!("-1"), json!("x"), json!(1), json!(null)] {
        let token = token(SECRET, &hs256, &json!({"sub": sub}));
        bad.push((bearer(&token), "sub must be"));
    }
    bad.push((bearer(&token(SECRET, &hs256, &json!({}))), "sub must be"));
    for (authorization, expected) in bad {
        let answer = buy(authorization.clone()).await.unwrap();
        let challenge = answer.headers()["www-authenticate"].to_str().unwrap().to_owned();
        assert!(challenge.starts_with("Bearer realm=\"floodgate\""), "{challenge}");
        let refused = problem(answer, 401, "unauthenticated").await;
        assert!(refused["detail"].as_str().unwrap().contains(expected), "{authorization}");
    }
}

#[tokio::test]
async fn operators_routes_need_the_token_where_one_is_set() {
    let (mut settings, _stores) = settings();
    settings.admin.token = "a token of some length".into();
    let app = TestApp::start(settings);
    let mut num_refused = 0;
    for entry in INTERNAL {
        let path = entry.path.replace("{sale_id}", "sale").replace("{request_id}", "1");
        let method = Method::from_bytes(entry.method.as_str().as_bytes()).unwrap();
        let url = format!("http://{}{path}", app.internal);
        let call = || app.client.request(method.clone(), &url);
        let without = call().send().await.unwrap();
        if entry.access != RouteAccess::Admin {
            let expected = if path.contains('{') { 404 } else { 200 };
            assert_eq!(without.status(), expected, "{path}");
            continue;
        }
        assert!(without.headers().contains_key("www-authenticate"), "{path}");
        problem(without, 401, "unauthenticated").await;
        let wrong = call().bearer_auth("a token of some lengt").send().await.unwrap();
        problem(wrong, 401, "unauthenticated").await;
        let with = call().bearer_auth("a token of some length").send().await.unwrap();
        assert_ne!(with.status(), 401, "{path}");
        num_refused += 2;
    }
    for sent in ["Bearer", "Bearer x", "Basic a"] {
        let call = app.client.get(format!("http://{}/admin/v1/stats", app.internal));
        let answer = call.header("authorization", sent).send().await.unwrap();
        problem(answer, 401, "unauthenticated").await;
        num_refused += 1;
    }
    let metrics = app.client.get(format!("http://{}/metrics", app.internal));
    let metrics = metrics.bearer_auth("a token of some length").send().await.unwrap();
    let (metrics, line) =
        (metrics.text().await.unwrap(), format!("floodgate_admin_refused_total {num_refused}"));
    assert!(metrics.lines().any(|found| found == line), "{line}");
}

#[tokio::test]
async fn a_token_for_reading_audits_and_does_not_repair() {
    const READER: &str = "a token for a screen";
    const UNNAMED: &str = "a token without a name";
    let (mut settings, _stores) = settings();
    let (name, scope) = ("wall".to_owned(), AdminScope::Read);
    settings.admin.tokens = vec![NamedToken { name, scope, token: READER.into() }];
    settings.admin.token = UNNAMED.into();
    let app = TestApp::start(settings);
    let audit = async |path: &str, body: &Json| {
        let call = app.client.post(format!("http://{}/admin/v1/{path}", app.internal));
        call.bearer_auth(READER).json(body).send().await.unwrap()
    };
    let audits = [json!({}), json!({"dry_run": true}), json!({"dry_run": true, "repair": true})];
    for (path, expected) in [("audit", 200), ("audits", 202)] {
        for body in &audits {
            until("an audit", async || {
                let status = audit(path, body).await.status();
                assert_ne!(status, 403, "{path} {body}");
                (status == expected).then_some(())
            })
            .await;
        }
        problem(audit(path, &json!({"repair": true})).await, 403, "forbidden").await;
    }
    let metrics = app.client.get(format!("http://{}/metrics", app.internal));
    let metrics = metrics.bearer_auth(READER).send().await.unwrap().text().await.unwrap();
    assert!(metrics.lines().any(|line| line == "floodgate_admin_refused_total 2"), "{metrics}");

    let sale = sale_body("sale", one_per_buyer(), 1, 1);
    let create = async |token: &str| {
        let call = app.client.post(format!("http://{}/admin/v1/sales", app.internal));
        call.bearer_auth(token).json(&sale).send().await.unwrap()
    };
    problem(create(READER).await, 403, "forbidden").await;
    assert_eq!(create(UNNAMED).await.status(), 201);
    let verbs = format!("http://{}/admin/v1/verbs?subject=sale:sale", app.internal);
    let verbs = app.client.get(verbs).bearer_auth(READER).send().await.unwrap();
    let verbs: Json = verbs.json().await.unwrap();
    assert_eq!(verbs["verbs"][0]["operator"], "admin", "{verbs}");
}

#[tokio::test]
async fn without_a_token_pages_of_other_sites_are_kept_out() {
    let app = selling(one_per_buyer(), 5).await;
    let url = format!("http://{}/admin/v1/sales/sale/close", app.internal);
    let foreign = app.client.post(&url).header("origin", "https://evil.example").send();
    problem(foreign.await.unwrap(), 403, "forbidden").await;
    let rebound = app.client.post(&url).header("host", "evil.example").send();
    problem(rebound.await.unwrap(), 403, "forbidden").await;
    let read = async |host: &str, origin: Option<&str>| {
        let call = app.client.get(format!("http://{}/admin/v1/actors", app.internal));
        let call = call.header("host", host);
        let call = origin.into_iter().fold(call, |call, origin| call.header("origin", origin));
        call.send().await.unwrap()
    };
    for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:9090", "[::1]:9090", "127.3.2.1"] {
        assert_eq!(read(host, None).await.status(), 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1:9090"] {
        problem(read(host, None).await, 403, "forbidden").await;
    }
    let own = "localhost:9090";
    assert_eq!(read(own, Some("http://localhost:9090")).await.status(), 200);
    for origin in ["http://localhost:8080", "https://evil.example", "null"] {
        problem(read(own, Some(origin)).await, 403, "forbidden").await;
    }
    assert_eq!(app.get("/v1/sales/sale", 1).await.1["phase"], "open");
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    the_buyer_header_must_be_one_number,
    bearer_tokens_name_the_buyer_and_the_header_is_not_believed,
    operators_routes_need_the_token_where_one_is_set,
    a_token_for_reading_audits_and_does_not_repair,
    without_a_token_pages_of_other_sites_are_kept_out,
];
