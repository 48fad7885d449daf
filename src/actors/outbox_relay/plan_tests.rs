//! The plan of one worker, case by case.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::plan::{PlanLimits, PollInterest, RelayPlan};
use crate::actors::outbox_relay::round_outcome::{PackedEntry, RoundOutcome};
use crate::broker::{Headers, Message, PublishOutcome, Route};
use crate::domain::{BucketKey, BucketNo, SkuNo};
use crate::outbox::{GivenUpEntry, OutboxEntry};
use crate::runtime::clock::now_monotonic;

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) const LIMITS: PlanLimits = PlanLimits {
    claim_max: 5,
    window: 8,
    attempts_max: 3,
    workers: 2,
    poll_min: MS,
    poll_max: Duration::from_millis(16),
    retry_min: Duration::from_millis(10),
    retry_max: Duration::from_millis(40),
};

pub(super) fn bucket(no: u16) -> BucketKey {
    BucketKey { sku: SkuNo(1), bucket: BucketNo(no) }
}

pub(super) fn entry(no: u64) -> OutboxEntry {
    let bytes = no.to_be_bytes();
    OutboxEntry { id: bytes.into(), bytes: Bytes::copy_from_slice(&bytes) }
}

fn entries(nos: std::ops::Range<u64>) -> Vec<OutboxEntry> {
    nos.map(entry).collect()
}

/// Encodes entries; a multiple of 11 is unreadable, a multiple of 7 in part.
pub(super) fn encode(_: BucketKey, entry: &OutboxEntry) -> PackedEntry {
    let dead_letter = |bytes| GivenUpEntry { bytes, reason: "unreadable".to_owned(), attempts: 0 };
    let body = entry.bytes.clone();
    let number = number(&body);
    if number.is_multiple_of(11) {
        return PackedEntry { message: None, dead_letter: Some(dead_letter(body)) };
    }
    let message = Message { route: Route::Orders(0), headers: Headers::default(), body };
    let part = number.is_multiple_of(7).then(|| dead_letter(Bytes::from_static(b"part")));
    PackedEntry { message: Some(message), dead_letter: part }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

pub(super) fn unknown() -> PublishOutcome {
    PublishOutcome::Unknown { reason: "no confirm".to_owned() }
}

pub(super) fn refused() -> PublishOutcome {
    PublishOutcome::Refused { reason: "rejected".to_owned() }
}

fn not_sent() -> PublishOutcome {
    PublishOutcome::NotSent { reason: "disconnected".to_owned() }
}

/// A plan with these entries claimed from one bucket.
fn plan_with(entries: Vec<OutboxEntry>, now: Instant) -> RelayPlan {
    let mut plan = RelayPlan::new(LIMITS, false);
    plan.watch(bucket(0), PollInterest::Selling, now);
    plan.record_claim(bucket(0), 9, entries, now);
    plan
}

/// Runs one round of publishing.
fn publish(plan: &mut RelayPlan, sent: Vec<PublishOutcome>, now: Instant) -> RoundOutcome {
    let (messages, batch) = plan.pack(now, encode);
    assert_eq!(messages.len(), sent.len());
    plan.apply_outcomes(batch, sent, now)
}

/// The ended entries: number, and the reason of a dead letter.
fn take_ended(plan: &mut RelayPlan, now: Instant) -> Vec<(u64, Option<String>)> {
    let ended = plan.take_ended(now).into_iter().flat_map(|(_, ended)| ended);
    ended
        .map(|ended| (number(&ended.id), ended.dead_letter.map(|dead_letter| dead_letter.reason)))
        .collect()
}

#[test]
fn a_successor_takes_over_before_anything_is_claimed() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, true);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!((plan.takeover_due(now), plan.claims_due(now)), (vec![bucket(0)], vec![]));
    plan.record_failure(bucket(0), now);
    assert_eq!((plan.takeover_due(now), plan.claims_due(now)), (vec![], vec![]), "after a backoff");
    let later = now + LIMITS.retry_min;
    assert!(plan.takeover_due(later) == [bucket(0)] && plan.has_pending_takeover());
    plan.record_takeover(bucket(0), entries(1..3), later);
    assert_eq!((plan.takeover_due(later), plan.claims_due(later)), (vec![], vec![(bucket(0), 3)]));
    assert!(!plan.has_pending_takeover() && plan.num_claimed() == 2);
}

