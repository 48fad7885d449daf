//! What a worker does next, case by case.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::rounds::{Interest, Limits, Rounds};
use crate::broker::{Headers, Message, Route, Sent};
use crate::clock::now_monotonic;
use crate::domain::{BucketNo, SkuNo};
use crate::outbox::{Entry, Fate, Hand};
use crate::stock::BucketKey;

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) const LIMITS: Limits = Limits {
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

pub(super) fn entry(no: u64) -> Entry {
    let bytes = no.to_be_bytes();
    Entry { id: bytes.into(), bytes: Bytes::copy_from_slice(&bytes), attempts: 0 }
}

fn entries(nos: std::ops::Range<u64>) -> Vec<Entry> {
    nos.map(entry).collect()
}

/// Seals everything but entries whose number is a multiple of 11.
pub(super) fn seal(_: BucketKey, entry: &Entry) -> Result<Message, String> {
    if number(&entry.bytes).is_multiple_of(11) {
        return Err("no message".to_owned());
    }
    let body = entry.bytes.clone();
    Ok(Message { route: Route::Orders(0), headers: Headers::default(), body })
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

pub(super) fn unknown() -> Sent {
    Sent::Unknown { reason: "silence".to_owned() }
}

pub(super) fn refused() -> Sent {
    Sent::Refused { reason: "no".to_owned() }
}

/// Rounds with these entries in hand, in one bucket.
fn holding(hand: Vec<Entry>, now: Instant) -> Rounds {
    let mut rounds = Rounds::new(LIMITS);
    rounds.watch(bucket(0), Interest::Selling, now);
    rounds.looked(Hand { bucket: bucket(0), entries: hand }, now);
    rounds
}

/// One round of publishing; the fates that are reported.
fn publish(rounds: &mut Rounds, sent: Vec<Sent>, now: Instant) -> Vec<Fate> {
    let (messages, plans) = rounds.pack(now, seal);
    assert_eq!(messages.len(), sent.len());
    let mut report = rounds.judge(plans, sent, now);
    report.hands.pop().map_or(Vec::new(), |(_, fates)| fates)
}

#[test]
fn a_bucket_is_read_before_anything_is_claimed_there() {
    let now = now_monotonic();
    let mut rounds = Rounds::new(LIMITS);
    rounds.watch(bucket(0), Interest::Selling, now);
    assert_eq!((rounds.to_look(now), rounds.to_claim(now)), (vec![bucket(0)], vec![]));
    rounds.looked(Hand { bucket: bucket(0), entries: entries(1..3) }, now);
    assert_eq!((rounds.to_look(now), rounds.to_claim(now)), (vec![], vec![(bucket(0), 3)]));
    rounds.failed(bucket(0), true, now);
    assert_eq!(rounds.num_in_hand(), 0, "what is in doubt is not believed");
    assert_eq!((rounds.to_look(now), rounds.to_claim(now)), (vec![], vec![]), "it rests first");
    let later = now + LIMITS.retry_min;
    assert_eq!((rounds.to_look(later), rounds.to_claim(later)), (vec![bucket(0)], vec![]));
}

#[test]
fn a_failure_that_is_certain_leaves_the_hand_and_only_rests() {
    let now = now_monotonic();
    let mut rounds = holding(entries(1..3), now);
    rounds.failed(bucket(0), false, now);
    assert_eq!((rounds.num_in_hand(), rounds.to_claim(now)), (2, vec![]));
    assert_eq!(rounds.to_claim(now + LIMITS.retry_min), [(bucket(0), 3)]);
}

#[test]
fn busy_buckets_share_one_window_and_idle_ones_another() {
    let now = now_monotonic();
    let mut rounds = Rounds::new(LIMITS);
    for no in 0..10 {
        rounds.watch(bucket(no), Interest::Selling, now);
        rounds.looked(Hand { bucket: bucket(no), entries: Vec::new() }, now);
    }
    let total = |asked: &[(BucketKey, usize)]| asked.iter().map(|(_, max)| max).sum::<usize>();
    let first = rounds.to_claim(now);
    assert_eq!((first.len(), total(&first)), (10, 10), "one of each at least");
    for (key, max) in first {
        let brought = if key == bucket(0) { entries(1..2) } else { Vec::new() };
        assert_eq!(rounds.claimed(key, max, brought, now), key == bucket(0));
    }
    assert_eq!(publish(&mut rounds, vec![Sent::Confirmed], now), [Fate::Published]);
    let second: BTreeMap<_, _> =
        rounds.to_claim(now).into_iter().map(|(key, max)| (key.bucket.0, max)).collect();
    assert_eq!(second[&0], 5, "all that fits into a hand: the window is larger");
    assert_eq!(second[&1], 1, "a ninth of the window, and one at least");
}

#[test]
fn a_bucket_without_entries_is_looked_at_less_and_less_often() {
    let mut now = now_monotonic();
    let mut rounds = holding(Vec::new(), now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert!(!rounds.claimed(bucket(0), 5, Vec::new(), now));
        let next = rounds.next_at().unwrap();
        waits.push(next.duration_since(now).as_millis());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 16]);
    rounds.poke(bucket(0), now);
    assert_eq!(rounds.to_claim(now).len(), 1, "at once");
    rounds.watch(bucket(0), Interest::Resting, now);
    for _ in 0..12 {
        rounds.claimed(bucket(0), 5, Vec::new(), now);
    }
    assert_eq!(rounds.next_at().unwrap().duration_since(now), Duration::from_secs(1));
}

#[test]
fn what_nobody_remembers_is_looked_at_seldom_and_slows_nobody() {
    let now = now_monotonic();
    let mut rounds = Rounds::new(LIMITS);
    for no in 1..2_000 {
        rounds.watch(bucket(no), Interest::Forgotten, now);
    }
    assert!(rounds.to_look(now).is_empty() && rounds.next_at().unwrap() > now + 1_000 * MS);
    rounds.watch(bucket(0), Interest::Selling, now);
    assert_eq!(rounds.to_look(now), [bucket(0)]);
    rounds.looked(Hand { bucket: bucket(0), entries: Vec::new() }, now);
    for _ in 0..8 {
        rounds.claimed(bucket(0), 1, Vec::new(), now);
    }
    assert!(rounds.next_at().unwrap() <= now + LIMITS.poll_max);
    rounds.watch(bucket(1), Interest::Resting, now);
    assert_eq!(rounds.to_look(now), [bucket(1)], "it was opened again");
}

#[test]
fn many_buckets_are_looked_at_less_often_than_few() {
    let now = now_monotonic();
    let mut rounds = Rounds::new(LIMITS);
    for no in 0..1_000 {
        rounds.watch(bucket(no), Interest::Selling, now);
        rounds.looked(Hand { bucket: bucket(no), entries: Vec::new() }, now);
    }
    for (key, max) in (0..20).flat_map(|_| rounds.to_claim(now)).collect::<Vec<_>>() {
        rounds.claimed(key, max, Vec::new(), now);
    }
    // 1000 buckets and 2 workers at 10000 looks in a second.
    assert_eq!(rounds.next_at().unwrap().duration_since(now), Duration::from_millis(200));
}

#[test]
fn refusals_count_up_to_a_dead_letter_and_rest_longer_each_time() {
    let mut now = now_monotonic();
    let mut rounds = holding(entries(1..3), now);
    let mut rests = Vec::new();
    for attempt in 1..=3 {
        let mut sent = vec![refused()];
        if attempt == 1 {
            sent.push(Sent::Confirmed);
        }
        let fates = publish(&mut rounds, sent, now);
        if attempt == 3 {
            let reason = "not published in 3 attempts, last: no".to_owned();
            assert_eq!(fates, [Fate::Dead { reason }]);
            break;
        }
        assert_eq!(fates[0], Fate::Failed);
        assert!(rounds.pack(now, seal).1.is_empty(), "it rests");
        let claims_at = now;
        while rounds.pack(now, seal).1.is_empty() {
            now += MS;
        }
        rests.push(now.duration_since(claims_at).as_millis());
        assert_eq!(rounds.to_claim(claims_at).len(), 1, "others go on");
    }
    assert_eq!((rests, rounds.num_in_hand()), (vec![10, 20], 0));
}

#[test]
fn silence_counts_where_the_broker_answered_for_others_only() {
    let now = now_monotonic();
    let mut rounds = holding(entries(1..3), now);
    assert_eq!(publish(&mut rounds, vec![unknown(), unknown()], now), [], "nothing to report");
    let later = now + LIMITS.retry_max;
    let fates = publish(&mut rounds, vec![unknown(), Sent::Confirmed], later);
    assert_eq!(fates, [Fate::Failed, Fate::Published]);
    let last = later + LIMITS.retry_max;
    // A broker with fewer results than messages has said nothing of the rest.
    let (_, plans) = rounds.pack(last, seal);
    let report = rounds.judge(plans, Vec::new(), last);
    assert_eq!((report.tally.unknown, report.hands), (1, vec![]));
}

#[test]
fn a_queue_that_says_nothing_is_no_attempt_although_others_answer() {
    let now = now_monotonic();
    let mut rounds = holding(entries(1..4), now);
    let queue = |entry: &Entry| u16::try_from(number(&entry.bytes) % 2).unwrap();
    let route = |entry: &Entry| Route::Orders(queue(entry));
    let (_, plans) = rounds.pack(now, |bucket, entry| {
        seal(bucket, entry).map(|message| Message { route: route(entry), ..message })
    });
    let away = Sent::NotSent { reason: "earlier ones".to_owned() };
    let report = rounds.judge(plans, vec![unknown(), Sent::Confirmed, away], now);
    let [(_, fates)] = &report.hands[..] else { panic!("{report:?}") };
    assert_eq!(fates[..], [Fate::Kept, Fate::Published, Fate::Kept]);
    assert_eq!((report.away, report.silence), (None, Some("silence".to_owned())));
    let later = now + LIMITS.retry_max;
    let fates = publish(&mut rounds, vec![unknown(), refused()], later);
    assert_eq!(fates, [Fate::Failed, Fate::Failed], "the first attempt of both");
}

#[test]
fn what_cannot_be_reported_is_published_less_and_less_often() {
    let mut now = now_monotonic();
    let mut rounds = holding(entries(1..3), now);
    let mut rests = Vec::new();
    for _ in 0..4 {
        assert_eq!(
            publish(&mut rounds, vec![Sent::Confirmed; 2], now),
            [Fate::Published, Fate::Published]
        );
        rounds.report_failed(bucket(0), now);
        let failed_at = now;
        now = rounds.next_at().unwrap();
        assert_eq!(rounds.to_look(now), [bucket(0)]);
        rounds.looked(Hand { bucket: bucket(0), entries: entries(1..3) }, now);
        assert!(rounds.to_claim(now).is_empty(), "nothing is added to what cannot leave");
        now = rounds.next_at().unwrap();
        rests.push(now.duration_since(failed_at).as_millis());
    }
    assert_eq!(rests, [20, 30, 50, 50], "a wait for the look, and one that grows");
    rounds.reported(bucket(0));
    assert_eq!(rounds.to_claim(now).len(), 1);
}

#[test]
fn a_broker_that_is_away_costs_nothing_and_is_asked_again_later() {
    let now = now_monotonic();
    let mut rounds = holding(entries(1..3), now);
    let (_, plans) = rounds.pack(now, seal);
    let away = Sent::NotSent { reason: "gone".to_owned() };
    let report = rounds.judge(plans, vec![away.clone(), away], now);
    assert_eq!((report.hands, report.away), (vec![], Some("gone".to_owned())));
    assert!(rounds.broker_away(now) && !rounds.broker_away(now), "news once");
    assert!(!rounds.is_broker_due(now) && rounds.is_broker_due(now + LIMITS.retry_max));
    assert!(rounds.next_at().unwrap() > now, "no busy waiting");
    assert_eq!(rounds.num_in_hand(), 2);
    rounds.broker_recovered(now);
    assert!(rounds.is_broker_away() && rounds.is_broker_due(now), "it is tried, not believed");
    assert!(rounds.broker_well() && !rounds.broker_well() && rounds.is_broker_due(now));
    rounds.broker_recovered(now + LIMITS.retry_max);
    assert!(!rounds.is_broker_away());
}

#[test]
fn what_cannot_be_a_message_dies_at_once_and_blocks_nobody() {
    let now = now_monotonic();
    let mut rounds = holding(entries(10..13), now);
    let fates = publish(&mut rounds, vec![Sent::Confirmed, Sent::Confirmed], now);
    let reason = "no message".to_owned();
    assert_eq!(fates, [Fate::Published, Fate::Dead { reason }, Fate::Published]);
}
