//! The plan of one worker, case by case.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::plan::{PollInterest, RelayPlan};
use crate::actors::outbox_relay::publish_round::RoundOutcome;
use crate::broker::{Message, PublishOutcome, Route};
use crate::config::RelaySettings;
use crate::domain::{BucketKey, BucketNo, SkuNo, samples};
use crate::messages::envelope::requests_in;
use crate::outbox::OutboxEntry;
use crate::redis::scripts::intent::{IntentKey, pack};
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;

const MS: Duration = Duration::from_millis(1);

/// Of buckets and entries after their first failure and after many.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(40);

const POLL_MAX: Duration = Duration::from_millis(16);

/// A plan without buckets and predecessors.
fn empty_plan() -> RelayPlan {
    new_plan(false)
}

fn new_plan(has_predecessors: bool) -> RelayPlan {
    let settings = RelaySettings {
        workers: 2,
        claim_max: 5,
        confirm_window: 8,
        confirm_timeout_ms: 0,
        attempts_max: 3,
        poll_min_ms: 1,
        poll_max_ms: 16,
        heartbeat_ttl_ms: 0,
    };
    // Of two workers, the one that polls the buckets of even numbers.
    RelayPlan::new(settings, 1, ("0badcafe".into(), 2), Backoff::new(10, 40), has_predecessors)
}

fn bucket(no: u16) -> BucketKey {
    BucketKey { sku: SkuNo(1), bucket: BucketNo(no) }
}

fn entry(no: u64) -> OutboxEntry {
    OutboxEntry {
        id: no.to_be_bytes().into(),
        bytes: pack(&samples::intent(no), &IntentKey::new(&[7; 32])).into(),
    }
}

fn entries(nos: std::ops::Range<u64>) -> Vec<OutboxEntry> {
    nos.map(entry).collect()
}

fn number(message: &Message) -> u64 {
    requests_in(&message.body)[0].get()
}

fn unknown() -> PublishOutcome {
    PublishOutcome::Unknown { reason: "no confirm".to_owned() }
}

fn refused() -> PublishOutcome {
    PublishOutcome::Refused { reason: "rejected".to_owned() }
}

fn not_sent() -> PublishOutcome {
    PublishOutcome::NotSent { reason: "disconnected".to_owned() }
}

/// A plan with these entries claimed from one bucket.
fn plan_with(entries: Vec<OutboxEntry>, now: Instant) -> RelayPlan {
    let mut plan = empty_plan();
    plan.watch(bucket(0), PollInterest::Selling, now);
    plan.record_claim(bucket(0), 9, entries, now);
    plan
}

/// Runs one round of publishing.
fn publish(plan: &mut RelayPlan, sent: Vec<PublishOutcome>, now: Instant) -> RoundOutcome {
    let (messages, batch) = plan.take_due(now, 0);
    assert_eq!(messages.len(), sent.len());
    plan.apply_outcomes(batch, sent, now)
}

/// Entries given up, their dead letters not confirmed yet.
fn num_dead(plan: &RelayPlan) -> usize {
    let in_flight = plan.buckets.values().flat_map(|bucket| &bucket.in_flight);
    in_flight.filter(|in_flight| in_flight.given_up.is_some()).count()
}

/// The numbers of the ended entries.
fn take_ended(plan: &mut RelayPlan, now: Instant) -> Vec<u64> {
    let ended = plan.take_ended(now).into_iter().flat_map(|(_, ended)| ended);
    ended.map(|id| u64::from_be_bytes((*id).try_into().unwrap())).collect()
}

