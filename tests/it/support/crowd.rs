//! A load of buyers with a recorder: buyers send purchases and poll their status during the faults;
//! every response is recorded with its time for [`super::checker`].

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use floodgate::runtime::clock::now_monotonic;
use floodgate::services::audit::answers;
use loadgen::{
    BuyRequest, Load, Observer, Outcome, Pace, RequestSource, TransportError, Until,
    json_string_member, run,
};
use parking_lot::Mutex;
use serde::Deserialize;

pub use super::checker::{Attempt, Bought, History, RequestKey, RequestName, Verdict};

/// Rate of the status reads of accepted requests, in parallel to the purchases.
const READS_PER_SECOND: f64 = 200.0;
const READ_CONNECTIONS: usize = 4;
/// A request that waits longer than this for a free connection is not sent.
const LATE_LIMIT: Duration = Duration::from_secs(1);
/// The pace of attempts that outlast a fault. Servers can answer more, but then repeats take most
/// of their time, and each recovery waits for the backlog.
pub const STEADY: Pace = Pace::Open { per_second: 1_000.0, late_limit: LATE_LIMIT };

/// Units in one purchase, at most.
const QUANTITY_MAX: u32 = 5;

/// One buyer's purchase, sent once or several times with the same content.
#[derive(Debug, Clone)]
pub struct Purchase {
    pub buyer: u64,
    /// The issued id; `None` where the policy derives it.
    pub request_id: Option<String>,
    pub quantity: u32,
}

impl Purchase {
    /// A purchase of one unit under a policy that derives the request id.
    pub fn of(buyer: u64) -> Self {
        Self { buyer, request_id: None, quantity: 1 }
    }

    fn key(&self, sale: &Arc<str>) -> RequestKey {
        let name = match &self.request_id {
            Some(id) => RequestName::Id(id.as_str().into()),
            None => RequestName::Sku("sku".into()),
        };
        RequestKey { sale: sale.clone(), buyer: self.buyer, name }
    }
}

/// Records each attempt of one load with its time and its response.
struct Recorder {
    sale: Arc<str>,
    purchases: Arc<Vec<Purchase>>,
    recording: Mutex<Recording>,
    /// Purchase index and request id of each accepted request, shared with the load that reads
    /// their status.
    accepted: Arc<Mutex<Vec<(usize, String)>>>,
}

#[derive(Default)]
struct Recording {
    /// In-flight attempts by sequence number.
    open: HashMap<u64, (usize, Instant)>,
    attempts: Vec<Attempt>,
    is_closed: bool,
}

impl Recorder {
    fn new(
        sale: &str,
        purchases: Arc<Vec<Purchase>>,
        accepted: Arc<Mutex<Vec<(usize, String)>>>,
    ) -> Arc<Self> {
        Arc::new(Self { sale: sale.into(), purchases, recording: Mutex::default(), accepted })
    }

    /// Must be called before the first byte is sent.
    fn begin(&self, seq: u64, purchase: usize) {
        self.recording.lock().open.insert(seq, (purchase, now_monotonic()));
    }

    fn end(&self, seq: u64, outcome: &Outcome<'_>) {
        let mut recording = self.recording.lock();
        let open = recording.open.remove(&seq);
        let Some((purchase, began)) = open.filter(|_| !recording.is_closed) else { return };
        let attempt = self.attempt(purchase, began, outcome);
        if attempt.is_promise()
            && let Some(id) = &attempt.request_id
        {
            self.accepted.lock().push((purchase, id.clone()));
        }
        recording.attempts.push(attempt);
    }

    fn attempt(&self, purchase: usize, began: Instant, outcome: &Outcome<'_>) -> Attempt {
        let never_sent =
            matches!(outcome, Outcome::Unsent | Outcome::Unknown(TransportError::Connect));
        let mut answer = answers::Attempt {
            request: self.purchases[purchase].key(&self.sale),
            began: since_first(began),
            ended: since_first(now_monotonic()),
            is_sent: !never_sent,
            status: None,
            replayed: false,
            request_id: None,
            state: None,
            code: None,
            order: None,
        };
        if let Outcome::Answered(received) = outcome {
            let member = |name| json_string_member(received.body, name).map(str::to_owned);
            answer.status = Some(received.status);
            answer.replayed = received.replayed;
            answer.request_id = member(b"request_id");
            answer.state = if received.status < 300 { member(b"state") } else { None };
            answer.code = if received.status >= 400 { member(b"code") } else { None };
            if answer.state.as_deref() == Some("success") {
                answer.order = Some(order_in(received.body));
            }
        }
        Attempt { purchase, answer }
    }

