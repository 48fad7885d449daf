//! Random requests, sound and broken, on both listeners of a real process: every answer is HTTP and
//! one of the contract, nothing hangs, and afterwards the process is as it was.

mod answer;
mod generator;

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use fastrand::Rng;
use floodgate::config::Settings;
use floodgate::http::ProblemCode;
use floodgate::services::audit;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use self::answer::{Answer, NoAnswer};
use self::generator::{Exchange, Known, SoundRequest, exchange};
use crate::support::app::sale_body;
use crate::support::process::Server;
use crate::support::random::number_from_env;
use crate::support::wait::until;

/// Requests of a run where `FLOODGATE_FUZZ_REQUESTS` is not set.
const REQUESTS: u64 = 5_000;

/// Clients at a time.
const CLIENTS: u64 = 8;

/// Longest wait for an answer or a close: more than every limit of the server.
const HANG: Duration = Duration::from_secs(30);

/// Most memory that the process may have gained, in MiB: its table of limits may grow to 16.
const GROWTH_MIB_MAX: u64 = 64;

/// The successes and refusals of the contract; 503 only where an audit is running.
const STATUSES: [u16; 21] = [
    200, 201, 202, 204, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 410, 413, 422, 429,
    431, 503,
];

/// Answers by status; 0: closed without one.
type Counts = BTreeMap<u16, u64>;

struct Fuzzed {
    server: Server,
    folder: TempDir,
}