#[test]
fn a_renamed_worker_keeps_the_retry_state_of_its_entries() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..4), now);
    publish(&mut plan, vec![refused(), PublishOutcome::Confirmed, unknown()], now);
    plan.record_failure(bucket(0), now);
    plan.begin_takeover(&[bucket(0)], now);
    assert!(take_ended(&mut plan, now).is_empty(), "not before the takeover");
    let later = now + RETRY_MIN;
    // The unanswered claim moved entry 5; a rescuer reclaimed entry 3 meanwhile.
    plan.record_takeover(bucket(0), [1, 2, 5].map(entry).to_vec(), later);
    assert_eq!(take_ended(&mut plan, later), [2], "it is not published again");
    let (messages, batch) = plan.take_due(later + RETRY_MIN, 0);
    assert_eq!(messages.iter().map(number).collect::<Vec<_>>(), [1, 5]);
    plan.apply_outcomes(batch, vec![refused(), PublishOutcome::Confirmed], later);
    let (_, batch) = plan.take_due(later + RETRY_MAX, 0);
    plan.apply_outcomes(batch, vec![refused()], later);
    assert_eq!(num_dead(&plan), 0, "two counted attempts; the third had no new confirm");
}

#[test]
fn a_successor_takes_over_before_anything_is_claimed() {
    let now = now_monotonic();
    let mut plan = new_plan(true);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!((plan.takeover_due(now), plan.claims_due(now)), (vec![bucket(0)], vec![]));
    plan.record_failure(bucket(0), now);
    assert_eq!((plan.takeover_due(now), plan.claims_due(now)), (vec![], vec![]), "it backs off");
    let later = now + RETRY_MIN;
    assert!(plan.takeover_due(later) == [bucket(0)] && plan.has_pending_takeover());
    plan.record_takeover(bucket(0), entries(1..3), later);
    assert_eq!((plan.takeover_due(later), plan.claims_due(later)), (vec![], vec![(bucket(0), 3)]));
    assert!(!plan.has_pending_takeover() && plan.num_claimed() == 2);
    plan.record_failure(bucket(0), later);
    assert_eq!((plan.num_claimed(), plan.claims_due(later)), (2, vec![]), "it backs off again");
    assert_eq!(plan.claims_due(later + RETRY_MIN), [(bucket(0), 3)]);
    // Two entries are due, but the broker is unavailable.
    let broker_at = later + RETRY_MAX;
    assert_eq!(plan.next_at(None), Some(later));
    assert_eq!(plan.next_at(Some(broker_at)), Some(broker_at), "no busy loop");
}

#[test]
fn the_poll_interval_of_an_empty_bucket_grows() {
    let mut now = now_monotonic();
    let mut plan = empty_plan();
    plan.watch(bucket(0), PollInterest::Selling, now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert!(!plan.record_claim(bucket(0), 5, Vec::new(), now));
        let next = plan.next_at(None).unwrap();
        waits.push(next.duration_since(now).as_millis());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 16]);
    plan.notify(bucket(0), now);
    assert_eq!(plan.claims_due(now).len(), 1, "at once");
    plan.watch(bucket(0), PollInterest::Idle, now);
    for _ in 0..12 {
        plan.record_claim(bucket(0), 5, Vec::new(), now);
    }
    assert_eq!(plan.next_at(None).unwrap().duration_since(now), Duration::from_secs(1));
}

#[test]
fn one_worker_polls_an_empty_bucket_and_the_others_come_when_they_are_woken() {
    let now = now_monotonic();
    let mut plan = empty_plan();
    plan.watch(bucket(1), PollInterest::Selling, now);
    for _ in 0..12 {
        plan.record_claim(bucket(1), 5, Vec::new(), now);
    }
    assert_eq!(plan.next_at(None).unwrap().duration_since(now), Duration::from_secs(1));
    plan.notify(bucket(1), now);
    assert_eq!(plan.claims_due(now), [(bucket(1), 5)], "at once");
}

#[test]
fn busy_buckets_share_one_window_and_idle_ones_another() {
    let now = now_monotonic();
    let mut plan = empty_plan();
    (0..10).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    let first = plan.claims_due(now);
    assert!(first.len() == 10 && first.iter().all(|(_, max)| *max == 1), "{first:?}");
    for (key, max) in first {
        let claimed = if key == bucket(0) { entries(1..2) } else { Vec::new() };
        assert_eq!(plan.record_claim(key, max, claimed, now), key == bucket(0));
    }
    publish(&mut plan, vec![PublishOutcome::Confirmed], now);
    assert_eq!(take_ended(&mut plan, now), [1]);
    let second: HashMap<_, _> = plan.claims_due(now).into_iter().collect();
    assert_eq!(second[&bucket(0)], 5, "the limit of the bucket, below the window");
    assert_eq!(second[&bucket(1)], 1, "a ninth of the window, at least one");
}