#[test]
fn a_renamed_worker_keeps_the_retry_state_of_its_entries() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..4), now);
    let outcome = publish(&mut plan, vec![refused(), PublishOutcome::Confirmed, unknown()], now);
    assert_eq!((outcome.counts.refused, outcome.counts.published), (1, 1));
    plan.record_failure(bucket(0), now);
    plan.begin_takeover(&[bucket(0)], now);
    assert!(take_ended(&mut plan, now).is_empty(), "not before the takeover");
    let later = now + LIMITS.retry_min;
    // The unanswered claim moved entry 5; a rescuer reclaimed entry 3 meanwhile.
    plan.record_takeover(bucket(0), [1, 2, 5].map(entry).to_vec(), later);
    assert_eq!(take_ended(&mut plan, later), [(2, None)], "it is not published again");
    let (messages, batch) = plan.pack(later + LIMITS.retry_min, encode);
    assert_eq!(messages.iter().map(|message| number(&message.body)).collect::<Vec<_>>(), [1, 5]);
    plan.apply_outcomes(batch, vec![refused(), PublishOutcome::Confirmed], later);
    let (_, batch) = plan.pack(later + LIMITS.retry_max, encode);
    let outcome = plan.apply_outcomes(batch, vec![refused()], later);
    assert_eq!(outcome.counts.dead, 0, "two counted attempts; the third had no new confirm");
}

#[test]
fn a_certain_failure_only_backs_off_the_bucket() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    plan.record_failure(bucket(0), now);
    assert_eq!((plan.num_claimed(), plan.claims_due(now)), (2, vec![]));
    assert_eq!(plan.claims_due(now + LIMITS.retry_min), [(bucket(0), 3)]);
}

#[test]
fn busy_buckets_share_one_window_and_idle_ones_another() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    (0..10).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    let total = |asked: &[(BucketKey, usize)]| asked.iter().map(|(_, max)| max).sum::<usize>();
    let first = plan.claims_due(now);
    assert_eq!((first.len(), total(&first)), (10, 10), "at least one of each");
    for (key, max) in first {
        let entries = if key == bucket(0) { entries(1..2) } else { Vec::new() };
        assert_eq!(plan.record_claim(key, max, entries, now), key == bucket(0));
    }
    publish(&mut plan, vec![PublishOutcome::Confirmed], now);
    assert_eq!(take_ended(&mut plan, now), [(1, None)]);
    let second: BTreeMap<_, _> =
        plan.claims_due(now).into_iter().map(|(key, max)| (key.bucket.0, max)).collect();
    assert_eq!(second[&0], 5, "the limit of the bucket, below the window");
    assert_eq!(second[&1], 1, "a ninth of the window, at least one");
}

#[test]
fn the_poll_interval_of_an_empty_bucket_grows() {
    let mut now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    plan.watch(bucket(0), PollInterest::Selling, now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert!(!plan.record_claim(bucket(0), 5, Vec::new(), now));
        let next = plan.next_at().unwrap();
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
    assert_eq!(plan.next_at().unwrap().duration_since(now), Duration::from_secs(1));
}

#[test]
fn archived_sales_are_polled_rarely_and_do_not_delay_others() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    for no in 1..2_000 {
        plan.watch(bucket(no), PollInterest::Dormant, now);
    }
    assert!(plan.claims_due(now).is_empty() && plan.next_at().unwrap() > now + 1_000 * MS);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!(plan.claims_due(now).len(), 1);
    for _ in 0..8 {
        plan.record_claim(bucket(0), 1, Vec::new(), now);
    }
    assert!(plan.next_at().unwrap() <= now + LIMITS.poll_max);
    plan.watch(bucket(1), PollInterest::Idle, now);
    assert_eq!(plan.claims_due(now)[0].0, bucket(1), "the sale was opened again");
}

#[test]
fn the_poll_interval_grows_with_the_number_of_buckets() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    (0..1_000).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    for (key, max) in (0..20).flat_map(|_| plan.claims_due(now)).collect::<Vec<_>>() {
        plan.record_claim(key, max, Vec::new(), now);
    }
    // 1000 buckets and 2 workers at 10,000 polls per second.
    assert_eq!(plan.next_at().unwrap().duration_since(now), Duration::from_millis(200));
}

#[test]
fn refusals_count_if_the_queue_confirms_others_and_back_off() {
    let mut now = now_monotonic();
    let mut plan = plan_with(entries(1..2), now);
    let mut waits = Vec::new();
    for attempt in 1..=3_u64 {
        plan.record_claim(bucket(0), 9, vec![entry(100 + attempt)], now);
        let outcome = publish(&mut plan, vec![refused(), PublishOutcome::Confirmed], now);
        let ended = take_ended(&mut plan, now);
        if attempt == 3 {
            let reason = "refused in 3 attempts, last: rejected".to_owned();
            assert_eq!((outcome.counts.dead, &ended[0]), (1, &(1, Some(reason))));
            break;
        }
        assert_eq!(ended, [(100 + attempt, None)]);
        let refused_at = now;
        while plan.pack(now, encode).1.is_empty() {
            now += MS;
        }
        waits.push(now.duration_since(refused_at).as_millis());
        assert_eq!(
            plan.claims_due(refused_at + LIMITS.poll_max).len(),
            1,
            "other entries are claimed"
        );
    }
    assert_eq!((waits, plan.num_claimed()), (vec![10, 20], 0));
}

