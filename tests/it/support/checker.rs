//! Compares the responses that buyers received with the final content of the ledger.
//!
//! Shares no code with the engine: its only inputs are the response to each attempt and its start
//! and end times, nothing about buckets, outboxes or batches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::orders::{Orders, Record, RecordedAs};

/// Printed findings per rule, at most.
const FINDINGS_PRINTED: usize = 5;

/// Identifies a request, sent once or many times with the same content. Every rule applies to one
/// request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    pub sale: Arc<str>,
    pub buyer: u64,
    /// The request id in every attempt; `None` where the server derives it from sale and buyer.
    pub named: Option<Arc<str>>,
}

/// The order in a response or in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bought {
    pub quantity: u32,
    pub placed_at_ms: i64,
}

/// One attempt of a request, or one read of its status, and the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Index into the list of purchases.
    pub purchase: usize,
    pub request: RequestKey,
    /// Before the first byte was sent.
    pub began: Instant,
    /// After the last byte of the response, or when the client gave up.
    pub ended: Instant,
    /// False: no connection, so that no server can have processed the attempt.
    pub is_sent: bool,
    /// HTTP status; `None` without a response.
    pub status: Option<u16>,
    pub replayed: bool,
    pub request_id: Option<String>,
    /// `success`, `queued`, `failed` or `unknown`.
    pub state: Option<String>,
    pub code: Option<String>,
    pub order: Option<Bought>,
}

impl Attempt {
    /// Whether the response says that the request was accepted.
    pub fn is_promise(&self) -> bool {
        let state = self.state.as_deref();
        matches!(self.status, Some(200 | 202)) && matches!(state, Some("success" | "queued"))
    }

    /// Whether the response says that nothing was reserved and that the buyer may retry.
    fn is_busy(&self) -> bool {
        self.status == Some(503)
    }

    /// Whether the response is the recorded failure of an accepted request.
    fn is_recorded_failure(&self) -> bool {
        let is_repeat = self.replayed && self.status.is_some_and(|status| status >= 400);
        is_repeat || self.state.as_deref() == Some("failed")
    }

    /// Whether the response says that the request was never accepted.
    fn is_denial(&self) -> bool {
        !self.replayed && matches!(self.status, Some(403 | 404 | 409 | 410 | 422))
    }
}

/// All attempts and their responses.
#[derive(Debug, Default)]
pub struct History {
    /// Attempts of purchases.
    pub purchases: Vec<Attempt>,
    /// Status reads and repeats of promised requests.
    pub checked: Vec<Attempt>,
}

impl History {
    pub fn absorb(&mut self, other: Self) {
        self.purchases.extend(other.purchases);
        self.checked.extend(other.checked);
    }

    fn all(&self) -> impl Iterator<Item = &Attempt> {
        self.purchases.iter().chain(&self.checked)
    }

    /// Request ids of promised requests: answered with 200, or with 202 `queued`.
    pub fn acknowledged(&self) -> BTreeSet<&str> {
        let promised = self.all().filter(|attempt| attempt.is_promise());
        promised.filter_map(|attempt| attempt.request_id.as_deref()).collect()
    }

    /// For each purchase, the distinct promised request ids.
    pub fn promised_by_purchase(&self) -> BTreeMap<usize, BTreeSet<&str>> {
        let mut by_purchase: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for attempt in self.purchases.iter().filter(|attempt| attempt.is_promise()) {
            by_purchase.entry(attempt.purchase).or_default().extend(attempt.request_id.as_deref());
        }
        by_purchase
    }

    /// Checks every rule. The ledger must hold the outcome of every accepted request.
    pub fn check(&self, seed: u64, ledger: &Orders, stock: u64) -> Verdict {
        let mut by_request: BTreeMap<&RequestKey, Case<'_>> = BTreeMap::new();
        for attempt in self.all().filter(|attempt| attempt.is_sent) {
            by_request.entry(&attempt.request).or_default().attempts.push(attempt);
        }
        let records = Records::of(ledger);
        let mut findings = Findings::default();
        for (key, case) in &mut by_request {
            case.record = records.find(key, &case.attempts);
            findings.add("lost", case.is_lost(), key, case);
            findings.add("ghost", case.is_ghost(), key, case);
            findings.add("denial", case.is_denied(), key, case);
            findings.add("ends", case.has_conflicting_outcomes(), key, case);
        }
        let distinct: BTreeSet<&str> = ledger.request_ids.iter().map(String::as_str).collect();
        Verdict {
            seed,
            attempted: self.purchases.len(),
            acknowledged: self.acknowledged().len(),
            ok: ledger.request_ids.len(),
            units: ledger.units,
            failed: ledger.failed.len(),
            dead: ledger.dead.len(),
            lost: findings.count("lost"),
            duplicated: ledger.request_ids.len() - distinct.len(),
            oversold: ledger.units.saturating_sub(stock),
            ghosts: findings.count("ghost"),
            denials: findings.count("denial"),
            ends: findings.count("ends"),
            unknown: self.all().filter(|attempt| attempt.status.is_none()).count(),
        }
    }
}

/// All attempts of one request and its record in the ledger.
#[derive(Debug, Default)]
struct Case<'a> {
    attempts: Vec<&'a Attempt>,
    record: Option<&'a Record>,
}

