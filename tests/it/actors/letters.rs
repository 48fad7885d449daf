//! The keeper of dead letters and the operators' desk, over a broker and outboxes in memory: what
//! they keep, what they put right by themselves, and what they do while the ledger or the broker
//! fails.

use std::sync::Arc;
use std::time::Duration;

use floodgate::broker::{BrokerStatus, Headers, Message, Route};
use floodgate::db::Ledger;
use floodgate::domain::{Counting, DeadLetterNo, DeadLetterOrigin, DeadLetterState, RequestId};
use floodgate::services::dead_letters::{DeadLetterError, DeadLetterService, VerbOutcome};
use floodgate::stock::MemoryStock;

use crate::support::faulty_ledger::Fault;
use crate::support::keepers::{Keeper, LETTERS_MAX, Office, letter_of, numbers};
use crate::support::letters::letter;
use crate::support::offers::{ANY, offer};
use crate::support::rig::in_system;
use crate::support::wait::until;

/// Waits until a queue holds nothing, delivered or not: what is in hand comes back when the
/// connection is cut.
async fn until_empty(office: &Office, queue: &str) {
    until("an empty queue", || async {
        let waiting = office.broker.waiting(queue).len();
        office.broker.cut();
        (waiting == 0 && office.broker.waiting(queue).is_empty()).then_some(())
    })
    .await;
}

#[test]
fn what_dies_in_the_broker_is_kept_with_its_bytes_and_why() {
    in_system(async {
        let office = Office::new();
        let keeper = office.keeper();
        let foreign = Message {
            route: Route::Dead,
            headers: Headers { origin: Some("orders.0".to_owned()), ..Headers::default() },
            body: b"\xff\0hello".as_slice().into(),
        };
        let by_broker = office.message(&[9], Route::Dead);
        office.publish(vec![office.dead(&[7, 8], "no such SKU"), foreign, by_broker]).await;
        let letters = office.until_letters(3).await;

        let of = |origin| letters.iter().filter(move |whole| whole.letter.origin == origin);
        let by_consumer: Vec<_> = of(DeadLetterOrigin::Consumer).collect();
        let ours = by_consumer.iter().find(|whole| numbers(whole) == [7, 8]).unwrap();
        assert_eq!(ours.letter.reason, "no such SKU");
        assert_eq!(ours.body, office.body(&[7, 8]));
        let theirs = by_consumer.iter().find(|whole| numbers(whole).is_empty()).unwrap();
        assert_eq!(theirs.body, b"\xff\0hello");
        let by_broker = of(DeadLetterOrigin::Broker).next().unwrap();
        assert_eq!(numbers(by_broker), [9]);
        assert!(by_broker.letter.reason.contains("delivered too often"), "{by_broker:?}");
        until_empty(&office, "dead").await;
        let kept = "floodgate_dead_letters_stored_total{origin=\"consumer\"}";
        assert!((keeper.metric(kept) - 2.0).abs() < 0.5);
        let open = "floodgate_dead_letters{state=\"open\"}";
        until("the gauge", || async { (keeper.metric(open) > 2.5).then_some(()) }).await;
    });
}

#[test]
fn what_relays_gave_up_is_collected_from_every_bucket() {
    in_system(async {
        let office = Office::new();
        // More than fit into a hand, in both buckets; one cannot even be read.
        let many = u64::from(LETTERS_MAX) * 3;
        (1..=many).for_each(|request| office.bury(&[request]));
        let _keeper = office.keeper();
        let letters = office.until_letters(usize::try_from(many).unwrap()).await;
        assert!(letters.iter().all(|whole| whole.letter.origin == DeadLetterOrigin::Relay));
        assert!(letters.iter().all(|whole| whole.letter.attempts == 10));
        let store = &office.world.store;
        until("collected entries", || async { store.dead().is_empty().then_some(()) }).await;
    });
}

fn steps(keeper: &Keeper) -> u64 {
    keeper.supervisor.report()[0].steps
}

#[test]
fn while_the_ledger_is_down_letters_are_held_and_none_is_lost() {
    in_system(async {
        let office = Office::new();
        office.ledger.set(Fault::Down);
        let keeper = office.keeper();
        office.bury(&[100]);
        let dead = (1..=20).map(|request| office.dead(&[request], "why")).collect();
        office.publish(dead).await;
        until("a full hand", || async {
            (office.broker.waiting("dead").len() == 20 - usize::from(LETTERS_MAX)).then_some(())
        })
        .await;
        let before = steps(&keeper);
        until("many rounds", || async { (steps(&keeper) > before + 30).then_some(()) }).await;
        assert_eq!(office.broker.waiting("dead").len(), 12, "no more than fits in a hand");
        assert_eq!(office.world.store.dead().len(), 1);

        // What is in hand was not acknowledged: it is there for the next process.
        keeper.kill().await;
        let keeper = office.keeper();
        office.ledger.set(Fault::None);
        let letters = office.until_letters(21).await;
        assert_eq!(letters.iter().filter(|whole| whole.letter.arrivals == 1).count(), 21);
        until_empty(&office, "dead").await;
        assert_eq!(keeper.supervisor.report()[0].restarts, 0);
    });
}

