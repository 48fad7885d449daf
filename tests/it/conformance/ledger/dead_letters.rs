//! Dead letters.

use std::sync::Arc;

use floodgate::db::Ledger;
use floodgate::domain::dead_letter::BODY_BYTES_MAX;
use floodgate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrder, DeadLetterOrigin, DeadLetterState, DeadLetterTransition, NewDeadLetter,
    OrderKey, RequestId, SkuNo, StoreDeadLetterOutcome,
};

use super::Backend;
use crate::support::dead_letters::{dead_request, new_dead_letter, read_dead_letters};
use crate::support::offers::{buyer, request};

const NOW: i64 = 1_800_000_000_500;

async fn store(
    ledger: &dyn Ledger,
    dead_letters: Vec<NewDeadLetter>,
) -> Vec<StoreDeadLetterOutcome> {
    ledger.store_dead_letters(dead_letters, NOW).await.unwrap()
}

async fn all(ledger: &dyn Ledger) -> Vec<DeadLetter> {
    read_dead_letters(ledger, DeadLetterFilter::default(), 1000).await
}

/// The transition that an operator requests after reading `dead_letter`.
fn transition(dead_letter: &DeadLetter, to: DeadLetterState) -> DeadLetterTransition {
    let (no, from, arrivals) = (dead_letter.no, dead_letter.state, dead_letter.arrivals);
    DeadLetterTransition { no, from, arrivals, to, note: None, at_ms: NOW + 1 }
}

async fn dead_lettered(ledger: &dyn Ledger, numbers: &[u64]) -> Vec<u64> {
    dead_lettered_or_replayed(ledger, numbers, i64::MAX).await
}

async fn dead_lettered_or_replayed(ledger: &dyn Ledger, numbers: &[u64], since: i64) -> Vec<u64> {
    let requests = numbers.iter().map(|number| request(*number)).collect();
    let found = ledger.dead_lettered_among(requests, since).await.unwrap();
    found.into_iter().map(RequestId::get).collect()
}

pub async fn a_dead_letter_reads_back_as_it_was_stored(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let new = NewDeadLetter {
        origin: DeadLetterOrigin::Relay,
        reason: "秒杀 \0 \u{1F4A5} '; DROP TABLE dead_letters; --".to_owned(),
        message_id: "é\"\\".to_owned(),
        body: vec![0, 255, b'\'', 26, 10],
        body_bytes: 5_000_000_000,
        ..new_dead_letter(&[i64::MAX as u64, 7])
    };
    assert_eq!(store(&*ledger, vec![new.clone()]).await, [StoreDeadLetterOutcome::New]);

    let found = all(&*ledger).await;
    let expected = DeadLetter {
        no: found[0].no,
        origin: new.origin,
        reason: new.reason.clone(),
        attempts: new.attempts,
        message_id: new.message_id.clone(),
        headers: new.headers.clone(),
        body_bytes: new.body_bytes,
        dead_at_ms: new.dead_at_ms,
        arrivals: 1,
        state: DeadLetterState::Open,
        changed_at_ms: NOW,
        note: None,
    };
    assert_eq!(found, std::slice::from_ref(&expected));
    let content = ledger.dead_letter(expected.no).await.unwrap().unwrap();
    assert!(content.is_cut());
    let requests = vec![request(7), request(i64::MAX as u64)];
    assert_eq!(
        content,
        DeadLetterContent { dead_letter: expected.clone(), body: new.body, requests }
    );
    let with = async |number| {
        read_dead_letters(&*ledger, DeadLetterFilter::with(request(number)), u32::MAX).await
    };
    assert_eq!(with(7).await, [expected]);
    assert_eq!(with(8).await, []);
    assert_eq!(ledger.dead_letter(DeadLetterNo(999)).await.unwrap(), None);
    assert_eq!(ledger.store_dead_letters(Vec::new(), NOW).await.unwrap(), []);
}

