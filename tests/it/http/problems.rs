//! Every error is a problem document, and every response belongs to a trace.

use std::collections::HashSet;

use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::json;

use super::{Case, cases, one_per_buyer, problem, selling};

#[tokio::test]
async fn unknown_paths_are_problems_on_both_listeners() {
    let app = selling(one_per_buyer(), 5).await;
    for address in [app.public, app.internal] {
        for path in
            ["/none", "/v1", "/v1/sales/", "/v2/sales", "/admin/v1/nothing", "/..%2f", "/%ff"]
        {
            let answer = app.client.get(format!("http://{address}{path}")).send().await.unwrap();
            problem(answer, 404, "not-found").await;
        }
    }
}

#[tokio::test]
async fn a_wrong_method_is_answered_with_the_allowed_ones() {
    let app = selling(one_per_buyer(), 5).await;
    let cases = [
        (app.public, "/v1/buy/sale", Method::GET, "POST"),
        (app.public, "/v1/buy/sale", Method::DELETE, "POST"),
        (app.public, "/v1/sales", Method::POST, "GET, HEAD"),
        (app.public, "/v1/orders", Method::PUT, "GET, HEAD"),
        (app.public, "/v1/sales/sale/request-ids", Method::GET, "POST"),
        (app.internal, "/admin/v1/sales", Method::DELETE, "GET, HEAD, POST"),
        (app.internal, "/admin/v1/sales/sale/open", Method::GET, "POST"),
        (app.internal, "/livez", Method::POST, "GET, HEAD"),
    ];
    for (address, path, method, allow) in cases {
        let url = format!("http://{address}{path}");
        let answer = app.client.request(method, url).send().await.unwrap();
        assert_eq!(answer.headers()["allow"], allow, "{path}");
        for header in ["traceparent", "x-content-type-options"] {
            assert!(answer.headers().contains_key(header), "{path}: {header}");
        }
        problem(answer, 405, "method-not-allowed").await;
    }
    let metrics = app.client.get(format!("http://{}/metrics", app.internal)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for (route, count) in [("/v1/buy/{path_id}", 2), ("/v1/sales", 1)] {
        let line =
            format!("floodgate_http_requests_total{{route=\"{route}\",status=\"405\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn head_is_answered_like_get_without_a_body() {
    let app = selling(one_per_buyer(), 5).await;
    for url in [app.url("/v1/sales"), format!("http://{}/livez", app.internal)] {
        let answer = app.client.head(url).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.bytes().await.unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_trace_goes_on_in_answers_and_problems() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let app = selling(one_per_buyer(), 1).await;
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let buy = |buyer: u64| {
        let call = app.client.post(app.url("/v1/buy/sale")).header("traceparent", &traceparent);
        let call = call.header("x-buyer-id", buyer.to_string());
        call.json(&json!({"sku_id": "sku", "quantity": 1})).send()
    };
    let bought = buy(1).await.unwrap();
    assert!(bought.status().is_success(), "{bought:?}");
    assert!(bought.headers()["traceparent"].to_str().unwrap().starts_with(&format!("00-{TRACE}-")));
    let late = problem(buy(2).await.unwrap(), 409, "sold-out").await;
    assert_eq!(late["trace_id"], TRACE);

    let read =
        |path: &str| app.client.get(app.url(path)).header("traceparent", &traceparent).send();
    let sales = read("/v1/sales").await.unwrap();
    let continued = sales.headers()["traceparent"].to_str().unwrap();
    assert_eq!((&continued[..36], &continued[52..]), (&traceparent[..36], &traceparent[52..]));
    assert_ne!(&continued[36..52], &traceparent[36..52], "the span is ours");
    for (path, status, code) in
        [("/v1/orders", 401, "unauthenticated"), ("/nowhere", 404, "not-found")]
    {
        assert_eq!(problem(read(path).await.unwrap(), status, code).await["trace_id"], TRACE);
    }

    let fresh = app.client.post(app.url("/v1/buy/sale")).header("traceparent", "00-0-0-00");
    let fresh = problem(fresh.send().await.unwrap(), 401, "unauthenticated").await;
    assert_ne!(fresh["trace_id"], TRACE);
}

/// The header as W3C Trace Context specifies it.
#[tokio::test]
async fn an_invalid_trace_is_replaced_and_a_later_version_is_read() {
    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let app = selling(one_per_buyer(), 1).await;
    let answered = async |sent: &str| {
        let sent = HeaderValue::from_bytes(sent.as_bytes()).unwrap();
        let call = app.client.get(app.url("/v1/sales")).header("traceparent", sent);
        let answer = call.send().await.unwrap();
        answer.headers()["traceparent"].to_str().unwrap()[3..35].to_owned()
    };
    let invalid = [
        "",
        "00",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-é",
    ];
    let mut traces = HashSet::from([VALID[3..35].to_owned(), "0".repeat(32)]);
    for sent in invalid {
        assert!(traces.insert(answered(sent).await.to_lowercase()), "{sent:?}");
    }
    for version in ["00", "01", "cc"] {
        let more = if version == "00" { "" } else { "-more" };
        let sent = format!("{version}{}{more}", &VALID[2..]);
        assert_eq!(answered(&sent).await, &VALID[3..35], "{sent}");
    }
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    unknown_paths_are_problems_on_both_listeners,
    a_wrong_method_is_answered_with_the_allowed_ones,
    head_is_answered_like_get_without_a_body,
    a_trace_goes_on_in_answers_and_problems,
    an_invalid_trace_is_replaced_and_a_later_version_is_read,
];
