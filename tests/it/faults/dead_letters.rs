//! Dead-letter collectors and operators that crash between two steps.

use floodgate::domain::DeadLetterState;
use floodgate::services::dead_letters::{DeadLetterError, DeadLetterOutcome};

use crate::support::dead_letter_collectors::{DeadLetterFixture, dead_letter_of, numbers};
use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;
use crate::support::wait::until;

#[test]
fn stored_not_acknowledged_is_redelivered_and_recognised() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        // The ledger commits, and its answer is lost.
        fixture.ledger.set(Fault::AnswerLost);
        let first = fixture.collector();
        fixture.publish(vec![fixture.dead(&[1, 2], "why")]).await;
        fixture.until_dead_letters(1).await;
        first.kill().await;
        assert_eq!(fixture.broker.waiting("dead").len(), 1, "the message was not acknowledged");

        fixture.ledger.set(Fault::None);
        let second = fixture.collector();
        until("an empty queue", || async {
            let dead_letter = dead_letter_of(&fixture, 1).await;
            (dead_letter.arrivals > 1 && fixture.broker.waiting("dead").is_empty()).then_some(())
        })
        .await;
        second.kill().await;
        assert!(fixture.broker.waiting("dead").is_empty(), "the message was acknowledged");
        let dead_letters = fixture.until_dead_letters(1).await;
        assert_eq!(
            (numbers(&dead_letters[0]), dead_letters[0].dead_letter.state),
            (vec![1, 2], DeadLetterState::Open)
        );
    });
}

#[test]
fn replayed_not_marked_is_still_open_and_may_be_replayed_again() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        let collector = fixture.collector();
        fixture.publish(vec![fixture.dead(&[1], "why")]).await;
        let no = fixture.until_dead_letters(1).await[0].dead_letter.no;
        collector.kill().await;
        let service = fixture.sales();

        fixture.broker.hold(true);
        let fail_ledger = async {
            // The service has read the dead letter and waits for the confirm; the ledger fails.
            fixture.ledger.set(Fault::Down);
            fixture.broker.hold(false);
        };
        let (replayed, ()) = tokio::join!(service.replay(no), fail_ledger);
        assert!(matches!(replayed, Err(DeadLetterError::Ledger(_))), "{replayed:?}");
        assert_eq!(fixture.broker.waiting("orders.0").len(), 1);
        assert_eq!(dead_letter_of(&fixture, 1).await.state, DeadLetterState::Open);

        fixture.ledger.set(Fault::None);
        let (outcome, dead_letter) = service.replay(no).await.unwrap();
        assert_eq!(
            (outcome, dead_letter.state),
            (DeadLetterOutcome::Published, DeadLetterState::Replayed)
        );
        assert_eq!(fixture.broker.waiting("orders.0").len(), 2, "two copies of one request");
    });
}
