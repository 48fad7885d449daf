//! What the keeper decides, without doing it.

use std::collections::HashMap;
use std::time::Duration;

use crate::broker::Sent;
use crate::db::Class;

/// Tries to store one letter, while the ledger answers, before it is set aside.
const STORES_MAX: u32 = 3;

/// How long a letter that the ledger refused stays aside before it is tried again.
pub(super) const ASIDE: Duration = Duration::from_secs(30);

/// Tries to find a queue for a message that none wanted.
pub(super) const RESENDS_MAX: u32 = 3;

/// Messages whose tries are remembered.
const REMEMBERED_MAX: usize = 1024;

/// Bytes of bodies in one transaction, but at least one letter.
const BATCH_BYTES: usize = 2 * 1024 * 1024;

/// What to do about letters that could not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// The ledger is away: hold everything.
    Hold,
    /// The ledger is there: one of them is to blame, so store each alone.
    OneByOne,
    /// It is this one: the others go on without it.
    SetAside,
}

/// Judges a failed transaction of `size` letters. `answers`: the ledger was asked something else
/// right after, and answered. `failures`: how often the letter failed alone, this time included.
///
/// The class alone does not tell: a packet that is too large breaks the connection, which looks
/// like a server that went away.
pub(super) fn after_failure(
    class: Class,
    answers: bool,
    size: usize,
    failures: u32,
) -> AfterFailure {
    match (answers, size) {
        (false, _) => AfterFailure::Hold,
        (true, 2..) => AfterFailure::OneByOne,
        (true, _) if class == Class::Bug || failures >= STORES_MAX => AfterFailure::SetAside,
        (true, _) => AfterFailure::Hold,
    }
}

/// How many of the letters with bodies of these sizes go into the next transaction.
pub(super) fn batch_len(body_sizes: impl IntoIterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    let fits = body_sizes.into_iter().enumerate().take_while(|(index, size)| {
        bytes = bytes.saturating_add(*size);
        *index == 0 || bytes <= BATCH_BYTES
    });
    fits.count()
}

/// What to do with a message that no queue wanted, after it was published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AfterResend {
    /// It is in a queue: acknowledge the old copy.
    Arrived,
    /// Nothing is decided: hold it.
    Hold,
    /// It was refused once more: hold it, or give up, as its tries say.
    Failed(String),
}

/// Judges one result.
pub(super) fn after_resend(sent: Option<Sent>) -> AfterResend {
    match sent {
        Some(Sent::Confirmed) => AfterResend::Arrived,
        Some(Sent::Refused { reason }) => AfterResend::Failed(reason),
        // A copy more does no harm.
        Some(Sent::NotSent { .. } | Sent::Unknown { .. }) | None => AfterResend::Hold,
    }
}

/// How often each message was sent again: one that the broker takes and still finds no queue for
/// comes back for ever otherwise.
#[derive(Debug, Default)]
pub(super) struct Tries(HashMap<[u8; 32], u32>);

impl Tries {
    /// One try more.
    pub(super) fn spend(&mut self, digest: [u8; 32]) {
        if self.0.len() >= REMEMBERED_MAX {
            // What is forgotten is tried a few times more, no worse.
            self.0.clear();
        }
        let tries = self.0.entry(digest).or_default();
        *tries = tries.saturating_add(1);
    }

    /// Whether there is no try left.
    pub(super) fn are_used_up(&self, digest: &[u8; 32]) -> bool {
        self.0.get(digest).is_some_and(|tries| *tries >= RESENDS_MAX)
    }

    /// Forgets a message that was given up: if it is replayed, it starts anew.
    pub(super) fn forget(&mut self, digest: &[u8; 32]) {
        self.0.remove(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_letter_stops_nobody_and_a_dead_ledger_everybody() {
        use AfterFailure::{Hold, OneByOne, SetAside};
        for class in [Class::Retry, Class::Down, Class::Unknown, Class::Bug] {
            for size in [1, 2, 64] {
                assert_eq!(after_failure(class, false, size, 99), Hold, "{class:?} {size}");
            }
            assert_eq!(after_failure(class, true, 2, 0), OneByOne);
            assert_eq!(after_failure(class, true, 1, STORES_MAX), SetAside);
        }
        assert_eq!(after_failure(Class::Bug, true, 1, 1), SetAside);
        assert_eq!(after_failure(Class::Retry, true, 1, 1), Hold);
    }

    #[test]
    fn a_transaction_has_a_bound_and_at_least_one_letter() {
        assert_eq!(batch_len([]), 0);
        assert_eq!(batch_len([BATCH_BYTES * 9, 1]), 1);
        assert_eq!(batch_len([BATCH_BYTES / 2; 9]), 2);
        assert_eq!(batch_len([0; 64]), 64);
    }

    #[test]
    fn only_a_no_to_this_message_costs_it_a_try() {
        let reason = || "why".to_owned();
        assert_eq!(after_resend(Some(Sent::Confirmed)), AfterResend::Arrived);
        let refused = after_resend(Some(Sent::Refused { reason: reason() }));
        assert_eq!(refused, AfterResend::Failed(reason()));
        for sent in [Some(Sent::NotSent { reason: reason() }), None] {
            assert_eq!(after_resend(sent), AfterResend::Hold);
        }
        assert_eq!(after_resend(Some(Sent::Unknown { reason: reason() })), AfterResend::Hold);
    }

    #[test]
    fn tries_are_counted_per_message_and_forgotten_in_bulk() {
        let mut tries = Tries::default();
        for _ in 0..RESENDS_MAX {
            assert!(!tries.are_used_up(&[1; 32]));
            tries.spend([1; 32]);
        }
        assert!(tries.are_used_up(&[1; 32]) && !tries.are_used_up(&[2; 32]));
        tries.forget(&[1; 32]);
        assert!(!tries.are_used_up(&[1; 32]));
        for number in 0..5000_u32 {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&number.to_be_bytes());
            tries.spend(digest);
        }
        assert!(tries.0.len() <= REMEMBERED_MAX);
    }
}
