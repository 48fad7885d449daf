//! Compares the answers that buyers received with the ledger.
//!
//! Shares no code with gates, outboxes or batches: its only inputs are the answer to each attempt
//! with its start and end, and the ledger's records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::named::named_enum;

/// Identifies a request, sent once or many times with the same content. Every rule applies to one
/// request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    pub sale: Arc<str>,
    pub buyer: u64,
    pub name: RequestName,
}

/// What tells the requests of one buyer apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestName {
    /// The request id in every attempt.
    Id(Arc<str>),
    /// The SKU, where the server derives the request id from sale, SKU and buyer.
    Sku(Arc<str>),
}

impl RequestName {
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Id(id) => Some(id),
            Self::Sku(_) => None,
        }
    }
}

/// The order in an answer or in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bought {
    pub quantity: u32,
    pub placed_at_ms: i64,
}

/// One attempt of a request, or one read of its status, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub request: RequestKey,
    /// Before the first byte was sent, by a clock that all attempts share.
    pub began: Duration,
    /// After the last byte of the answer, or when the client gave up.
    pub ended: Duration,
    /// False: no connection, so that no server can have processed the attempt.
    pub is_sent: bool,
    /// HTTP status; `None` without an answer.
    pub status: Option<u16>,
    pub replayed: bool,
    pub request_id: Option<String>,
    /// `success`, `queued`, `failed` or `unknown`.
    pub state: Option<String>,
    pub code: Option<String>,
    pub order: Option<Bought>,
}

impl Attempt {
    /// Whether the answer says that the request was accepted.
    pub fn is_promise(&self) -> bool {
        let state = self.state.as_deref();
        matches!(self.status, Some(200 | 202)) && matches!(state, Some("success" | "queued"))
    }

    /// Whether the answer says that nothing was reserved and that the buyer may retry.
    fn is_busy(&self) -> bool {
        self.status == Some(503)
    }

    /// Whether the answer is the recorded failure of an accepted request.
    fn is_recorded_failure(&self) -> bool {
        let is_repeat = self.replayed && self.status.is_some_and(|status| status >= 400);
        is_repeat || self.state.as_deref() == Some("failed")
    }

    /// Whether the answer says that the request was never accepted.
    fn is_denial(&self) -> bool {
        !self.replayed && matches!(self.status, Some(403 | 404 | 409 | 410 | 422))
    }
}

/// One outcome of one request in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub sale: String,
    pub sku: String,
    pub buyer: u64,
    /// As buyers receive it.
    pub request_id: String,
    pub outcome: RecordedAs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedAs {
    Order(Bought),
    Failure,
    DeadLetter,
}

named_enum! {
    /// How the answers to one request contradict the ledger or each other.
    AnswerRule {
        /// Promised, but neither order nor failure nor dead letter.
        Lost => "lost",
        /// Every answer said that nothing was reserved, and the ledger has a record.
        Ghost => "ghost",
        /// Promised, and denied to an attempt that began after the promise was received.
        Denied => "denied",
        /// Two different outcomes, or another one than the ledger's.
        TwoEnds => "two_ends",
    }
}

/// All attempts of one request and its record in the ledger.
#[derive(Debug)]
pub struct AnswerCase<'a> {
    pub request: &'a RequestKey,
    pub attempts: Vec<&'a Attempt>,
    pub record: Option<&'a Record>,
}

/// Every request that breaks a rule. The ledger must hold the outcome of every accepted request.
pub fn compare<'a>(
    attempts: impl Iterator<Item = &'a Attempt>,
    records: &'a [Record],
) -> Vec<(AnswerRule, AnswerCase<'a>)> {
    let attempts: Vec<&Attempt> = attempts.filter(|attempt| attempt.is_sent).collect();
    let records = Records::of(records);
    let derived = derived_ids(&attempts, &records);
    let mut by_request: BTreeMap<&RequestKey, Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts {
        let request = &attempt.request;
        let with_id = (&*request.sale, request.buyer, request.name.id().unwrap_or_default());
        let request = derived.get(&with_id).copied().unwrap_or(request);
        by_request.entry(request).or_default().push(attempt);
    }
    let mut found = Vec::new();
    for (request, attempts) in by_request {
        let record = records.find(request, &attempts);
        for rule in AnswerRule::ALL {
            let case = AnswerCase { request, attempts: attempts.clone(), record };
            if case.breaks(rule) {
                found.push((rule, case));
            }
        }
    }
    found
}

