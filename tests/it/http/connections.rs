//! No client can hold a connection, a handler or memory, on either listener.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::{one_per_buyer, selling, settings};
use crate::support::TestApp;
use crate::support::admin::call;
use crate::support::app::sale_body;
use crate::support::process::Server;
use crate::support::wait::{DEADLINE, until};

/// An answered request, and the beginning of the next.
async fn held(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 4096];
    assert!(client.read(&mut answer).await.unwrap() > 0);
    client.write_all(b"G").await.unwrap();
    client
}

/// Reads until the server closes the connection.
async fn until_closed(client: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let read = timeout(DEADLINE, client.read_to_end(&mut answer)).await;
    // A reset is a close, too.
    let _reset = read.unwrap_or_else(|_| panic!("not closed after {DEADLINE:?}"));
    answer
}

/// Waits for a connection that the server closes within `limit`, and returns its bytes. Where only
/// a later time limit closes it, none is; on a slow machine a few may not be.
async fn closed_within(limit: Duration, open: impl AsyncFn() -> TcpStream) -> Vec<u8> {
    until("a close in time", async || {
        let mut client = open().await;
        let started = now_monotonic();
        let answer = until_closed(&mut client).await;
        (started.elapsed() < limit).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn half_a_second_head_is_cut_on_both_listeners() {
    let app = selling(one_per_buyer(), 5).await;
    let started = now_monotonic();
    let cut = async |address: SocketAddr| {
        until_closed(&mut held(address).await).await;
        let after = started.elapsed();
        assert!(after >= Duration::from_secs(15), "{after:?}");
    };
    tokio::join!(cut(app.public), cut(app.internal));
}

/// What follows such a head is no body that ends: nothing is waited for. Other offers are ignored.
#[tokio::test]
async fn a_switch_to_websocket_is_refused_before_its_body() {
    let app = selling(one_per_buyer(), 5).await;
    let body = "{\"sku_id\":\"sku\",\"quantity\":1}";
    let request = |path: &str, upgrade: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: 1\r\nContent-Type: application/json\r\n\
             {upgrade}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (address, path) in [(app.public, "/v1/buy/sale"), (app.internal, "/admin/v1/audit")] {
        for upgrade in ["Upgrade: websocket", "Connection: Upgrade\r\nUpgrade: h2c, WebSocket"] {
            let asked = async || {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(request(path, upgrade).as_bytes()).await.unwrap();
                client
            };
            let answer = closed_within(Duration::from_secs(4), asked).await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
            for part in ["\"code\":\"invalid-request\"", "traceparent: 00-", "connection: close"] {
                assert!(answer.contains(part), "{part}: {answer}");
            }
        }
    }
    let mut client = TcpStream::connect(app.public).await.unwrap();
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk";
    client.write_all(request("/v1/buy/sale", upgrade).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer));
}

/// A request whose body was not read to its end would close the connection.
#[tokio::test]
async fn each_of_many_refused_requests_that_are_sent_in_advance_is_answered() {
    const REQUESTS: usize = 64;
    let app = selling(one_per_buyer(), 5).await;
    let body = "{\"sku_id\":\"sku\",\"quantity\":1}";
    let request = format!(
        "POST /v1/buy/none HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(app.public).await.unwrap();
    client.write_all(request.repeat(REQUESTS).as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    let num_answers =
        |answers: &[u8]| String::from_utf8_lossy(answers).matches("HTTP/1.1 4").count();
    while num_answers(&answers) < REQUESTS {
        let read = client.read_buf(&mut answers).await.unwrap();
        assert!(read > 0, "closed after {} answers", num_answers(&answers));
    }
}

/// Else each attempt of a crowd that is refused would cost a new connection.
#[tokio::test]
async fn a_refusal_keeps_the_connection_if_the_body_has_come_with_its_head() {
    let app = selling(one_per_buyer(), 5).await;
    let body = "{\"sku_id\":\"sku\",\"quantity\":1}";
    for (address, path, status) in [
        (app.public, "/v1/buy/sale", 401),
        (app.public, "/v1/sales/sale/request-ids", 401),
        (app.public, "/none", 404),
        (app.internal, "/livez", 405),
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut client = TcpStream::connect(address).await.unwrap();
        for _ in 0..3 {
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"}") {
                assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{path}: closed");
            }
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
            assert!(!answer.contains("connection: close"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_body_that_trickles_ends_after_5_seconds() {
    let app = selling(one_per_buyer(), 5).await;
    let head =
        "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: 1\r\nContent-Length: 100\r\n\r\n";
    // On a slow machine the first answers may be late.
    until("an answer after 5 seconds", async || {
        let mut client = TcpStream::connect(app.public).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = client.into_split();
        let trickle = async {
            while writer.write_all(b" ").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let mut answer = [0; 4096];
        let started = now_monotonic();
        let length = tokio::select! {
            read = timeout(DEADLINE, reader.read(&mut answer)) => read.unwrap().unwrap(),
            () = trickle => panic!("the connection was closed without an answer"),
        };
        let text = String::from_utf8_lossy(&answer[..length]);
        let is_cut = text.starts_with("HTTP/1.1 400") && text.contains("did not arrive in time");
        assert!(is_cut, "{text}");
        (started.elapsed() < Duration::from_secs(10)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_body_without_end_that_no_handler_reads_is_cut() {
    let app = selling(one_per_buyer(), 5).await;
    for address in [app.public, app.internal] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = "GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        let mut num_sent = 0;
        while client.write_all(chunk.as_bytes()).await.is_ok() {
            num_sent += 1;
            // Half a mebibyte is read; the rest fits into the buffers of the kernel.
            assert!(num_sent < 1_000, "{num_sent} chunks of 64 KiB were taken");
        }
    }
}

/// Not only such a body that is large: one that does not end holds a connection, too.
#[tokio::test]
async fn a_connection_is_closed_behind_a_body_that_no_handler_reads() {
    let app = selling(one_per_buyer(), 5).await;
    for (address, start) in [
        (app.public, "GET /livez HTTP/1.1\r\nHost: a"),
        (app.public, "POST /none HTTP/1.1\r\nHost: a"),
        // Refused before the application.
        (app.public, "POST /v1/buy/sale HTTP/1.1"),
        (app.internal, "PUT /admin/v1/audit HTTP/1.1\r\nHost: a"),
    ] {
        for body in ["Transfer-Encoding: chunked\r\n\r\n64\r\n{}", "Content-Length: 99\r\n\r\n{}"] {
            let asked = async || {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(format!("{start}\r\n{body}").as_bytes()).await.unwrap();
                client
            };
            let answer = closed_within(Duration::from_secs(15), asked).await;
            let answer = String::from_utf8(answer).unwrap();
            let head = answer.split("\r\n\r\n").next().unwrap();
            assert!(head.contains("connection: close"), "{start}: {head}");
        }
    }
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() {
    let app = selling(one_per_buyer(), 5).await;
    let started = now_monotonic();
    let mut client = TcpStream::connect(app.public).await.unwrap();
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50);
    client.write_all(request.as_bytes()).await.unwrap();
    while client.write_all(b"\r\n").await.is_ok() {
        sleep(Duration::from_millis(200)).await;
        assert!(started.elapsed() < DEADLINE, "still open");
    }
    assert!(started.elapsed() > Duration::from_secs(5), "{:?}", started.elapsed());
}

/// Unread bytes would reset the connection, and the reset would overtake the end of the answer.
#[tokio::test]
async fn the_last_answer_arrives_whole_whatever_is_sent_behind_its_request() {
    let app = selling(one_per_buyer(), 5).await;
    // Of a small window the end of the answer stays with the server for a while.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(app.internal).await.unwrap();
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n";
    // The body, of which a byte is missing, is the reason for the close.
    client.write_all(format!("{request}Content-Length: 4\r\n\r\nbod").as_bytes()).await.unwrap();
    let mut start = [0; 4];
    client.read_exact(&mut start).await.unwrap();
    client.write_all(format!("{request}\r\n").repeat(2_000).as_bytes()).await.unwrap();
    let answer = until_closed(&mut client).await;
    let head_end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..head_end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!((answer.len() - head_end - 4).to_string(), length);
}

#[tokio::test]
async fn a_half_closed_connection_is_closed() {
    let app = selling(one_per_buyer(), 5).await;
    let half_closed = async || {
        let mut client = held(app.public).await;
        client.shutdown().await.unwrap();
        client
    };
    closed_within(Duration::from_secs(5), half_closed).await;
}

/// Whether the server keeps this connection open, after all that it has sent.
fn is_open(client: &TcpStream) -> bool {
    let mut answer = [0; 4096];
    loop {
        match client.try_read(&mut answer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn probes_are_answered_while_all_internal_connections_are_held() {
    let app = selling(one_per_buyer(), 5).await;
    until("answers while every connection is held", async || {
        let mut held_ones = Vec::new();
        for _ in 0..256 {
            let mut client = TcpStream::connect(app.internal).await.unwrap();
            client.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nG").await.unwrap();
            held_ones.push(client);
        }
        for _ in 0..5 {
            let fresh = reqwest::Client::new().get(format!("http://{}/livez", app.internal));
            let answer = timeout(DEADLINE, fresh.send()).await.unwrap().unwrap();
            assert_eq!(answer.status(), 200);
        }
        // The first ones are not over their 20 seconds yet: only the reserve has answered.
        held_ones[..200].iter().all(is_open).then_some(())
    })
    .await;
}

/// Reads this many bytes of answers.
async fn take(reader: &mut (impl AsyncReadExt + Unpin), mut num_bytes: usize) {
    let mut buffer = vec![0; 64 * 1024];
    while num_bytes > 0 {
        let wanted = buffer.len().min(num_bytes);
        let read = reader.read(&mut buffer[..wanted]).await.unwrap();
        assert!(read > 0, "closed, {num_bytes} bytes before the end");
        num_bytes -= read;
    }
}

#[tokio::test]
async fn requests_sent_in_advance_do_not_hold_up_another_connection() {
    const PIPELINED: usize = 10_000;
    let (mut settings, stores) = settings();
    settings.http.workers = 1;
    let app = TestApp::on((settings, stores));
    let request = "GET /docs HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut single = TcpStream::connect(app.public).await.unwrap();
    single.write_all(request.as_bytes()).await.unwrap();
    // Every answer has the same size.
    let mut answer = [0; 4096];
    let size = single.read(&mut answer).await.unwrap();
    assert!(answer[..size].ends_with(b"\r\n\r\n"));

    let (mut reader, mut writer) = TcpStream::connect(app.public).await.unwrap().into_split();
    let requests = request.repeat(PIPELINED);
    let writing = async { writer.write_all(requests.as_bytes()).await.unwrap() };
    let mut num_beside = 0;
    let beside = async {
        loop {
            single.write_all(request.as_bytes()).await.unwrap();
            take(&mut single, size).await;
            num_beside += 1;
        }
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(writing, take(&mut reader, PIPELINED * size)) } => {}
        () = beside => {}
    }
    assert!(num_beside > 100, "{num_beside} answers between {PIPELINED} of the other connection");
}

/// Memory that the server takes for each reader that asks for a text many times and takes nothing.
async fn memory_of_readers(server: &Server, path: &str) -> usize {
    const READERS: usize = 200;
    let resident = || {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.id())).unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(20);
    let mut readers = Vec::new();
    let before = resident();
    for _ in 0..READERS {
        let mut reader = TcpStream::connect(server.public).await.unwrap();
        reader.write_all(request.as_bytes()).await.unwrap();
        readers.push(reader);
    }
    // The server has begun every answer: a text of about a mebibyte and a half.
    for reader in &mut readers {
        take(reader, 1).await;
    }
    resident().saturating_sub(before) / READERS
}

#[tokio::test]
async fn readers_that_take_nothing_of_a_large_text_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let each = memory_of_readers(&server, "/docs/swagger-ui-bundle.js").await;
    assert!(each < 256 * 1024, "{} KiB each", each / 1024);
}

#[tokio::test]
async fn readers_that_take_nothing_of_many_large_sales_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for sale in 0..8 {
        let mut body = sale_body(&format!("sale{sale}"), one_per_buyer(), 1, 1);
        let sku = |no: u32| {
            let mut sku = body["skus"][0].clone();
            (sku["sku_id"], sku["title"]) = (json!(format!("sku{no}")), json!("🍵".repeat(200)));
            sku
        };
        body["skus"] = (0..200).map(sku).collect();
        call(server.internal, "/sales", body).await;
        call(server.internal, &format!("/sales/sale{sale}/open"), json!({})).await;
    }
    let list = reqwest::get(format!("http://{}/v1/sales", server.public)).await.unwrap();
    let length = list.headers()["content-length"].to_str().unwrap().to_owned();
    let list = list.text().await.unwrap();
    assert_eq!(list.len().to_string(), length);
    assert!(list.len() > 1_400_000, "{length} bytes");
    let each = memory_of_readers(&server, "/v1/sales").await;
    assert!(each < 256 * 1024, "{} KiB each", each / 1024);
}
