use bytes::Bytes;

use super::*;
use crate::broker::Headers;

const ONE: Route = Route::Orders(1);
const TWO: Route = Route::Orders(2);

fn message(route: Route) -> Message {
    Message { route, headers: Headers::default(), body: Bytes::new() }
}

fn unknown() -> PublishOutcome {
    PublishOutcome::Unknown { reason: String::new() }
}

/// The indices of each batch of one call. The queue `stalled` confirms nothing.
fn call(history: &mut QueueHistory, routes: &[Route], stalled: Option<Route>) -> Vec<Vec<usize>> {
    let mut unsent = history.ordered(routes.iter().copied().map(message).collect());
    let mut batches = Vec::new();
    while !unsent.is_empty() {
        let (indices, messages) = history.next_batch(&mut unsent);
        assert_eq!(indices.len(), messages.len());
        let routes: Vec<_> = messages.iter().map(|message| message.route).collect();
        let is_stalled = routes.iter().any(|route| Some(*route) == stalled);
        let outcome = if is_stalled { unknown() } else { PublishOutcome::Confirmed };
        batches.push(indices);
        if !history.record(&routes, &vec![outcome; routes.len()]) {
            break;
        }
    }
    batches
}

#[test]
fn all_queues_share_a_batch_up_to_the_window() {
    let mut history = QueueHistory::new(2);
    assert_eq!(call(&mut history, &[ONE, TWO, ONE], None), [vec![0, 1], vec![2]]);
    assert_eq!(call(&mut history, &[], None), [[0; 0]; 0]);
}

#[test]
fn a_queue_that_confirms_nothing_is_soon_alone_and_last() {
    let mut history = QueueHistory::new(4);
    let routes = [ONE, TWO, ONE, TWO];
    assert_eq!(
        call(&mut history, &routes, Some(ONE)),
        [[0, 1, 2, 3]],
        "the stalled queue is not known yet"
    );
    // From here on each queue has its own batches; the stalled one ends its call and moves
    // last.
    assert_eq!(call(&mut history, &routes, Some(ONE)), [[0]]);
    assert_eq!(call(&mut history, &routes, Some(ONE)), [vec![1], vec![3], vec![0]]);
    assert_eq!(call(&mut history, &routes, Some(ONE)), [vec![1, 3], vec![0]]);
    // Once it confirms, its window grows back.
    assert_eq!(call(&mut history, &routes, None), [vec![1, 3], vec![0], vec![2]]);
    assert_eq!(call(&mut history, &routes, None), [[0, 1, 2, 3]]);
}

#[test]
fn a_broker_that_is_slow_is_sent_less_at_once() {
    let mut history = QueueHistory::new(8);
    let mut sizes = Vec::new();
    for _ in 0..5 {
        let batches = call(&mut history, &[ONE; 8], Some(ONE));
        sizes.push(batches[0].len());
    }
    assert_eq!(sizes, [8, 4, 2, 1, 1], "at least one");
}

#[test]
fn an_unsent_message_does_not_change_the_window() {
    let mut history = QueueHistory::new(8);
    let not_sent = PublishOutcome::NotSent { reason: String::new() };
    assert!(!history.record(&[ONE], &[not_sent]));
    assert_eq!(history.window(ONE), 8);
}

fn all_sent(count: usize) -> Confirmations {
    let mut confirmations = Confirmations::new(100, count);
    (0..count).for_each(|index| confirmations.unknown(index, "in flight"));
    confirmations
}

fn codes(confirmations: Confirmations) -> String {
    let code = |outcome: &PublishOutcome| match outcome {
        PublishOutcome::Confirmed => 'c',
        PublishOutcome::Refused { .. } => 'r',
        PublishOutcome::NotSent { .. } => 'n',
        PublishOutcome::Unknown { .. } => 'u',
    };
    confirmations.into_outcomes().iter().map(code).collect()
}

#[test]
fn a_return_counts_for_its_own_message_whichever_confirmation_brings_it() {
    let mut early = all_sent(3);
    early.returned(Some(102), "NO_ROUTE");
    (0..3).for_each(|index| early.acknowledged(index));
    assert_eq!(codes(early), "ccr");

    let mut late = all_sent(3);
    (0..3).for_each(|index| late.acknowledged(index));
    late.returned(Some(100), "NO_ROUTE");
    assert_eq!(codes(late), "rcc");
}

#[test]
fn while_a_confirmation_is_missing_nothing_is_confirmed() {
    for miss in 0..3 {
        let mut confirmations = all_sent(3);
        (0..3).filter(|index| *index != miss).for_each(|index| confirmations.acknowledged(index));
        assert_eq!(codes(confirmations), "uuu");
    }
}

#[test]
fn a_refusal_is_certain_despite_missing_confirmations() {
    let mut confirmations = all_sent(3);
    confirmations.refused(0, "nack");
    confirmations.returned(Some(101), "NO_ROUTE");
    confirmations.unknown(1, "the channel closed");
    assert_eq!(codes(confirmations), "rru");
}

#[test]
fn an_unmatched_return_makes_all_confirmations_unknown() {
    for number in [None, Some(99), Some(102), Some(u64::MAX)] {
        let mut confirmations = all_sent(2);
        confirmations.returned(number, "NO_ROUTE");
        (0..2).for_each(|index| confirmations.acknowledged(index));
        assert_eq!(codes(confirmations), "uu", "{number:?}");
    }
}

#[test]
fn an_unsent_message_is_certainly_in_no_queue() {
    let mut confirmations = Confirmations::new(1, 3);
    confirmations.unknown(0, "in flight");
    confirmations.acknowledged(0);
    confirmations.halt("blocked");
    let outcomes = confirmations.into_outcomes();
    assert_eq!(outcomes[0], PublishOutcome::Confirmed);
    assert_eq!(outcomes[2], PublishOutcome::NotSent { reason: "blocked".into() });
}
