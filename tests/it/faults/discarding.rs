//! Discarded dead letters: each request becomes a failure, unless it is already an order.

use bytes::Bytes;
use floodgate::broker::Delivery;
use floodgate::config::Tier;
use floodgate::db::{DeadLetterStore, OrderReader, OrderWriter};
use floodgate::domain::{
    DeadLetterFilter, DeadLetterNo, DeadLetterState, Failure, OrderIntent, PlaceOutcome,
    RecordState, Refusal,
};
use floodgate::messages::BuyAnswer;
use floodgate::messages::envelope;
use floodgate::services::dead_letters::new_dead_letter;
use floodgate::services::dead_letters::{DeadLetterError, DeadLetterOutcome, DeadLetterService};
use futures_util::future::join_all;

use crate::actors::gates_failing::{Failing, OFFER};
use crate::support::dead_letters::read_dead_letters;
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::harness::{QUEUED, START_MS, in_system};
use crate::support::intents::{pack_into, reader};

const INSTALLATION: &str = "0badcafe";

const DISCARDED: BuyAnswer = BuyAnswer::Refused { refusal: Refusal::Discarded, replayed: true };

/// Accepted requests that never reached the ledger; each has the number of its buyer.
async fn accept_without_ledger(
    requests: std::ops::RangeInclusive<u64>,
) -> (Failing, DeadLetterService) {
    let fixture = Failing::open(Tier::Memory, OFFER).await;
    fixture.ledger.set(Fault::Frozen);
    let buyers: Vec<u64> = requests.collect();
    let buying = join_all(buyers.iter().map(|buyer| fixture.harness.buy_as(*buyer, *buyer, 1)));
    let failing = async {
        fixture.accepted(&buyers).await;
        fixture.ledger.set(Fault::Down);
    };
    tokio::join!(buying, failing);
    fixture.ledger.set(Fault::None);
    // The tests repeat requests at once, so the breaker must be closed.
    fixture.harness.actors.breaker.close();
    let service = service(&fixture);
    (fixture, service)
}

fn service(fixture: &Failing) -> DeadLetterService {
    DeadLetterService::new(
        fixture.ledger.clone(),
        fixture.harness.actors.requests.clone(),
        fixture.harness.clock.clone(),
        None,
        1,
    )
}

impl Failing {
    fn intent(&self, request: u64) -> OrderIntent {
        self.harness.ask(request, request, 1)
    }

    /// Stores the dead letter of one message with these requests.
    async fn store_dead_letter(&self, requests: &[u64]) -> DeadLetterNo {
        let mut body = Vec::new();
        for request in requests {
            pack_into(&self.intent(*request), &mut body);
        }
        let body = Bytes::from(body);
        let headers = envelope::headers(&body, INSTALLATION, START_MS);
        let delivery =
            Delivery { tag: 1, headers, routing_key: String::new(), num_previous: 0, body };
        let dead_letter =
            new_dead_letter::from_delivery(&delivery, &reader(INSTALLATION), START_MS);
        self.ledger.store_dead_letters(vec![dead_letter], START_MS).await.unwrap();
        let first = self.intent(requests[0]).request;
        read_dead_letters(&*self.ledger, DeadLetterFilter::with(first), u32::MAX).await[0].no
    }
}

#[test]
fn a_discarded_request_is_a_failure_and_its_unit_comes_back_once() {
    in_system(async {
        let (fixture, service) = accept_without_ledger(1..=2).await;
        let no = fixture.store_dead_letter(&[1, 2]).await;
        assert_eq!(fixture.left().await, 98);
        let (outcome, dead_letter) = service.discard(no, Some("cancelled")).await.unwrap();
        assert_eq!(
            (outcome, dead_letter.state),
            (DeadLetterOutcome::Discarded, DeadLetterState::Discarded)
        );
        assert_eq!(dead_letter.note.as_deref(), Some("cancelled"));
        for _ in 0..2 {
            assert_eq!(fixture.left().await, 100, "once");
            for request in [1, 2] {
                let status = fixture.find(&fixture.harness.ask(request, request, 1)).await;
                assert_eq!(status, Some(RecordState::Failed(Refusal::Discarded)));
                assert_eq!(fixture.harness.buy_as(request, request, 1).await, DISCARDED);
            }
            assert_eq!(service.discard(no, None).await.unwrap().0, DeadLetterOutcome::Already);
        }
        // A copy of the message arrives later.
        let late =
            fixture.harness.actors.ledger_writer.place_and_settle(vec![fixture.intent(1)]).await;
        assert_eq!(late, [Ok(PlaceOutcome::Refused(Refusal::Discarded))]);
        assert_eq!((fixture.drained().await, fixture.left().await), (0, 100));
    });
}

