use proptest::prelude::*;

use super::*;

/// An order that failed alone before, and the ledger has committed something else since.
const GUILTY: FailedAttempt = FailedAttempt {
    trouble: NoOutcome::Ledger(ErrorClass::Bug),
    num_submitted: 1,
    was_exclusive: true,
    failed_at: Some(7),
    num_commits: 8,
    attempts: 0,
    attempts_max: 3,
};

#[test]
fn a_failure_counts_once_the_ledger_has_committed_something_else() {
    for class in [ErrorClass::Retry, ErrorClass::Bug, ErrorClass::Unknown] {
        let guilty = FailedAttempt { trouble: NoOutcome::Ledger(class), ..GUILTY };
        assert_eq!(next(&guilty), RetryDecision::Count);
        assert_eq!(next(&FailedAttempt { attempts: 1, ..guilty }), RetryDecision::Count);
        assert_eq!(next(&FailedAttempt { attempts: 2, ..guilty }), RetryDecision::DeadLetter);
        assert_eq!(next(&FailedAttempt { num_submitted: 512, ..guilty }), RetryDecision::Split(8));
        for attempts in [0, 2, 99] {
            let none = FailedAttempt { attempts, num_commits: 7, ..guilty };
            assert_eq!(next(&none), RetryDecision::Hold, "{class:?}: the ledger committed nothing");
            assert_eq!(next(&FailedAttempt { num_submitted: 512, ..none }), RetryDecision::Probe);
            let first = FailedAttempt { attempts, failed_at: None, ..guilty };
            assert_eq!(
                next(&first),
                RetryDecision::Hold,
                "{class:?}: it had not failed alone before"
            );
            let shared = FailedAttempt { attempts, was_exclusive: false, ..guilty };
            assert_eq!(next(&shared), RetryDecision::Hold, "{class:?}: others were with it");
        }
    }
}

#[test]
fn a_crash_over_many_makes_singles_and_the_second_over_one_is_its_last() {
    let crashed = FailedAttempt { trouble: NoOutcome::Crashed, ..GUILTY };
    assert_eq!(next(&crashed), RetryDecision::DeadLetter);
    assert_eq!(next(&FailedAttempt { failed_at: None, ..crashed }), RetryDecision::Hold);
    assert_eq!(next(&FailedAttempt { num_commits: 7, ..crashed }), RetryDecision::Hold);
    let many = FailedAttempt { num_submitted: 40, failed_at: None, ..crashed };
    assert_eq!(next(&many), RetryDecision::Split(40));
    assert_eq!(next(&FailedAttempt { was_exclusive: false, ..many }), RetryDecision::Hold);
}

fn troubles() -> impl Strategy<Value = NoOutcome> {
    prop_oneof![
        Just(NoOutcome::NotTried),
        Just(NoOutcome::Crashed),
        prop_oneof![
            Just(ErrorClass::Down),
            Just(ErrorClass::Unknown),
            Just(ErrorClass::Retry),
            Just(ErrorClass::Bug)
        ]
        .prop_map(NoOutcome::Ledger),
    ]
}

proptest! {
    /// Whatever the error: no order ends or is counted without evidence, and a ledger that is not
    /// there costs nobody anything.
    #[test]
    fn nothing_is_an_orders_fault_without_evidence(
        trouble in troubles(),
        num_submitted in 1..600_usize,
        was_exclusive: bool,
        failed_at in prop::option::of(0..4_u64),
        num_commits in 0..4_u64,
        attempts in 0..10_u32,
        attempts_max in 1..10_u32,
    ) {
        let failed = FailedAttempt {
            trouble, num_submitted, was_exclusive, failed_at, num_commits, attempts, attempts_max,
        };
        let next = next(&failed);
        if matches!(next, RetryDecision::Count | RetryDecision::DeadLetter) {
            prop_assert!(num_submitted == 1 && was_exclusive);
            prop_assert!(failed_at.is_some_and(|before| num_commits > before));
        }
        if matches!(trouble, NoOutcome::NotTried | NoOutcome::Ledger(ErrorClass::Down)) {
            prop_assert_eq!(next, RetryDecision::Hold);
        }
        match next {
            RetryDecision::Split(parts) => {
                prop_assert!(was_exclusive && num_submitted > 1 && parts > 1);
            }
            RetryDecision::Probe => prop_assert!(was_exclusive && num_submitted > 1),
            RetryDecision::Hold | RetryDecision::Count | RetryDecision::DeadLetter => {}
        }
    }
}
