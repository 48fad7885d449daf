//! Rounds against an outbox that is two lists per bucket, with every answer that stores and brokers
//! can give.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::rounds::{Limits, Rounds};
use crate::broker::{Headers, Message, Route, Sent};
use crate::clock::now_monotonic;
use crate::domain::{BucketNo, SkuNo};
use crate::outbox::{Entry, Fate, Hand};
use crate::stock::BucketKey;

const MS: Duration = Duration::from_millis(1);

const LIMITS: Limits = Limits {
    claim_max: 5,
    window: 8,
    attempts_max: 3,
    workers: 2,
    poll_min: MS,
    poll_max: Duration::from_millis(16),
    retry_min: Duration::from_millis(10),
    retry_max: Duration::from_millis(40),
};

fn bucket(no: u16) -> BucketKey {
    BucketKey { sku: SkuNo(1), bucket: BucketNo(no) }
}

fn entry(no: u64) -> Entry {
    let bytes = no.to_be_bytes();
    Entry { id: bytes.into(), bytes: Bytes::copy_from_slice(&bytes), attempts: 0 }
}

fn entries(nos: std::ops::Range<u64>) -> Vec<Entry> {
    nos.map(entry).collect()
}

/// Seals everything but entries whose number is a multiple of 11.
fn seal(_: BucketKey, entry: &Entry) -> Result<Message, String> {
    if number(&entry.bytes).is_multiple_of(11) {
        return Err("no message".to_owned());
    }
    let body = entry.bytes.clone();
    Ok(Message { route: Route::Orders(0), headers: Headers::default(), body })
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn unknown() -> Sent {
    Sent::Unknown { reason: "silence".to_owned() }
}

fn refused() -> Sent {
    Sent::Refused { reason: "no".to_owned() }
}

/// Rounds with these entries in hand, in one bucket.
fn holding(hand: Vec<Entry>, now: Instant) -> Rounds {
    let mut rounds = Rounds::new(LIMITS);
    rounds.watch(bucket(0), true, now);
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
    rounds.watch(bucket(0), true, now);
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
        rounds.watch(bucket(no), true, now);
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
    rounds.watch(bucket(0), false, now);
    for _ in 0..12 {
        rounds.claimed(bucket(0), 5, Vec::new(), now);
    }
    assert_eq!(rounds.next_at().unwrap().duration_since(now), Duration::from_secs(1));
}

#[test]
fn many_buckets_are_looked_at_less_often_than_few() {
    let now = now_monotonic();
    let mut rounds = Rounds::new(LIMITS);
    for no in 0..1_000 {
        rounds.watch(bucket(no), true, now);
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

/// What happens to one call.
#[derive(Debug, Clone, Copy)]
enum Luck {
    Well,
    NotDone,
    DoneUnheard,
}

fn luck() -> impl Strategy<Value = Luck> {
    prop_oneof![4 => Just(Luck::Well), 1 => Just(Luck::NotDone), 1 => Just(Luck::DoneUnheard)]
}

fn sent() -> impl Strategy<Value = Sent> {
    let not_sent = Sent::NotSent { reason: "away".to_owned() };
    prop_oneof![4 => Just(Sent::Confirmed), 1 => Just(refused()), 1 => Just(unknown()),
        1 => Just(not_sent)]
}

prop_compose! {
    /// One round: the luck of each call, what the broker says, and the time that passes.
    fn turns()(
        (look, claim, report) in (luck(), luck(), luck()),
        sent in prop::collection::vec(sent(), 24),
        passes in 0..30_u64,
    ) -> (Luck, Luck, Luck, Vec<Sent>, Duration) {
        (look, claim, report, sent, Duration::from_millis(passes))
    }
}

/// An outbox of two lists per bucket, and everything that left it.
#[derive(Default)]
struct Model {
    lines: BTreeMap<u16, VecDeque<Entry>>,
    hands: BTreeMap<u16, Vec<Entry>>,
    confirmed: Vec<u64>,
    left: Vec<u64>,
}

impl Model {
    fn turn(
        &mut self,
        rounds: &mut Rounds,
        turn: (Luck, Luck, Luck, Vec<Sent>, Duration),
        now: Instant,
    ) {
        let (look, claim, report, sent, _) = turn;
        for key in rounds.to_look(now) {
            let entries = self.hands.entry(key.bucket.0).or_default().clone();
            match look {
                Luck::Well => rounds.looked(Hand { bucket: key, entries }, now),
                Luck::NotDone | Luck::DoneUnheard => rounds.failed(key, true, now),
            }
        }
        let asked = rounds.to_claim(now);
        let total: usize = asked.iter().map(|(_, max)| max).sum();
        assert!(total <= 2 * LIMITS.window + asked.len(), "{asked:?}");
        for (key, max) in asked {
            self.claim(rounds, key, max, claim, now);
        }
        let (messages, plans) = rounds.pack(now, seal);
        let said: Vec<Sent> = sent.into_iter().cycle().take(messages.len()).collect();
        for (message, said) in messages.iter().zip(&said) {
            if *said == Sent::Confirmed {
                self.confirmed.push(number(&message.body));
            }
        }
        for (hand, fates) in rounds.judge(plans, said, now).hands {
            self.report(rounds, hand, &fates, report, now);
        }
    }

    fn claim(&mut self, rounds: &mut Rounds, key: BucketKey, max: usize, luck: Luck, now: Instant) {
        if matches!(luck, Luck::NotDone) {
            rounds.failed(key, false, now);
            return;
        }
        let line = self.lines.entry(key.bucket.0).or_default();
        let num = max.min(line.len());
        let moved: Vec<Entry> = line.drain(..num).collect();
        let hand = self.hands.entry(key.bucket.0).or_default();
        hand.extend(moved.iter().cloned());
        assert!(hand.len() <= LIMITS.claim_max);
        match luck {
            Luck::Well => drop(rounds.claimed(key, max, moved, now)),
            _ => rounds.failed(key, true, now),
        }
    }

    fn report(
        &mut self,
        rounds: &mut Rounds,
        told: Hand,
        fates: &[Fate],
        luck: Luck,
        now: Instant,
    ) {
        let hand = self.hands.entry(told.bucket.bucket.0).or_default();
        assert_eq!(*hand, told.entries, "the whole hand, as it is");
        assert_eq!(hand.len(), fates.len());
        if matches!(luck, Luck::NotDone) {
            rounds.failed(told.bucket, true, now);
            return;
        }
        for (mut entry, fate) in std::mem::take(hand).into_iter().zip(fates) {
            match fate {
                Fate::Published => {
                    let no = number(&entry.bytes);
                    assert!(self.confirmed.contains(&no), "{no} left without a confirmation");
                    self.left.push(no);
                }
                Fate::Dead { .. } => self.left.push(number(&entry.bytes)),
                Fate::Kept => hand.push(entry),
                Fate::Failed => {
                    entry.attempts += 1;
                    assert!(entry.attempts < LIMITS.attempts_max);
                    hand.push(entry);
                }
            }
        }
        match luck {
            Luck::Well => rounds.reported(told.bucket),
            _ => rounds.failed(told.bucket, true, now),
        }
    }
}

proptest! {
    #[test]
    fn whatever_fails_every_entry_leaves_once_and_none_without_a_word(
        num in 1..60_u64,
        turns in prop::collection::vec(turns(), 0..30),
    ) {
        let mut now = now_monotonic();
        let (mut model, mut rounds) = (Model::default(), Rounds::new(LIMITS));
        for no in 1..=num {
            let no_of = u16::try_from(no % 3).unwrap();
            model.lines.entry(no_of).or_default().push_back(entry(no));
            rounds.watch(bucket(no_of), true, now);
        }
        for turn in turns {
            now += turn.4;
            model.turn(&mut rounds, turn, now);
        }
        // Everything is well from here on: then everything leaves.
        for _ in 0..100 {
            now = rounds.next_at().unwrap().max(now);
            let all_well = (Luck::Well, Luck::Well, Luck::Well, vec![Sent::Confirmed], MS);
            model.turn(&mut rounds, all_well, now);
        }
        model.left.sort_unstable();
        prop_assert_eq!(model.left, (1..=num).collect::<Vec<_>>());
    }
}
