use actix_web::test::TestRequest;

use super::*;
use crate::config::{NamedToken, Settings};

fn auth(token: &str, bind: &str) -> AdminAuth {
    let Settings { mut admin, mut internal, .. } = Settings::with_ledger("sqlite://./x.db");
    (admin.token, internal.bind) = (token.into(), bind.parse().unwrap());
    AdminAuth::new(&admin, &internal)
}

fn passes(auth: &AdminAuth, pairs: &[(&str, &str)]) -> bool {
    let request = pairs.iter().copied().fold(TestRequest::get(), TestRequest::append_header);
    auth.check(request.to_http_request().head()).is_ok()
}

#[test]
fn a_configured_token_is_required() {
    for bind in ["127.0.0.1:0", "0.0.0.0:0"] {
        let auth = auth("a long enough token", bind);
        assert!(passes(&auth, &[("authorization", "Bearer a long enough token")]));
        for sent in ["Bearer", "Bearer x", "Bearer a long enough toke", "Basic a"] {
            assert!(!passes(&auth, &[("authorization", sent)]), "{sent}");
        }
        assert!(!passes(&auth, &[("host", "localhost")]));
    }
}

#[test]
fn without_a_token_a_reachable_listener_refuses_everything() {
    let auth = auth("", "0.0.0.0:0");
    assert!(!passes(&auth, &[("host", "localhost"), ("authorization", "Bearer ")]));
}

#[test]
fn without_a_token_pages_of_other_sites_are_refused() {
    let auth = auth("", "127.0.0.1:0");
    for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:9090", "[::1]:9090", "127.3.2.1"] {
        assert!(passes(&auth, &[("host", host)]), "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1:9090", ""] {
        assert!(!passes(&auth, &[("host", host)]), "{host}");
    }
    let from = |origin| passes(&auth, &[("host", "localhost:9090"), ("origin", origin)]);
    assert!(from("http://localhost:9090"));
    assert!(!from("http://localhost:8080"));
    assert!(!from("https://evil.example"));
    assert!(!from("null"));
}

#[test]
fn forwarded_requests_are_not_local() {
    let auth = auth("", "127.0.0.1:0");
    let with = |name, value| passes(&auth, &[("host", "localhost:9090"), (name, value)]);
    assert!(with("user-agent", "curl"));
    let by_name = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    for name in by_name.into_iter().chain(["forwarded", "x-real-ip", "via"]) {
        assert!(!with(name, "203.0.113.9"), "{name}");
    }
    assert!(with("sec-fetch-site", "same-origin") && with("sec-fetch-site", "none"));
    assert!(!with("sec-fetch-site", "cross-site") && !with("sec-fetch-site", "same-site"));
    let absolute = |uri: &str| {
        let request = TestRequest::get().uri(uri).insert_header(("host", "127.0.0.1:9090"));
        auth.check(request.to_http_request().head()).is_ok()
    };
    assert!(absolute("http://127.0.0.1:9090/admin/v1/stats"));
    assert!(!absolute("http://evil.example/admin/v1/stats"));
}

#[test]
fn a_named_token_does_what_its_scope_allows() {
    let named = |name: &str, scope, token: &str| NamedToken {
        name: name.to_owned(),
        scope,
        token: token.into(),
    };
    let Settings { mut admin, mut internal, .. } = Settings::with_ledger("sqlite://./x.db");
    admin.token = "the one token of old".into();
    admin.tokens = vec![
        named("prometheus", AdminScope::Read, "a token for reading"),
        named("ann", AdminScope::Operate, "a token for verbs"),
    ];
    internal.bind = "0.0.0.0:0".parse().unwrap();
    let auth = AdminAuth::new(&admin, &internal);
    let send = |request: TestRequest, token: &str| {
        let request = request.insert_header(("authorization", format!("Bearer {token}")));
        let request = request.to_http_request();
        let name = auth.check(request.head()).and_then(|operator| {
            let allowed = operator.check(request.method(), "/admin/v1/sales");
            allowed.map(|()| operator.name.to_string())
        });
        name.map_err(|problem| problem.outcome())
    };
    let name = |name: &str| Ok(name.to_owned());
    assert_eq!(send(TestRequest::get(), "a token for reading"), name("prometheus"));
    assert_eq!(send(TestRequest::post(), "a token for reading"), Err("forbidden"));
    assert_eq!(send(TestRequest::delete(), "a token for reading"), Err("forbidden"));
    assert_eq!(send(TestRequest::get(), "a token for verbs"), name("ann"));
    assert_eq!(send(TestRequest::post(), "a token for verbs"), name("ann"));
    assert_eq!(send(TestRequest::post(), "the one token of old"), name("admin"));
    assert_eq!(send(TestRequest::get(), "another token"), Err("unauthenticated"));
}
