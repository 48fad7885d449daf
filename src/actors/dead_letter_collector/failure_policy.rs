//! Decides what to do with dead letters that could not be stored, and how many to store at once.
//! Pure.

use std::time::Duration;

use crate::db::ErrorClass;

/// Attempts to store one dead letter, while the ledger answers, before it is set aside.
const STORE_ATTEMPTS_MAX: u32 = 3;

/// Wait before a dead letter that the ledger rejected is retried.
pub(super) const RETRY_ASIDE_AFTER: Duration = Duration::from_secs(30);

/// Bytes of bodies in one transaction of several dead letters.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What to do with dead letters that could not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// The ledger is unavailable, or the cause is not certain yet: hold them and retry.
    Hold,
    /// The ledger answers: one of them is rejected. Store each in a transaction of its own.
    OneByOne,
    /// The ledger rejects this one: set it aside, so that the others are stored.
    SetAside,
}

/// Decides after a failed transaction of `size` dead letters. `ledger_answers`: a ping right after
/// the failure succeeded. `failures`: failures of a single dead letter, this one included.
///
/// The error class alone is not enough: a packet that is too large breaks the connection, as a
/// server that goes down does.
pub(super) fn after_failure(
    class: ErrorClass,
    ledger_answers: bool,
    size: usize,
    failures: u32,
) -> AfterFailure {
    match (ledger_answers, size) {
        (false, _) => AfterFailure::Hold,
        (true, 2..) => AfterFailure::OneByOne,
        (true, _) if class == ErrorClass::Bug || failures >= STORE_ATTEMPTS_MAX => {
            AfterFailure::SetAside
        }
        (true, _) => AfterFailure::Hold,
    }
}

/// Number of dead letters in the next transaction: at least one, in all at most [`BATCH_BYTES_MAX`]
/// of bodies.
pub(super) fn batch_len(body_sizes: impl IntoIterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    let fits = body_sizes.into_iter().enumerate().take_while(|(index, size)| {
        bytes = bytes.saturating_add(*size);
        *index == 0 || bytes <= BATCH_BYTES_MAX
    });
    fits.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_dead_letter_is_set_aside_and_an_unavailable_ledger_holds_all() {
        use AfterFailure::{Hold, OneByOne, SetAside};
        for class in [ErrorClass::Retry, ErrorClass::Down, ErrorClass::Unknown, ErrorClass::Bug] {
            for size in [1, 2, 64] {
                assert_eq!(after_failure(class, false, size, 99), Hold, "{class:?} {size}");
            }
            assert_eq!(after_failure(class, true, 2, 0), OneByOne);
            assert_eq!(after_failure(class, true, 1, STORE_ATTEMPTS_MAX), SetAside);
        }
        assert_eq!(after_failure(ErrorClass::Bug, true, 1, 1), SetAside);
        assert_eq!(after_failure(ErrorClass::Retry, true, 1, 1), Hold);
    }

    #[test]
    fn a_transaction_is_bounded_and_has_at_least_one_dead_letter() {
        assert_eq!(batch_len([]), 0);
        assert_eq!(batch_len([BATCH_BYTES_MAX * 9, 1]), 1);
        assert_eq!(batch_len([BATCH_BYTES_MAX / 2; 9]), 2);
        assert_eq!(batch_len([0; 64]), 64);
    }
}
