//! Rounds against an outbox with private lists under every name, with every answer that stores and
//! brokers can give, and with calls that take effect late.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::plan::{PollInterest, RelayPlan};
use super::plan_tests::{LIMITS, MS, bucket, entry, number, refused, seal, unknown};
use crate::broker::PublishOutcome;
use crate::outbox::{EndedEntry, OutboxEntry};
use crate::runtime::clock::now_monotonic;
use crate::stock::BucketKey;

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Luck {
    Well,
    NotDone,
    DoneUnheard,
    /// It takes effect after its worker gave up waiting.
    Late,
}

fn luck() -> impl Strategy<Value = Luck> {
    let bad = vec![Luck::NotDone, Luck::DoneUnheard, Luck::Late];
    prop_oneof![4 => Just(Luck::Well), 3 => prop::sample::select(bad)]
}

fn sent() -> impl Strategy<Value = PublishOutcome> {
    let not_sent = PublishOutcome::NotSent { reason: "away".to_owned() };
    prop_oneof![4 => Just(PublishOutcome::Confirmed), 1 => Just(refused()), 1 => Just(unknown()),
        1 => Just(not_sent)]
}

#[derive(Debug, Clone)]
struct Turn {
    take_over: Luck,
    claim: Luck,
    acknowledge: Luck,
    sent: Vec<PublishOutcome>,
    passes: Duration,
    /// A rescuer takes all names but the present one for gone.
    reclaims: bool,
}

prop_compose! {
    fn turns()(
        (take_over, claim, acknowledge) in (luck(), luck(), luck()),
        sent in prop::collection::vec(sent(), 24),
        passes in 0..30_u64,
        reclaims in prop::bool::weighted(0.1),
    ) -> Turn {
        let passes = Duration::from_millis(passes);
        Turn { take_over, claim, acknowledge, sent, passes, reclaims }
    }
}

/// A list and the private lists of each bucket, and everything that left.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<u16, VecDeque<OutboxEntry>>,
    claimed: BTreeMap<(u16, u64), Vec<OutboxEntry>>,
    /// Claims under way: bucket, name, how many.
    late: Vec<(u16, u64, usize)>,
    name: u64,
    /// Names that the worker takes over from.
    predecessors: Vec<u64>,
    confirmed: Vec<u64>,
    left: Vec<u64>,
}

impl Model {
    fn moves(&mut self, no: u16, name: u64, max: usize) -> Vec<OutboxEntry> {
        let waiting = self.waiting.entry(no).or_default();
        let moved: Vec<OutboxEntry> = waiting.drain(..max.min(waiting.len())).collect();
        self.claimed.entry((no, name)).or_default().extend(moved.iter().cloned());
        moved
    }

    fn inherits(&mut self, no: u16) -> Vec<OutboxEntry> {
        for name in self.predecessors.clone() {
            let moved = self.claimed.remove(&(no, name)).unwrap_or_default();
            self.claimed.entry((no, self.name)).or_default().extend(moved);
        }
        self.claimed.entry((no, self.name)).or_default().clone()
    }

    fn reclaim(&mut self) {
        let gone: Vec<_> = self.claimed.keys().copied().filter(|(_, n)| *n != self.name).collect();
        for (no, name) in gone {
            for entry in self.claimed.remove(&(no, name)).unwrap_or_default().into_iter().rev() {
                self.waiting.entry(no).or_default().push_front(entry);
            }
        }
    }

    fn rename(&mut self, plan: &mut RelayPlan, doubtful: &[BucketKey], now: Instant) {
        if !doubtful.is_empty() {
            self.predecessors.push(self.name);
            self.name += 1;
            plan.renamed(doubtful, now);
        }
    }