#[test]
fn a_letter_that_the_ledger_refuses_stays_in_its_queue_and_others_go_on() {
    in_system(async {
        let office = Office::new();
        office.ledger.set(Fault::RefusesLetter(RequestId::new(3).unwrap()));
        let keeper = office.keeper();
        let dead = (1..=6).map(|request| office.dead(&[request], "why")).collect();
        office.publish(dead).await;
        let letters = office.until_letters(5).await;
        assert!(letters.iter().all(|whole| numbers(whole) != [3]));
        let refused = "floodgate_dead_letters_refused_total";
        until("the alarm", || async { (keeper.metric(refused) > 0.5).then_some(()) }).await;
        office.publish(vec![office.dead(&[7], "why")]).await;
        office.until_letters(6).await;
        assert!(keeper.metric(refused) < 1.5, "it is not tried all the time");

        // The same in an outbox.
        office.bury(&[3]);
        office.bury(&[5]);
        until("the good one", || async { (office.world.store.dead().len() == 1).then_some(()) })
            .await;

        office.ledger.set(Fault::None);
        office.world.clock.advance(Duration::from_secs(31));
        office.until_letters(7).await;
        until_empty(&office, "dead").await;
        until("the entry", || async { office.world.store.dead().is_empty().then_some(()) }).await;
    });
}

#[test]
fn panics_lose_no_letter() {
    in_system(async {
        let office = Office::new();
        let keeper = office.keeper_that_panics(10.0);
        for round in 0..10_u64 {
            let first = 1 + round * 10;
            let dead = (first..first + 5).map(|request| office.dead(&[request], "why")).collect();
            office.publish(dead).await;
            (first + 5..first + 10).for_each(|request| office.bury(&[request]));
        }
        let mut found: Vec<u64> =
            office.until_letters(100).await.iter().flat_map(numbers).collect();
        found.sort_unstable();
        assert_eq!(found, (1..=100).collect::<Vec<_>>());
        until("a panic", || async { (keeper.supervisor.report()[0].panics > 0).then_some(()) })
            .await;
    });
}

/// An office with one letter of these requests, whose SKU is really on offer.
async fn with_letter(requests: &[u64]) -> (Office, DeadLetterService, DeadLetterNo) {
    let office = Office::new();
    let keeper = office.keeper();
    office.publish(vec![office.dead(requests, "why")]).await;
    let letters = office.until_letters(1).await;
    until_empty(&office, "dead").await;
    keeper.kill().await;
    let desk = office.desk();
    (office, desk, letters[0].letter.no)
}

#[test]
fn a_replayed_letter_is_in_its_order_queue_and_marked() {
    in_system(async {
        let (office, desk, no) = with_letter(&[1, 2]).await;
        let (done, letter) = desk.replay(no).await.unwrap();
        assert_eq!((done, letter.state), (VerbOutcome::Published, DeadLetterState::Replayed));
        let waiting = office.broker.waiting("orders.0");
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].1, office.body(&[1, 2]));
        assert_eq!((waiting[0].0.attempts, &waiting[0].0.reason), (0, &None));

        let (done, _) = desk.replay(no).await.unwrap();
        assert_eq!(done, VerbOutcome::Already);
        assert_eq!(office.broker.waiting("orders.0").len(), 1);
        assert!(matches!(desk.park(no, None).await, Err(DeadLetterError::Replayed)));
        let unknown = desk.replay(DeadLetterNo(999)).await;
        assert!(matches!(unknown, Err(DeadLetterError::Unknown(DeadLetterNo(999)))));
    });
}

#[test]
fn a_letter_is_marked_only_after_the_broker_confirmed_it() {
    in_system(async {
        let (office, desk, no) = with_letter(&[1]).await;
        office.broker.nack_next(1);
        assert!(matches!(desk.replay(no).await, Err(DeadLetterError::NotTaken { .. })));
        office.broker.lose_confirms(1);
        assert!(matches!(desk.replay(no).await, Err(DeadLetterError::NotConfirmed { .. })));
        office.broker.set_reach(BrokerStatus::Down);
        assert!(matches!(desk.replay(no).await, Err(DeadLetterError::NotTaken { .. })));
        assert_eq!(letter_of(&office, 1).await.state, DeadLetterState::Open);
        office.broker.set_reach(BrokerStatus::Up);
        assert_eq!(desk.replay(no).await.unwrap().0, VerbOutcome::Published);
    });
}

