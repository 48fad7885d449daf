//! Dead letters that are discarded: their requests end as failures, unless they are orders.

use bytes::Bytes;
use floodgate::broker::Delivery;
use floodgate::config::Tier;
use floodgate::db::Ledger;
use floodgate::domain::{
    DeadLetterFilter, DeadLetterNo, DeadLetterState, Failure, OrderIntent, PlaceOutcome, Refusal,
    RequestStatus,
};
use floodgate::messages::BuyAnswer;
use floodgate::messages::envelope;
use floodgate::redis::scripts::intent;
use floodgate::services::dead_letters::headers;
use floodgate::services::dead_letters::{DeadLetterError, DeadLetterService, VerbOutcome};
use futures_util::future::join_all;

use crate::actors::gates_failing::{Failing, OFFER};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::StockFault;
use crate::support::rig::{START_MS, in_system};

const INSTALLATION: &str = "0badcafe";

const DISCARDED: BuyAnswer = BuyAnswer::Refused { refusal: Refusal::Discarded, replayed: true };

/// Requests that were accepted, each by the buyer of its number, and that the ledger never got.
async fn accepted(requests: std::ops::RangeInclusive<u64>) -> (Failing, DeadLetterService) {
    let it = Failing::open(Tier::Memory, OFFER).await;
    it.ledger.set(Fault::Frozen);
    let buyers: Vec<u64> = requests.collect();
    let buying = join_all(buyers.iter().map(|buyer| it.rig.buy_as(*buyer, *buyer, 1)));
    let failing = async {
        it.accepted(&buyers).await;
        it.ledger.set(Fault::Down);
    };
    tokio::join!(buying, failing);
    it.ledger.set(Fault::None);
    // Repeats are asked at once.
    it.rig.actors.breaker().close();
    let desk = desk(&it);
    (it, desk)
}

fn desk(it: &Failing) -> DeadLetterService {
    DeadLetterService::new(it.ledger.clone(), it.stock.clone(), it.rig.clock.clone(), None, 1)
}

impl Failing {
    fn intent(&self, request: u64) -> OrderIntent {
        let listed = self.rig.catalog.sale("sale").unwrap();
        self.rig.ask(request, request, 1).intent(listed.sku("sku").unwrap())
    }

    /// The letter of one message with these requests.
    async fn letter(&self, requests: &[u64]) -> DeadLetterNo {
        let mut body = Vec::new();
        for request in requests {
            intent::pack_into(&self.intent(*request), &mut body);
        }
        let body = Bytes::from(body);
        let headers = envelope::headers(&body, INSTALLATION, START_MS).unwrap();
        let delivery =
            Delivery { tag: 1, headers, routing_key: String::new(), num_before: 0, body };
        let letter = headers::of_dead(&delivery, INSTALLATION, START_MS);
        self.ledger.keep_dead_letters(vec![letter], START_MS).await.unwrap();
        let first = self.intent(requests[0]).request;
        self.ledger.dead_letters(DeadLetterFilter::with(first), u32::MAX).await.unwrap()[0].no
    }
}

#[test]
fn a_discarded_request_is_a_failure_and_its_unit_comes_back_once() {
    in_system(async {
        let (it, desk) = accepted(1..=2).await;
        let no = it.letter(&[1, 2]).await;
        assert_eq!(it.left().await, 98);
        let (done, letter) = desk.discard(no, Some("cancelled")).await.unwrap();
        assert_eq!((done, letter.state), (VerbOutcome::Discarded, DeadLetterState::Discarded));
        assert_eq!(letter.note.as_deref(), Some("cancelled"));
        for _ in 0..2 {
            assert_eq!(it.left().await, 100, "once");
            for request in [1, 2] {
                let standing = it.find(&it.rig.ask(request, request, 1)).await;
                assert_eq!(standing, Some(RequestStatus::Failed(Refusal::Discarded)));
                assert_eq!(it.rig.buy_as(request, request, 1).await, DISCARDED);
            }
            assert_eq!(desk.discard(no, None).await.unwrap().0, VerbOutcome::Already);
        }
        // A copy that was still on its way.
        let late = it.rig.actors.orders().place(vec![it.intent(1)]).await;
        assert_eq!(late, [Some(PlaceOutcome::Refused(Refusal::Discarded))]);
        assert_eq!((it.drained().await, it.left().await), (0, 100));
    });
}

