use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use actix_http::HttpService;
use actix_service::{ServiceFactory, apply_fn_factory, fn_service};
use actix_web::HttpResponse;
use actix_web::body::BoxBody;
use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::LocalSet;

use super::*;
use crate::http::connection::crowd::OpenConnections;
use crate::http::connection::heads::LimitedHeads;
use crate::http::connection::stream::GuardedStream;

const KIB: usize = 1024;

/// What the handlers of all connections did, in order: the path of each request that began, and the
/// size of its body.
type Log = Rc<RefCell<Vec<(String, usize)>>>;

/// Connections on one thread, one task each, whose handlers read the body and answer at once.
struct Server {
    local: LocalSet,
    log: Log,
}

impl Server {
    fn new() -> Self {
        Self { local: LocalSet::new(), log: Log::default() }
    }

    /// Serves a connection that holds `capacity` bytes in each direction; returns the client's end.
    async fn connect(&self, capacity: usize) -> DuplexStream {
        let (server, client) = duplex(capacity);
        let log = Rc::clone(&self.log);
        let handler = fn_service(move |mut request: Request| {
            let log = Rc::clone(&log);
            async move {
                let (path, mut payload) = (request.path().to_owned(), request.take_payload());
                let mut num_bytes = 0;
                while let Some(chunk) = payload.next().await {
                    num_bytes += chunk.unwrap().len();
                }
                log.borrow_mut().push((path, num_bytes));
                Ok::<_, HttpResponse>(Response::ok().set_body(BoxBody::new("answer")))
            }
        });
        let http = HttpService::build()
            .on_connect_ext(|stream: &LimitedHeads<GuardedStream<DuplexStream>>, data| {
                data.insert(stream.requests());
            })
            .h1(apply_fn_factory(handler, |request, service| {
                call_in_turn::<_, BoxBody>(request, |_| None, service)
            }));
        let stream = guarded(server);
        let requests = stream.requests();
        let stream = LimitedHeads::new(stream, requests);
        self.local.spawn_local(async move {
            let service = http.new_service(()).await.unwrap();
            service.call((stream, None)).await.unwrap();
        });
        client
    }
}

fn guarded(server: DuplexStream) -> GuardedStream<DuplexStream> {
    GuardedStream::new(server, OpenConnections::new(100).enter())
}

/// Reads this many answers.
async fn read_answers(client: &mut (impl AsyncRead + Unpin), wanted: usize) {
    let mut text = Vec::new();
    while text.windows(6).filter(|six| six == b"answer").count() < wanted {
        assert!(client.read_buf(&mut text).await.unwrap() > 0, "closed");
    }
}

