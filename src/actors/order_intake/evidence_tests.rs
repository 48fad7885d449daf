use proptest::prelude::*;

use super::*;

/// An order that failed alone before, and the ledger has committed something else since.
const GUILTY: Failed = Failed {
    trouble: Trouble::Ledger(Class::Bug),
    num_submitted: 1,
    was_exclusive: true,
    failed_at: Some(7),
    num_commits: 8,
    attempts: 0,
    attempts_max: 3,
};

#[test]
fn a_failure_counts_once_the_ledger_has_committed_something_else() {
    for class in [Class::Retry, Class::Bug, Class::Unknown] {
        let guilty = Failed { trouble: Trouble::Ledger(class), ..GUILTY };
        assert_eq!(next(&guilty), Next::Count);
        assert_eq!(next(&Failed { attempts: 1, ..guilty }), Next::Count);
        assert_eq!(next(&Failed { attempts: 2, ..guilty }), Next::DeadLetter);
        assert_eq!(next(&Failed { num_submitted: 512, ..guilty }), Next::Split(8));
        for attempts in [0, 2, 99] {
            let none = Failed { attempts, num_commits: 7, ..guilty };
            assert_eq!(next(&none), Next::Hold, "{class:?}: the ledger committed nothing");
            assert_eq!(next(&Failed { num_submitted: 512, ..none }), Next::Probe);
            let first = Failed { attempts, failed_at: None, ..guilty };
            assert_eq!(next(&first), Next::Hold, "{class:?}: it had not failed alone before");
            let shared = Failed { attempts, was_exclusive: false, ..guilty };
            assert_eq!(next(&shared), Next::Hold, "{class:?}: others were with it");
        }
    }
}

#[test]
fn a_crash_over_many_makes_singles_and_the_second_over_one_is_its_last() {
    let crashed = Failed { trouble: Trouble::Crashed, ..GUILTY };
    assert_eq!(next(&crashed), Next::DeadLetter);
    assert_eq!(next(&Failed { failed_at: None, ..crashed }), Next::Hold);
    assert_eq!(next(&Failed { num_commits: 7, ..crashed }), Next::Hold);
    let many = Failed { num_submitted: 40, failed_at: None, ..crashed };
    assert_eq!(next(&many), Next::Split(40));
    assert_eq!(next(&Failed { was_exclusive: false, ..many }), Next::Hold);
}

fn troubles() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        Just(Trouble::NotTried),
        Just(Trouble::Crashed),
        prop_oneof![Just(Class::Down), Just(Class::Unknown), Just(Class::Retry), Just(Class::Bug)]
            .prop_map(Trouble::Ledger),
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
        let failed = Failed {
            trouble, num_submitted, was_exclusive, failed_at, num_commits, attempts, attempts_max,
        };
        let next = next(&failed);
        if matches!(next, Next::Count | Next::DeadLetter) {
            prop_assert!(num_submitted == 1 && was_exclusive);
            prop_assert!(failed_at.is_some_and(|before| num_commits > before));
        }
        if matches!(trouble, Trouble::NotTried | Trouble::Ledger(Class::Down)) {
            prop_assert_eq!(next, Next::Hold);
        }
        match next {
            Next::Split(parts) => {
                prop_assert!(was_exclusive && num_submitted > 1 && parts > 1);
            }
            Next::Probe => prop_assert!(was_exclusive && num_submitted > 1),
            Next::Hold | Next::Count | Next::DeadLetter => {}
        }
    }
}
