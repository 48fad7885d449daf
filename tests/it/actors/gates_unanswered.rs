//! Stock gates whose stock accepts a request, and whose answer is lost or wrong.

use floodgate::config::Tier;
use floodgate::db::{ErrorClass, OrderWriter};
use floodgate::domain::{PlaceOutcome, Refusal};
use floodgate::messages::{BuyAnswer, WriteError};

use super::gates_failing::{Failing, OFFER};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::harness::in_system;

#[test]
fn a_request_whose_acceptance_was_lost_is_not_answered_busy_by_a_later_attempt() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        fixture.stock.set(StockFault::AnswerLostThenUnavailable);
        assert_eq!(fixture.buy_as(7, 7, 1).await, BuyAnswer::Unknown);
        assert!(fixture.stock.num_failed_reserves() > 0, "later attempts certainly failed");
        fixture.stock.set(StockFault::None);
        assert_eq!(fixture.drained().await, 1, "the first attempt was accepted");
    });
}

#[test]
fn an_order_that_another_writer_places_after_its_refusal_keeps_its_units() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let intent = fixture.ask(1, 1, 1);
        fixture.ledger.place(vec![intent]).await.unwrap();
        fixture.ledger.set(Fault::ExaminesBeforeOthers);
        let refused = fixture.actors.ledger_writer.place_and_settle(vec![intent]).await;
        let is_unknown =
            matches!(refused[0], Err(WriteError::Ledger { class: ErrorClass::Unknown, .. }));
        assert!(is_unknown, "{refused:?}");
        fixture.ledger.set(Fault::None);
        let repeated = fixture.actors.ledger_writer.place_and_settle(vec![intent]).await;
        assert!(matches!(repeated[0], Ok(PlaceOutcome::Repeat(_))), "{repeated:?}");
    });
}

#[test]
fn a_refusal_after_the_buyers_cancellation_keeps_the_recorded_reason() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let intent = fixture.ask(1, 1, 1);
        let cancelled = intent.failure(Refusal::CancelledByBuyer, 1);
        fixture.ledger.record_failures(vec![cancelled]).await.unwrap();
        fixture.ledger.set(Fault::ExaminesBeforeOthers);
        let refused = fixture.actors.ledger_writer.place_and_settle(vec![intent]).await;
        let cancelled = PlaceOutcome::Refused(Refusal::CancelledByBuyer);
        assert_eq!(refused[0].as_ref().ok(), Some(&cancelled), "{refused:?}");
    });
}
