use actix_web::test::TestRequest;

use super::*;
use crate::config::Settings;

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
fn a_reachable_listener_takes_only_tokens() {
    let without = auth("", "0.0.0.0:0");
    assert!(!passes(&without, &[("host", "localhost"), ("authorization", "Bearer ")]));
    let with = auth("a long enough token", "0.0.0.0:0");
    assert!(passes(&with, &[("authorization", "Bearer a long enough token")]));
    assert!(!passes(&with, &[("host", "localhost")]));
}

#[test]
fn forwarded_requests_are_not_local() {
    let auth = auth("", "127.0.0.1:0");
    let with = |name, value| passes(&auth, &[("host", "localhost:9090"), (name, value)]);
    assert!(with("user-agent", "curl"));
    assert!(!passes(&auth, &[("host", "")]));
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
