//! Malformed purchase requests and their problem documents.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Case, cases, one_per_buyer, problem, selling, unlimited};
use crate::support::TestApp;

async fn send(app: &TestApp, content_type: Option<&str>, body: Vec<u8>) -> reqwest::Response {
    let mut call = app.client.post(app.url("/v1/buy/sale")).header("x-buyer-id", "1").body(body);
    if let Some(content_type) = content_type {
        call = call.header(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
    }
    call.send().await.unwrap()
}

#[tokio::test]
async fn malformed_bodies_are_refused_with_the_place() {
    let app = selling(one_per_buyer(), 5).await;
    let cases: &[(&str, &str)] = &[
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", ""),
        ("null", ""),
        ("\"sku\"", ""),
        ("{\"sku_id\":\"sku\"}", "missing field `quantity`"),
        ("{\"quantity\":1}", "missing field `sku_id`"),
        ("{\"sku_id\":\"sku\",\"quantity\":0}", "from 1 to 2"),
        ("{\"sku_id\":\"sku\",\"quantity\":3}", "from 1 to 2"),
        ("{\"sku_id\":\"sku\",\"quantity\":-1}", "-1"),
        ("{\"sku_id\":\"sku\",\"quantity\":1.0}", "floating point"),
        ("{\"sku_id\":\"sku\",\"quantity\":1e0}", "floating point"),
        ("{\"sku_id\":\"sku\",\"quantity\":\"1\"}", "string"),
        ("{\"sku_id\":\"sku\",\"quantity\":null}", "null"),
        ("{\"sku_id\":\"sku\",\"quantity\":true}", "boolean"),
        ("{\"sku_id\":\"sku\",\"quantity\":4294967296}", "4294967296"),
        ("{\"sku_id\":\"sku\",\"quantity\":18446744073709551617}", ""),
        ("{\"sku_id\":1,\"quantity\":1}", "integer"),
        ("{\"sku_id\":null,\"quantity\":1}", "null"),
        ("{\"sku_id\":\"sku\",\"quantity\":1,\"buyer_id\":\"2\"}", "unknown field `buyer_id`"),
        ("[\"sku\",1,null]", "invalid type: sequence, expected an object"),
        ("{\"sku_id\":\"sku\",\"quantity\":1,\"quantity\":2}", "duplicate field `quantity`"),
        ("{\"sku_id\":\"sku\",\"quantity\":1,\"request_id\":7}", "integer"),
        ("{\"sku_id\":\"sku\",\"quantity\":1} {}", "trailing"),
        ("{\"sku_id\":\"sku\",\"quantity\":1,}", "trailing comma"),
    ];
    for (body, expected) in cases {
        let answer = send(&app, Some("application/json"), body.as_bytes().to_vec()).await;
        let problem_body = problem(answer, 400, "invalid-request").await;
        let detail = problem_body["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{body}: {detail}");
    }
    let answer = send(&app, Some("application/json"), b"{\"sku_id\":\"\xff\"}".to_vec()).await;
    problem(answer, 400, "invalid-request").await;
}

#[tokio::test]
async fn only_json_is_read() {
    let app = selling(one_per_buyer(), 5).await;
    let body = || b"{\"sku_id\":\"sku\",\"quantity\":1}".to_vec();
    let others =
        [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("a/json")];
    for content_type in others {
        let answer = send(&app, content_type, body()).await;
        let problem_body = problem(answer, 400, "invalid-request").await;
        assert_eq!(
            problem_body["detail"], "Content-Type must be application/json",
            "{content_type:?}"
        );
    }
    for content_type in ["application/json", "Application/JSON; charset=utf-8"] {
        let answer = send(&app, Some(content_type), body()).await;
        assert!(answer.status().is_success(), "{content_type}: {answer:?}");
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused_and_a_plain_one_is_read() {
    let app = selling(one_per_buyer(), 5).await;
    let body = "{\"sku_id\":\"sku\",\"quantity\":1}";
    let send = |coding: &'static str| {
        let call = app.client.post(app.url("/v1/buy/sale")).header("x-buyer-id", "1");
        let call = call.header(CONTENT_TYPE, "application/json").header("content-encoding", coding);
        call.body(body).send()
    };
    let refused = problem(send("gzip").await.unwrap(), 400, "invalid-request").await;
    assert!(refused["detail"].as_str().unwrap().contains("Content-Encoding"), "{refused}");
    assert!(send("identity").await.unwrap().status().is_success());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_the_limit_named() {
    let app = selling(one_per_buyer(), 5).await;
    let max = app.settings.http.body_max_bytes;
    let mut body = b"{\"sku_id\":\"sku\",\"quantity\":1}".to_vec();
    body.resize(max, b' ');
    let answer = send(&app, Some("application/json"), body.clone()).await;
    assert!(answer.status().is_success(), "{answer:?}");
    body.push(b' ');
    let problem_body =
        problem(send(&app, Some("application/json"), body).await, 400, "invalid-request");
    assert!(problem_body.await["detail"].as_str().unwrap().contains(&max.to_string()));
    let huge = send(&app, Some("application/json"), vec![b' '; 1 << 20]).await;
    problem(huge, 400, "invalid-request").await;
}

#[tokio::test]
async fn a_reason_has_a_thousand_characters_however_they_are_written() {
    let app = selling(one_per_buyer(), 5).await;
    let body = format!("{{\"reason\":\"{}\"}}", "\\ud83d\\ude00".repeat(1000));
    for (path, expected) in [
        ("/sales/sale/pause", 200),
        ("/dead-letters/9/park", 404),
        ("/payments/x/retry", 404),
        ("/payments/x/resolve", 404),
    ] {
        let call = app.client.post(format!("http://{}/admin/v1{path}", app.internal));
        let call = call.header(CONTENT_TYPE, "application/json").body(body.clone());
        assert_eq!(call.send().await.unwrap().status(), expected, "{path}");
    }
}

#[tokio::test]
async fn escaped_text_is_the_same_text() {
    let app = selling(one_per_buyer(), 5).await;
    let body = br#"{"sku_id":"s\u006bu","quantity":1,"request_id":null}"#.to_vec();
    let answer = send(&app, Some("application/json"), body).await;
    assert!(answer.status().is_success(), "{answer:?}");
}

#[tokio::test]
async fn a_request_id_may_be_missing_only_where_it_can_be_derived() {
    let app = selling(unlimited(), 5).await;
    let body = b"{\"sku_id\":\"sku\",\"quantity\":1}".to_vec();
    let problem_body =
        problem(send(&app, Some("application/json"), body).await, 400, "invalid-request");
    assert!(problem_body.await["detail"].as_str().unwrap().contains("/request-ids"));
}

/// A body has ten seconds, and not ten for each of its bytes. Runs in tier `memory` only: it takes
/// these seconds.
#[tokio::test]
async fn a_body_that_drips_is_refused() {
    let app = selling(one_per_buyer(), 5).await;
    let mut socket = TcpStream::connect(app.public).await.unwrap();
    let head = "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: 1\r\n\
                Content-Type: application/json\r\nContent-Length: 100\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut answer, mut sending) = socket.split();
    let mut text = [0; 12];
    let mut read = std::pin::pin!(answer.read_exact(&mut text));
    for _ in 0..30 {
        sending.write_all(b" ").await.unwrap();
        if tokio::time::timeout(Duration::from_millis(500), &mut read).await.is_ok() {
            break;
        }
    }
    assert_eq!(std::str::from_utf8(&text), Ok("HTTP/1.1 400"));
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    malformed_bodies_are_refused_with_the_place,
    only_json_is_read,
    a_compressed_body_is_refused_and_a_plain_one_is_read,
    a_body_that_is_too_large_is_refused_and_the_limit_named,
    a_reason_has_a_thousand_characters_however_they_are_written,
    escaped_text_is_the_same_text,
    a_request_id_may_be_missing_only_where_it_can_be_derived,
];
