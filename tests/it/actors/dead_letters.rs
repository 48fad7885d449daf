//! The dead letter collector and the dead letter service, over an in-memory broker: what they
//! store, what they resolve without an operator, and how they handle failures of the ledger or the
//! broker.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::dead_letter_collector::DeadLetterCounter;
use floodgate::actors::periodic::Task;
use floodgate::broker::{BrokerStatus, Headers, Message, Route};
use floodgate::db::{DeadLetterStore, ErrorClass, Ledger, OrderWriter};
use floodgate::domain::{DeadLetter, DeadLetterNo, DeadLetterOrigin, DeadLetterState, RequestId};
use floodgate::services::dead_letters::{DeadLetterError, DeadLetterOutcome, DeadLetterService};

use crate::support::dead_letter_collectors::{
    CollectorProcess, DEAD_LETTERS_MAX, DeadLetterFixture, dead_letter_of, numbers, received,
};
use crate::support::dead_letters::new_dead_letter;
use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;
use crate::support::offers::{ANY, offer};
use crate::support::wait::until;

/// Waits until a queue has no message, ready or unacknowledged: cutting the connection requeues the
/// unacknowledged ones.
async fn until_empty(fixture: &DeadLetterFixture, queue: &str) {
    until("an empty queue", || async {
        let waiting = fixture.broker.waiting(queue).len();
        fixture.broker.cut();
        (waiting == 0 && fixture.broker.waiting(queue).is_empty()).then_some(())
    })
    .await;
}

#[test]
fn dead_letters_of_the_broker_are_stored_with_bytes_and_reason() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        let collector = fixture.collector();
        let foreign = Message {
            route: Route::Dead,
            headers: Headers { origin: Some("orders.0".to_owned()), ..Headers::default() },
            body: b"\xff\0hello".as_slice().into(),
        };
        let by_broker = fixture.message(&[9], Route::Dead);
        fixture.publish(vec![fixture.dead(&[7, 8], "no such SKU"), foreign, by_broker]).await;
        let dead_letters = fixture.until_dead_letters(3).await;

        let by_origin = |origin| {
            dead_letters.iter().filter(move |content| content.dead_letter.origin == origin)
        };
        let by_consumer: Vec<_> = by_origin(DeadLetterOrigin::Consumer).collect();
        let ours = by_consumer.iter().find(|content| numbers(content) == [7, 8]).unwrap();
        assert_eq!(ours.dead_letter.reason, "no such SKU");
        assert_eq!(ours.body, fixture.body(&[7, 8]));
        let theirs = by_consumer.iter().find(|content| numbers(content).is_empty()).unwrap();
        assert_eq!(theirs.body, b"\xff\0hello");
        let by_broker = by_origin(DeadLetterOrigin::Broker).next().unwrap();
        assert_eq!(numbers(by_broker), [9]);
        assert!(by_broker.dead_letter.reason.contains("names no reason"), "{by_broker:?}");
        until_empty(&fixture, "dead").await;
        let stored_total = "floodgate_dead_letters_stored_total{origin=\"consumer\"}";
        assert_eq!(collector.metric(stored_total), 2);
        let open = "floodgate_dead_letters{state=\"open\"}";
        let (ledger, metrics) = (fixture.ledger.clone(), collector.metrics.clone());
        DeadLetterCounter { ledger, metrics }.run(&()).await.unwrap();
        assert_eq!(collector.metric(open), 3);
    });
}

#[test]
fn dead_letters_of_relays_are_stored_with_bytes_reason_and_attempts() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        // More than the collector holds at once.
        let many = u64::from(DEAD_LETTERS_MAX) * 3;
        fixture
            .publish((1..=many).map(|request| fixture.dead_by_relay(&[request])).collect())
            .await;
        let _collector = fixture.collector();
        let dead_letters = fixture.until_dead_letters(usize::try_from(many).unwrap()).await;
        for content in &dead_letters {
            let DeadLetter { origin, reason, attempts, .. } = &content.dead_letter;
            assert_eq!((*origin, *attempts), (DeadLetterOrigin::Relay, 10));
            assert_eq!(reason, "refused in 10 attempts");
            assert_eq!(content.body, fixture.body(&numbers(content)));
        }
        until_empty(&fixture, "dead").await;
    });
}