#[test]
fn dormant_sales_are_polled_rarely_and_do_not_delay_others() {
    let now = now_monotonic();
    let mut plan = empty_plan();
    for no in 1..2_000 {
        plan.watch(bucket(no), PollInterest::Dormant, now);
    }
    assert!(plan.claims_due(now).is_empty() && plan.next_at(None).unwrap() > now + 1_000 * MS);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!(plan.claims_due(now).len(), 1);
    for _ in 0..8 {
        plan.record_claim(bucket(0), 1, Vec::new(), now);
    }
    assert!(plan.next_at(None).unwrap() <= now + POLL_MAX);
    plan.watch(bucket(1), PollInterest::Idle, now);
    assert_eq!(plan.claims_due(now)[0].0, bucket(1), "the sale was opened again");
}

#[test]
fn a_bucket_of_a_purged_sale_is_polled_until_its_entries_are_acknowledged() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..2), now);
    plan.remove_idle(bucket(0));
    publish(&mut plan, vec![PublishOutcome::Confirmed], now);
    plan.remove_idle(bucket(0));
    assert_eq!(take_ended(&mut plan, now), [1]);
    plan.begin_takeover(&[bucket(0)], now);
    plan.remove_idle(bucket(0));
    assert_eq!(plan.takeover_due(now), [bucket(0)], "the former name may hold entries");
    plan.record_takeover(bucket(0), Vec::new(), now);
    plan.remove_idle(bucket(0));
    assert_eq!(plan.next_at(None), None);
}

#[test]
fn the_poll_interval_grows_with_the_number_of_buckets() {
    let now = now_monotonic();
    let mut plan = empty_plan();
    (0..1_000).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    for (key, max) in (0..20).flat_map(|_| plan.claims_due(now)).collect::<Vec<_>>() {
        plan.record_claim(key, max, Vec::new(), now);
    }
    // 1000 buckets at 2,000 polls per second.
    assert_eq!(plan.next_at(None).unwrap().duration_since(now), Duration::from_millis(500));
}

#[test]
fn a_refused_entry_backs_off_and_delays_no_other() {
    let first = now_monotonic();
    let mut plan = plan_with(entries(1..2), first);
    publish(&mut plan, vec![refused()], first);
    assert!(plan.take_due(first + MS, 0).0.is_empty());
    assert_eq!(plan.claims_due(first + POLL_MAX).len(), 1, "other entries are claimed");
    let second = first + RETRY_MIN;
    publish(&mut plan, vec![refused()], second);
    assert!(plan.take_due(second + RETRY_MIN, 0).0.is_empty(), "the wait doubles");
    assert_eq!(plan.take_due(second + 2 * RETRY_MIN, 0).0.len(), 1);
}

#[test]
fn an_entry_that_is_given_up_stays_claimed_until_its_dead_letter_is_confirmed() {
    let mut now = now_monotonic();
    let mut plan = plan_with(entries(1..5), now);
    // Each refusal counts: in each round the queue confirms another message.
    for (wait, others) in [(0, 3), (1, 2), (2, 1)] {
        now += wait * RETRY_MIN;
        let mut outcomes = vec![refused(), PublishOutcome::Confirmed];
        outcomes.resize(1 + others, unknown());
        publish(&mut plan, outcomes, now);
    }
    assert_eq!(take_ended(&mut plan, now), [2, 3, 4]);
    for outcome in [refused(), unknown(), not_sent()] {
        let (messages, batch) = plan.take_due(now, 0);
        assert_eq!((messages[0].route, number(&messages[0])), (Route::Dead, 1));
        let round = plan.apply_outcomes(batch, vec![outcome], now);
        assert!(round.stalled_queue.or(round.unavailable).is_some(), "it is reported");
        assert_eq!((num_dead(&plan), plan.num_claimed()), (1, 1));
        now += RETRY_MAX;
    }
    let round = publish(&mut plan, vec![PublishOutcome::Confirmed], now);
    let reason = "refused in 3 attempts, last: rejected".to_owned();
    assert_eq!(round.dead_letters, [(bucket(0), vec![samples::intent(1).request], reason)]);
    assert_eq!(take_ended(&mut plan, now), [1]);
}

