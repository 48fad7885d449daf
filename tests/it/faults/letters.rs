//! Keepers of dead letters and operators that die between two steps.

use floodgate::domain::DeadLetterState;
use floodgate::services::dead_letters::{DeadLetterError, VerbOutcome};

use crate::support::faulty_ledger::Fault;
use crate::support::keepers::{Office, letter_of, numbers};
use crate::support::rig::in_system;
use crate::support::wait::until;

#[test]
fn letter_kept_not_acked_is_delivered_again_and_known() {
    in_system(async {
        let office = Office::new();
        // It writes, and whoever asked never hears of it.
        office.ledger.set(Fault::Mute);
        let first = office.keeper();
        office.publish(vec![office.dead(&[1, 2], "why")]).await;
        office.until_letters(1).await;
        first.kill().await;
        assert_eq!(office.broker.waiting("dead").len(), 1, "it was not acknowledged");

        office.ledger.set(Fault::None);
        let second = office.keeper();
        until("an empty queue", || async {
            let letter = letter_of(&office, 1).await;
            (letter.arrivals > 1 && office.broker.waiting("dead").is_empty()).then_some(())
        })
        .await;
        second.kill().await;
        assert!(office.broker.waiting("dead").is_empty(), "it was acknowledged");
        let letters = office.until_letters(1).await;
        assert_eq!(
            (numbers(&letters[0]), letters[0].letter.state),
            (vec![1, 2], DeadLetterState::Open)
        );
    });
}

#[test]
fn entry_kept_not_collected_is_found_again_and_known() {
    in_system(async {
        let office = Office::new();
        office.ledger.set(Fault::Mute);
        let first = office.keeper();
        office.bury(&[1]);
        office.until_letters(1).await;
        first.kill().await;
        assert_eq!(office.world.store.dead().len(), 1, "it was not collected");

        office.ledger.set(Fault::None);
        let _second = office.keeper();
        let store = &office.world.store;
        until("the collection", || async { store.dead().is_empty().then_some(()) }).await;
        office.until_letters(1).await;
        assert!(letter_of(&office, 1).await.arrivals > 1);
    });
}

#[test]
fn replayed_not_marked_is_still_open_and_may_be_replayed_again() {
    in_system(async {
        let office = Office::new();
        let keeper = office.keeper();
        office.publish(vec![office.dead(&[1], "why")]).await;
        let no = office.until_letters(1).await[0].letter.no;
        keeper.kill().await;
        let desk = office.desk();

        office.broker.hold(true);
        let die = async {
            // The desk has read the letter and waits for the broker; the ledger goes away.
            office.ledger.set(Fault::Down);
            office.broker.hold(false);
        };
        let (replayed, ()) = tokio::join!(desk.replay(no), die);
        assert!(matches!(replayed, Err(DeadLetterError::Ledger(_))), "{replayed:?}");
        assert_eq!(office.broker.waiting("orders.0").len(), 1);
        assert_eq!(letter_of(&office, 1).await.state, DeadLetterState::Open);

        office.ledger.set(Fault::None);
        let (done, letter) = desk.replay(no).await.unwrap();
        assert_eq!((done, letter.state), (VerbOutcome::Published, DeadLetterState::Replayed));
        assert_eq!(office.broker.waiting("orders.0").len(), 2, "copies of one request");
    });
}