fn steps(collector: &CollectorProcess) -> u64 {
    collector.supervisor.report()[0].steps
}

#[test]
fn while_the_ledger_is_down_dead_letters_are_held_and_none_is_lost() {
    ledger_fails(Fault::Down);
}

#[test]
fn while_the_ledger_writes_nothing_it_refuses_no_dead_letter() {
    for class in [ErrorClass::Bug, ErrorClass::Retry] {
        ledger_fails(Fault::RefusesAll(class));
    }
}

fn ledger_fails(fault: Fault) {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        fixture.ledger.set(fault);
        let collector = fixture.collector();
        let mut dead = vec![fixture.dead_by_relay(&[100])];
        dead.extend((1..=20).map(|request| fixture.dead(&[request], "why")));
        fixture.publish(dead).await;
        let num_waiting = 21 - usize::from(DEAD_LETTERS_MAX);
        until("a full prefetch window", || async {
            (fixture.broker.waiting("dead").len() == num_waiting).then_some(())
        })
        .await;
        let before = steps(&collector);
        until("many rounds", || async { (steps(&collector) > before + 30).then_some(()) }).await;
        let waiting = fixture.broker.waiting("dead").len();
        assert_eq!(waiting, num_waiting, "the prefetch window is the limit");
        assert_eq!(collector.metric("floodgate_dead_letters_refused_total"), 0);

        // Unacknowledged messages are redelivered to the next process.
        collector.kill().await;
        let collector = fixture.collector();
        fixture.ledger.set(Fault::None);
        let dead_letters = fixture.until_dead_letters(21).await;
        assert_eq!(
            dead_letters.iter().filter(|content| content.dead_letter.arrivals == 1).count(),
            21
        );
        until_empty(&fixture, "dead").await;
        assert_eq!(collector.supervisor.report()[0].restarts, 0);
    });
}

#[test]
fn a_dead_letter_that_the_ledger_refuses_stays_queued_and_others_go_on() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        fixture.ledger.set(Fault::RefusesDeadLetter(RequestId::new(3).unwrap()));
        let collector = fixture.collector();
        let dead = (1..=6).map(|request| fixture.dead(&[request], "why")).collect();
        fixture.publish(dead).await;
        let dead_letters = fixture.until_dead_letters(5).await;
        assert!(dead_letters.iter().all(|content| numbers(content) != [3]));
        let refused = "floodgate_dead_letters_refused_total";
        until("the refusal counter", || async { (collector.metric(refused) > 0).then_some(()) })
            .await;
        fixture.publish(vec![fixture.dead(&[7], "why")]).await;
        fixture.until_dead_letters(6).await;
        assert_eq!(collector.metric(refused), 1, "a refused dead letter is retried after a delay");

        fixture.ledger.set(Fault::None);
        fixture.simulation.clock.advance(Duration::from_secs(31));
        fixture.until_dead_letters(7).await;
        until_empty(&fixture, "dead").await;
    });
}

#[test]
fn a_dead_letter_of_a_lost_subscription_acknowledges_none_of_the_next_one() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        fixture.ledger.set(Fault::RefusesDeadLetter(RequestId::new(3).unwrap()));
        let collector = fixture.collector();
        let until_refused = async |count: u64| {
            until("a refused dead letter", async || {
                let refused = collector.metric("floodgate_dead_letters_refused_total");
                (refused >= count).then_some(())
            })
            .await;
        };
        fixture.publish(vec![fixture.dead(&[3], "why")]).await;
        until_refused(1).await;
        // Deliveries of another queue have the same tags.
        fixture.broker.lose_queue("dead");
        fixture.broker.declare();
        fixture.simulation.clock.advance(Duration::from_secs(10));
        fixture.publish(vec![fixture.dead(&[3, 4], "why")]).await;
        until_refused(2).await;

        // The first would be stored 30 s after its refusal, and the second is not due yet.
        fixture.ledger.set(Fault::None);
        fixture.simulation.clock.advance(Duration::from_secs(21));
        let before = steps(&collector);
        until("many rounds", async || (steps(&collector) > before + 30).then_some(())).await;
        collector.kill().await;
        assert_eq!(fixture.broker.waiting("dead").len(), 1, "not stored, so not acknowledged");
        let _next = fixture.collector();
        let stored = fixture.until_dead_letters(1).await;
        assert_eq!(numbers(&stored[0]), [3, 4]);
    });
}

