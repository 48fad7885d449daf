//! A crowd with a recorder: buyers send purchases, read what became of them while the faults last,
//! and every answer is kept with its time for [`super::judge`].

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floodgate::runtime::clock::now_monotonic;
use loadgen::{
    BuyRequest, Load, Observer, Outcome, Pace, RequestSource, TransportError, Until,
    json_string_member, run,
};
use parking_lot::Mutex;
use serde::Deserialize;

pub use super::judge::{Attempt, Bought, History, RequestKey, Verdict};

/// Reads of the status of accepted requests, beside the purchases.
const READS_PER_SECOND: f64 = 200.0;
const READ_CONNECTIONS: usize = 4;
const READ_LATE_LIMIT: Duration = Duration::from_secs(1);

/// The largest purchase of a crowd.
const QUANTITY_MAX: u32 = 5;

/// One buyer's wish, asked once or several times with the same content.
#[derive(Debug, Clone)]
pub struct Wish {
    pub buyer: u64,
    /// As issued; `None` where the policy derives it.
    pub request_id: Option<String>,
    pub quantity: u32,
}

impl Wish {
    /// One unit, where the policy derives the request id.
    pub fn of(buyer: u64) -> Self {
        Self { buyer, request_id: None, quantity: 1 }
    }

    fn key(&self, sale: &Arc<str>) -> RequestKey {
        let named = self.request_id.as_deref().map(Arc::from);
        RequestKey { sale: sale.clone(), buyer: self.buyer, named }
    }
}

/// Keeps each attempt of one load with its time and its answer.
struct Recorder {
    sale: Arc<str>,
    wishes: Arc<Vec<Wish>>,
    kept: Mutex<Kept>,
    /// Accepted requests as their buyers read them, shared with the load that reads their status.
    accepted: Arc<Mutex<Vec<(usize, String)>>>,
}

#[derive(Default)]
struct Kept {
    /// Sent and not ended, by number.
    open: HashMap<u64, (usize, Instant)>,
    attempts: Vec<Attempt>,
    /// Nothing is added any more.
    is_closed: bool,
}

impl Recorder {
    fn new(
        sale: &str,
        wishes: Arc<Vec<Wish>>,
        accepted: Arc<Mutex<Vec<(usize, String)>>>,
    ) -> Arc<Self> {
        Arc::new(Self { sale: sale.into(), wishes, kept: Mutex::default(), accepted })
    }

    /// To be called before the first byte is sent.
    fn begin(&self, seq: u64, wish: usize) {
        self.kept.lock().open.insert(seq, (wish, now_monotonic()));
    }

    fn end(&self, seq: u64, outcome: &Outcome<'_>) {
        let mut kept = self.kept.lock();
        let open = kept.open.remove(&seq);
        let Some((wish, began)) = open.filter(|_| !kept.is_closed) else { return };
        let attempt = self.attempt(wish, began, outcome);
        if attempt.is_promise()
            && let Some(id) = &attempt.request_id
        {
            self.accepted.lock().push((wish, id.clone()));
        }
        kept.attempts.push(attempt);
    }

    fn attempt(&self, wish: usize, began: Instant, outcome: &Outcome<'_>) -> Attempt {
        let never_sent =
            matches!(outcome, Outcome::Unsent | Outcome::Unknown(TransportError::Connect));
        let mut attempt = Attempt {
            wish,
            request: self.wishes[wish].key(&self.sale),
            began,
            ended: now_monotonic(),
            is_sent: !never_sent,
            status: None,
            replayed: false,
            request_id: None,
            state: None,
            code: None,
            order: None,
        };
        if let Outcome::Answered(answer) = outcome {
            let member = |name| json_string_member(answer.body, name).map(str::to_owned);
            attempt.status = Some(answer.status);
            attempt.replayed = answer.replayed;
            attempt.request_id = member(b"request_id");
            attempt.state = if answer.status < 300 { member(b"state") } else { None };
            attempt.code = if answer.status >= 400 { member(b"code") } else { None };
            if attempt.state.as_deref() == Some("success") {
                attempt.order = Some(order_in(answer.body));
            }
        }
        attempt
    }

    /// Everything so far; what is still under way has no answer, and gets none here.
    fn close(&self) -> Vec<Attempt> {
        let mut kept = self.kept.lock();
        kept.is_closed = true;
        let open = std::mem::take(&mut kept.open);
        let cut = Outcome::Unknown(TransportError::Closed);
        let cut = open.into_values().map(|(wish, began)| self.attempt(wish, began, &cut));
        let mut attempts = std::mem::take(&mut kept.attempts);
        attempts.extend(cut);
        attempts
    }

    fn observer(self: &Arc<Self>) -> Observer {
        let recorder = self.clone();
        Arc::new(move |seq, outcome| recorder.end(seq, outcome))
    }
}

/// The order of a success.
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

/// Sends every attempt (`attempts` names wishes by position) over `connections` connections.
pub async fn send(
    target: SocketAddr,
    sale: &str,
    wishes: Arc<Vec<Wish>>,
    attempts: Arc<Vec<usize>>,
    connections: usize,
) -> History {
    let never = std::future::pending::<()>();
    send_until(target, sale, wishes, attempts, connections, never).await
}