#[tokio::test]
async fn random_requests_are_answered_by_the_contract_and_leave_nothing_behind() {
    let seed = number_from_env("FLOODGATE_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..));
    let requests = number_from_env("FLOODGATE_FUZZ_REQUESTS").unwrap_or(REQUESTS);
    println!("FLOODGATE_FUZZ_SEED={seed} FLOODGATE_FUZZ_REQUESTS={requests}");
    let fuzzed = Fuzzed::start();
    let known = fuzzed.known().await;
    // The first requests create what stays: caches, connections of the ledger, sales.
    fuzzed.run(seed ^ u64::MAX, 1_000, &known);
    let before = fuzzed.settled().await;
    let counts = fuzzed.run(seed, requests, &known);
    let after = fuzzed.settled().await;
    println!("answers: {counts:?}; before {before:?}, after {after:?}");
    for status in [200, 400, 401, 403, 404, 405, 431] {
        assert!(counts.get(&status).is_some_and(|&count| count > 0), "{status}: {counts:?}");
    }
    let grown = after.resident_mib.saturating_sub(before.resident_mib);
    assert!(grown <= GROWTH_MIB_MAX, "{grown} MiB more");
    // Connections of the ledger come and go.
    assert!(after.descriptors <= before.descriptors + 4, "{before:?} {after:?}");
    fuzzed.assert_well().await;
}

/// What a leak would raise.
#[derive(Debug)]
struct Footprint {
    resident_mib: u64,
    descriptors: usize,
}

impl Fuzzed {
    /// A server with an open sale, on which a few buyers have bought.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let filter = Settings::with_ledger("sqlite://x").log.filter;
        assert!(filter.starts_with("info,"), "{filter}");
        // Without the lines of the operators' verbs, of which only the last are kept.
        let filter = filter.replacen("info", "warn", 1);
        let keys = [
            ("FLOODGATE__LIMITS__BUYER_PER_SECOND", "0"),
            ("FLOODGATE__LIMITS__BUYER_PER_MINUTE", "0"),
            ("FLOODGATE__LOG__FILTER", &filter),
        ];
        let server = Server::start(folder.path(), &keys);
        Self { server, folder }
    }

    fn url(&self, is_public: bool, path: &str) -> String {
        let address = if is_public { self.server.public } else { self.server.internal };
        format!("http://{address}{path}")
    }

    async fn post(&self, is_public: bool, path: &str, buyer: u64, body: Json) -> Json {
        let call = reqwest::Client::new().post(self.url(is_public, path)).json(&body);
        let answer = call.header("x-buyer-id", buyer.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {answer:?}");
        answer.json().await.unwrap()
    }

    async fn known(&self) -> Known {
        let sale = sale_body("spring", json!({"kind": "unlimited", "max_quantity": 2}), 50, 2);
        self.post(false, "/admin/v1/sales", 1, sale).await;
        self.post(false, "/admin/v1/sales/spring/open", 1, json!({})).await;
        let mut request_ids = Vec::new();
        for buyer in 1..=4 {
            let sku = json!({"sku_id": "sku"});
            let issued = self.post(true, "/v1/sales/spring/request-ids", buyer, sku).await;
            let request_id = issued["request_id"].as_str().unwrap().to_owned();
            let body = json!({"sku_id": "sku", "quantity": 1, "request_id": request_id});
            self.post(true, "/v1/buy/spring", buyer, body).await;
            request_ids.push(request_id);
        }
        Known { request_ids }
    }

    /// Sends so many requests from several clients, and counts the answers.
    fn run(&self, seed: u64, requests: u64, known: &Known) -> Counts {
        let addresses = [self.server.internal, self.server.public];
        let counts = std::thread::scope(|scope| {
            let client = |no| {
                let share = requests / CLIENTS + u64::from(no < requests % CLIENTS);
                let rng = Rng::with_seed(seed.wrapping_add(no));
                scope.spawn(move || Client::new(addresses, rng).run(share, known))
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<Counts>>()
        });
        let mut total = Counts::new();
        for (status, count) in counts.into_iter().flatten() {
            *total.entry(status).or_default() += count;
        }
        total
    }

    /// The footprint once every connection is closed.
    async fn settled(&self) -> Footprint {
        let process = format!("/proc/{}", self.server.id());
        let sockets = || std::fs::read_to_string(format!("{process}/net/tcp")).unwrap();
        let ports = [self.server.public, self.server.internal]
            .map(|address| format!("0100007F:{:04X}", address.port()));
        until("every connection is closed", async || {
            // State 01: established; the local address is the second column.
            let text = sockets();
            let is_open = |line: &str| {
                let columns: Vec<_> = line.split_whitespace().collect();
                ports.iter().any(|port| columns[1] == port) && columns[3] == "01"
            };
            (!text.lines().skip(1).any(is_open)).then_some(())
        })
        .await;
        let statm = std::fs::read_to_string(format!("{process}/statm")).unwrap();
        let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().count();
        Footprint { resident_mib: pages * 4 / 1024, descriptors }
    }

    /// Ready, sound by its audit, selling, and without a flood in its log.
    async fn assert_well(&self) {
        let ready = reqwest::get(self.url(false, "/readyz")).await.unwrap();
        assert_eq!(ready.status(), 200);
        let audit = self.post(false, "/admin/v1/audit", 1, json!({})).await;
        assert_eq!(audit["holds"], true, "{audit:#}");
        let sale = sale_body("after", json!({"kind": "one_per_buyer"}), 1, 1);
        self.post(false, "/admin/v1/sales", 1, sale).await;
        self.post(false, "/admin/v1/sales/after/open", 1, json!({})).await;
        let bought = self.post(true, "/v1/buy/after", 9, json!({"sku_id": "sku", "quantity": 1}));
        assert_eq!(bought.await["state"], "success");
        let log = self.server.log();
        let lines = |level: &str| log.lines().filter(|line| line.contains(level)).count();
        assert_eq!(lines(" ERROR "), 0, "{}", self.folder.path().display());
        // Refused operators are logged once a second.
        assert!(lines(" WARN ") < 1_000, "{} lines", lines(" WARN "));
        assert!(!log.contains("panicked"));
    }
}

/// One client with at most one connection to each listener.
struct Client {
    addresses: [SocketAddr; 2],
    connections: [Option<BufReader<TcpStream>>; 2],
    rng: Rng,
    counts: Counts,
}

impl Client {
    fn new(addresses: [SocketAddr; 2], rng: Rng) -> Self {
        Self { addresses, connections: [None, None], rng, counts: Counts::new() }
    }

    fn run(mut self, requests: u64, known: &Known) -> Counts {
        let mut sent = 0;
        while sent < requests {
            let next = exchange(&mut self.rng, known);
            sent += next.requests.len().max(1) as u64;
            self.send(&next);
        }
        self.counts
    }

    fn send(&mut self, exchange: &Exchange) {
        let listener = usize::from(exchange.is_public);
        let open = self.connections[listener].take().filter(|_| !exchange.requests.is_empty());
        let mut connection = open.unwrap_or_else(|| connect(self.addresses[listener]));
        for part in &exchange.parts {
            // Refused in the middle: the answer says so.
            if connection.get_mut().write_all(part).is_err() {
                break;
            }
        }
        if exchange.requests.is_empty() {
            let _closed = connection.get_mut().shutdown(Shutdown::Write);
            self.read_any(&mut connection, exchange);
            return;
        }
        let mut closes = exchange.is_last;
        for (no, request) in exchange.requests.iter().enumerate() {
            let answer = answer::read(&mut connection, request.is_head);
            match answer {
                Ok(answer) => {
                    check(&answer, request, exchange);
                    self.count(answer.status);
                    closes |= answer.closes;
                }
                Err(NoAnswer::Cut(_) | NoAnswer::Closed) if request.may_reset => self.count(0),
                Err(error) => {
                    panic!("{error:?} to request {no}, {request:?}, of {}", shown(exchange))
                }
            }
            if closes {
                break;
            }
        }
        if !closes {
            self.connections[listener] = Some(connection);
        }
    }

    /// Broken bytes: answers until the close, or the close alone.
    fn read_any(&mut self, connection: &mut BufReader<TcpStream>, exchange: &Exchange) {
        loop {
            match answer::read(connection, false) {
                Ok(answer) => {
                    assert!(is_known(&answer), "{} to {}", answer.status, shown(exchange));
                    self.count(answer.status);
                    if answer.closes {
                        return;
                    }
                }
                Err(NoAnswer::Closed | NoAnswer::Cut(_)) => return self.count(0),
                Err(error) => panic!("{error:?} to {}", shown(exchange)),
            }
        }
    }

    fn count(&mut self, status: u16) {
        *self.counts.entry(status).or_default() += 1;
    }
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.set_write_timeout(Some(HANG)).unwrap();
    BufReader::new(stream)
}

fn is_known(answer: &Answer) -> bool {
    STATUSES.contains(&answer.status)
}

/// Requires the answer to a sound request to be one of the contract.
fn check(answer: &Answer, request: &SoundRequest, exchange: &Exchange) {
    let place = || format!("{} to {request:?} of {}", answer.status, shown(exchange));
    assert!(is_known(answer), "{}", place());
    if answer.status < 400 || request.is_head || [408, 431].contains(&answer.status) {
        return;
    }
    let kind = answer.header("content-type");
    if answer.status == 400 && answer.body.is_empty() {
        // Not HTTP to actix-http: such a target has no problem document.
        return;
    }
    assert_eq!(kind, Some("application/problem+json"), "{}", place());
    let problem: Json =
        serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{}", place()));
    assert_eq!(problem["status"], answer.status, "{}", place());
    let code = problem["code"].as_str().unwrap_or_default();
    assert!(ProblemCode::ALL.iter().any(|known| known.as_str() == code), "{}", place());
    if answer.status == 503 {
        assert_eq!(problem["detail"], audit::Error::Running.to_string(), "{}", place());
    }
    assert!(answer.header("traceparent").is_some(), "{}", place());
}

fn shown(exchange: &Exchange) -> String {
    let bytes = exchange.parts.concat();
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(2_000)]).into_owned();
    format!("{} bytes: {shown:?}", bytes.len())
}
