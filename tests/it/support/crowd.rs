//! A crowd with a recorder: every attempt and its answer, compared with the ledger at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use floodgate::load::{BuyRequest, Load, Outcome, Until, json_string_member, run};
use parking_lot::Mutex;

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
    pub lost: usize,
    pub duplicated: usize,
    pub oversold: u64,
    pub unknown: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed={} attempted={} acknowledged={} ok={} lost={} duplicated={} oversold={} \
             unknown={}",
            self.seed,
            self.attempted,
            self.acknowledged,
            self.ok,
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

impl History {
    /// Request ids that were answered with 200.
    pub fn acknowledged(&self) -> BTreeSet<&str> {
        let ok = self.heard.iter().filter(|heard| heard.status == Some(200));
        ok.filter_map(|heard| heard.request_id.as_deref()).collect()
    }

    /// For each wish, the different request ids that its successes named.
    pub fn successes_by_wish(&self) -> BTreeMap<usize, BTreeSet<&str>> {
        let mut by_wish: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for heard in self.heard.iter().filter(|heard| heard.status == Some(200)) {
            by_wish.entry(heard.wish).or_default().extend(heard.request_id.as_deref());
        }
        by_wish
    }

    /// Compares with the request ids of all orders, as their buyers read them, and with the units.
    pub fn judge(&self, seed: u64, orders: &[String], units: u64, stock: u64) -> Verdict {
        let distinct: BTreeSet<&str> = orders.iter().map(String::as_str).collect();
        let acknowledged = self.acknowledged();
        Verdict {
            seed,
            attempted: self.heard.len(),
            acknowledged: acknowledged.len(),
            ok: orders.len(),
            lost: acknowledged.iter().filter(|id| !distinct.contains(*id)).count(),
            duplicated: orders.len() - distinct.len(),
            oversold: units.saturating_sub(stock),
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
                        code: if answer.status >= 400 { member(b"code") } else { None },
                    }
                }
                Outcome::Unknown(_) | Outcome::Unsent => {
                    Heard { wish, status: None, replayed: false, request_id: None, code: None }
                }
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