#[test]
fn panics_lose_no_dead_letter() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        let collector = fixture.panicking_collector(10.0);
        for round in 0..10_u64 {
            let first = 1 + round * 10;
            let dead = (first..first + 10).map(|request| fixture.dead(&[request], "why"));
            fixture.publish(dead.collect()).await;
        }
        let mut stored: Vec<u64> =
            fixture.until_dead_letters(100).await.iter().flat_map(numbers).collect();
        stored.sort_unstable();
        assert_eq!(stored, (1..=100).collect::<Vec<_>>());
        until("a panic", || async { (collector.supervisor.report()[0].panics > 0).then_some(()) })
            .await;
    });
}

/// A fixture whose ledger has one open dead letter with these requests. No collector is running.
async fn with_dead_letter(
    requests: &[u64],
) -> (DeadLetterFixture, DeadLetterService, DeadLetterNo) {
    let fixture = DeadLetterFixture::new();
    let collector = fixture.collector();
    fixture.publish(vec![fixture.dead(requests, "why")]).await;
    let dead_letters = fixture.until_dead_letters(1).await;
    until_empty(&fixture, "dead").await;
    collector.kill().await;
    let service = fixture.sales();
    (fixture, service, dead_letters[0].dead_letter.no)
}

#[test]
fn a_replayed_dead_letter_is_in_its_order_queue_and_marked() {
    in_system(async {
        let (fixture, service, no) = with_dead_letter(&[1, 2]).await;
        let (outcome, dead_letter) = service.replay(no).await.unwrap();
        assert_eq!(
            (outcome, dead_letter.state),
            (DeadLetterOutcome::Published, DeadLetterState::Replayed)
        );
        let waiting = fixture.broker.waiting("orders.0");
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].1, fixture.body(&[1, 2]));
        assert_eq!((waiting[0].0.attempts, &waiting[0].0.reason), (0, &None));

        let (outcome, _) = service.replay(no).await.unwrap();
        assert_eq!(outcome, DeadLetterOutcome::Already);
        assert_eq!(fixture.broker.waiting("orders.0").len(), 1);
        assert!(matches!(service.park(no, None).await, Err(DeadLetterError::Replayed)));
        let unknown = service.replay(DeadLetterNo(999)).await;
        assert!(matches!(unknown, Err(DeadLetterError::Unknown(DeadLetterNo(999)))));
    });
}

#[test]
fn a_dead_letter_is_marked_only_after_the_broker_confirmed_it() {
    in_system(async {
        let (fixture, service, no) = with_dead_letter(&[1]).await;
        fixture.broker.nack_next(1);
        assert!(matches!(service.replay(no).await, Err(DeadLetterError::PublishRefused { .. })));
        fixture.broker.lose_confirms(1);
        assert!(matches!(service.replay(no).await, Err(DeadLetterError::NotConfirmed { .. })));
        fixture.broker.set_reach(BrokerStatus::Down);
        assert!(matches!(service.replay(no).await, Err(DeadLetterError::PublishRefused { .. })));
        assert_eq!(dead_letter_of(&fixture, 1).await.state, DeadLetterState::Open);
        fixture.broker.set_reach(BrokerStatus::Up);
        assert_eq!(service.replay(no).await.unwrap().0, DeadLetterOutcome::Published);
    });
}