#[test]
fn a_letter_whose_requests_have_ended_is_resolved_without_publishing() {
    in_system(async {
        let (office, desk, no) = with_letter(&[1, 2]).await;
        let ledger = &office.world.ledger;
        let sku = offer(&**ledger, "sale", ANY, 100).await;
        let place = async |request| {
            let intent = floodgate::domain::OrderIntent { sku: sku.no, ..office.intent(request) };
            ledger.place(vec![intent]).await.unwrap();
        };
        place(1).await;
        // One of them is still without an end: a copy more of the other does no harm.
        let (done, _) = desk.replay(no).await.unwrap();
        assert_eq!(done, VerbOutcome::Published);
        place(2).await;
        ledger.keep_dead_letters(vec![], 0).await.unwrap();
        let again = office.keeper();
        office.publish(vec![office.dead(&[1, 2], "again")]).await;
        until("the letter to be open again", || async {
            (letter_of(&office, 1).await.state == DeadLetterState::Open).then_some(())
        })
        .await;
        again.kill().await;
        assert_eq!(letter_of(&office, 1).await.reason, "again");
        let (done, letter) = desk.replay(no).await.unwrap();
        assert_eq!((done, letter.state), (VerbOutcome::Resolved, DeadLetterState::Replayed));
        assert_eq!(office.broker.waiting("orders.0").len(), 1);
    });
}

/// The consumer may be faster than the operator's mark.
#[test]
fn a_letter_that_dies_again_while_it_is_replayed_stays_open() {
    in_system(async {
        let (office, desk, no) = with_letter(&[1]).await;
        let keeper = office.keeper();
        office.broker.hold(true);
        let replay = async { desk.replay(no).await.unwrap() };
        let die = async {
            // Confirmed and dead again, before the desk hears of the confirmation: the desk has
            // read the letter, and waits for the broker.
            let again = floodgate::domain::NewDeadLetter { ..sealed_again(&office).await };
            office.world.ledger.keep_dead_letters(vec![again], 0).await.unwrap();
            office.broker.hold(false);
        };
        let ((done, letter), ()) = tokio::join!(replay, die);
        assert_eq!((done, letter.state), (VerbOutcome::Published, DeadLetterState::Open));
        assert_eq!(letter_of(&office, 1).await.state, DeadLetterState::Open);
        drop(keeper);
    });
}

/// The same letter, as a keeper would bring it once more.
async fn sealed_again(office: &Office) -> floodgate::domain::NewDeadLetter {
    let message = office.dead(&[1], "died again");
    let delivery = floodgate::broker::Delivery {
        tag: 1,
        headers: message.headers,
        routing_key: String::new(),
        num_before: 0,
        body: message.body,
    };
    floodgate::services::dead_letters::headers::of_dead(
        &delivery,
        crate::support::relays::INSTALLATION,
        0,
    )
}

#[test]
fn a_letter_that_is_cut_or_foreign_cannot_be_replayed_and_can_be_parked() {
    in_system(async {
        let office = Office::new();
        let cut = floodgate::domain::NewDeadLetter { body_bytes: 5_000_000, ..letter(&[1]) };
        let ledger: Arc<dyn Ledger> = office.world.ledger.clone();
        ledger.keep_dead_letters(vec![cut, letter(&[2])], 0).await.unwrap();
        let desk = office.desk();
        for (request, why) in [(1, "only the first 8 of its 5000000"), (2, "no content type")] {
            let no = letter_of(&office, request).await.no;
            let error = desk.replay(no).await.unwrap_err();
            assert!(matches!(error, DeadLetterError::NotReplayable { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
            let (done, letter) = desk.park(no, Some("by hand")).await.unwrap();
            assert_eq!((done, letter.state), (VerbOutcome::Parked, DeadLetterState::Parked));
            assert_eq!(letter.note.as_deref(), Some("by hand"));
            assert_eq!(desk.park(no, None).await.unwrap().0, VerbOutcome::Already);
            assert_eq!(desk.park(no, Some("other")).await.unwrap().0, VerbOutcome::Parked);
        }
        let stock = Arc::new(MemoryStock::new(Counting::Here));
        let without = DeadLetterService::new(ledger, stock, office.world.clock.clone(), None, 1);
        let no = letter_of(&office, 1).await.no;
        assert!(matches!(without.replay(no).await, Err(DeadLetterError::NoBroker)));
    });
}