#[test]
fn refusals_and_missing_confirms_without_other_confirms_are_no_attempts() {
    let mut now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed, refused()], now);
    take_ended(&mut plan, now);
    for sent in [refused(), unknown(), refused(), unknown(), refused()] {
        now += LIMITS.retry_max;
        let outcome = publish(&mut plan, vec![sent], now);
        assert_eq!((outcome.counts.dead, plan.num_claimed()), (0, 1));
    }
    // A partial round: the queue confirmed one message, the other one is unknown.
    for no in 10..20 {
        now += LIMITS.retry_max;
        plan.record_claim(bucket(0), 9, vec![entry(if no == 11 { 21 } else { no })], now);
        let outcome = publish(&mut plan, vec![unknown(), PublishOutcome::Confirmed], now);
        assert_eq!((outcome.stalled_queue, outcome.counts.unknown), (None, 1));
        take_ended(&mut plan, now);
    }
    assert_eq!(plan.num_claimed(), 1);
}

#[test]
fn a_stalled_queue_is_distinguished_from_an_unavailable_broker() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..4), now);
    let route =
        |entry: &OutboxEntry| Route::Orders(u16::try_from(number(&entry.bytes) % 2).unwrap());
    let (_, batch) = plan.pack(now, |bucket, entry| {
        let encoded = encode(bucket, entry);
        let message = encoded.message.map(|message| Message { route: route(entry), ..message });
        PackedEntry { message, ..encoded }
    });
    let outcome =
        plan.apply_outcomes(batch, vec![unknown(), PublishOutcome::Confirmed, not_sent()], now);
    assert_eq!((outcome.unavailable, outcome.stalled_queue), (None, Some("no confirm".to_owned())));
    // Messages without an outcome are unknown.
    let later = now + LIMITS.retry_max;
    let (_, batch) = plan.pack(later, encode);
    let outcome = plan.apply_outcomes(batch, Vec::new(), later);
    assert_eq!((outcome.counts.unknown, outcome.counts.dead), (2, 0));
}

#[test]
fn a_failed_acknowledgement_is_retried_without_publishing_again() {
    let mut now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed; 2], now);
    let mut waits = Vec::new();
    for _ in 0..4 {
        for (key, ended) in plan.take_ended(now) {
            assert_eq!(ended.len(), 2);
            plan.retry_acknowledgement(key, ended, now);
        }
        let failed_at = now;
        assert!(plan.take_ended(now).is_empty() && plan.claims_due(now + MS).is_empty());
        now = plan.next_at().unwrap();
        assert!(plan.pack(now, encode).0.is_empty(), "already confirmed");
        assert!(plan.claims_due(now).is_empty(), "no claim before the acknowledgement");
        waits.push(now.duration_since(failed_at).as_millis());
    }
    assert_eq!(waits, [10, 20, 40, 40]);
    assert_eq!(take_ended(&mut plan, now).len(), 2);
    plan.record_acknowledged(bucket(0));
    assert_eq!(plan.claims_due(now).len(), 1);
}

#[test]
fn an_unavailable_broker_counts_no_attempt_and_is_retried_later() {
    let now = now_monotonic();
    let mut plan = plan_with(entries(1..3), now);
    let outcome = publish(&mut plan, vec![not_sent(), not_sent()], now);
    assert_eq!(outcome.unavailable, Some("disconnected".to_owned()));
    assert!(plan.set_broker_unavailable(now) && !plan.set_broker_unavailable(now), "changed once");
    assert!(!plan.is_broker_due(now) && plan.is_broker_due(now + LIMITS.retry_max));
    assert!(plan.next_at().unwrap() > now, "no busy loop");
    assert_eq!(plan.num_claimed(), 2);
    plan.retry_broker_now(now);
    assert!(
        plan.is_broker_unavailable() && plan.is_broker_due(now),
        "retried before it counts as available"
    );
    assert!(plan.set_broker_available() && !plan.set_broker_available() && plan.is_broker_due(now));
    plan.retry_broker_now(now + LIMITS.retry_max);
    assert!(!plan.is_broker_unavailable());
}

#[test]
fn unreadable_intents_become_dead_letters_and_block_nothing() {
    let now = now_monotonic();
    let mut plan = plan_with([10, 11, 14].map(entry).to_vec(), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed, PublishOutcome::Confirmed], now);
    let mut ended = take_ended(&mut plan, now);
    ended.sort();
    let unreadable = || Some("unreadable".to_owned());
    assert_eq!(ended, [(10, None), (11, unreadable()), (14, unreadable())]);
}