/// The same, but gives up when `end` comes. Meanwhile the status of what was accepted is read, too.
pub async fn send_until(
    target: SocketAddr,
    sale: &str,
    wishes: Arc<Vec<Wish>>,
    attempts: Arc<Vec<usize>>,
    connections: usize,
    end: impl Future<Output = ()>,
) -> History {
    let accepted: Arc<Mutex<Vec<(usize, String)>>> = Arc::default();
    let purchases = Recorder::new(sale, wishes.clone(), accepted.clone());
    let count = attempts.len() as u64;
    let buying = Load {
        observer: Some(purchases.observer()),
        until: Until::Requests(count),
        connections,
        ..Load::new(target, purchase_source(target, purchases.clone(), attempts))
    };
    // What the readers are promised is known already.
    let reads = Recorder::new(sale, wishes, Arc::default());
    let reading = Load {
        observer: Some(reads.observer()),
        until: Until::Elapsed(Duration::MAX),
        pace: Pace::Open { per_second: READS_PER_SECOND, late_limit: READ_LATE_LIMIT },
        connections: READ_CONNECTIONS,
        ..Load::new(target, status_source(target, reads.clone(), accepted))
    };
    let reading = async {
        run(reading).await.unwrap();
        unreachable!("it reads for ever");
    };
    tokio::select! {
        sent = run(buying) => drop(sent.unwrap()),
        () = end => {}
        () = reading => {}
    }
    History { heard: purchases.close(), checked: reads.close() }
}

fn purchase_source(
    target: SocketAddr,
    recorder: Arc<Recorder>,
    attempts: Arc<Vec<usize>>,
) -> RequestSource {
    let of = |quantity| BuyRequest::new(target, &recorder.sale, "sku", quantity);
    let buy: Vec<BuyRequest> = (0..=QUANTITY_MAX).map(of).collect();
    Arc::new(move |seq, buffer| {
        let place = attempts[usize::try_from(seq).unwrap()];
        let wish = &recorder.wishes[place];
        recorder.begin(seq, place);
        buy[wish.quantity as usize].write(wish.buyer, wish.request_id.as_deref(), buffer);
    })
}

/// Reads the newest accepted request, then any, and so on.
fn status_source(
    target: SocketAddr,
    recorder: Arc<Recorder>,
    accepted: Arc<Mutex<Vec<(usize, String)>>>,
) -> RequestSource {
    Arc::new(move |seq, buffer| {
        let accepted = accepted.lock();
        let place = match accepted.len() {
            0 => None,
            count if seq.is_multiple_of(2) => Some(count - 1),
            count => Some(fastrand::usize(..count)),
        };
        let Some(place) = place else {
            // Nothing to ask for yet: an answer that nobody judges.
            write_get(buffer, target, "/v1/sales", 1);
            return;
        };
        let (wish, id) = &accepted[place];
        recorder.begin(seq, *wish);
        let buyer = recorder.wishes[*wish].buyer;
        write_get(buffer, target, &format!("/v1/requests/{id}"), buyer);
    })
}

fn write_get(buffer: &mut Vec<u8>, target: SocketAddr, path: &str, buyer: u64) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {target}\r\nx-buyer-id: {buyer}\r\n\r\n");
    buffer.extend_from_slice(request.as_bytes());
}

/// Asks once more for everything that was promised something: the purchase again, and its status.
pub async fn check_promises(
    target: SocketAddr,
    sale: &str,
    wishes: Arc<Vec<Wish>>,
    history: &History,
    connections: usize,
) -> Vec<Attempt> {
    let promised = history.heard.iter().filter(|attempt| attempt.is_promise());
    let promised: BTreeMap<usize, String> =
        promised.filter_map(|attempt| Some((attempt.wish, attempt.request_id.clone()?))).collect();
    if promised.is_empty() {
        return Vec::new();
    }
    let again: Vec<usize> = promised.keys().copied().collect();
    let repeated = send(target, sale, wishes.clone(), again.into(), connections).await;
    let promised: Vec<(usize, String)> = promised.into_iter().collect();
    let count = promised.len() as u64;
    let recorder = Recorder::new(sale, wishes, Arc::default());
    let source = {
        let recorder = recorder.clone();
        Arc::new(move |seq: u64, buffer: &mut Vec<u8>| {
            let (wish, id) = &promised[usize::try_from(seq).unwrap()];
            recorder.begin(seq, *wish);
            let buyer = recorder.wishes[*wish].buyer;
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
    [repeated.heard, repeated.checked, recorder.close()].concat()
}

/// Request ids for a policy that issues them: one for each buyer named, in that order.
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
    let seen = issued.clone();
    let observer: Observer = Arc::new(move |seq, outcome| {
        let Outcome::Answered(answer) = outcome else { return };
        let id = json_string_member(answer.body, b"request_id");
        seen.lock().extend(id.map(|id| (seq, id.to_owned())));
    });
    let (observer, until) = (Some(observer), Until::Requests(count as u64));
    run(Load { observer, until, ..Load::new(target, source) }).await.unwrap();
    let ids: Vec<String> = std::mem::take(&mut *issued.lock()).into_values().collect();
    assert_eq!(ids.len(), count, "ids are issued by every process that sells, without a store");
    ids
}
