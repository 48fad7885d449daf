//! Stock gates whose stock accepts a request, and whose answer is lost.

use floodgate::config::Tier;
use floodgate::messages::BuyAnswer;

use super::gates_failing::{Failing, OFFER};
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
