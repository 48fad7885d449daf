//! Tests of the admin API client.

use std::io::{Read, Write};

use super::*;

fn client(url: &str) -> Result<AdminClient, Error> {
    let args = ServerArgs { internal_url: Some(url.to_owned()) };
    AdminClient::new(&args, &Settings::for_test("sqlite://./x.db"))
}

fn interpreted(status: u16, body: Option<Json>) -> Result<Json, Error> {
    let status = StatusCode::from_u16(status).unwrap();
    client("http://127.0.0.1:1").unwrap().interpret(status, body.is_none(), body)
}

#[test]
fn each_answer_maps_to_its_exit_code() {
    let problem = || Some(serde_json::json!({ "title": "no such sale", "detail": "s9" }));
    assert_eq!(interpreted(200, None).unwrap(), Json::Null);
    let cases = [
        (401, problem(), Exit::Configuration),
        (403, None, Exit::Configuration),
        (404, problem(), Exit::Negative),
        (409, problem(), Exit::Negative),
        (404, Some(serde_json::json!({ "title": "x", "code": "not-found" })), Exit::Unclear),
        (404, None, Exit::Unclear),
        (
            404,
            Some(serde_json::json!({ "title": "x", "code": "not-found", "request_id": "7" })),
            Exit::Negative,
        ),
        (503, problem(), Exit::Unclear),
        (502, None, Exit::Unclear),
    ];
    for (status, body, exit) in cases {
        assert_eq!(interpreted(status, body).unwrap_err().into_failure().exit, exit, "{status}");
    }
    let text = interpreted(404, problem()).unwrap_err().into_failure().to_string();
    assert!(text.contains("no such sale: s9\n    -> "), "{text}");
}

#[test]
fn all_addresses_are_reached_by_loopback() {
    let reach = |bind: &str| reachable(bind.parse().unwrap()).unwrap().to_string();
    assert_eq!(reach("0.0.0.0:9090"), "127.0.0.1:9090");
    assert_eq!(reach("[::]:9090"), "[::1]:9090");
    assert_eq!(reach("10.0.0.7:9090"), "10.0.0.7:9090");
    assert!(reachable("127.0.0.1:0".parse().unwrap()).is_err());
}

#[test]
fn unusable_addresses_are_named_in_the_error() {
    for url in ["localhost:9090", "https://x", "://"] {
        let text = client(url).unwrap_err().to_string();
        assert!(text.contains(url), "{text}");
    }
}

#[tokio::test]
async fn a_closed_port_is_no_server_and_a_time_out_is_unknown() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let unresponsive = client(&url).unwrap();
    let answer = unresponsive.get(&["sales"], Some(Duration::from_millis(50))).await;
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");

    drop(listener);
    let answer = client(&url).unwrap().get(&["sales"], None).await;
    assert!(matches!(answer, Err(Error::NoServer { .. })), "{answer:?}");
    assert!(!client(&url).unwrap().is_alive().await);
}

/// Answers one request with `answer`; the thread returns the request.
fn serve_once(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        while !request.contains("{}") {
            let mut bytes = [0; 1024];
            let read = stream.read(&mut bytes).unwrap();
            request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        stream.write_all(answer.as_bytes()).unwrap();
        request
    });
    (url, server)
}

#[tokio::test]
async fn a_request_carries_token_escaped_path_and_body() {
    let (url, server) = serve_once("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"ok\":true}");
    let mut settings = Settings::for_test("sqlite://./x.db");
    settings.admin.token = "s3cret".into();
    let args = ServerArgs { internal_url: Some(url) };
    let client = AdminClient::new(&args, &settings).unwrap();
    let answer = client.post(&["sales", "a b/c", "open"], &serde_json::json!({}), None).await;
    assert_eq!(answer.unwrap()["ok"], true);
    let request = server.join().unwrap();
    assert!(request.starts_with("POST /admin/v1/sales/a%20b%2Fc/open HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer s3cret\r\n"), "{request}");

    let dots = client.get(&["sales", ".."], None).await;
    assert!(matches!(dots, Err(Error::Address(_))), "{dots:?}");
}
