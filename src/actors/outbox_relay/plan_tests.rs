//! What a worker does next, case by case.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::plan::{PlanLimits, PollInterest, RelayPlan};
use crate::actors::outbox_relay::round_outcome::{PackedEntry, RoundOutcome};
use crate::broker::{Headers, Message, PublishOutcome, Route};
use crate::domain::{BucketNo, SkuNo};
use crate::outbox::{GivenUpEntry, OutboxEntry};
use crate::runtime::clock::now_monotonic;
use crate::stock::BucketKey;

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

/// Seals everything but entries whose number is a multiple of 11; of a multiple of 7 a part becomes
/// a letter.
pub(super) fn seal(_: BucketKey, entry: &OutboxEntry) -> PackedEntry {
    let letter = |bytes| GivenUpEntry { bytes, reason: "unreadable".to_owned(), attempts: 0 };
    let body = entry.bytes.clone();
    let number = number(&body);
    if number.is_multiple_of(11) {
        return PackedEntry { message: None, letter: Some(letter(body)) };
    }
    let message = Message { route: Route::Orders(0), headers: Headers::default(), body };
    let part = number.is_multiple_of(7).then(|| letter(Bytes::from_static(b"part")));
    PackedEntry { message: Some(message), letter: part }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

pub(super) fn unknown() -> PublishOutcome {
    PublishOutcome::Unknown { reason: "silence".to_owned() }
}

pub(super) fn refused() -> PublishOutcome {
    PublishOutcome::Refused { reason: "no".to_owned() }
}

fn not_sent() -> PublishOutcome {
    PublishOutcome::NotSent { reason: "gone".to_owned() }
}

/// A plan with these entries claimed, in one bucket.
fn holding(entries: Vec<OutboxEntry>, now: Instant) -> RelayPlan {
    let mut plan = RelayPlan::new(LIMITS, false);
    plan.watch(bucket(0), PollInterest::Selling, now);
    plan.claimed(bucket(0), 9, entries, now);
    plan
}

/// One round of publishing.
fn publish(plan: &mut RelayPlan, sent: Vec<PublishOutcome>, now: Instant) -> RoundOutcome {
    let (messages, batch) = plan.pack(now, seal);
    assert_eq!(messages.len(), sent.len());
    plan.judge(batch, sent, now)
}

/// What ended: its number, and the reason if it is a letter.
fn take_ended(plan: &mut RelayPlan, now: Instant) -> Vec<(u64, Option<String>)> {
    let ended = plan.take_ended(now).into_iter().flat_map(|(_, ended)| ended);
    ended.map(|ended| (number(&ended.id), ended.letter.map(|letter| letter.reason))).collect()
}

#[test]
fn a_successor_takes_over_before_anything_is_claimed() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, true);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!((plan.to_take_over(now), plan.to_claim(now)), (vec![bucket(0)], vec![]));
    plan.failed(bucket(0), now);
    assert_eq!((plan.to_take_over(now), plan.to_claim(now)), (vec![], vec![]), "it rests first");
    let later = now + LIMITS.retry_min;
    assert!(plan.to_take_over(later) == [bucket(0)] && plan.takes_over());
    plan.took_over(bucket(0), entries(1..3), later);
    assert_eq!((plan.to_take_over(later), plan.to_claim(later)), (vec![], vec![(bucket(0), 3)]));
    assert!(!plan.takes_over() && plan.num_claimed() == 2);
}

#[test]
fn a_worker_with_a_new_name_knows_what_it_knew() {
    let now = now_monotonic();
    let mut plan = holding(entries(1..4), now);
    let verdict = publish(&mut plan, vec![refused(), PublishOutcome::Confirmed, unknown()], now);
    assert_eq!((verdict.tally.refused, verdict.tally.published), (1, 1));
    plan.failed(bucket(0), now);
    plan.renamed(&[bucket(0)], now);
    assert!(take_ended(&mut plan, now).is_empty(), "not under a name that does not hold it");
    let later = now + LIMITS.retry_min;
    // Entry 5 came with the claim that had no answer; entry 3 was reclaimed meanwhile.
    plan.took_over(bucket(0), [1, 2, 5].map(entry).to_vec(), later);
    assert_eq!(take_ended(&mut plan, later), [(2, None)], "it is not published again");
    let (messages, batch) = plan.pack(later + LIMITS.retry_min, seal);
    assert_eq!(messages.iter().map(|message| number(&message.body)).collect::<Vec<_>>(), [1, 5]);
    plan.judge(batch, vec![refused(), PublishOutcome::Confirmed], later);
    let (_, batch) = plan.pack(later + LIMITS.retry_max, seal);
    let verdict = plan.judge(batch, vec![refused()], later);
    assert_eq!(verdict.tally.dead, 0, "two attempts, and one that was no news");
}

