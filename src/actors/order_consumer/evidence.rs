//! Decides what to do with a submission that has no outcome at the ledger, as a pure function.
//!
//! A ledger failure is attributed to an order only with evidence, whatever the error but contention
//! ([`ErrorClass::Retry`]), which passes: the order failed in a transaction of its own, then the
//! ledger committed something else, and then the order failed again in a transaction of its own.
//! Without evidence the submission is held for as long as the ledger fails; a probe takes one order
//! off it at a time, because that order may be one that the ledger commits.

use crate::actors::ledger_writer::batch::SPLIT_PARTS;
use crate::db::ErrorClass;
use crate::messages::WriteError;

/// One attempt at a submission that left intents without an outcome.
#[derive(Debug, Clone, Copy)]
pub struct FailedAttempt<'a> {
    pub cause: &'a WriteError,
    /// Intents that were submitted.
    pub num_submitted: usize,
    /// Whether no other submission shared its transactions.
    pub was_exclusive: bool,
    /// Commits of the ledger at its last counted failure, or else at its first failure in a
    /// transaction of its own; `None`: neither happened.
    pub commits_at_failure: Option<u64>,
    /// Commits of the ledger when this attempt was sent: a later one shows nothing, because the
    /// ledger may have recovered in between.
    pub num_commits: u64,
    /// Counted failures of its one order before this one.
    pub attempts: u32,
    /// Counted failures that make the order a dead letter.
    pub attempts_max: u32,
}

/// What to do with the intents that have no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Hold them and retry; no failure is counted.
    Hold,
    /// Hold them, the first one separately, and retry; no failure is counted.
    Probe,
    /// Hold them in at most this many parts, and retry each part separately.
    Split(usize),
    /// Count the failure against the order, and retry it later.
    Count,
    /// Retry the order later; no failure is counted.
    Later,
    /// The order has failed for the last time: it becomes a dead letter with this number of
    /// failures.
    DeadLetter { failures: u32 },
}

/// Decides what to do after a failed attempt.
pub fn decide(failed: &FailedAttempt<'_>) -> RetryDecision {
    use WriteError::{Crashed, Ledger, NotTried};

    let is_single = failed.num_submitted == 1;
    let has_evidence = failed.was_exclusive
        && failed.commits_at_failure.is_some_and(|before| failed.num_commits > before);
    match failed.cause {
        NotTried | Ledger { class: ErrorClass::Down, .. } => RetryDecision::Hold,
        // Each crash costs one of the ledger writer's few restarts: an exclusive submission is
        // split into singles at once, and a single order that crashes the writer twice, with a
        // commit between, becomes a dead letter.
        Crashed if failed.was_exclusive && !is_single => RetryDecision::Split(failed.num_submitted),
        // The first crash was not counted.
        Crashed if has_evidence => {
            RetryDecision::DeadLetter { failures: failed.attempts.saturating_add(2) }
        }
        Ledger { .. } if has_evidence && !is_single => RetryDecision::Split(SPLIT_PARTS),
        // Another session holds the lock: a commit of another order does not show that it is free.
        Ledger { class: ErrorClass::Retry, .. } if has_evidence => RetryDecision::Later,
        Ledger { .. } if has_evidence => {
            let failures = failed.attempts.saturating_add(1);
            if failures >= failed.attempts_max {
                RetryDecision::DeadLetter { failures }
            } else {
                RetryDecision::Count
            }
        }
        Ledger { .. } if failed.was_exclusive && !is_single => RetryDecision::Probe,
        Ledger { .. } | Crashed => RetryDecision::Hold,
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
