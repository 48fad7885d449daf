//! The storefront's files and the pages of the problem codes.

use floodgate::http::ProblemCode;
use reqwest::Response;

use super::{fresh, problem};
use crate::support::TestApp;

async fn get(app: &TestApp, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut call = app.client.get(app.url(path));
    for (name, value) in headers {
        call = call.header(*name, *value);
    }
    call.send().await.unwrap()
}

/// The address that the page names for its module.
fn module_of(page: &str) -> String {
    let (_, rest) = page.split_once("<script type=\"module\" src=\"").unwrap();
    format!("/{}", rest.split('"').next().unwrap())
}

#[tokio::test]
async fn the_page_is_revalidated_and_its_assets_are_kept_for_ever() {
    let app = fresh();
    let page = get(&app, "/", &[]).await;
    assert_eq!(page.status(), 200);
    let headers = page.headers().clone();
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(headers["cache-control"], "no-cache");
    let policy = headers["content-security-policy"].to_str().unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    let tag = headers["etag"].to_str().unwrap().to_owned();
    for known in [tag.as_str(), tag.trim_start_matches("W/"), "*"] {
        let again = get(&app, "/", &[("if-none-match", known)]).await;
        assert_eq!((again.status().as_u16(), again.text().await.unwrap().as_str()), (304, ""));
    }

    let page = page.text().await.unwrap();
    assert!(page.contains("data-auth=\"header\""), "{page}");
    let module = module_of(&page);
    let plain = get(&app, &module, &[]).await;
    assert_eq!(plain.headers()["content-type"], "text/javascript; charset=utf-8");
    assert_eq!(plain.headers()["cache-control"], "public, max-age=31536000, immutable");
    assert_eq!(plain.headers()["vary"], "accept-encoding");
    assert!(plain.headers().get("content-encoding").is_none());
    let plain = plain.bytes().await.unwrap();
    let packed = get(&app, &module, &[("accept-encoding", "br, gzip")]).await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    let packed = packed.bytes().await.unwrap();
    assert_eq!(packed[..2], [0x1f, 0x8b], "gzip");
    assert!(packed.len() < plain.len());
    let refused = get(&app, &module, &[("accept-encoding", "gzip;q=0, *")]).await;
    assert_eq!(refused.bytes().await.unwrap(), plain);
    let other_version = module.replace("/assets/", "/assets/0");
    for path in [other_version.as_str(), &module.replace("main.js", "none.js")] {
        problem(get(&app, path, &[]).await, 404, "not-found").await;
    }
}

#[tokio::test]
async fn every_problem_has_a_page() {
    let app = fresh();
    for code in ProblemCode::ALL {
        let page = get(&app, &format!("/problems/{}", code.as_str()), &[]).await;
        assert_eq!(page.status(), 200, "{}", code.as_str());
        assert!(page.headers().contains_key("content-security-policy"));
        let text = page.text().await.unwrap();
        assert!(text.contains(code.detail()) && text.contains("<h1>"), "{text}");
    }
    problem(get(&app, "/problems/none", &[]).await, 404, "not-found").await;
}