#[test]
fn a_stalled_queue_is_distinguished_from_an_unavailable_broker() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..2), now);
    plan.watch(bucket(1), PollInterest::Selling, now);
    plan.record_claim(bucket(1), 9, entries(2..4), now);
    let (messages, batch) = plan.take_due(now, 0);
    let outcome_of = |message| match number(message) {
        1 => unknown(),
        2 => PublishOutcome::Confirmed,
        _ => not_sent(),
    };
    let outcome = plan.apply_outcomes(batch, messages.iter().map(outcome_of).collect(), now);
    assert_eq!((outcome.unavailable, outcome.stalled_queue), (None, Some("no confirm".to_owned())));
    // Messages without an outcome are unknown.
    let later = now + RETRY_MAX;
    let (_, batch) = plan.take_due(later, 0);
    plan.apply_outcomes(batch, Vec::new(), later);
    assert_eq!((num_dead(&plan), plan.num_claimed()), (0, 3));

    // The queue confirms one message of the round, and has no answer for the other one.
    let mut plan = plan_with(entries(1..3), now);
    let outcome = publish(&mut plan, vec![unknown(), PublishOutcome::Confirmed], now);
    assert_eq!((outcome.stalled_queue, num_dead(&plan), plan.num_claimed()), (None, 0, 2));
}

#[test]
fn a_failed_acknowledgement_is_retried_without_publishing_again() {
    let mut now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed; 2], now);
    let mut waits = Vec::new();
    for _ in 0..4 {
        for (key, ended) in plan.take_ended(now) {
            plan.retry_acknowledgement(key, ended, now);
        }
        assert!(plan.take_ended(now).is_empty());
        let later = plan.next_at(None).unwrap();
        waits.push(later.duration_since(now).as_millis());
        assert!(plan.take_due(later, 0).0.is_empty(), "already confirmed");
        assert!(plan.claims_due(later).is_empty(), "no claim before the acknowledgement");
        now = later;
    }
    assert_eq!(waits, [10, 20, 40, 40]);
    assert_eq!(take_ended(&mut plan, now), [1, 2]);
    plan.record_acknowledged(bucket(0));
    assert_eq!(plan.claims_due(now).len(), 1);
}

#[test]
fn more_ended_entries_than_one_call_accepts_are_acknowledged_in_several() {
    let now = now_monotonic();
    let mut plan = plan_with(Vec::new(), now);
    let ended = entries(1..1_002).into_iter().map(|entry| entry.id).collect();
    plan.retry_acknowledgement(bucket(0), ended, now);
    assert_eq!(take_ended(&mut plan, now + RETRY_MIN).len(), 1_000);
    assert_eq!(take_ended(&mut plan, now + RETRY_MIN), [1_001]);
}

#[test]
fn messages_behind_a_queue_that_answers_nothing_wait_while_others_are_answered() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    plan.watch(bucket(1), PollInterest::Selling, now);
    plan.record_claim(bucket(1), 9, entries(3..4), now);
    let (messages, batch) = plan.take_due(now, 0);
    let outcome_of = |message| match number(message) {
        1 => unknown(),
        2 => not_sent(),
        _ => PublishOutcome::Confirmed,
    };
    plan.apply_outcomes(batch, messages.iter().map(outcome_of).collect(), now);
    assert!(plan.take_due(now + MS, 0).0.is_empty(), "the next round is short");
    assert_eq!(plan.take_due(now + RETRY_MIN, 0).0.len(), 2);
}