    fn turn(&mut self, plan: &mut RelayPlan, turn: &Turn, now: Instant) {
        for (no, name, max) in std::mem::take(&mut self.late) {
            self.moves(no, name, max);
        }
        if turn.reclaims {
            self.reclaim();
        }
        let mut doubtful = Vec::new();
        for key in plan.to_take_over(now) {
            let entries = if turn.take_over == Luck::Well || turn.take_over == Luck::DoneUnheard {
                self.inherits(key.bucket.0)
            } else {
                Vec::new()
            };
            if turn.take_over == Luck::Well {
                plan.took_over(key, entries, now);
            } else {
                plan.failed(key, now);
                doubtful.push(key);
            }
        }
        if !plan.takes_over() {
            self.predecessors.clear();
        }
        self.rename(plan, &doubtful, now);
        let mut doubtful = Vec::new();
        for (key, max) in plan.to_claim(now) {
            let no = key.bucket.0;
            match turn.claim {
                Luck::Well => {
                    let moved = self.moves(no, self.name, max);
                    plan.claimed(key, max, moved, now);
                    continue;
                }
                Luck::NotDone => {}
                Luck::DoneUnheard => drop(self.moves(no, self.name, max)),
                Luck::Late => self.late.push((no, self.name, max)),
            }
            plan.failed(key, now);
            if turn.claim != Luck::NotDone {
                doubtful.push(key);
            }
        }
        self.rename(plan, &doubtful, now);
        let (messages, batch) = plan.pack(now, seal);
        let said: Vec<PublishOutcome> =
            turn.sent.iter().cycle().take(messages.len()).cloned().collect();
        for (message, said) in messages.iter().zip(&said) {
            if *said == PublishOutcome::Confirmed {
                self.confirmed.push(number(&message.body));
            }
        }
        plan.judge(batch, said, now);
        for (key, ended) in plan.take_ended(now) {
            self.acknowledge(plan, key, ended, turn.acknowledge, now);
        }
    }

    fn acknowledge(
        &mut self,
        plan: &mut RelayPlan,
        key: BucketKey,
        ended: Vec<EndedEntry>,
        luck: Luck,
        now: Instant,
    ) {
        if matches!(luck, Luck::Well | Luck::DoneUnheard) {
            for ended in &ended {
                let no = number(&ended.id);
                let is_letter = ended.letter.is_some();
                assert!(is_letter || self.confirmed.contains(&no), "{no} left unconfirmed");
                let is_it = |entry: &OutboxEntry| entry.id == ended.id;
                let own = self.claimed.entry((key.bucket.0, self.name)).or_default();
                let waiting = self.waiting.entry(key.bucket.0).or_default();
                if let Some(at) = own.iter().position(is_it) {
                    own.remove(at);
                } else if let Some(at) = waiting.iter().position(is_it) {
                    waiting.remove(at);
                } else {
                    continue;
                }
                self.left.push(no);
            }
        }
        match luck {
            Luck::Well => plan.acknowledged(key),
            _ => plan.not_acknowledged(key, ended, now),
        }
    }
}

proptest! {
    #[test]
    fn whatever_fails_every_entry_leaves_once_and_none_unconfirmed(
        num in 1..60_u64,
        turns in prop::collection::vec(turns(), 0..30),
    ) {
        let mut now = now_monotonic();
        let (mut model, mut plan) = (Model::default(), RelayPlan::new(LIMITS, false));
        for no in 1..=num {
            let no_of = u16::try_from(no % 3).unwrap();
            model.waiting.entry(no_of).or_default().push_back(entry(no));
            plan.watch(bucket(no_of), PollInterest::Selling, now);
        }
        for turn in turns {
            now += turn.passes;
            model.turn(&mut plan, &turn, now);
        }
        // Everything is well from here on, and a rescuer comes: then everything leaves.
        for _ in 0..150 {
            now = plan.next_at().unwrap().max(now);
            let all_well = Turn {
                take_over: Luck::Well,
                claim: Luck::Well,
                acknowledge: Luck::Well,
                sent: vec![PublishOutcome::Confirmed],
                passes: MS,
                reclaims: !plan.takes_over(),
            };
            model.turn(&mut plan, &all_well, now);
        }
        model.left.sort_unstable();
        prop_assert_eq!(model.left, (1..=num).collect::<Vec<_>>());
        prop_assert_eq!(plan.num_claimed(), 0);
    }
}
