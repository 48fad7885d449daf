//! Hostile clients beside honest buyers: slow heads, slow bodies, slow readers, floods, forged
//! everything. The honest buyers get their orders, and probes are answered all the time.
//!
//! Times never decide: the ratio of the honest buyers' latencies is printed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;
use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::http::auth::{SECRET, token};
use crate::support::admin::{assert_audit_holds, open_sale};
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};
use crate::support::random::number_from_env;

/// Hostile clients; a tenth as many are honest.
const HOSTILE: u64 = 500;

/// Purchases of each honest buyer.
const ROUNDS: usize = 4;

/// Longest pause of an honest buyer between two purchases.
const PAUSE_MS: u64 = 4_000;

/// A bearer token of this buyer, signed with this secret.
fn bearer(secret: &str, buyer: u64) -> String {
    token(secret, &json!({"alg": "HS256"}), &json!({"sub": buyer.to_string()}))
}

/// One connection of a hostile client, until the server ends it. An error is an end.
type Attack = std::io::Result<()>;

/// Sends the head of a request, byte by byte, after an answered one.
async fn slow_head(to: SocketAddr) -> Attack {
    let mut client = TcpStream::connect(to).await?;
    client.write_all(b"GET /v1/sales HTTP/1.1\r\nHost: a\r\n\r\n").await?;
    for byte in b"GET /v1/sales HTTP/1.1\r\nHost: a\r\nX-Long: ".iter().chain([b'x'; 600].iter()) {
        client.write_all(&[*byte]).await?;
        sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// Announces a body and sends it byte by byte.
async fn slow_body(to: SocketAddr) -> Attack {
    let mut client = TcpStream::connect(to).await?;
    let head = "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                Authorization: Bearer x.y.z\r\nContent-Length: 4000\r\n\r\n";
    client.write_all(head.as_bytes()).await?;
    for _ in 0..4_000 {
        client.write_all(b" ").await?;
        sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// Asks for many large answers and reads none.
async fn slow_reader(to: SocketAddr) -> Attack {
    let mut client = TcpStream::connect(to).await?;
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20);
    client.write_all(request.as_bytes()).await?;
    loop {
        sleep(Duration::from_secs(1)).await;
        client.write_all(b"\r\n").await?;
    }
}

/// One buyer with a valid token who buys as fast as the answers come.
async fn flood(to: SocketAddr) -> Attack {
    let mut client = TcpStream::connect(to).await?;
    let body = r#"{"sku_id":"sku","quantity":1,"request_id":"1"}"#;
    let token = bearer(SECRET, 1_000_000 + fastrand::u64(..20));
    let request = format!(
        "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = [0; 4096];
    for _ in 0..500 {
        client.write_all(request.as_bytes()).await?;
        if client.read(&mut answer).await? == 0 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Forged tokens, request ids, tickets, addresses and framing.
async fn forger(to: SocketAddr) -> Attack {
    let buyer = 1 + fastrand::u64(..100);
    let forged = bearer("another-secret-of-thirty-two-byte", buyer);
    let none = format!("{}.e30.", forged.split('.').next().unwrap());
    let id = format!("{}-1-AAAAAAAAAAAAAAAA", fastrand::i64(1..));
    let own = bearer(SECRET, 2_000_000 + fastrand::u64(..1_000));
    let calls = [
        format!("GET /v1/orders HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {forged}\r\n\r\n"),
        format!("GET /v1/orders HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {none}\r\n\r\n"),
        format!("GET /v1/orders HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: {buyer}\r\n\r\n"),
        format!(
            "GET /v1/requests/{id}/events HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 127.0.0.1\r\n\
             Authorization: Bearer {own}\r\n\r\n"
        ),
        format!(
            "POST /v1/buy/~{} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {own}\r\n\
             Content-Length: 2\r\n\r\n{{}}",
            "A".repeat(38)
        ),
        "POST /v1/buy/sale HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\
         Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .to_owned(),
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "%2e%2e/".repeat(500)),
        "\0\u{1}\u{2}".repeat(200),
    ];
    for call in calls {
        let mut client = TcpStream::connect(to).await?;
        client.write_all(call.as_bytes()).await?;
        let mut answer = Vec::new();
        let reading = client.read_buf(&mut answer);
        if let Ok(read) = timeout(Duration::from_secs(20), reading).await {
            read?;
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.starts_with("HTTP/1.1 2"), "a forged call succeeded: {call:?}: {text}");
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Attacks until it is dropped; counts the connections.
async fn hostile(kind: u64, to: SocketAddr, attacks: Arc<AtomicU64>) {
    // Not all at the same moment.
    sleep(Duration::from_millis(fastrand::u64(..1_000))).await;
    loop {
        let ended = match kind % 5 {
            0 => slow_head(to).await,
            1 => slow_body(to).await,
            2 => slow_reader(to).await,
            3 => flood(to).await,
            _ => forger(to).await,
        };
        attacks.fetch_add(1, Ordering::Relaxed);
        drop(ended);
        sleep(Duration::from_millis(100)).await;
    }
}

/// Calls until the answer is neither `busy` nor lost, as the interface asks of clients.
async fn call(request: impl Fn() -> reqwest::RequestBuilder, took: &mut Vec<Duration>) -> Json {
    for _ in 0..20 {
        let begun = now_monotonic();
        let answer = request().send().await;
        took.push(begun.elapsed());
        match answer {
            Ok(answer) if answer.status().is_success() => return answer.json().await.unwrap(),
            Ok(answer) => {
                let status = answer.status().as_u16();
                assert!(matches!(status, 429 | 503), "{status}: {:?}", answer.text().await);
            }
            Err(error) => assert!(!error.is_builder(), "{error}"),
        }
        sleep(Duration::from_millis(500 + fastrand::u64(..500))).await;
    }
    panic!("an honest buyer got no answer in 20 tries");
}

/// Buys some units one after the other; returns the latencies.
async fn honest(buyer: u64, to: SocketAddr, client: Client) -> Vec<Duration> {
    let mut took = Vec::new();
    let token = bearer(SECRET, buyer);
    for _ in 0..ROUNDS {
        sleep(Duration::from_millis(fastrand::u64(..PAUSE_MS))).await;
        let post = |path: &str, body: Json| {
            client.post(format!("http://{to}{path}")).bearer_auth(&token).json(&body)
        };
        let id = call(|| post("/v1/sales/sale/request-ids", json!({"sku_id": "sku"})), &mut took);
        let id = id.await["request_id"].take();
        let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
        let view = call(|| post("/v1/buy/sale", purchase.clone()), &mut took).await;
        let path = format!("http://{to}/v1/requests/{}", view["request_id"].as_str().unwrap());
        let mut state = view["state"].clone();
        for _ in 0..60 {
            if state == "success" {
                break;
            }
            sleep(Duration::from_millis(500)).await;
            let read = || client.get(&path).bearer_auth(&token);
            state = call(read, &mut took).await["state"].take();
        }
        assert_eq!(state, "success", "buyer {buyer}");
    }
    took
}

/// Asks both probes until it is dropped; each must answer.
async fn probes(internal: SocketAddr, answered: &AtomicU64) {
    let client = Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
    loop {
        for path in ["livez", "readyz"] {
            let answer = client.get(format!("http://{internal}/{path}")).send().await;
            let status = answer.map(|answer| answer.status().as_u16());
            assert!(matches!(status, Ok(200)), "{path}: {status:?}");
            answered.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

async fn crowd(buyers: std::ops::Range<u64>, to: SocketAddr) -> Duration {
    // A connection for each buyer, as browsers have.
    let client = || Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
    let mut took: Vec<_> = join_all(buyers.map(|buyer| honest(buyer, to, client()))).await.concat();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn honest_buyers_get_their_orders_beside_ten_times_as_many_hostile_clients() {
    let num_hostile = number_from_env("FLOODGATE_HOSTILE_CLIENTS").unwrap_or(HOSTILE);
    let num_honest = num_hostile / 10;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let server = Server::start(
        folder.path(),
        &[
            ("FLOODGATE__AUTH__MODE", "jwt"),
            ("FLOODGATE__AUTH__JWT_SECRET_FILE", secret.to_str().unwrap()),
        ],
    );
    let units = num_honest * 2 * u64::try_from(ROUNDS).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let stock = u32::try_from(units).unwrap() + 10;
        open_sale(server.internal, "sale", json!({"kind": "unlimited"}), stock, 4).await;
        let alone = crowd(1..num_honest + 1, server.public).await;

        let (attacks, answered) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let mut attackers = JoinSet::new();
        for kind in 0..num_hostile {
            attackers.spawn(hostile(kind, server.public, Arc::clone(&attacks)));
        }
        let beside = tokio::select! {
            beside = crowd(num_honest + 1..2 * num_honest + 1, server.public) => beside,
            () = probes(server.internal, &answered) => Duration::ZERO,
        };
        // A client that has ended found a forgery that was believed.
        assert!(attackers.try_join_next().is_none());
        attackers.abort_all();
        let (attacks, answered) =
            (attacks.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
        println!(
            "hostile={num_hostile} honest={num_honest} attacks={attacks} probes={answered} \
             p99_alone_ms={} p99_beside_ms={} ratio={:.1}",
            alone.as_millis(),
            beside.as_millis(),
            beside.as_secs_f64() / alone.as_secs_f64().max(0.001)
        );
        assert!(attacks > num_hostile / 5 && answered > 10, "{attacks} attacks, {answered} probes");
        assert_audit_holds(server.internal).await;
        drop(server);
        let orders = orders_in(&settings(folder.path())).await;
        assert_eq!(orders.units, units, "every honest purchase and no other is an order");
    });
}