#[test]
fn a_failure_that_is_certain_only_makes_the_bucket_rest() {
    let now = now_monotonic();
    let mut plan = holding(entries(1..3), now);
    plan.failed(bucket(0), now);
    assert_eq!((plan.num_claimed(), plan.to_claim(now)), (2, vec![]));
    assert_eq!(plan.to_claim(now + LIMITS.retry_min), [(bucket(0), 3)]);
}

#[test]
fn busy_buckets_share_one_window_and_idle_ones_another() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    (0..10).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    let total = |asked: &[(BucketKey, usize)]| asked.iter().map(|(_, max)| max).sum::<usize>();
    let first = plan.to_claim(now);
    assert_eq!((first.len(), total(&first)), (10, 10), "one of each at least");
    for (key, max) in first {
        let brought = if key == bucket(0) { entries(1..2) } else { Vec::new() };
        assert_eq!(plan.claimed(key, max, brought, now), key == bucket(0));
    }
    publish(&mut plan, vec![PublishOutcome::Confirmed], now);
    assert_eq!(take_ended(&mut plan, now), [(1, None)]);
    let second: BTreeMap<_, _> =
        plan.to_claim(now).into_iter().map(|(key, max)| (key.bucket.0, max)).collect();
    assert_eq!(second[&0], 5, "all that it may hold: the window is larger");
    assert_eq!(second[&1], 1, "a ninth of the window, and one at least");
}

#[test]
fn a_bucket_without_entries_is_looked_at_less_and_less_often() {
    let mut now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    plan.watch(bucket(0), PollInterest::Selling, now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert!(!plan.claimed(bucket(0), 5, Vec::new(), now));
        let next = plan.next_at().unwrap();
        waits.push(next.duration_since(now).as_millis());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 16]);
    plan.poke(bucket(0), now);
    assert_eq!(plan.to_claim(now).len(), 1, "at once");
    plan.watch(bucket(0), PollInterest::Resting, now);
    for _ in 0..12 {
        plan.claimed(bucket(0), 5, Vec::new(), now);
    }
    assert_eq!(plan.next_at().unwrap().duration_since(now), Duration::from_secs(1));
}

#[test]
fn forgotten_sales_are_looked_at_seldom_and_slow_nobody() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    for no in 1..2_000 {
        plan.watch(bucket(no), PollInterest::Forgotten, now);
    }
    assert!(plan.to_claim(now).is_empty() && plan.next_at().unwrap() > now + 1_000 * MS);
    plan.watch(bucket(0), PollInterest::Selling, now);
    assert_eq!(plan.to_claim(now).len(), 1);
    for _ in 0..8 {
        plan.claimed(bucket(0), 1, Vec::new(), now);
    }
    assert!(plan.next_at().unwrap() <= now + LIMITS.poll_max);
    plan.watch(bucket(1), PollInterest::Resting, now);
    assert_eq!(plan.to_claim(now)[0].0, bucket(1), "it was opened again");
}

#[test]
fn many_buckets_are_looked_at_less_often_than_few() {
    let now = now_monotonic();
    let mut plan = RelayPlan::new(LIMITS, false);
    (0..1_000).for_each(|no| plan.watch(bucket(no), PollInterest::Selling, now));
    for (key, max) in (0..20).flat_map(|_| plan.to_claim(now)).collect::<Vec<_>>() {
        plan.claimed(key, max, Vec::new(), now);
    }
    // 1000 buckets and 2 workers at 10000 looks in a second.
    assert_eq!(plan.next_at().unwrap().duration_since(now), Duration::from_millis(200));
}

#[test]
fn refusals_count_where_the_queue_accepts_others_and_rest_longer_each_time() {
    let mut now = now_monotonic();
    let mut plan = holding(entries(1..2), now);
    let mut rests = Vec::new();
    for attempt in 1..=3_u64 {
        plan.claimed(bucket(0), 9, vec![entry(100 + attempt)], now);
        let verdict = publish(&mut plan, vec![refused(), PublishOutcome::Confirmed], now);
        let ended = take_ended(&mut plan, now);
        if attempt == 3 {
            let reason = "refused in 3 attempts, last: no".to_owned();
            assert_eq!((verdict.tally.dead, &ended[0]), (1, &(1, Some(reason))));
            break;
        }
        assert_eq!(ended, [(100 + attempt, None)]);
        let refused_at = now;
        while plan.pack(now, seal).1.is_empty() {
            now += MS;
        }
        rests.push(now.duration_since(refused_at).as_millis());
        assert_eq!(plan.to_claim(refused_at + LIMITS.poll_max).len(), 1, "others go on");
    }
    assert_eq!((rests, plan.num_claimed()), (vec![10, 20], 0));
}