#[test]
fn an_order_stays_and_the_others_of_its_dead_letter_are_discarded() {
    in_system(async {
        let (fixture, service) = accept_without_ledger(1..=2).await;
        let (single, both) =
            (fixture.store_dead_letter(&[1]).await, fixture.store_dead_letter(&[2, 1]).await);
        fixture.harness.actors.ledger_writer.place_and_settle(vec![fixture.intent(1)]).await;
        assert!(matches!(service.discard(single, None).await, Err(DeadLetterError::Ordered)));
        assert_eq!(service.show(single).await.unwrap().dead_letter.state, DeadLetterState::Open);
        assert_eq!(service.discard(both, None).await.unwrap().0, DeadLetterOutcome::Discarded);
        assert!(fixture.ledger.failure(fixture.intent(1).request).await.unwrap().is_none());
        assert_eq!(fixture.harness.buy_as(2, 2, 1).await, DISCARDED);
        assert_eq!((fixture.drained().await, fixture.left().await), (1, 99));
    });
}

#[test]
fn a_stock_that_takes_no_results_gets_the_failure_with_a_repeat() {
    in_system(async {
        let (fixture, service) = accept_without_ledger(1..=1).await;
        let no = fixture.store_dead_letter(&[1]).await;
        fixture.stock.set(StockFault::RefusesResults);
        assert_eq!(service.discard(no, None).await.unwrap().0, DeadLetterOutcome::Discarded);
        assert_eq!(
            (fixture.left().await, fixture.find(&fixture.harness.ask(1, 1, 1)).await),
            (99, Some(QUEUED))
        );
        fixture.stock.set(StockFault::None);
        assert_eq!(service.discard(no, None).await.unwrap().0, DeadLetterOutcome::Already);
        assert_eq!((fixture.drained().await, fixture.left().await), (0, 100));
    });
}

/// The process crashed after it had recorded the failures.
#[test]
fn failed_not_discarded_goes_on_with_a_repeat() {
    in_system(async {
        let (fixture, service) = accept_without_ledger(1..=1).await;
        let (no, intent) = (fixture.store_dead_letter(&[1]).await, fixture.intent(1));
        let failure = Failure {
            request: intent.request,
            sku: intent.sku,
            buyer: intent.buyer,
            quantity: intent.quantity,
            reason: Refusal::Discarded,
            recorded_at_ms: START_MS,
        };
        fixture.ledger.record_failures(vec![failure]).await.unwrap();
        assert_eq!(service.discard(no, None).await.unwrap().0, DeadLetterOutcome::Discarded);
        assert_eq!(fixture.harness.buy_as(1, 1, 1).await, DISCARDED);
        assert_eq!((fixture.drained().await, fixture.left().await), (0, 100));
    });
}

/// Two operators discard a dead letter while its message is delivered again.
#[test]
fn discard_and_order_at_once_end_each_request_once() {
    in_system(async {
        let (fixture, service) = accept_without_ledger(1..=40).await;
        let other = self::service(&fixture);
        let mut dead_letters = Vec::new();
        for request in 1..=40 {
            dead_letters.push((request, fixture.store_dead_letter(&[request]).await));
        }
        let races = dead_letters.iter().map(async |(request, no)| {
            let (by_one, by_other, placed) = tokio::join!(
                service.discard(*no, None),
                other.discard(*no, None),
                fixture
                    .harness
                    .actors
                    .ledger_writer
                    .place_and_settle(vec![fixture.intent(*request)]),
            );
            let is_order = matches!(placed[0], Ok(PlaceOutcome::Placed(_)));
            let is_refused = placed[0] == Ok(PlaceOutcome::Refused(Refusal::Discarded));
            assert!(is_order != is_refused, "{placed:?}");
            for outcome in [by_one, by_other] {
                // The second operator may find the dead letter discarded or changed.
                let is_expected = match outcome {
                    Ok(_) | Err(DeadLetterError::Changed) => is_refused,
                    Err(DeadLetterError::Ordered) => is_order,
                    Err(_) => false,
                };
                assert!(is_expected, "{request}: {outcome:?} {placed:?}");
            }
            u32::from(is_order)
        });
        let num_orders: u32 = join_all(races).await.into_iter().sum();
        assert_eq!(fixture.drained().await, u64::from(num_orders));
        assert_eq!(fixture.left().await, 100 - num_orders);
    });
}
