//! Random rounds against a model of the outbox (one private list per worker name), with every
//! answer that stores and brokers can give, and with calls that take effect late.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::plan::{PollInterest, RelayPlan};
use super::plan_tests::{LIMITS, MS, bucket, encode, entry, number, refused, unknown};
use crate::broker::PublishOutcome;
use crate::domain::BucketKey;
use crate::outbox::{EndedEntry, OutboxEntry};
use crate::runtime::clock::now_monotonic;

/// The effect of one call and its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CallFault {
    None,
    NotDone,
    DoneUnanswered,
    /// The call takes effect after its worker gave up waiting.
    Late,
}

fn call_fault() -> impl Strategy<Value = CallFault> {
    let faults = vec![CallFault::NotDone, CallFault::DoneUnanswered, CallFault::Late];
    prop_oneof![4 => Just(CallFault::None), 3 => prop::sample::select(faults)]
}

fn sent() -> impl Strategy<Value = PublishOutcome> {
    let not_sent = PublishOutcome::NotSent { reason: "disconnected".to_owned() };
    prop_oneof![4 => Just(PublishOutcome::Confirmed), 1 => Just(refused()), 1 => Just(unknown()),
        1 => Just(not_sent)]
}

#[derive(Debug, Clone)]
struct Round {
    take_over: CallFault,
    claim: CallFault,
    acknowledge: CallFault,
    sent: Vec<PublishOutcome>,
    /// Time since the round before.
    elapsed: Duration,
    /// Whether a rescuer reclaims the entries of all names but the current one.
    reclaims: bool,
}

prop_compose! {
    fn rounds()(
        (take_over, claim, acknowledge) in (call_fault(), call_fault(), call_fault()),
        sent in prop::collection::vec(sent(), 24),
        elapsed_ms in 0..30_u64,
        reclaims in prop::bool::weighted(0.1),
    ) -> Round {
        let elapsed = Duration::from_millis(elapsed_ms);
        Round { take_over, claim, acknowledge, sent, elapsed, reclaims }
    }
}

/// The shared list and the private lists of each bucket, and the entries that were removed.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<u16, VecDeque<OutboxEntry>>,
    claimed: BTreeMap<(u16, u64), Vec<OutboxEntry>>,
    /// Claims that have not taken effect: bucket, name, size.
    late: Vec<(u16, u64, usize)>,
    name: u64,
    predecessors: Vec<u64>,
    confirmed: Vec<u64>,
    removed: Vec<u64>,
}

impl Model {
    fn claim(&mut self, no: u16, name: u64, max: usize) -> Vec<OutboxEntry> {
        let waiting = self.waiting.entry(no).or_default();
        let moved: Vec<OutboxEntry> = waiting.drain(..max.min(waiting.len())).collect();
        self.claimed.entry((no, name)).or_default().extend(moved.iter().cloned());
        moved
    }

    fn take_over(&mut self, no: u16) -> Vec<OutboxEntry> {
        for name in self.predecessors.clone() {
            let moved = self.claimed.remove(&(no, name)).unwrap_or_default();
            self.claimed.entry((no, self.name)).or_default().extend(moved);
        }
        self.claimed.entry((no, self.name)).or_default().clone()
    }

    fn reclaim(&mut self) {
        let orphaned: Vec<_> =
            self.claimed.keys().copied().filter(|(_, n)| *n != self.name).collect();
        for (no, name) in orphaned {
            for entry in self.claimed.remove(&(no, name)).unwrap_or_default().into_iter().rev() {
                self.waiting.entry(no).or_default().push_front(entry);
            }
        }
    }

    fn rename(&mut self, plan: &mut RelayPlan, uncertain: &[BucketKey], now: Instant) {
        if !uncertain.is_empty() {
            self.predecessors.push(self.name);
            self.name += 1;
            plan.begin_takeover(uncertain, now);
        }
    }