#[test]
fn without_evidence_no_refusal_and_no_silence_is_an_attempt() {
    let mut now = now_monotonic();
    let mut plan = holding(entries(1..3), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed, refused()], now);
    take_ended(&mut plan, now);
    for sent in [refused(), unknown(), refused(), unknown(), refused()] {
        now += LIMITS.retry_max;
        let verdict = publish(&mut plan, vec![sent], now);
        assert_eq!((verdict.tally.dead, plan.num_claimed()), (0, 1));
    }
    // A round that is cut: the queue confirmed some of it, and nothing is known of the rest.
    for no in 10..20 {
        now += LIMITS.retry_max;
        plan.claimed(bucket(0), 9, vec![entry(if no == 11 { 21 } else { no })], now);
        let verdict = publish(&mut plan, vec![unknown(), PublishOutcome::Confirmed], now);
        assert_eq!((verdict.silence, verdict.tally.unknown), (None, 1));
        take_ended(&mut plan, now);
    }
    assert_eq!(plan.num_claimed(), 1);
}

#[test]
fn a_queue_that_answers_for_no_message_is_told_apart_from_a_broker_that_is_away() {
    let now = now_monotonic();
    let mut plan = holding(entries(1..4), now);
    let route =
        |entry: &OutboxEntry| Route::Orders(u16::try_from(number(&entry.bytes) % 2).unwrap());
    let (_, batch) = plan.pack(now, |bucket, entry| {
        let sealed = seal(bucket, entry);
        let message = sealed.message.map(|message| Message { route: route(entry), ..message });
        PackedEntry { message, ..sealed }
    });
    let verdict = plan.judge(batch, vec![unknown(), PublishOutcome::Confirmed, not_sent()], now);
    assert_eq!((verdict.away, verdict.silence), (None, Some("silence".to_owned())));
    // A broker with fewer results than messages has said nothing of the rest.
    let later = now + LIMITS.retry_max;
    let (_, batch) = plan.pack(later, seal);
    let verdict = plan.judge(batch, Vec::new(), later);
    assert_eq!((verdict.tally.unknown, verdict.tally.dead), (2, 0));
}

#[test]
fn what_cannot_be_acknowledged_is_acknowledged_again_and_not_published() {
    let mut now = now_monotonic();
    let mut plan = holding(entries(1..3), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed; 2], now);
    let mut rests = Vec::new();
    for _ in 0..4 {
        for (key, ended) in plan.take_ended(now) {
            assert_eq!(ended.len(), 2);
            plan.not_acknowledged(key, ended, now);
        }
        let failed_at = now;
        assert!(plan.take_ended(now).is_empty() && plan.to_claim(now + MS).is_empty());
        now = plan.next_at().unwrap();
        assert!(plan.pack(now, seal).0.is_empty(), "the broker has it");
        assert!(plan.to_claim(now).is_empty(), "nothing is added to what cannot leave");
        rests.push(now.duration_since(failed_at).as_millis());
    }
    assert_eq!(rests, [10, 20, 40, 40]);
    assert_eq!(take_ended(&mut plan, now).len(), 2);
    plan.acknowledged(bucket(0));
    assert_eq!(plan.to_claim(now).len(), 1);
}

#[test]
fn a_broker_that_is_away_costs_nothing_and_is_asked_again_later() {
    let now = now_monotonic();
    let mut plan = holding(entries(1..3), now);
    let verdict = publish(&mut plan, vec![not_sent(), not_sent()], now);
    assert_eq!(verdict.away, Some("gone".to_owned()));
    assert!(plan.broker_away(now) && !plan.broker_away(now), "news once");
    assert!(!plan.is_broker_due(now) && plan.is_broker_due(now + LIMITS.retry_max));
    assert!(plan.next_at().unwrap() > now, "no busy waiting");
    assert_eq!(plan.num_claimed(), 2);
    plan.broker_recovered(now);
    assert!(plan.is_broker_away() && plan.is_broker_due(now), "it is tried, not believed");
    assert!(plan.broker_well() && !plan.broker_well() && plan.is_broker_due(now));
    plan.broker_recovered(now + LIMITS.retry_max);
    assert!(!plan.is_broker_away());
}

#[test]
fn what_cannot_be_read_becomes_a_letter_and_blocks_nothing() {
    let now = now_monotonic();
    let mut plan = holding([10, 11, 14].map(entry).to_vec(), now);
    publish(&mut plan, vec![PublishOutcome::Confirmed, PublishOutcome::Confirmed], now);
    let mut ended = take_ended(&mut plan, now);
    ended.sort();
    let unreadable = || Some("unreadable".to_owned());
    assert_eq!(ended, [(10, None), (11, unreadable()), (14, unreadable())]);
}
