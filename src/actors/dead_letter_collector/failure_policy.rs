//! What the keeper decides, without doing it.

use std::time::Duration;

use crate::db::ErrorClass;

/// Tries to store one letter, while the ledger answers, before it is set aside.
const STORES_MAX: u32 = 3;

/// How long a letter that the ledger refused stays aside before it is tried again.
pub(super) const ASIDE: Duration = Duration::from_secs(30);

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
    class: ErrorClass,
    answers: bool,
    size: usize,
    failures: u32,
) -> AfterFailure {
    match (answers, size) {
        (false, _) => AfterFailure::Hold,
        (true, 2..) => AfterFailure::OneByOne,
        (true, _) if class == ErrorClass::Bug || failures >= STORES_MAX => AfterFailure::SetAside,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_letter_stops_nobody_and_a_dead_ledger_everybody() {
        use AfterFailure::{Hold, OneByOne, SetAside};
        for class in [ErrorClass::Retry, ErrorClass::Down, ErrorClass::Unknown, ErrorClass::Bug] {
            for size in [1, 2, 64] {
                assert_eq!(after_failure(class, false, size, 99), Hold, "{class:?} {size}");
            }
            assert_eq!(after_failure(class, true, 2, 0), OneByOne);
            assert_eq!(after_failure(class, true, 1, STORES_MAX), SetAside);
        }
        assert_eq!(after_failure(ErrorClass::Bug, true, 1, 1), SetAside);
        assert_eq!(after_failure(ErrorClass::Retry, true, 1, 1), Hold);
    }

    #[test]
    fn a_transaction_has_a_bound_and_at_least_one_letter() {
        assert_eq!(batch_len([]), 0);
        assert_eq!(batch_len([BATCH_BYTES * 9, 1]), 1);
        assert_eq!(batch_len([BATCH_BYTES / 2; 9]), 2);
        assert_eq!(batch_len([0; 64]), 64);
    }
}