#[tokio::test]
async fn requests_that_were_sent_in_advance_do_not_hold_up_another_connection() {
    const PIPELINED: usize = 10_000;
    let server = Server::new();
    let run = server.local.run_until(async {
        // All requests and all answers fit into the connection.
        let mut flood = server.connect(2 * KIB * KIB).await;
        let mut single = server.connect(4 * KIB).await;
        let request = "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n".repeat(PIPELINED);
        flood.write_all(request.as_bytes()).await.unwrap();
        for _ in 0..100 {
            single.write_all(b"GET /single HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            read_answers(&mut single, 1).await;
        }
        let log = server.log.borrow().clone();
        let num_single = log.iter().filter(|(path, _)| path == "/single").count();
        assert_eq!(num_single, 100);
        let num_flood = log.len() - num_single;
        assert!(num_flood < 1_600, "{num_flood} requests of the flood beside 100 others");
        // Each is answered all the same.
        while server.log.borrow().len() < PIPELINED + 100 {
            tokio::task::yield_now().await;
        }
    });
    run.await;
}

#[tokio::test]
async fn bodies_longer_than_what_is_read_ahead_arrive_whole() {
    let server = Server::new();
    let run = server.local.run_until(async {
        let mut client = server.connect(KIB).await;
        let (mut reader, mut writer) = tokio::io::split(&mut client);
        let body = "x".repeat(100 * KIB);
        let head = format!("POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n", body.len());
        let long = format!("{head}\r\n{body}");
        let chunked = "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3\r\nabc\r\n0\r\n\r\n";
        let sent =
            [long.as_str(), chunked, &long, "GET /none HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        let writing = async {
            writer.write_all(sent.as_bytes()).await.unwrap();
        };
        tokio::join!(writing, read_answers(&mut reader, 4));
        let log = server.log.borrow().clone();
        let expected = [("/long", 100 * KIB), ("/chunked", 3), ("/long", 100 * KIB), ("/none", 0)];
        assert_eq!(log, expected.map(|(path, size)| (path.to_owned(), size)));
    });
    run.await;
}

/// A guarded stream on which its client has sent `num_bytes`.
async fn sent_in_advance(num_bytes: usize) -> (GuardedStream<DuplexStream>, DuplexStream) {
    let (server, mut client) = duplex(256 * KIB);
    client.write_all(&vec![0; num_bytes]).await.unwrap();
    (guarded(server), client)
}

/// Reads KiB by KiB until the stream has no more for this turn; returns the number of bytes.
fn read_of_a_turn(server: &mut (impl AsyncRead + Unpin)) -> usize {
    let mut buffer = [0; KIB];
    std::iter::from_fn(|| server.read(&mut buffer).now_or_never()).map(Result::unwrap).sum()
}

#[tokio::test]
async fn a_turn_reads_a_limited_number_of_bytes() {
    let (mut server, _client) = sent_in_advance(20 * KIB).await;
    let turns: Vec<_> = (0..4).map(|_| read_of_a_turn(&mut server)).collect();
    assert_eq!(turns, [READ_AHEAD_MAX, READ_AHEAD_MAX, 4 * KIB, 0]);
}

#[tokio::test]
async fn the_end_of_a_request_in_progress_lets_the_connection_be_read_again() {
    let (mut server, _client) = sent_in_advance(64 * KIB).await;
    let requests = server.requests();
    let request = requests.begin().await;
    let turns: Vec<_> = (0..3).map(|_| read_of_a_turn(&mut server)).collect();
    assert_eq!(turns, [READ_AHEAD_MAX, 0, 0]);
    // The next one of those that were read begins in the turn in which the first ends.
    let next = requests.begin().await;
    drop(request);
    assert_eq!(read_of_a_turn(&mut server), 0);
    assert!(!wakes_at_its_end(&mut server), "woken although the request is in progress");
    drop(next);
    assert!(wakes_at_its_end(&mut server), "not woken");
    assert!(!wakes_at_its_end(&mut server), "woken twice");
    assert_eq!(read_of_a_turn(&mut server), READ_AHEAD_MAX);
}

/// Ends a turn. Returns whether the connection was woken.
fn wakes_at_its_end(server: &mut (impl AsyncWrite + Unpin)) -> bool {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let _ = Pin::new(server).poll_flush(&mut Context::from_waker(&waker));
    woken.0.load(Ordering::Relaxed)
}

/// A decoded request takes several KiB, its head a few bytes.
#[tokio::test]
async fn of_what_is_sent_in_advance_actix_gets_a_few_heads_at_a_time() {
    let (server, mut client) = duplex(256 * KIB);
    let [lines, crlf] = ["GET / HTTP/1.0\n\n", "GET / HTTP/1.0\r\n\r\n"];
    let sent = [lines.repeat(HEADS_MAX), crlf.repeat(100)].concat();
    client.write_all(sent.as_bytes()).await.unwrap();
    let server = guarded(server);
    let requests = server.requests();
    let mut server = LimitedHeads::new(server, requests.clone());
    // And all of the next one but its last byte.
    let first = HEADS_MAX * lines.len() + crlf.len() - 1;
    assert_eq!(read_of_a_turn(&mut server), first);
    assert!(wakes_at_its_end(&mut server), "no request is in progress");
    let request = requests.begin().await;
    let few = (HEADS_MAX + 1) * crlf.len();
    assert_eq!(read_of_a_turn(&mut server), few);
    assert!(!wakes_at_its_end(&mut server), "the end of the request wakes the connection");
    assert_eq!(read_of_a_turn(&mut server), 0);
    requests.0.awaits_body.set(true);
    assert!(wakes_at_its_end(&mut server), "a handler waits for its body");
    assert_eq!(read_of_a_turn(&mut server), crlf.len(), "a piece");
    requests.0.awaits_body.set(false);
    drop(request);
    assert!(wakes_at_its_end(&mut server));
    assert!(!wakes_at_its_end(&mut server), "woken twice");
    let turns: Vec<_> = std::iter::from_fn(|| {
        let read = read_of_a_turn(&mut server);
        (wakes_at_its_end(&mut server) || read > 0).then_some(read)
    })
    .collect();
    assert_eq!(turns.iter().sum::<usize>(), sent.len() - first - few - crlf.len(), "{turns:?}");
    assert!(turns.iter().all(|read| *read <= few), "{turns:?}");
}

#[tokio::test]
async fn the_end_of_a_head_counts_wherever_reads_cut_it() {
    let (server, mut client) = duplex(256 * KIB);
    let server = guarded(server);
    let requests = server.requests();
    let mut server = LimitedHeads::new(server, requests.clone());
    let _request = requests.begin().await;
    let mut num_read = 0;
    for _ in 0..100 {
        // The end of one head, and the next one without its end.
        client.write_all(b"\r\nGET / HTTP/1.0\r\n").await.unwrap();
        num_read += read_of_a_turn(&mut server);
    }
    assert_eq!(num_read, 18 * HEADS_MAX, "the rest waits");
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn nothing_is_read_from_a_client_that_takes_no_answer() {
    let (server, mut client) = duplex(KIB);
    let mut server = guarded(server);
    client.write_all(b"request").await.unwrap();
    assert_eq!(server.write(&[0; 2 * KIB]).await.unwrap(), KIB);
    assert_eq!(read_of_a_turn(&mut server), 0);
    let mut answer = [0; KIB];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(server.write(&[0; KIB]).await.unwrap(), KIB);
    assert_eq!(read_of_a_turn(&mut server), 7);
}

#[tokio::test]
async fn an_answer_is_sent_in_slices() {
    let request = ConnectionRequests::default().begin().await;
    let body = Bytes::from(vec![7; 40 * KIB]);
    let mut sliced =
        SlicedBody { body, rest: Bytes::new(), _request: request, _request_body: None };
    assert_eq!(sliced.size(), BodySize::Sized(40 * 1024));
    let mut sizes = Vec::new();
    while let Some(slice) = poll_fn(|cx| Pin::new(&mut sliced).poll_next(cx)).await {
        sizes.push(slice.unwrap().len());
    }
    assert_eq!(sizes, [16 * KIB, 16 * KIB, 8 * KIB]);
}
