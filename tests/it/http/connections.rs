//! No client can hold a connection, a handler or memory, on either listener.

use std::net::SocketAddr;
use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{one_per_buyer, selling};

/// An answered request, and the beginning of the next.
async fn held(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 4096];
    assert!(client.read(&mut answer).await.unwrap() > 0);
    client.write_all(b"G").await.unwrap();
    client
}

/// Reads until the server closes the connection; panics if it does not within `at_most`.
async fn closed_within(client: &mut TcpStream, at_most: Duration) -> (Duration, Vec<u8>) {
    let (started, mut answer) = (now_monotonic(), Vec::new());
    let read = timeout(at_most, client.read_to_end(&mut answer)).await;
    // A reset is a close, too.
    let _reset = read.unwrap_or_else(|_| panic!("not closed after {at_most:?}"));
    (started.elapsed(), answer)
}

#[tokio::test]
async fn half_a_second_head_is_cut_on_both_listeners() {
    let app = selling(one_per_buyer(), 5).await;
    let (mut buyers, mut operators) = (held(app.public).await, held(app.internal).await);
    let (public, internal) = tokio::join!(
        closed_within(&mut buyers, Duration::from_secs(40)),
        closed_within(&mut operators, Duration::from_secs(40)),
    );
    for (after, _) in [public, internal] {
        assert!(after >= Duration::from_secs(15), "{after:?}");
    }
}

#[tokio::test]
async fn a_body_that_trickles_ends_after_5_seconds() {
    let app = selling(one_per_buyer(), 5).await;
    let mut client = TcpStream::connect(app.public).await.unwrap();
    let head =
        "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: 1\r\nContent-Length: 100\r\n\r\n";
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
        read = timeout(Duration::from_secs(20), reader.read(&mut answer)) => read.unwrap().unwrap(),
        () = trickle => panic!("the connection was closed without an answer"),
    };
    let text = String::from_utf8_lossy(&answer[..length]);
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("did not arrive in time"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
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

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() {
    let app = selling(one_per_buyer(), 5).await;
    let mut client = TcpStream::connect(app.public).await.unwrap();
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50);
    client.write_all(request.as_bytes()).await.unwrap();
    let started = now_monotonic();
    while client.write_all(b"\r\n").await.is_ok() {
        sleep(Duration::from_millis(200)).await;
        assert!(started.elapsed() < Duration::from_secs(60), "still open");
    }
    assert!(started.elapsed() > Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_half_closed_connection_is_closed() {
    let app = selling(one_per_buyer(), 5).await;
    let mut client = held(app.public).await;
    client.shutdown().await.unwrap();
    let (after, _) = closed_within(&mut client, Duration::from_secs(10)).await;
    assert!(after < Duration::from_secs(5), "{after:?}");
}

#[tokio::test]
async fn probes_are_answered_while_all_internal_connections_are_held() {
    let app = selling(one_per_buyer(), 5).await;
    let mut held_ones = Vec::new();
    for _ in 0..256 {
        let mut client = TcpStream::connect(app.internal).await.unwrap();
        client.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nG").await.unwrap();
        held_ones.push(client);
    }
    // None is over its 20 seconds yet: only the reserve answers.
    for _ in 0..5 {
        let fresh = reqwest::Client::new().get(format!("http://{}/livez", app.internal));
        let answer = timeout(Duration::from_secs(5), fresh.send()).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
    }
    drop(held_ones);
}
