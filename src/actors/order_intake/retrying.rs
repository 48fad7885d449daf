//! What happens to an intent after the ledger was asked, as a pure function of what it came to.
//!
//! Three questions, in this order. Is it at its end? Is somebody away, so that it is not the
//! intent's fault: then it waits in hand, however long, and no attempt is counted. Who is guilty:
//! what failed among others is tried again alone, and only what fails alone has failed.

use crate::db::Class;
use crate::messages::{Died, Fault, Landing};

/// Doubts in a row, without other deliveries, after which the ledger is asked whether it is there.
/// More than one or two: a ledger that reads and does not write for a moment is no intent's fault.
pub const DOUBTS_MAX: u32 = 10;

/// One try to bring an intent to the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// What it came to.
    pub landing: Result<&'a Landing, Died>,
    /// Attempts that failed before this delivery.
    pub attempts: u32,
    /// Whether no other intent was in its transactions.
    pub was_alone: bool,
    /// Whether it failed before without other deliveries, and the ledger has answered others since;
    /// or failed so often that the ledger was asked something else, and it answered that.
    pub others_answered: bool,
    /// Whether the ledger fails altogether, as far as this process knows.
    pub ledger_fails: bool,
    /// How many delay steps there are.
    pub num_delays: usize,
}

/// What to do with the intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is at its end.
    Done,
    /// It waits in hand; somebody is away.
    Hold,
    /// Again at once, with less around it.
    Apart,
    /// It goes to delay step `step`; that is an attempt.
    Delay {
        /// The step, counted from 0.
        step: usize,
    },
    /// It becomes a dead letter.
    Dead,
}

/// Decides.
#[must_use]
pub fn next(trial: &Trial<'_>) -> Next {
    let landing = match trial.landing {
        Ok(landing) => landing,
        Err(Died::Before) => return Next::Hold,
        Err(Died::OverIt) => return after_a_death(trial),
    };
    match &landing.fault {
        None => Next::Done,
        Some(Fault::Stock { is_away: true, .. } | Fault::Ledger { class: Class::Down, .. }) => {
            Next::Hold
        }
        // The ledger has it. A stock that does not want to hear of it, because it is being built
        // anew or does not know the SKU any more, takes it from there.
        Some(Fault::Stock { is_away: false, .. }) => match failed(trial) {
            Next::Dead => Next::Done,
            next => next,
        },
        Some(Fault::Ledger { class: Class::Unknown, .. }) => {
            if trial.others_answered {
                failed(trial)
            } else {
                Next::Hold
            }
        }
        Some(Fault::Ledger { class: Class::Retry, .. }) if trial.ledger_fails => Next::Hold,
        Some(Fault::Ledger { class: Class::Retry | Class::Bug, .. }) => failed(trial),
    }
}

/// The ledger answers, and this failed.
fn failed(trial: &Trial<'_>) -> Next {
    if trial.was_alone { attempt(trial, 0) } else { Next::Apart }
}

/// Every death of a consumer costs all others their place, and is one restart of few: who is alone
/// with it waits as long as there is, and dies the next time.
fn after_a_death(trial: &Trial<'_>) -> Next {
    if trial.ledger_fails {
        Next::Hold
    } else if trial.was_alone {
        attempt(trial, trial.num_delays.saturating_sub(1))
    } else {
        Next::Apart
    }
}

fn attempt(trial: &Trial<'_>, at_least: usize) -> Next {
    let step = usize::try_from(trial.attempts).unwrap_or(usize::MAX).max(at_least);
    if step < trial.num_delays { Next::Delay { step } } else { Next::Dead }
}

#[cfg(test)]
#[path = "retrying_tests.rs"]
mod tests;