pub async fn copies_of_a_message_are_one_dead_letter(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let batch = vec![new_dead_letter(&[1]), new_dead_letter(&[2]), new_dead_letter(&[1])];
    assert_eq!(
        store(&*ledger, batch.clone()).await,
        [
            StoreDeadLetterOutcome::New,
            StoreDeadLetterOutcome::New,
            StoreDeadLetterOutcome::AlreadyStored
        ]
    );
    assert_eq!(store(&*ledger, batch).await, [StoreDeadLetterOutcome::AlreadyStored; 3]);
    let found = all(&*ledger).await;
    assert_eq!(found.len(), 2);
    assert_eq!(found.iter().map(|l| l.arrivals).sum::<u32>(), 6);
    let reason = |no| found.iter().find(|l| l.no == no).unwrap().reason.clone();
    assert_eq!(reason(found[0].no), "no such SKU");
    let with = DeadLetterFilter::with(request(1));
    assert_eq!(read_dead_letters(&*ledger, with, u32::MAX).await.len(), 1);
}

pub async fn a_replayed_message_that_fails_again_is_open_again(backend: &dyn Backend) {
    let ledger = backend.open().await;
    store(&*ledger, vec![new_dead_letter(&[1])]).await;
    let seen = all(&*ledger).await.remove(0);
    assert!(
        ledger.transition_dead_letter(transition(&seen, DeadLetterState::Replayed)).await.unwrap()
    );
    assert!(dead_lettered(&*ledger, &[1]).await.is_empty());
    assert_eq!(dead_lettered_or_replayed(&*ledger, &[1], NOW + 1).await, [1], "at that time");
    assert!(dead_lettered_or_replayed(&*ledger, &[1], NOW + 2).await.is_empty(), "before");

    let again = NewDeadLetter {
        reason: "the ledger refused it".to_owned(),
        origin: DeadLetterOrigin::Broker,
        attempts: 9,
        ..new_dead_letter(&[1])
    };
    assert_eq!(store(&*ledger, vec![again.clone()]).await, [StoreDeadLetterOutcome::Reopened]);
    let found = all(&*ledger).await.remove(0);
    assert_eq!(found.no, seen.no);
    assert_eq!((found.state, found.changed_at_ms), (DeadLetterState::Open, NOW));
    assert_eq!((found.reason.as_str(), found.attempts), ("the ledger refused it", 9));
    assert_eq!(found.origin, DeadLetterOrigin::Broker);
    assert_eq!(dead_lettered(&*ledger, &[1]).await, [1]);
    assert_eq!(store(&*ledger, vec![again]).await, [StoreDeadLetterOutcome::AlreadyStored]);

    // More copies do not reopen a parked dead letter.
    let seen = all(&*ledger).await.remove(0);
    assert!(
        ledger.transition_dead_letter(transition(&seen, DeadLetterState::Parked)).await.unwrap()
    );
    assert_eq!(
        store(&*ledger, vec![new_dead_letter(&[1])]).await,
        [StoreDeadLetterOutcome::AlreadyStored]
    );
    assert_eq!(all(&*ledger).await[0].state, DeadLetterState::Parked);
}

/// A collector receives a dead letter again whose acknowledgement was lost.
pub async fn a_copy_of_the_recorded_arrival_leaves_a_replayed_dead_letter_replayed(
    backend: &dyn Backend,
) {
    let ledger = backend.open().await;
    // A copy of a relay's dead letter has no time of its own; its replay fails at a consumer.
    let of = |origin, received_ms| NewDeadLetter {
        origin,
        dead_at_ms: received_ms,
        ..new_dead_letter(&[1])
    };
    let (relay, consumer) = (DeadLetterOrigin::Relay, DeadLetterOrigin::Consumer);
    // A replay has published a message at another time.
    let sent_at = |sent_at_ms: i64, received_ms| NewDeadLetter {
        headers: format!("{{\"sent_at_ms\":{sent_at_ms}}}"),
        dead_at_ms: received_ms,
        ..new_dead_letter(&[2])
    };
    for (first, copy, fails_again) in [
        (of(relay, 7), of(relay, 8), of(consumer, 9)),
        (sent_at(1, 7), sent_at(1, 8), sent_at(2, 8)),
    ] {
        let request = first.requests[0].request;
        store(&*ledger, vec![first]).await;
        let stored = async || {
            let with = DeadLetterFilter::with(request);
            read_dead_letters(&*ledger, with, 1).await.remove(0)
        };
        let replayed = transition(&stored().await, DeadLetterState::Replayed);
        assert!(ledger.transition_dead_letter(replayed).await.unwrap());
        for _ in 0..2 {
            let outcome = store(&*ledger, vec![copy.clone()]).await;
            assert_eq!(outcome, [StoreDeadLetterOutcome::AlreadyStored], "{copy:?}");
            assert_eq!(stored().await.state, DeadLetterState::Replayed);
        }
        let outcome = store(&*ledger, vec![fails_again]).await;
        assert_eq!(outcome, [StoreDeadLetterOutcome::Reopened]);
        assert_eq!(stored().await.state, DeadLetterState::Open);
    }
}