#[test]
fn a_dead_letter_whose_requests_ended_is_resolved_unpublished() {
    in_system(async {
        let (fixture, service, no) = with_dead_letter(&[1, 2]).await;
        let ledger = &fixture.simulation.ledger;
        let sku = offer(&**ledger, "sale", ANY, 100).await;
        let place = async |request| {
            let intent = floodgate::domain::OrderIntent { sku: sku.no, ..fixture.intent(request) };
            ledger.place(vec![intent]).await.unwrap();
        };
        place(1).await;
        // Request 2 has no outcome yet, so the message is published; a second copy of request 1 is
        // harmless.
        let (outcome, _) = service.replay(no).await.unwrap();
        assert_eq!(outcome, DeadLetterOutcome::Published);
        place(2).await;
        ledger.store_dead_letters(vec![], 0).await.unwrap();
        let collector = fixture.collector();
        fixture.publish(vec![fixture.dead(&[1, 2], "again")]).await;
        until("the dead letter to be open again", || async {
            (dead_letter_of(&fixture, 1).await.state == DeadLetterState::Open).then_some(())
        })
        .await;
        collector.kill().await;
        assert_eq!(dead_letter_of(&fixture, 1).await.reason, "again");
        let (outcome, dead_letter) = service.replay(no).await.unwrap();
        assert_eq!(
            (outcome, dead_letter.state),
            (DeadLetterOutcome::Resolved, DeadLetterState::Replayed)
        );
        assert_eq!(fixture.broker.waiting("orders.0").len(), 1);
    });
}

/// The consumer may dead-letter the message again before the service marks it as replayed.
#[test]
fn a_dead_letter_that_fails_again_during_its_replay_stays_open() {
    in_system(async {
        let (fixture, service, no) = with_dead_letter(&[1]).await;
        let collector = fixture.collector();
        fixture.broker.hold(true);
        let replay = async { service.replay(no).await.unwrap() };
        let dead_letter_again = async {
            // The service has read it and awaits the confirm. The message is dead-lettered
            // again before the service receives the confirm.
            let again = received(fixture.dead(&[1], "rejected again"));
            fixture.simulation.ledger.store_dead_letters(vec![again], 0).await.unwrap();
            fixture.broker.hold(false);
        };
        let ((outcome, dead_letter), ()) = tokio::join!(replay, dead_letter_again);
        assert_eq!(
            (outcome, dead_letter.state),
            (DeadLetterOutcome::Published, DeadLetterState::Open)
        );
        assert_eq!(dead_letter_of(&fixture, 1).await.state, DeadLetterState::Open);
        drop(collector);
    });
}

#[test]
fn a_cut_or_foreign_dead_letter_can_be_parked_and_not_replayed() {
    in_system(async {
        let fixture = DeadLetterFixture::new();
        let cut =
            floodgate::domain::NewDeadLetter { body_bytes: 5_000_000, ..new_dead_letter(&[1]) };
        let ledger: Arc<dyn Ledger> = fixture.simulation.ledger.clone();
        ledger.store_dead_letters(vec![cut, new_dead_letter(&[2])], 0).await.unwrap();
        let service = fixture.sales();
        for (request, reason) in [(1, "only the first 8 of its 5000000"), (2, "no content type")] {
            let no = dead_letter_of(&fixture, request).await.no;
            let error = service.replay(no).await.unwrap_err();
            assert!(matches!(error, DeadLetterError::NotReplayable { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            let (outcome, dead_letter) = service.park(no, Some("by hand")).await.unwrap();
            assert_eq!(
                (outcome, dead_letter.state),
                (DeadLetterOutcome::Parked, DeadLetterState::Parked)
            );
            assert_eq!(dead_letter.note.as_deref(), Some("by hand"));
            assert_eq!(service.park(no, None).await.unwrap().0, DeadLetterOutcome::Already);
            assert_eq!(service.park(no, Some("other")).await.unwrap().0, DeadLetterOutcome::Parked);
        }
        let requests = fixture.requests();
        let without =
            DeadLetterService::new(ledger, requests, fixture.simulation.clock.clone(), None, 1);
        let no = dead_letter_of(&fixture, 1).await.no;
        assert!(matches!(without.replay(no).await, Err(DeadLetterError::NoBroker)));
    });
}
