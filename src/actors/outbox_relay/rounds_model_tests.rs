//! Rounds against an outbox that is two lists per bucket, with every answer that stores and brokers
//! can give.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::rounds::{Interest, Rounds};
use super::rounds_tests::{LIMITS, MS, bucket, entry, number, refused, seal, unknown};
use crate::broker::Sent;
use crate::clock::now_monotonic;
use crate::outbox::{Entry, Fate, Hand};
use crate::stock::BucketKey;

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
            rounds.report_failed(told.bucket, now);
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
            _ => rounds.report_failed(told.bucket, now),
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
            rounds.watch(bucket(no_of), Interest::Selling, now);
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