    /// Ends the recording and returns all attempts; attempts in flight are recorded as unanswered.
    fn close(&self) -> Vec<Attempt> {
        let mut recording = self.recording.lock();
        recording.is_closed = true;
        let open = std::mem::take(&mut recording.open);
        let lost = Outcome::Unknown(TransportError::Broken);
        let unanswered = |(purchase, began)| self.attempt(purchase, began, &lost);
        let mut attempts = std::mem::take(&mut recording.attempts);
        attempts.extend(open.into_values().map(unanswered));
        attempts
    }

    fn observer(self: &Arc<Self>) -> Observer {
        let recorder = self.clone();
        Arc::new(move |seq, outcome| recorder.end(seq, outcome))
    }
}

/// The time of an attempt, by one clock for all attempts of this process.
fn since_first(at: Instant) -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    at.saturating_duration_since(*FIRST.get_or_init(|| at))
}

/// The order in the body of a successful response.
fn order_in(body: &[u8]) -> Bought {
    #[derive(Deserialize)]
    struct View {
        order: Order,
    }
    #[derive(Deserialize)]
    struct Order {
        quantity: u32,
        placed_at: String,
    }
    let View { order } = serde_json::from_slice(body).unwrap();
    let placed_at = chrono::DateTime::parse_from_rfc3339(&order.placed_at).unwrap();
    Bought { quantity: order.quantity, placed_at_ms: placed_at.timestamp_millis() }
}

/// Sends every attempt over `connections` connections; `attempts` holds indexes into `purchases`.
pub async fn send(
    target: SocketAddr,
    sale: &str,
    purchases: Arc<Vec<Purchase>>,
    attempts: Arc<Vec<usize>>,
    connections: usize,
) -> History {
    let never = std::future::pending::<()>();
    send_until(target, sale, purchases, attempts, (connections, Pace::Closed), never).await
}

/// [`send`] at a pace, ended early when `end` resolves. In parallel, reads the status of accepted
/// requests.
pub async fn send_until(
    target: SocketAddr,
    sale: &str,
    purchases: Arc<Vec<Purchase>>,
    attempts: Arc<Vec<usize>>,
    (connections, pace): (usize, Pace),
    end: impl Future<Output = ()>,
) -> History {
    let accepted: Arc<Mutex<Vec<(usize, String)>>> = Arc::default();
    let buys = Recorder::new(sale, purchases.clone(), accepted.clone());
    let count = attempts.len() as u64;
    let buying = Load {
        observer: Some(buys.observer()),
        pace,
        until: Until::Requests(count),
        connections,
        ..Load::new(target, purchase_source(target, buys.clone(), attempts))
    };
    // Status reads add no accepted requests: the purchases added them already.
    let reads = Recorder::new(sale, purchases, Arc::default());
    let reading = Load {
        observer: Some(reads.observer()),
        until: Until::Elapsed(Duration::MAX),
        pace: Pace::Open { per_second: READS_PER_SECOND, late_limit: LATE_LIMIT },
        connections: READ_CONNECTIONS,
        ..Load::new(target, status_source(target, reads.clone(), accepted))
    };
    let reading = async {
        run(reading).await.unwrap();
        unreachable!("the status reads have no end");
    };
    tokio::select! {
        sent = run(buying) => drop(sent.unwrap()),
        () = end => {}
        () = reading => {}
    }
    History { purchases: buys.close(), checked: reads.close() }
}

fn purchase_source(
    target: SocketAddr,
    recorder: Arc<Recorder>,
    attempts: Arc<Vec<usize>>,
) -> RequestSource {
    let buy_request = |quantity| BuyRequest::new(target, &recorder.sale, "sku", quantity);
    let buy: Vec<BuyRequest> = (0..=QUANTITY_MAX).map(buy_request).collect();
    Arc::new(move |seq, buffer| {
        let index = attempts[usize::try_from(seq).unwrap()];
        let purchase = &recorder.purchases[index];
        recorder.begin(seq, index);
        buy[purchase.quantity as usize].write(
            purchase.buyer,
            purchase.request_id.as_deref(),
            buffer,
        );
    })
}

