//! The load generator against small servers with closed and broken connections and time-outs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Load, Outcome, Pace, Report, TransportError, Until, run, run_crowd};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CONFLICT: &[u8] = b"HTTP/1.1 409 Conflict\r\ncontent-length: 19\r\n\
    idempotent-replayed: true\r\n\r\n{\"code\":\"sold-out\"}";
const CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

#[expect(clippy::disallowed_methods, reason = "a test's server ends with the test's runtime")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// A server that calls `serve` with the number of each connection and its stream.
async fn server<F>(serve: impl Fn(usize, TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move {
        let mut number = 0;
        while let Ok((stream, _)) = listener.accept().await {
            spawn(serve(number, stream));
            number += 1;
        }
    });
    address
}

/// Reads one request without a body; false at the end of the connection.
async fn request(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    true
}

/// Answers with each of `answers` in turn, cyclically.
async fn answer_in_turn(mut stream: TcpStream, answers: &'static [&'static [u8]]) {
    for answer in answers.iter().cycle() {
        if !request(&mut stream).await || stream.write_all(answer).await.is_err() {
            return;
        }
        if answer == &CLOSE {
            return;
        }
    }
}

/// Longer than any answer takes on a busy machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

fn load(target: SocketAddr, requests: u64) -> Load {
    Load {
        until: Until::Requests(requests),
        connections: 3,
        connect_timeout: LONG_TIMEOUT,
        answer_timeout: LONG_TIMEOUT,
        ..Load::new(target, Arc::new(|_, buffer| buffer.extend_from_slice(REQUEST)))
    }
}

fn assert_all_ended(report: &Report, requests: u64) {
    assert_eq!(report.attempted, requests);
    assert_eq!(report.answered + report.transport_errors + report.unsent, requests);
    assert_eq!(report.num_latencies(), report.answered);
}

const PACES: [Pace; 2] =
    [Pace::Closed, Pace::Open { per_second: 2_000.0, late_limit: LONG_TIMEOUT }];

#[tokio::test]
async fn every_answer_is_counted_and_observed_once_over_connections_that_close() {
    for pace in PACES {
        let target = server(|_, stream| answer_in_turn(stream, &[OK, CONFLICT, CLOSE])).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writer = seen.clone();
        let observer: super::Observer = Arc::new(move |seq, outcome: &Outcome<'_>| {
            let Outcome::Answered(answer) = outcome else { panic!("{outcome:?}") };
            assert_eq!(answer.body == b"ok", answer.status == 200);
            writer.lock().push(seq);
        });
        let observer = Some(observer);
        let report = run(Load { observer, pace, ..load(target, 300) }).await.unwrap();
        assert_all_ended(&report, 300);
        assert_eq!(report.answered, 300, "{report:?}");
        // Connections take the three answers in turn; the last round may be incomplete.
        assert!(report.with_status(409).abs_diff(100) <= 3, "{report:?}");
        assert_eq!(report.with_code("sold-out"), report.with_status(409));
        assert_eq!(report.replayed, report.with_status(409));
        let mut seen = std::mem::take(&mut *seen.lock());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..300));
    }
}

#[tokio::test]
async fn a_broken_connection_leaves_the_outcome_unknown() {
    for pace in PACES {
        // Every third connection is cut after half an answer.
        let target = server(|number, mut stream| async move {
            if number % 3 == 2 {
                request(&mut stream).await;
                drop(stream.write_all(&OK[..20]).await);
            } else {
                answer_in_turn(stream, &[OK, CLOSE]).await;
            }
        })
        .await;
        let report = run(Load { pace, ..load(target, 90) }).await.unwrap();
        assert_all_ended(&report, 90);
        assert!(report.transport_errors > 0 && report.answered > 50, "{report:?}");
    }
}

#[tokio::test]
async fn a_request_without_an_answer_times_out() {
    for pace in PACES {
        let target =
            server(|_, mut stream| async move { while request(&mut stream).await {} }).await;
        let errors = Arc::new(Mutex::new(Vec::new()));
        let writer = errors.clone();
        let observer: super::Observer = Arc::new(move |_, outcome: &Outcome<'_>| {
            if let Outcome::Unknown(error) = outcome {
                writer.lock().push(*error);
            }
        });
        let (observer, answer_timeout) = (Some(observer), Duration::from_millis(300));
        let report = run(Load { observer, pace, answer_timeout, ..load(target, 3) }).await.unwrap();
        assert_all_ended(&report, 3);
        assert_eq!(*errors.lock(), [TransportError::Timeout; 3]);
    }
}

#[tokio::test]
async fn a_target_that_does_not_listen_is_a_transport_error() {
    // Bound without listening, so that no other process gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let target = socket.local_addr().unwrap();
    let connect_timeout = Duration::from_millis(200);
    let report = run(Load { connect_timeout, ..load(target, 3) }).await.unwrap();
    assert_all_ended(&report, 3);
    assert_eq!(report.transport_errors, 3);
}

#[tokio::test]
async fn requests_without_a_free_connection_are_counted() {
    let target = server(|_, mut stream| async move {
        while request(&mut stream).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(stream.write_all(OK).await);
        }
    })
    .await;
    let pace = Pace::Open { per_second: 2_000.0, late_limit: Duration::from_millis(100) };
    let report = run(Load { pace, ..load(target, 400) }).await.unwrap();
    assert_all_ended(&report, 400);
    assert!(report.unsent > 300, "{report:?}");
    // Latency counts from the planned time and so includes the wait for a connection.
    assert!(report.max_us() > 100_000, "{report:?}");
}

#[tokio::test]
async fn the_open_loop_keeps_its_rate() {
    let target = server(|_, stream| answer_in_turn(stream, &[OK])).await;
    let pace = Pace::Open { per_second: 1_000.0, late_limit: Duration::from_secs(5) };
    let until = Until::Elapsed(Duration::from_millis(300));
    let report = run(Load { pace, until, ..load(target, 0) }).await.unwrap();
    assert_all_ended(&report, 300);
    assert!(report.elapsed >= Duration::from_millis(299), "{report:?}");
}

#[tokio::test]
async fn a_crowd_records_its_answers() {
    const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 35\r\n\r\n\
        {\"request_id\":\"17\",\"state\":\"queued\"}";
    let target = server(|_, mut stream| async move {
        let mut bytes = Vec::new();
        while stream.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
            if bytes.ends_with(b"}") {
                bytes.clear();
                drop(stream.write_all(ACCEPTED).await);
            }
        }
    })
    .await;
    let run = run_crowd(target, "1", "2", 200, None).await.unwrap();
    assert_eq!((run.report.answered, run.unknown), (240, 0));
    assert!(run.accepted.keys().eq(["17"]));
}
