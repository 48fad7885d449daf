use proptest::prelude::*;

use super::*;
use crate::domain::Outcome;

const DELAYS: usize = 3;

fn ledger(class: Class) -> Fault {
    Fault::Ledger { class, said: "no".into() }
}

fn stock(is_away: bool) -> Fault {
    Fault::Stock { is_away, said: "no".into() }
}

fn landing(fault: Option<Fault>) -> Landing {
    Landing { outcome: Some(Outcome::Unavailable), fault }
}

/// A first try, alone, at a ledger that answers.
fn trial(landing: Result<&Landing, Died>) -> Trial<'_> {
    Trial {
        landing,
        attempts: 0,
        was_alone: true,
        others_answered: false,
        ledger_fails: false,
        num_delays: DELAYS,
    }
}

#[test]
fn what_has_its_result_is_done() {
    assert_eq!(next(&trial(Ok(&landing(None)))), Next::Done);
}

#[test]
fn whoever_is_away_is_waited_for_however_long() {
    for fault in [stock(true), ledger(Class::Down), ledger(Class::Unknown)] {
        let landing = landing(Some(fault));
        for attempts in [0, 2, 99] {
            assert_eq!(next(&Trial { attempts, ..trial(Ok(&landing)) }), Next::Hold);
        }
    }
    let busy = landing(Some(ledger(Class::Retry)));
    assert_eq!(next(&Trial { ledger_fails: true, ..trial(Ok(&busy)) }), Next::Hold);
    assert_eq!(next(&trial(Err(Died::Before))), Next::Hold, "it was never tried");
}

#[test]
fn what_fails_alone_climbs_the_delays_and_dies() {
    for class in [Class::Retry, Class::Bug] {
        let landing = landing(Some(ledger(class)));
        let steps = (0..5).map(|attempts| next(&Trial { attempts, ..trial(Ok(&landing)) }));
        let expected = [
            Next::Delay { step: 0 },
            Next::Delay { step: 1 },
            Next::Delay { step: 2 },
            Next::Dead,
            Next::Dead,
        ];
        assert_eq!(steps.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_doubt_is_an_attempt_only_once_the_ledger_has_answered_others() {
    let landing = landing(Some(ledger(Class::Unknown)));
    let doubted = Trial { others_answered: true, ..trial(Ok(&landing)) };
    assert_eq!(next(&doubted), Next::Delay { step: 0 });
    assert_eq!(next(&Trial { was_alone: false, ..doubted }), Next::Apart);
}

#[test]
fn a_death_over_it_goes_to_the_longest_wait_and_the_second_is_the_last() {
    let died = trial(Err(Died::OverIt));
    assert_eq!(next(&Trial { was_alone: false, ..died }), Next::Apart);
    assert_eq!(next(&died), Next::Delay { step: 2 });
    assert_eq!(next(&Trial { attempts: 3, ..died }), Next::Dead);
    assert_eq!(next(&Trial { ledger_fails: true, ..died }), Next::Hold);
}

#[test]
fn a_stock_that_does_not_want_to_hear_ends_in_no_dead_letter() {
    let landing = landing(Some(stock(false)));
    assert_eq!(next(&trial(Ok(&landing))), Next::Delay { step: 0 });
    assert_eq!(next(&Trial { attempts: 3, ..trial(Ok(&landing)) }), Next::Done);
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        Just(None),
        Just(Some(stock(true))),
        Just(Some(stock(false))),
        Just(Some(ledger(Class::Down))),
        Just(Some(ledger(Class::Unknown))),
        Just(Some(ledger(Class::Retry))),
        Just(Some(ledger(Class::Bug))),
    ]
}

proptest! {
    /// Whatever is told: among others nothing is an attempt, only a ledger that answers is, and
    /// only the last attempt is the end.
    #[test]
    fn nobody_dies_without_having_failed_alone_often_enough(
        fault in faults(),
        died in prop::option::of(prop_oneof![Just(Died::Before), Just(Died::OverIt)]),
        attempts in 0..10_u32,
        was_alone: bool,
        others_answered: bool,
        ledger_fails: bool,
        num_delays in 0..5_usize,
    ) {
        let landing = landing(fault.clone());
        let landing = died.map_or(Ok(&landing), Err);
        let trial =
            Trial { landing, attempts, was_alone, others_answered, ledger_fails, num_delays };
        let is_written = matches!(fault, None | Some(Fault::Stock { is_away: false, .. }));
        match next(&trial) {
            Next::Delay { step } => {
                prop_assert!(was_alone && step < num_delays && step >= attempts as usize);
            }
            Next::Dead => prop_assert!(was_alone && attempts as usize >= num_delays),
            Next::Apart => prop_assert!(!was_alone),
            Next::Done => prop_assert!(landing.is_ok() && is_written),
            Next::Hold => prop_assert!(landing.is_err() || fault.is_some()),
        }
    }
}