pub async fn a_discarded_dead_letter_stays_discarded_and_ends_nothing(backend: &dyn Backend) {
    let ledger = backend.open().await;
    store(&*ledger, vec![new_dead_letter(&[1])]).await;
    let seen = all(&*ledger).await.remove(0);
    let with_note = DeadLetterTransition {
        note: Some("by hand".into()),
        ..transition(&seen, DeadLetterState::Discarded)
    };
    assert!(ledger.transition_dead_letter(with_note).await.unwrap());
    assert!(
        dead_lettered(&*ledger, &[1]).await.is_empty(),
        "a discarded dead letter settles none of its requests"
    );
    assert_eq!(
        store(&*ledger, vec![new_dead_letter(&[1])]).await,
        [StoreDeadLetterOutcome::AlreadyStored]
    );
    let found = all(&*ledger).await.remove(0);
    assert_eq!((found.state, found.note.as_deref()), (DeadLetterState::Discarded, Some("by hand")));
    let counts = ledger.count_dead_letters().await.unwrap();
    assert_eq!(counts, DeadLetterCounts { discarded: 1, ..DeadLetterCounts::default() });
}

/// A dead letter that arrived again during its replay must not become `Replayed`.
pub async fn a_dead_letter_that_changed_meanwhile_keeps_its_state(backend: &dyn Backend) {
    let ledger = backend.open().await;
    store(&*ledger, vec![new_dead_letter(&[1])]).await;
    let seen = all(&*ledger).await.remove(0);
    store(&*ledger, vec![new_dead_letter(&[1])]).await;
    assert!(
        !ledger.transition_dead_letter(transition(&seen, DeadLetterState::Replayed)).await.unwrap()
    );
    assert_eq!(all(&*ledger).await[0].state, DeadLetterState::Open);

    let seen = all(&*ledger).await.remove(0);
    let with_note = DeadLetterTransition {
        note: Some("by hand".into()),
        ..transition(&seen, DeadLetterState::Parked)
    };
    assert!(ledger.transition_dead_letter(with_note.clone()).await.unwrap());
    assert!(!ledger.transition_dead_letter(with_note).await.unwrap(), "already parked");
    let seen = all(&*ledger).await.remove(0);
    assert_eq!((seen.changed_at_ms, seen.note.as_deref()), (NOW + 1, Some("by hand")));
    assert!(
        ledger.transition_dead_letter(transition(&seen, DeadLetterState::Replayed)).await.unwrap()
    );
    assert_eq!(all(&*ledger).await[0].note.as_deref(), Some("by hand"), "the note is kept");
    let unknown = DeadLetterTransition {
        no: DeadLetterNo(999),
        ..transition(&seen, DeadLetterState::Parked)
    };
    assert!(!ledger.transition_dead_letter(unknown).await.unwrap());
}

