//! What happens to a submission that the ledger did not write, as a pure function.
//!
//! Trouble of the ledger is never the fault of an order, whatever the error says. A failure is an
//! order's own only with evidence: the order failed in a transaction of its own, then the ledger
//! committed something else, and then the order failed again in a transaction of its own. Without
//! evidence the submission is held in hand, however long the ledger is away; one order at a time is
//! taken off it, because that order may be what the ledger commits.

use crate::db::ErrorClass;

/// Parts that a submission is split into: two levels find one order among `batch_max`, three at
/// most.
const PARTS: usize = 8;

/// Why a submission, or some intents of it, have no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoOutcome {
    /// The consumer crashed before it took the submission up.
    NotTried,
    /// The ledger failed.
    Ledger(ErrorClass),
    /// The consumer crashed over it.
    Crashed,
}

impl NoOutcome {
    /// With another failure of the ledger beside it: a ledger that is down is nobody's fault,
    /// whatever else was said.
    #[must_use]
    pub fn or_worse(self, class: ErrorClass) -> Self {
        match self {
            Self::Ledger(ErrorClass::Down) => self,
            _ => Self::Ledger(class),
        }
    }

    /// Whether it may be the fault of what was submitted.
    #[must_use]
    pub fn may_be_its_own(self) -> bool {
        !matches!(self, Self::NotTried | Self::Ledger(ErrorClass::Down))
    }
}

/// One try of a submission that failed.
#[derive(Debug, Clone, Copy)]
pub struct FailedAttempt {
    /// Why.
    pub trouble: NoOutcome,
    /// Intents that were submitted.
    pub num_submitted: usize,
    /// Whether no other submission was in its transactions.
    pub was_exclusive: bool,
    /// Commits of the ledger when it failed so before.
    pub failed_at: Option<u64>,
    /// Commits of the ledger now.
    pub num_commits: u64,
    /// Failures of its one order that were counted before.
    pub attempts: u32,
    /// The counted failure that is the last.
    pub attempts_max: u32,
}

/// What to do with the intents that have no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// They wait in hand; no failure is counted.
    Hold,
    /// They wait in hand, the first of them by itself; no failure is counted.
    Probe,
    /// They are tried apart from each other, in so many parts at most.
    Split(usize),
    /// The failure is the order's own: it is counted, and the order tried again later.
    Count,
    /// It was the last one: the order becomes a dead letter.
    DeadLetter,
}

/// Decides.
#[must_use]
pub fn next(failed: &FailedAttempt) -> RetryDecision {
    let is_alone = failed.num_submitted == 1;
    let has_evidence =
        failed.was_exclusive && failed.failed_at.is_some_and(|before| failed.num_commits > before);
    match failed.trouble {
        NoOutcome::NotTried | NoOutcome::Ledger(ErrorClass::Down) => RetryDecision::Hold,
        // Restarts of a component are few, so its orders are tried one by one at once, and the
        // second crash over one order is its last.
        NoOutcome::Crashed if failed.was_exclusive && !is_alone => {
            RetryDecision::Split(failed.num_submitted)
        }
        NoOutcome::Crashed if has_evidence => RetryDecision::DeadLetter,
        NoOutcome::Ledger(_) if has_evidence && !is_alone => RetryDecision::Split(PARTS),
        NoOutcome::Ledger(_) if has_evidence => {
            if failed.attempts.saturating_add(1) >= failed.attempts_max {
                RetryDecision::DeadLetter
            } else {
                RetryDecision::Count
            }
        }
        NoOutcome::Ledger(_) if failed.was_exclusive && !is_alone => RetryDecision::Probe,
        NoOutcome::Ledger(_) | NoOutcome::Crashed => RetryDecision::Hold,
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