/// Status reads: alternately of the newest accepted request and of a random one.
fn status_source(
    target: SocketAddr,
    recorder: Arc<Recorder>,
    accepted: Arc<Mutex<Vec<(usize, String)>>>,
) -> RequestSource {
    Arc::new(move |seq, buffer| {
        let accepted = accepted.lock();
        let index = match accepted.len() {
            0 => None,
            count if seq.is_multiple_of(2) => Some(count - 1),
            count => Some(fastrand::usize(..count)),
        };
        let Some(index) = index else {
            // No accepted request yet: this response is not recorded.
            write_get(buffer, target, "/v1/sales", 1);
            return;
        };
        let (purchase, id) = &accepted[index];
        recorder.begin(seq, *purchase);
        let buyer = recorder.purchases[*purchase].buyer;
        write_get(buffer, target, &format!("/v1/requests/{id}"), buyer);
    })
}

fn write_get(buffer: &mut Vec<u8>, target: SocketAddr, path: &str, buyer: u64) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {target}\r\nx-buyer-id: {buyer}\r\n\r\n");
    buffer.extend_from_slice(request.as_bytes());
}

/// Repeats every promised purchase once and reads its status.
pub async fn check_promises(
    target: SocketAddr,
    sale: &str,
    purchases: Arc<Vec<Purchase>>,
    history: &History,
    connections: usize,
) -> Vec<Attempt> {
    let promised = history.purchases.iter().filter(|attempt| attempt.is_promise());
    let promised: BTreeMap<usize, String> = promised
        .filter_map(|attempt| Some((attempt.purchase, attempt.request_id.clone()?)))
        .collect();
    if promised.is_empty() {
        return Vec::new();
    }
    let repeats: Vec<usize> = promised.keys().copied().collect();
    let repeated = send(target, sale, purchases.clone(), repeats.into(), connections).await;
    let promised: Vec<(usize, String)> = promised.into_iter().collect();
    let count = promised.len() as u64;
    let recorder = Recorder::new(sale, purchases, Arc::default());
    let source = {
        let recorder = recorder.clone();
        Arc::new(move |seq: u64, buffer: &mut Vec<u8>| {
            let (purchase, id) = &promised[usize::try_from(seq).unwrap()];
            recorder.begin(seq, *purchase);
            let buyer = recorder.purchases[*purchase].buyer;
            write_get(buffer, target, &format!("/v1/requests/{id}"), buyer);
        })
    };
    let reading = Load {
        observer: Some(recorder.observer()),
        until: Until::Requests(count),
        connections,
        ..Load::new(target, source)
    };
    run(reading).await.unwrap();
    [repeated.purchases, repeated.checked, recorder.close()].concat()
}

/// Issues one request id per buyer, in the order of `buyers`, for a policy that requires them.
pub async fn issue_ids(target: SocketAddr, sale: &str, buyers: Vec<u64>) -> Vec<String> {
    let issued: Arc<Mutex<BTreeMap<u64, String>>> = Arc::default();
    let count = buyers.len();
    let path = format!("/v1/sales/{sale}/request-ids");
    let source = Arc::new(move |seq: u64, buffer: &mut Vec<u8>| {
        let buyer = buyers[usize::try_from(seq).unwrap()];
        let body = r#"{"sku_id":"sku"}"#;
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {target}\r\nx-buyer-id: {buyer}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        buffer.extend_from_slice(request.as_bytes());
    });
    let refused: Arc<Mutex<Vec<String>>> = Arc::default();
    let (received, others) = (issued.clone(), refused.clone());
    let observer: Observer = Arc::new(move |seq, outcome| {
        let text = match outcome {
            Outcome::Answered(answer) => match json_string_member(answer.body, b"request_id") {
                Some(id) => {
                    received.lock().insert(seq, id.to_owned());
                    return;
                }
                None => format!("{} {}", answer.status, String::from_utf8_lossy(answer.body)),
            },
            other => format!("{other:?}"),
        };
        others.lock().push(text);
    });
    let (observer, until) = (Some(observer), Until::Requests(count as u64));
    run(Load { observer, until, ..Load::new(target, source) }).await.unwrap();
    let ids: Vec<String> = std::mem::take(&mut *issued.lock()).into_values().collect();
    let first = refused.lock().first().cloned();
    assert_eq!(
        ids.len(),
        count,
        "every selling process issues ids, also without a store: {first:?}"
    );
    ids
}
