use proptest::prelude::*;

use super::*;

/// The second failure of a single order, with a commit of the ledger in between.
fn with_evidence(cause: &WriteError) -> FailedAttempt<'_> {
    FailedAttempt {
        cause,
        num_submitted: 1,
        was_exclusive: true,
        commits_at_failure: Some(7),
        num_commits: 8,
        attempts: 0,
        attempts_max: 3,
    }
}

fn ledger(class: ErrorClass) -> WriteError {
    WriteError::Ledger { class, text: "why".into() }
}

const DEAD_LETTER: RetryDecision = RetryDecision::DeadLetter { failures: 3 };

#[test]
fn a_failure_counts_once_the_ledger_has_committed_something_else() {
    for class in [ErrorClass::Bug, ErrorClass::Unknown] {
        let cause = ledger(class);
        let offending = with_evidence(&cause);
        assert_eq!(decide(&offending), RetryDecision::Count);
        assert_eq!(decide(&FailedAttempt { attempts: 1, ..offending }), RetryDecision::Count);
        assert_eq!(decide(&FailedAttempt { attempts: 2, ..offending }), DEAD_LETTER);
        assert_eq!(
            decide(&FailedAttempt { num_submitted: 512, ..offending }),
            RetryDecision::Split(8)
        );
        for attempts in [0, 2, 99] {
            let without = FailedAttempt { attempts, num_commits: 7, ..offending };
            assert_eq!(decide(&without), RetryDecision::Hold, "{class:?}: no commit in between");
            assert_eq!(
                decide(&FailedAttempt { num_submitted: 512, ..without }),
                RetryDecision::Probe
            );
            let first = FailedAttempt { attempts, commits_at_failure: None, ..offending };
            assert_eq!(decide(&first), RetryDecision::Hold, "{class:?}: the first failure");
            let shared = FailedAttempt { attempts, was_exclusive: false, ..offending };
            assert_eq!(decide(&shared), RetryDecision::Hold, "{class:?}: a shared transaction");
        }
    }
}

#[test]
fn contention_is_no_orders_fault_and_splits_the_orders_that_share_it() {
    let cause = ledger(ErrorClass::Retry);
    let contended = with_evidence(&cause);
    assert_eq!(decide(&FailedAttempt { attempts: 99, ..contended }), RetryDecision::Later);
    assert_eq!(
        decide(&FailedAttempt { commits_at_failure: None, ..contended }),
        RetryDecision::Hold
    );
    let many = FailedAttempt { num_submitted: 512, ..contended };
    assert_eq!(decide(&many), RetryDecision::Split(8));
    assert_eq!(decide(&FailedAttempt { commits_at_failure: None, ..many }), RetryDecision::Probe);
}

#[test]
fn a_crash_over_many_orders_splits_them_and_the_second_crash_over_one_dead_letters_it() {
    let cause = WriteError::Crashed;
    let crashed = with_evidence(&cause);
    assert_eq!(decide(&crashed), RetryDecision::DeadLetter { failures: 2 }, "both crashes");
    assert_eq!(decide(&FailedAttempt { commits_at_failure: None, ..crashed }), RetryDecision::Hold);
    assert_eq!(decide(&FailedAttempt { num_commits: 7, ..crashed }), RetryDecision::Hold);
    let many = FailedAttempt { num_submitted: 40, commits_at_failure: None, ..crashed };
    assert_eq!(decide(&many), RetryDecision::Split(40));
    assert_eq!(decide(&FailedAttempt { was_exclusive: false, ..many }), RetryDecision::Hold);
}

fn causes() -> impl Strategy<Value = WriteError> {
    prop_oneof![
        Just(WriteError::NotTried),
        Just(WriteError::Crashed),
        prop_oneof![
            Just(ErrorClass::Down),
            Just(ErrorClass::Unknown),
            Just(ErrorClass::Retry),
            Just(ErrorClass::Bug)
        ]
        .prop_map(ledger),
    ]
}

proptest! {
    /// Whatever the error: no failure is counted without evidence, and neither a ledger that is
    /// down nor contention counts against an order.
    #[test]
    fn nothing_is_an_orders_fault_without_evidence(
        cause in causes(),
        num_submitted in 1..600_usize,
        was_exclusive: bool,
        commits_at_failure in prop::option::of(0..4_u64),
        num_commits in 0..4_u64,
        attempts in 0..10_u32,
        attempts_max in 1..10_u32,
    ) {
        let failed = FailedAttempt {
            cause: &cause,
            num_submitted,
            was_exclusive,
            commits_at_failure,
            num_commits,
            attempts,
            attempts_max,
        };
        let decision = decide(&failed);
        if matches!(decision, RetryDecision::Count | RetryDecision::DeadLetter { .. }) {
            prop_assert!(num_submitted == 1 && was_exclusive);
            prop_assert!(cause != ledger(ErrorClass::Retry));
            prop_assert!(commits_at_failure.is_some_and(|before| num_commits > before));
        }
        if [WriteError::NotTried, ledger(ErrorClass::Down)].contains(&cause) {
            prop_assert_eq!(decision, RetryDecision::Hold);
        }
        match decision {
            RetryDecision::Split(parts) => {
                prop_assert!(was_exclusive && num_submitted > 1 && parts > 1);
            }
            RetryDecision::Probe => prop_assert!(was_exclusive && num_submitted > 1),
            RetryDecision::Later => {
                prop_assert_eq!(&cause, &ledger(ErrorClass::Retry));
                prop_assert!(was_exclusive && num_submitted == 1);
            }
            RetryDecision::Hold | RetryDecision::Count | RetryDecision::DeadLetter { .. } => {}
        }
    }
}