/// The requests whose ids the server derives, by sale, buyer and that id, which clients may send.
fn derived_ids<'a>(
    attempts: &[&'a Attempt],
    records: &Records<'a>,
) -> BTreeMap<(&'a str, u64, &'a str), &'a RequestKey> {
    let with_id = attempts.iter().filter_map(|attempt| {
        let RequestKey { sale, buyer, name: RequestName::Sku(sku) } = &attempt.request else {
            return None;
        };
        let promised = attempt.request_id.as_deref().filter(|_| attempt.is_promise());
        let recorded = || records.of_buyer(sale, sku, *buyer).map(|it| &*it.request_id);
        Some(((&**sale, *buyer, promised.or_else(recorded)?), &attempt.request))
    });
    with_id.collect()
}

impl AnswerCase<'_> {
    fn breaks(&self, rule: AnswerRule) -> bool {
        match rule {
            AnswerRule::Lost => {
                self.record.is_none() && self.attempts.iter().any(|attempt| attempt.is_promise())
            }
            AnswerRule::Ghost => self.is_ghost(),
            AnswerRule::Denied => self.is_denied(),
            AnswerRule::TwoEnds => self.has_conflicting_outcomes(),
        }
    }

    /// A refusal may leave a recorded failure (the ledger's own refusal), `busy` may not.
    fn is_ghost(&self) -> bool {
        let Some(record) = self.record else { return false };
        let only_busy = self.attempts.iter().all(|attempt| attempt.is_busy());
        let never_accepted =
            self.attempts.iter().all(|attempt| attempt.is_busy() || attempt.is_denial());
        only_busy || (never_accepted && record.outcome != RecordedAs::Failure)
    }

    fn is_denied(&self) -> bool {
        let promises = self.attempts.iter().filter(|attempt| attempt.is_promise());
        let Some(promised) = promises.map(|attempt| attempt.ended).min() else { return false };
        self.attempts.iter().any(|attempt| attempt.is_denial() && attempt.began > promised)
    }

    /// The answer is a recorded failure, and the ledger has none. A repeat may share the refusal of
    /// a concurrent attempt, which needs no record.
    fn is_unrecorded_failure(&self, attempt: &Attempt) -> bool {
        let shares = |other: &&Attempt| {
            other.is_denial() && other.began < attempt.ended && attempt.began < other.ended
        };
        let is_shared = attempt.replayed && self.attempts.iter().any(shares);
        attempt.is_recorded_failure() && !is_shared
    }

    fn has_conflicting_outcomes(&self) -> bool {
        let orders = self.attempts.iter().filter_map(|attempt| attempt.order);
        let orders: BTreeSet<Bought> = orders.collect();
        let is_bought =
            self.attempts.iter().any(|attempt| attempt.state.as_deref() == Some("success"));
        let is_failed = self.attempts.iter().any(|attempt| attempt.is_recorded_failure());
        let contradicts = match self.record.map(|record| record.outcome) {
            Some(RecordedAs::Order(order)) => {
                is_failed || orders.iter().any(|other| *other != order)
            }
            Some(RecordedAs::Failure | RecordedAs::DeadLetter) => is_bought,
            None => self.attempts.iter().any(|attempt| self.is_unrecorded_failure(attempt)),
        };
        orders.len() > 1 || (is_bought && is_failed) || contradicts
    }
}

/// The ledger's records by request id, and by SKU and buyer where the id is derived from them.
struct Records<'a> {
    by_id: BTreeMap<&'a str, &'a Record>,
    by_buyer: BTreeMap<(&'a str, &'a str, u64), &'a Record>,
}

impl<'a> Records<'a> {
    fn of(records: &'a [Record]) -> Self {
        let (mut by_id, mut by_buyer) = (BTreeMap::new(), BTreeMap::new());
        // Orders precede dead letters: a dead letter of an ordered request is a copy.
        for record in records {
            by_id.entry(record.request_id.as_str()).or_insert(record);
            let of_buyer = (record.sale.as_str(), record.sku.as_str(), record.buyer);
            by_buyer.entry(of_buyer).or_insert(record);
        }
        Self { by_id, by_buyer }
    }

    fn find(&self, key: &RequestKey, attempts: &[&Attempt]) -> Option<&'a Record> {
        let sku = match &key.name {
            RequestName::Id(id) => {
                // Another buyer's id is refused, whatever became of its request.
                let record = self.by_id.get(id.as_ref()).copied();
                return record.filter(|record| record.buyer == key.buyer);
            }
            RequestName::Sku(sku) => sku,
        };
        // Only promises: `already-purchased` names the id of another request.
        let mut promises = attempts.iter().filter(|attempt| attempt.is_promise());
        match promises.find_map(|attempt| attempt.request_id.as_deref()) {
            Some(id) => self.by_id.get(id).copied(),
            None => self.of_buyer(&key.sale, sku, key.buyer),
        }
    }

    fn of_buyer(&self, sale: &str, sku: &str, buyer: u64) -> Option<&'a Record> {
        self.by_buyer.get(&(sale, sku, buyer)).copied()
    }
}