pub async fn dead_letters_come_newest_first_in_pages(backend: &dyn Backend) {
    let ledger = backend.open().await;
    for number in 1..=5 {
        let origin =
            if number % 2 == 0 { DeadLetterOrigin::Relay } else { DeadLetterOrigin::Broker };
        store(&*ledger, vec![NewDeadLetter { origin, ..new_dead_letter(&[number]) }]).await;
    }
    let seen = all(&*ledger).await;
    assert!(seen.windows(2).all(|pair| pair[0].no > pair[1].no), "{seen:?}");
    assert!(
        ledger.transition_dead_letter(transition(&seen[0], DeadLetterState::Parked)).await.unwrap()
    );
    assert!(
        ledger
            .transition_dead_letter(transition(&seen[1], DeadLetterState::Replayed))
            .await
            .unwrap()
    );

    let page = async |state, origin, after, limit| -> Vec<DeadLetterNo> {
        let filter = DeadLetterFilter { state, origin, after, ..DeadLetterFilter::default() };
        let found = read_dead_letters(&*ledger, filter, limit).await;
        found.into_iter().map(|dead_letter| dead_letter.no).collect()
    };
    let no = |index: usize| seen[index].no;
    assert_eq!(page(None, None, None, 2).await, [no(0), no(1)]);
    assert_eq!(page(None, None, Some(no(1)), 2).await, [no(2), no(3)]);
    assert_eq!(page(None, None, Some(no(4)), 2).await, []);
    let open = Some(DeadLetterState::Open);
    assert_eq!(page(open, None, None, 9).await, [no(2), no(3), no(4)]);
    assert_eq!(page(open, Some(DeadLetterOrigin::Relay), None, 9).await, [no(3)]);
    assert_eq!(page(Some(DeadLetterState::Parked), None, None, 9).await, [no(0)]);
    let counts = ledger.count_dead_letters().await.unwrap();
    assert_eq!(counts, DeadLetterCounts { open: 3, replayed: 1, parked: 1, discarded: 0 });
}

pub async fn dead_letters_are_found_and_counted_by_every_condition(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let of_sku = |number, sku| OrderKey { sku: SkuNo(sku), ..dead_request(number) };
    for (reason, requests, dead_at_ms) in [
        ("no sale has SKU 9", vec![of_sku(1, 9), of_sku(2, 8)], 100),
        ("100% broken_", vec![of_sku(3, 8)], 200),
        ("秒杀", vec![], 300),
    ] {
        let numbers: Vec<u64> = requests.iter().map(|dead| dead.request.get()).collect();
        let new = new_dead_letter(&[&numbers[..], &[i64::unsigned_abs(dead_at_ms)]].concat());
        let reason = reason.to_owned();
        store(&*ledger, vec![NewDeadLetter { reason, requests, dead_at_ms, ..new }]).await;
    }
    let numbers: Vec<i64> = all(&*ledger).await.iter().rev().map(|found| found.no.0).collect();
    let check = async |filter: DeadLetterFilter, expected: &[usize]| {
        let found = read_dead_letters(&*ledger, filter.clone(), 9).await;
        let found: Vec<i64> = found.iter().map(|found| found.no.0).collect();
        let expected: Vec<i64> = expected.iter().map(|index| numbers[*index]).collect();
        assert_eq!(found, expected, "{filter:?}");
        assert_eq!(ledger.num_dead_letters(filter).await.unwrap(), expected.len() as u64);
    };
    let any = DeadLetterFilter::default;
    let reason = |text: &str| DeadLetterFilter { reason: Some(text.to_owned()), ..any() };
    check(any(), &[2, 1, 0]).await;
    check(reason("sku 9"), &[0]).await;
    check(reason("0%"), &[1]).await;
    check(reason("b_o"), &[]).await;
    check(reason("'"), &[]).await;
    check(reason("秒"), &[2]).await;
    let skus = |skus: &[i32]| Some(skus.iter().copied().map(SkuNo).collect::<Vec<_>>());
    check(DeadLetterFilter { skus: skus(&[8]), ..any() }, &[1, 0]).await;
    check(DeadLetterFilter { skus: skus(&[9, 7]), ..any() }, &[0]).await;
    check(DeadLetterFilter { skus: skus(&[]), ..any() }, &[]).await;
    check(DeadLetterFilter { buyer: Some(buyer(2)), ..any() }, &[0]).await;
    let of_one = DeadLetterFilter { buyer: Some(buyer(2)), skus: skus(&[9]), ..any() };
    check(of_one, &[]).await;
    check(DeadLetterFilter { since_ms: Some(200), ..any() }, &[2, 1]).await;
    check(DeadLetterFilter { until_ms: Some(200), ..any() }, &[0]).await;
    let middle = DeadLetterFilter { since_ms: Some(101), until_ms: Some(300), ..any() };
    check(middle, &[1]).await;
    let older = DeadLetterFilter { after: Some(DeadLetterNo(numbers[2])), ..reason("o") };
    check(older, &[1, 0]).await;
    let order = Some(DeadLetterOrder::Oldest);
    check(DeadLetterFilter { order, ..reason("o") }, &[0, 1]).await;
    let newer = DeadLetterFilter { order, after: Some(DeadLetterNo(numbers[0])), ..any() };
    check(newer, &[1, 2]).await;
}

