//! Compares the responses that buyers received with the final content of the ledger, by the rules
//! of `floodgate audit --answers`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};

use floodgate::services::audit::answers::{self, AnswerCase, AnswerRule, compare};
pub use floodgate::services::audit::answers::{Bought, RequestKey, RequestName};

use super::orders::Orders;

/// Printed findings per rule, at most.
const FINDINGS_PRINTED: usize = 5;

/// One attempt of one purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Index into the list of purchases.
    pub purchase: usize,
    pub answer: answers::Attempt,
}

impl Deref for Attempt {
    type Target = answers::Attempt;

    fn deref(&self) -> &answers::Attempt {
        &self.answer
    }
}

impl DerefMut for Attempt {
    fn deref_mut(&mut self) -> &mut answers::Attempt {
        &mut self.answer
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
        let attempts = self.all().map(|attempt| &attempt.answer);
        let found = compare(attempts, &ledger.records);
        let mut findings: BTreeMap<AnswerRule, usize> = BTreeMap::new();
        for (rule, case) in &found {
            let count = findings.entry(*rule).or_default();
            *count += 1;
            if *count <= FINDINGS_PRINTED {
                print(*rule, case);
            }
        }
        let count = |rule| findings.get(&rule).copied().unwrap_or_default();
        let distinct: BTreeSet<&str> = ledger.request_ids.iter().map(String::as_str).collect();
        Verdict {
            seed,
            attempted: self.purchases.len(),
            acknowledged: self.acknowledged().len(),
            ok: ledger.request_ids.len(),
            units: ledger.units,
            failed: ledger.failed.len(),
            dead: ledger.dead.len(),
            lost: count(AnswerRule::Lost),
            duplicated: ledger.request_ids.len() - distinct.len(),
            oversold: ledger.units.saturating_sub(stock),
            ghosts: count(AnswerRule::Ghost),
            denials: count(AnswerRule::Denied),
            ends: count(AnswerRule::TwoEnds),
            unknown: self.all().filter(|attempt| attempt.status.is_none()).count(),
        }
    }
}

fn print(rule: AnswerRule, case: &AnswerCase<'_>) {
    println!("{}: {:?}\n  ledger: {:?}", rule.name(), case.request, case.record);
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
