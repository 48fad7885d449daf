use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{sleep, timeout};

use super::*;
use crate::http::connection::crowd::OpenConnections;

const KIB: usize = 1024;

/// The guarded end of a connection that buffers 1 KiB in each direction, and the client's end.
fn connected(crowd: &OpenConnections) -> (GuardedStream<DuplexStream>, DuplexStream) {
    let (server, client) = duplex(KIB);
    (GuardedStream::new(server, crowd.enter()), client)
}

/// Runs the server's side of a connection until it is cut; returns after how long, and why.
async fn cut_after(mut server: GuardedStream<DuplexStream>) -> (Duration, io::ErrorKind) {
    let started = now_of_timers();
    let mut buffer = vec![0; 64 * KIB];
    loop {
        match server.read(&mut buffer).await {
            Ok(0) => return (started.elapsed(), io::ErrorKind::UnexpectedEof),
            Ok(_) => {}
            Err(error) => return (started.elapsed(), error.kind()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_without_an_answer_are_cut_after_20_seconds_however_they_arrive() {
    let (server, mut client) = connected(&OpenConnections::new(100));
    let dribble = async {
        while client.write_all(b"x").await.is_ok() {
            sleep(Duration::from_secs(3)).await;
        }
    };
    let ((), (after, kind)) = tokio::join!(dribble, cut_after(server));
    assert_eq!((after.as_secs(), kind), (20, io::ErrorKind::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn an_answer_stops_the_clock_and_an_idle_connection_stays() {
    let (mut server, mut client) = connected(&OpenConnections::new(100));
    let mut buffer = [0; 64];
    for _ in 0..5 {
        client.write_all(b"request").await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 7);
        sleep(Duration::from_secs(15)).await;
        server.write_all(b"answer").await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 6);
        let idle = timeout(Duration::from_secs(600), server.read(&mut buffer)).await;
        assert!(idle.is_err(), "{idle:?}");
    }
    // One byte after ten minutes of silence starts the clock.
    client.write_all(b"G").await.unwrap();
    let (after, kind) = cut_after(server).await;
    assert_eq!((after.as_secs(), kind), (20, io::ErrorKind::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn a_request_in_progress_pauses_the_read_clock() {
    let (mut server, mut client) = connected(&OpenConnections::new(100));
    client.write_all(b"request").await.unwrap();
    let request = server.requests().begin().await;
    let mut buffer = [0; 64];
    assert_eq!(server.read(&mut buffer).await.unwrap(), 7);
    let long = timeout(Duration::from_secs(300), server.read(&mut buffer)).await;
    assert!(long.is_err(), "{long:?}");
    drop(request);
    let (after, kind) = cut_after(server).await;
    assert_eq!(kind, io::ErrorKind::TimedOut);
    assert!(after <= READ_MAX, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn more_bytes_than_the_budget_without_an_answer_are_cut() {
    let (server, mut client) = connected(&OpenConnections::new(100));
    let chunk = [0; KIB];
    let flood = async {
        let mut sent = 0;
        while client.write_all(&chunk).await.is_ok() {
            sent += KIB;
        }
        sent
    };
    let (sent, (_, kind)) = tokio::join!(flood, cut_after(server));
    assert_eq!(kind, io::ErrorKind::InvalidData);
    assert!((BYTES_MAX..BYTES_MAX + 4 * KIB).contains(&sent), "{sent}");
}

/// How long an answer of a mebibyte takes the server while the client takes `bytes` each second.
async fn written_to_a_reader_of(bytes: usize) -> (Duration, io::Result<()>) {
    let (mut server, mut client) = connected(&OpenConnections::new(100));
    let started = now_of_timers();
    let answer = vec![0; KIB * KIB];
    let reader = async {
        let mut buffer = vec![0; bytes];
        while client.read_exact(&mut buffer).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let writer = async {
        let written = server.write_all(&answer).await;
        drop(server);
        (started.elapsed(), written)
    };
    tokio::join!(reader, writer).1
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_the_answer_too_slowly_is_cut() {
    let (after, written) = written_to_a_reader_of(1).await;
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(after.as_secs(), 10);
    let (after, written) = written_to_a_reader_of(8 * KIB).await;
    assert!(written.is_ok() && after > Duration::from_secs(100), "{after:?} {written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_crowd_is_cut_when_it_idles() {
    let crowd = OpenConnections::new(1);
    let (_first, _client) = connected(&crowd);
    let (second, client) = connected(&crowd);
    let (after, kind) = cut_after(second).await;
    assert_eq!((after.as_secs(), kind), (1, io::ErrorKind::TimedOut));
    drop(client);
}

/// An answer is written and the connection closed, while the client goes on sending.
#[tokio::test(start_paused = true)]
async fn what_a_client_sends_into_a_close_is_thrown_away_until_it_closes() {
    let (mut server, mut client) = connected(&OpenConnections::new(100));
    server.write_all(b"the end").await.unwrap();
    client.write_all(b"G").await.unwrap();
    let sender = async {
        client.write_all(&[0; 16 * KIB]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"the end");
        client.shutdown().await.unwrap();
    };
    let started = now_of_timers();
    let (closed, ()) = tokio::join!(server.shutdown(), sender);
    closed.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_close_or_sends_too_much_is_cut() {
    for num_bytes in [0, 1] {
        let (mut server, mut client) = connected(&OpenConnections::new(100));
        client.write_all(&vec![0; num_bytes]).await.unwrap();
        let started = now_of_timers();
        server.shutdown().await.unwrap();
        let waited = if num_bytes == 0 { 0 } else { CLOSE_MAX.as_secs() };
        assert_eq!(started.elapsed().as_secs(), waited);
    }

    let (mut server, mut client) = connected(&OpenConnections::new(100));
    let mut sent = 0;
    let flood = async {
        while client.write_all(&[0; KIB]).await.is_ok() {
            sent += KIB;
        }
    };
    let close = async {
        // Once the client has sent something.
        tokio::task::yield_now().await;
        server.shutdown().await.unwrap();
        drop(server);
    };
    tokio::join!(flood, close);
    assert!((BYTES_MAX..BYTES_MAX + 8 * KIB).contains(&sent), "{sent}");
}
