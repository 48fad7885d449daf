//! A crowd with a recorder: every attempt and its answer, compared with the ledger at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use floodgate::load::{BuyRequest, Load, Outcome, Until, json_string_member, run};
use parking_lot::Mutex;

use super::orders::Orders;

/// One buyer's wish, asked once or several times with the same content.
#[derive(Debug, Clone)]
pub struct Wish {
    pub buyer: u64,
    /// As issued; `None` where the policy derives it.
    pub request_id: Option<String>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub wish: usize,
    /// `None`: no answer.
    pub status: Option<u16>,
    pub replayed: bool,
    pub request_id: Option<String>,
    /// `success`, `queued` or `unknown`.
    pub state: Option<String>,
    pub code: Option<String>,
}

/// What all attempts together heard.
#[derive(Debug, Default)]
pub struct History {
    pub heard: Vec<Heard>,
}

/// The line that every load or fault run ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub seed: u64,
    pub attempted: usize,
    pub acknowledged: usize,
    pub ok: usize,
    pub failed: usize,
    pub dead: usize,
    pub lost: usize,
    pub duplicated: usize,
    pub oversold: u64,
    pub unknown: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed={} attempted={} acknowledged={} ok={} failed={} dead={} lost={} duplicated={} \
             oversold={} unknown={}",
            self.seed,
            self.attempted,
            self.acknowledged,
            self.ok,
            self.failed,
            self.dead,
            self.lost,
            self.duplicated,
            self.oversold,
            self.unknown
        )
    }
}

impl Verdict {
    pub fn assert_clean(&self) {
        println!("{self}");
        assert_eq!((self.lost, self.duplicated, self.oversold), (0, 0, 0), "{self}");
    }
}

impl Heard {
    /// Whether the request was accepted, as far as its buyer was told.
    pub fn is_promise(&self) -> bool {
        let is_queued = self.status == Some(202) && self.state.as_deref() == Some("queued");
        self.status == Some(200) || is_queued
    }
}

impl History {
    /// Request ids that were promised something: answered with 200, or with 202 `queued`.
    pub fn acknowledged(&self) -> BTreeSet<&str> {
        let promised = self.heard.iter().filter(|heard| heard.is_promise());
        promised.filter_map(|heard| heard.request_id.as_deref()).collect()
    }

    /// For each wish, the different request ids that were promised something.
    pub fn promised_by_wish(&self) -> BTreeMap<usize, BTreeSet<&str>> {
        let mut by_wish: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for heard in self.heard.iter().filter(|heard| heard.is_promise()) {
            by_wish.entry(heard.wish).or_default().extend(heard.request_id.as_deref());
        }
        by_wish
    }

    /// Compares with what the ledger has: each request that was promised something must have ended
    /// there, as order, failure or dead letter.
    pub fn judge(&self, seed: u64, ledger: &Orders, stock: u64) -> Verdict {
        let distinct: BTreeSet<&str> = ledger.request_ids.iter().map(String::as_str).collect();
        let otherwise: BTreeSet<&str> =
            ledger.failed.iter().chain(&ledger.dead).map(String::as_str).collect();
        let acknowledged = self.acknowledged();
        let has_ended = |id: &str| distinct.contains(id) || otherwise.contains(id);
        Verdict {
            seed,
            attempted: self.heard.len(),
            acknowledged: acknowledged.len(),
            ok: ledger.request_ids.len(),
            failed: ledger.failed.len(),
            dead: ledger.dead.len(),
            lost: acknowledged.iter().filter(|id| !has_ended(id)).count(),
            duplicated: ledger.request_ids.len() - distinct.len(),
            oversold: ledger.units.saturating_sub(stock),
            unknown: self.heard.iter().filter(|heard| heard.status.is_none()).count(),
        }
    }
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

/// The same, but gives up when `end` comes.
pub async fn send_until(
    target: SocketAddr,
    sale: &str,
    wishes: Arc<Vec<Wish>>,
    attempts: Arc<Vec<usize>>,
    connections: usize,
    end: impl Future<Output = ()>,
) -> History {
    let buy = BuyRequest::new(target, sale, "sku", 1);
    let history = Arc::new(Mutex::new(Vec::with_capacity(attempts.len())));
    let (asked, seen) = (attempts.clone(), history.clone());
    let count = attempts.len() as u64;
    let load = Load {
        observer: Some(Arc::new(move |seq, outcome| {
            let wish = asked[usize::try_from(seq).unwrap()];
            let heard = match outcome {
                Outcome::Answered(answer) => {
                    let member = |name| json_string_member(answer.body, name).map(str::to_owned);
                    Heard {
                        wish,
                        status: Some(answer.status),
                        replayed: answer.replayed,
                        request_id: member(b"request_id"),
                        state: if answer.status < 300 { member(b"state") } else { None },
                        code: if answer.status >= 400 { member(b"code") } else { None },
                    }
                }
                Outcome::Unknown(_) | Outcome::Unsent => Heard {
                    wish,
                    status: None,
                    replayed: false,
                    request_id: None,
                    state: None,
                    code: None,
                },
            };
            seen.lock().push(heard);
        })),
        until: Until::Requests(count),
        connections,
        ..Load::new(
            target,
            Arc::new(move |seq, buffer| {
                let wish = &wishes[attempts[usize::try_from(seq).unwrap()]];
                buy.write(wish.buyer, wish.request_id.as_deref(), buffer);
            }),
        )
    };
    tokio::select! {
        sent = run(load) => drop(sent.unwrap()),
        () = end => {}
    }
    let heard = std::mem::take(&mut *history.lock());
    History { heard }
}