impl Case<'_> {
    /// Promised, but neither order nor failure nor dead letter.
    fn is_lost(&self) -> bool {
        self.record.is_none() && self.attempts.iter().any(|attempt| attempt.is_promise())
    }

    /// Every response said that nothing was reserved, and the ledger has a record. A refusal may
    /// leave a recorded failure (the ledger's own refusal), `busy` may not.
    fn is_ghost(&self) -> bool {
        let Some(record) = self.record else { return false };
        let only_busy = self.attempts.iter().all(|attempt| attempt.is_busy());
        let never_accepted =
            self.attempts.iter().all(|attempt| attempt.is_busy() || attempt.is_denial());
        only_busy || (never_accepted && record.outcome != RecordedAs::Failure)
    }

    /// Promised, and denied to an attempt that began after the promise was received.
    fn is_denied(&self) -> bool {
        let promises = self.attempts.iter().filter(|attempt| attempt.is_promise());
        let Some(promised) = promises.map(|attempt| attempt.ended).min() else { return false };
        self.attempts.iter().any(|attempt| attempt.is_denial() && attempt.began > promised)
    }

    /// The response is a recorded failure, and the ledger has none. A repeat may share the refusal
    /// of a concurrent attempt, which needs no record.
    fn is_unrecorded_failure(&self, attempt: &Attempt) -> bool {
        let shares = |other: &&Attempt| {
            other.is_denial() && other.began < attempt.ended && attempt.began < other.ended
        };
        let is_shared = attempt.replayed && self.attempts.iter().any(shares);
        attempt.is_recorded_failure() && !is_shared
    }

    /// The responses report two different outcomes, or another one than the ledger's.
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

/// The ledger's records by request id, and by buyer where the id is derived from the buyer.
struct Records<'a> {
    by_id: BTreeMap<&'a str, &'a Record>,
    by_buyer: BTreeMap<(&'a str, u64), &'a Record>,
}

impl<'a> Records<'a> {
    fn of(ledger: &'a Orders) -> Self {
        let mut records = Self { by_id: BTreeMap::new(), by_buyer: BTreeMap::new() };
        // Orders precede dead letters: a dead letter of an ordered request is a copy.
        for record in &ledger.records {
            records.by_id.entry(&record.request_id).or_insert(record);
            records.by_buyer.entry((&record.sale, record.buyer)).or_insert(record);
        }
        records
    }

    fn find(&self, key: &RequestKey, attempts: &[&Attempt]) -> Option<&'a Record> {
        if let Some(id) = &key.named {
            return self.by_id.get(id.as_ref()).copied();
        }
        // Only promises: `already-purchased` names the id of another request.
        let mut promises = attempts.iter().filter(|attempt| attempt.is_promise());
        match promises.find_map(|attempt| attempt.request_id.as_deref()) {
            Some(id) => self.by_id.get(id).copied(),
            None => self.by_buyer.get(&(key.sale.as_ref(), key.buyer)).copied(),
        }
    }
}

/// Number of violations by rule.
#[derive(Debug, Default)]
struct Findings(BTreeMap<&'static str, usize>);

impl Findings {
    fn add(&mut self, rule: &'static str, is_broken: bool, key: &RequestKey, case: &Case<'_>) {
        if !is_broken {
            return;
        }
        let count = self.0.entry(rule).or_default();
        *count += 1;
        if *count <= FINDINGS_PRINTED {
            println!("{rule}: {key:?}\n  ledger: {:?}", case.record);
            let mut attempts = case.attempts.clone();
            attempts.sort_by_key(|attempt| attempt.began);
            for attempt in attempts {
                println!(
                    "  {:?}..{:?} {:?} {:?} {:?} replayed={} {:?}",
                    attempt.began,
                    attempt.ended,
                    attempt.status,
                    attempt.state,
                    attempt.code,
                    attempt.replayed,
                    attempt.order
                );
            }
        }
    }

    fn count(&self, rule: &str) -> usize {
        self.0.get(rule).copied().unwrap_or_default()
    }
}

/// The result of a load or fault run, printed as its last line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    pub seed: u64,
    pub attempted: usize,
    pub acknowledged: usize,
    pub ok: usize,
    /// Units of the orders.
    pub units: u64,
    pub failed: usize,
    pub dead: usize,
    /// Promised, and without any record.
    pub lost: usize,
    /// Orders after the first of the same request.
    pub duplicated: usize,
    /// Units beyond the stock.
    pub oversold: u64,
    /// Never accepted by any response, and recorded in the ledger.
    pub ghosts: usize,
    /// Denied after a promise.
    pub denials: usize,
    /// Conflicting outcomes.
    pub ends: usize,
    /// Attempts without a response.
    pub unknown: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, attempted, acknowledged, ok, units, failed, dead, .. } = self;
        let Self { lost, duplicated, oversold, ghosts, denials, ends, unknown, .. } = self;
        write!(
            f,
            "seed={seed} attempted={attempted} acknowledged={acknowledged} ok={ok} units={units} \
             failed={failed} dead={dead} lost={lost} duplicated={duplicated} oversold={oversold} \
             ghosts={ghosts} denials={denials} ends={ends} unknown={unknown}"
        )
    }
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        let counts = [self.lost, self.duplicated, self.ghosts, self.denials, self.ends];
        counts == [0; 5] && self.oversold == 0
    }

    pub fn assert_clean(&self) {
        println!("{self}");
        assert!(self.is_clean(), "{self}");
    }

    /// Asserts every rule except denials, for two concurrent Redis masters of one bucket: each
    /// decides by its own data, so that one may refuse as sold out what the other accepted.
    pub fn assert_clean_among_two_masters(&self) {
        Self { denials: 0, ..*self }.assert_clean();
    }
}
