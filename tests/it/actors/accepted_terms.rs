//! Requests that were accepted keep their time and their terms, and a request whose sender has gone
//! is not accepted later.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::payment_timer::repurchase::GateRepurchase;
use floodgate::actors::payment_timer::retaker::{Purchase, Repurchase};
use floodgate::config::Tier;
use floodgate::db::OrderReader;
use floodgate::domain::{Order, OrderState, RecordState, RequestId, SaleChange, SkuChange};
use floodgate::messages::BuyAnswer;

use super::gates_failing::{Failing, OFFER, undecided};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::harness::{Offer, START_MS, in_system, is_placed, is_repeated_order};
use crate::support::wait::until;

impl Failing {
    /// Changes the price, here and in the buckets.
    async fn change_price(&self, price: i64) {
        let price = SkuChange {
            id: "sku".parse().unwrap(),
            title: None,
            price: Some(price),
            limit: None,
            max_quantity: None,
            payment_window_s: None,
        };
        let change = SaleChange { skus: vec![price], ..SaleChange::default() };
        self.sales.change(&"sale".parse().unwrap(), change).await.unwrap();
    }
}

#[test]
fn a_request_that_its_sender_gave_up_between_two_attempts_is_not_accepted() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, Offer { buckets: 1, ..OFFER }).await;
        fixture.stock.set(StockFault::ReserveFails);
        let given_up = fixture.ask(2, 2, 1);
        loop {
            let before = fixture.stock.num_failed_reserves();
            let failed = async || (fixture.stock.num_failed_reserves() > before).then_some(());
            tokio::select! {
                // The last attempt failed before this one was seen: the buyer asks again.
                answer = fixture.gates.buy(given_up) => assert_eq!(answer, BuyAnswer::Busy),
                () = until("a failed attempt", failed) => break,
            }
        }
        fixture.stock.set(StockFault::None);
        // While a batch is retried the gate is busy.
        let placed = async || is_placed(&fixture.buy_as(3, 3, 1).await).then_some(());
        until("the gate to be done with the batch", placed).await;
        assert_eq!(fixture.find(&given_up).await, None);
        assert_eq!(fixture.left().await, OFFER.stock - 1);
    });
}

/// Meanwhile the price may have changed, or the window may have ended.
#[test]
fn a_repeat_of_a_queued_request_is_ordered_at_the_time_and_the_price_of_the_first() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, Offer { buckets: 1, ..OFFER }).await;
        fixture.ledger.set(Fault::Down);
        let first = fixture.ask(1, 1, 1);
        assert_eq!(fixture.gates.buy(first).await, undecided(Tier::Memory, false));
        fixture.ledger.set(Fault::None);
        // In the millisecond of the request, so that its time does not tell its terms.
        fixture.change_price(250).await;
        // Too short for the gate to submit the request again.
        fixture.clock.advance(Duration::from_millis(500));
        let repeat = fixture.ask(1, 1, 1);
        assert_ne!((repeat.amount, repeat.epoch), (first.amount, first.epoch));
        let placed = async || is_repeated_order(&fixture.gates.buy(repeat).await).then_some(());
        until("the order", placed).await;
        let timeline = fixture.ledger.order_timeline(first.request).await.unwrap().unwrap();
        let order = timeline.order;
        assert_eq!((order.placed_at_ms, order.epoch), (START_MS, first.epoch));
        assert_eq!(order.amount, first.amount);
        let state = fixture.find(&first).await;
        let is_of_first =
            |it| matches!(it, RecordState::Ordered { amount, .. } if amount == first.amount);
        assert!(state.is_some_and(is_of_first), "{state:?}");
        fixture.assert_holds().await;
    });
}

/// The request that buys again with late money, at the gates, and the order that timed out.
fn late_money(fixture: &Failing) -> (RequestId, GateRepurchase, Order) {
    let successor = RequestId::new(77).unwrap();
    let shop = GateRepurchase {
        gates: fixture.gates.clone(),
        catalog: Arc::clone(&fixture.catalog),
        stock: fixture.stock.clone(),
        next: Arc::new(move |_, _, _, _| successor),
        clock: fixture.clock.clone(),
    };
    let ended = fixture.ask(1, 1, 1).order(START_MS);
    (successor, shop, Order { state: OrderState::TimedOut, version: 1, ..ended })
}

#[test]
fn late_money_waits_for_its_accepted_purchase_though_the_price_has_changed() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let (successor, shop, ended) = late_money(&fixture);
        fixture.ledger.set(Fault::Down);
        assert_eq!(shop.buy(&ended, successor).await, Purchase::Queued);
        fixture.ledger.set(Fault::None);
        fixture.change_price(250).await;
        assert_eq!(shop.buy(&ended, successor).await, Purchase::Queued, "it was accepted");
        fixture.stock.set(StockFault::RecordFails);
        let unknown = shop.buy(&ended, successor).await;
        assert_eq!(unknown, Purchase::NotAccepted, "it may have been accepted");
        fixture.stock.set(StockFault::None);
        let other = RequestId::new(78).unwrap();
        let refused = Purchase::Refused("the price has changed".to_owned());
        assert_eq!(shop.buy(&ended, other).await, refused);
    });
}

#[test]
fn late_money_buys_a_unit_that_its_ended_order_has_not_returned_to_the_bucket_yet() {
    in_system(async {
        let offer = Offer { stock: 1, buckets: 1, ..OFFER };
        let fixture = Failing::open(Tier::Memory, offer).await;
        assert!(is_placed(&fixture.buy_as(1, 1, 1).await));
        let (successor, shop, ended) = late_money(&fixture);
        fixture.ledger.set(Fault::Down);
        fixture.stock.set(StockFault::RefusesResults);
        assert_eq!(shop.buy(&ended, successor).await, Purchase::NotAccepted);
        fixture.stock.set(StockFault::None);
        assert_eq!(shop.buy(&ended, successor).await, Purchase::Queued);
    });
}