#[test]
fn an_order_stays_and_the_others_of_its_letter_are_discarded() {
    in_system(async {
        let (it, desk) = accepted(1..=2).await;
        let (alone, both) = (it.letter(&[1]).await, it.letter(&[2, 1]).await);
        it.rig.actors.orders().place(vec![it.intent(1)]).await;
        assert!(matches!(desk.discard(alone, None).await, Err(DeadLetterError::Ordered)));
        assert_eq!(desk.show(alone).await.unwrap().letter.state, DeadLetterState::Open);
        assert_eq!(desk.discard(both, None).await.unwrap().0, VerbOutcome::Discarded);
        assert!(it.ledger.failure(it.intent(1).request).await.unwrap().is_none());
        assert_eq!(it.rig.buy_as(2, 2, 1).await, DISCARDED);
        assert_eq!((it.drained().await, it.left().await), (1, 99));
    });
}

#[test]
fn a_stock_that_takes_no_results_hears_of_the_failure_with_a_repeat() {
    in_system(async {
        let (it, desk) = accepted(1..=1).await;
        let no = it.letter(&[1]).await;
        it.stock.set(StockFault::Deaf);
        assert_eq!(desk.discard(no, None).await.unwrap().0, VerbOutcome::Discarded);
        assert_eq!(
            (it.left().await, it.find(&it.rig.ask(1, 1, 1)).await),
            (99, Some(RequestStatus::Queued))
        );
        it.stock.set(StockFault::None);
        assert_eq!(desk.discard(no, None).await.unwrap().0, VerbOutcome::Already);
        assert_eq!((it.drained().await, it.left().await), (0, 100));
    });
}

/// The process crashed after the failures were on record.
#[test]
fn failed_not_discarded_goes_on_with_a_repeat() {
    in_system(async {
        let (it, desk) = accepted(1..=1).await;
        let (no, intent) = (it.letter(&[1]).await, it.intent(1));
        let failure = Failure {
            request: intent.request,
            sku: intent.sku,
            buyer: intent.buyer,
            quantity: intent.quantity,
            reason: Refusal::Discarded,
            recorded_at_ms: START_MS,
        };
        it.ledger.record_failures(vec![failure]).await.unwrap();
        assert_eq!(desk.discard(no, None).await.unwrap().0, VerbOutcome::Discarded);
        assert_eq!(it.rig.buy_as(1, 1, 1).await, DISCARDED);
        assert_eq!((it.drained().await, it.left().await), (0, 100));
    });
}

/// Discarded by two operators while the message is delivered once more.
#[test]
fn every_request_ends_once_whoever_is_first() {
    in_system(async {
        let (it, desk) = accepted(1..=40).await;
        let other = self::desk(&it);
        let mut letters = Vec::new();
        for request in 1..=40 {
            letters.push((request, it.letter(&[request]).await));
        }
        let meeting = letters.iter().map(async |(request, no)| {
            let (by_one, by_other, placed) = tokio::join!(
                desk.discard(*no, None),
                other.discard(*no, None),
                it.rig.actors.orders().place(vec![it.intent(*request)]),
            );
            let is_order = matches!(placed[0], Some(PlaceOutcome::Placed(_)));
            let is_refused = placed[0] == Some(PlaceOutcome::Refused(Refusal::Discarded));
            assert!(is_order != is_refused, "{placed:?}");
            for told in [by_one, by_other] {
                // Who comes second may find the letter discarded, or changed meanwhile.
                let fits = match told {
                    Ok(_) | Err(DeadLetterError::Changed) => is_refused,
                    Err(DeadLetterError::Ordered) => is_order,
                    Err(_) => false,
                };
                assert!(fits, "{request}: {told:?} {placed:?}");
            }
            u32::from(is_order)
        });
        let num_orders: u32 = join_all(meeting).await.into_iter().sum();
        assert_eq!(it.drained().await, u64::from(num_orders));
        assert_eq!(it.left().await, 100 - num_orders);
    });
}