    fn run_round(&mut self, plan: &mut RelayPlan, round: &Round, now: Instant) {
        for (no, name, max) in std::mem::take(&mut self.late) {
            self.claim(no, name, max);
        }
        if round.reclaims {
            self.reclaim();
        }
        let mut uncertain = Vec::new();
        for key in plan.takeover_due(now) {
            let entries = if [CallFault::None, CallFault::DoneUnanswered].contains(&round.take_over)
            {
                self.take_over(key.bucket.0)
            } else {
                Vec::new()
            };
            if round.take_over == CallFault::None {
                plan.record_takeover(key, entries, now);
            } else {
                plan.record_failure(key, now);
                uncertain.push(key);
            }
        }
        if !plan.has_pending_takeover() {
            self.predecessors.clear();
        }
        self.rename(plan, &uncertain, now);
        let mut uncertain = Vec::new();
        for (key, max) in plan.claims_due(now) {
            let no = key.bucket.0;
            match round.claim {
                CallFault::None => {
                    let moved = self.claim(no, self.name, max);
                    plan.record_claim(key, max, moved, now);
                    continue;
                }
                CallFault::NotDone => {}
                CallFault::DoneUnanswered => drop(self.claim(no, self.name, max)),
                CallFault::Late => self.late.push((no, self.name, max)),
            }
            plan.record_failure(key, now);
            if round.claim != CallFault::NotDone {
                uncertain.push(key);
            }
        }
        self.rename(plan, &uncertain, now);
        let (messages, batch) = plan.pack(now, encode);
        let outcomes: Vec<PublishOutcome> =
            round.sent.iter().cycle().take(messages.len()).cloned().collect();
        for (message, outcome) in messages.iter().zip(&outcomes) {
            if *outcome == PublishOutcome::Confirmed {
                self.confirmed.push(number(&message.body));
            }
        }
        plan.apply_outcomes(batch, outcomes, now);
        for (key, ended) in plan.take_ended(now) {
            self.acknowledge(plan, key, ended, round.acknowledge, now);
        }
    }

    fn acknowledge(
        &mut self,
        plan: &mut RelayPlan,
        key: BucketKey,
        ended: Vec<EndedEntry>,
        fault: CallFault,
        now: Instant,
    ) {
        if matches!(fault, CallFault::None | CallFault::DoneUnanswered) {
            for ended in &ended {
                let no = number(&ended.id);
                let is_dead = ended.dead_letter.is_some();
                assert!(is_dead || self.confirmed.contains(&no), "{no} removed without a confirm");
                let is_ended = |entry: &OutboxEntry| entry.id == ended.id;
                let own = self.claimed.entry((key.bucket.0, self.name)).or_default();
                let waiting = self.waiting.entry(key.bucket.0).or_default();
                if let Some(at) = own.iter().position(is_ended) {
                    own.remove(at);
                } else if let Some(at) = waiting.iter().position(is_ended) {
                    waiting.remove(at);
                } else {
                    continue;
                }
                self.removed.push(no);
            }
        }
        match fault {
            CallFault::None => plan.record_acknowledged(key),
            _ => plan.retry_acknowledgement(key, ended, now),
        }
    }
}

proptest! {
    #[test]
    fn every_entry_is_removed_once_and_none_without_a_confirm(
        num in 1..60_u64,
        rounds in prop::collection::vec(rounds(), 0..30),
    ) {
        let mut now = now_monotonic();
        let (mut model, mut plan) = (Model::default(), RelayPlan::new(LIMITS, false));
        for no in 1..=num {
            let bucket_no = u16::try_from(no % 3).unwrap();
            model.waiting.entry(bucket_no).or_default().push_back(entry(no));
            plan.watch(bucket(bucket_no), PollInterest::Selling, now);
        }
        for round in rounds {
            now += round.elapsed;
            model.run_round(&mut plan, &round, now);
        }
        // Without faults and with a rescuer, every entry must be removed.
        for _ in 0..150 {
            now = plan.next_at().unwrap().max(now);
            let round = Round {
                take_over: CallFault::None,
                claim: CallFault::None,
                acknowledge: CallFault::None,
                sent: vec![PublishOutcome::Confirmed],
                elapsed: MS,
                reclaims: !plan.has_pending_takeover(),
            };
            model.run_round(&mut plan, &round, now);
        }
        model.removed.sort_unstable();
        prop_assert_eq!(model.removed, (1..=num).collect::<Vec<_>>());
        prop_assert_eq!(plan.num_claimed(), 0);
    }
}