pub async fn a_request_is_dead_lettered_while_its_dead_letter_is_open_or_parked(
    backend: &dyn Backend,
) {
    let ledger = backend.open().await;
    assert!(dead_lettered(&*ledger, &[]).await.is_empty());
    store(&*ledger, vec![new_dead_letter(&[1, 2]), new_dead_letter(&[2, 3]), new_dead_letter(&[])])
        .await;
    let held = async |sku| ledger.holding_dead_letters(vec![SkuNo(sku)], DeadLetterNo(0), 9).await;
    let num_held = (held(1).await.unwrap().len(), held(2).await.unwrap().len());
    assert_eq!(num_held, (3, 1), "the requests of one could not be read");
    assert_eq!(dead_lettered(&*ledger, &[4, 3, 2, 1]).await, [1, 2, 3]);
    for dead_letter in all(&*ledger).await {
        let requests = ledger.dead_letter(dead_letter.no).await.unwrap().unwrap().requests;
        let to = if requests.contains(&request(1)) {
            DeadLetterState::Replayed
        } else {
            DeadLetterState::Parked
        };
        assert!(ledger.transition_dead_letter(transition(&dead_letter, to)).await.unwrap());
    }
    assert_eq!(
        dead_lettered(&*ledger, &[1, 2, 3]).await,
        [2, 3],
        "request 2 is also in the parked dead letter"
    );
    let many: Vec<u64> = (1..=1_500).collect();
    assert_eq!(dead_lettered(&*ledger, &many).await, [2, 3]);
}

pub async fn a_dead_letter_may_hold_a_mebibyte_and_a_thousand_requests(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let requests: Vec<u64> = (1..=1_200).collect();
    let body: Vec<u8> = (0..BODY_BYTES_MAX).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let body_bytes = body.len() as u64;
    let large = NewDeadLetter { body: body.clone(), body_bytes, ..new_dead_letter(&requests) };
    assert_eq!(
        store(&*ledger, vec![large, new_dead_letter(&[1])]).await,
        [StoreDeadLetterOutcome::New; 2]
    );
    let with = DeadLetterFilter::with(request(1_200));
    let found = read_dead_letters(&*ledger, with, u32::MAX).await.remove(0);
    let content = ledger.dead_letter(found.no).await.unwrap().unwrap();
    assert!(content.body == body && !content.is_cut());
    assert_eq!(content.requests.len(), 1_200);
}

pub async fn two_collectors_store_each_dead_letter_once(backend: &dyn Backend) {
    let ledger: Arc<dyn Ledger> = backend.open().await;
    let numbers: Vec<u64> = (1..=20).collect();
    let batch: Vec<NewDeadLetter> =
        numbers.iter().map(|number| new_dead_letter(&[*number])).collect();
    let mut reversed = batch.clone();
    reversed.reverse();
    let (one, other) = tokio::join!(
        ledger.store_dead_letters(batch, NOW),
        ledger.store_dead_letters(reversed, NOW)
    );
    let new = [one.unwrap(), other.unwrap()].concat();
    assert_eq!(new.iter().filter(|outcome| **outcome == StoreDeadLetterOutcome::New).count(), 20);
    assert_eq!(all(&*ledger).await.len(), 20);
    assert_eq!(dead_lettered(&*ledger, &numbers).await, numbers);
}

pub async fn dead_letters_survive_a_restart(backend: &dyn Backend) {
    let ledger = backend.open().await;
    store(&*ledger, vec![new_dead_letter(&[1])]).await;
    let before = all(&*ledger).await;
    ledger.close().await;
    let ledger = backend.open().await;
    assert_eq!(all(&*ledger).await, before);
    store(&*ledger, vec![new_dead_letter(&[2])]).await;
    assert!(all(&*ledger).await[0].no > before[0].no, "a dead letter number is never reused");
}
