//! What a relay worker holds and does next. Pure: no actor, no clock, no store.
//!
//! One bucket in trouble waits by itself: the others go on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::broker::Route;
use crate::outbox::{EndedEntry, OutboxEntry};
use crate::redis::scripts::codes;
use crate::runtime::backoff::doubled;
use crate::stock::BucketKey;

/// How many buckets the idle workers of one process look at in a second, at most: many buckets are
/// looked at less often than few.
const LOOKS_PER_S: u32 = 10_000;

/// How often a bucket of a sale that sells nothing is looked at: only reclaimed entries can appear
/// there.
const RARELY: Duration = Duration::from_secs(1);

/// The same for a sale that has been over for long.
const SELDOM: Duration = Duration::from_secs(60);

/// How often a bucket is worth looking at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollInterest {
    /// Its sale sells, or may again.
    Selling,
    /// Its sale is over, or has not begun.
    Resting,
    /// Its sale has been over for long.
    Forgotten,
}

/// Limits of one worker.
#[derive(Debug, Clone, Copy)]
pub struct PlanLimits {
    /// Most entries that the worker claims of a bucket at a time.
    pub claim_max: usize,
    /// What one round should bring, over all buckets.
    pub window: usize,
    /// Refusals after which an entry becomes a dead letter.
    pub attempts_max: u32,
    /// Workers that look at the same buckets.
    pub workers: usize,
    /// First wait after nothing was found.
    pub poll_min: Duration,
    /// Longest such wait.
    pub poll_max: Duration,
    /// First wait after something failed.
    pub retry_min: Duration,
    /// Longest such wait.
    pub retry_max: Duration,
}

impl PlanLimits {
    pub(super) fn rest(&self, failures: u32) -> Duration {
        doubled(self.retry_min, self.retry_max, failures.saturating_sub(1))
    }
}

/// A claimed entry that the broker has not confirmed.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) entry: OutboxEntry,
    /// Not published before.
    pub(super) due: Instant,
    /// Rounds in which the broker did not take it.
    pub(super) failures: u32,
    /// Refusals that count.
    pub(super) attempts: u32,
    /// Confirmations of its queue before its last attempt that counts; `None`: it was never sent.
    pub(super) seen: Option<u64>,
}

/// One bucket, as one worker sees it.
#[derive(Debug)]
pub(super) struct BucketState {
    pub(super) in_flight: VecDeque<InFlight>,
    /// Confirmed or given up, and not acknowledged.
    pub(super) ended: Vec<EndedEntry>,
    /// Whether there may be entries that the worker does not know of, under an earlier name.
    takes_over: bool,
    /// When to ask the outbox.
    next_at: Instant,
    /// Calls to the outbox that failed, in a row.
    failures: u32,
    /// Claims that brought nothing, in a row.
    empties: u32,
    interest: PollInterest,
}

impl BucketState {
    fn room(&self, claim_max: usize) -> usize {
        // Nothing is claimed beside entries that cannot be acknowledged.
        let may_claim = !self.takes_over && self.ended.is_empty();
        if may_claim { claim_max.saturating_sub(self.in_flight.len()) } else { 0 }
    }

    fn asks_nothing(&self) -> bool {
        !self.takes_over && self.ended.is_empty()
    }
}

/// Everything one worker holds.
#[derive(Debug)]
pub struct RelayPlan {
    pub(super) limits: PlanLimits,
    pub(super) buckets: HashMap<BucketKey, BucketState>,
    /// Whether buckets that are new to the worker may hold entries of predecessors.
    has_predecessors: bool,
    /// Messages that each queue has confirmed.
    pub(super) confirmed: HashMap<Route, u64>,
    /// Rounds in a row in which the broker was away, and when it is tried again.
    away: Option<(u32, Instant)>,
}

impl RelayPlan {
    /// The plan of a worker that has seen nothing.
    #[must_use]
    pub fn new(limits: PlanLimits, has_predecessors: bool) -> Self {
        let (buckets, confirmed) = (HashMap::new(), HashMap::new());
        Self { limits, buckets, has_predecessors, confirmed, away: None }
    }

    fn bucket(
        &mut self,
        key: BucketKey,
        interest: PollInterest,
        next_at: Instant,
    ) -> &mut BucketState {
        let takes_over = self.has_predecessors;
        self.buckets.entry(key).or_insert_with(|| BucketState {
            in_flight: VecDeque::new(),
            ended: Vec::new(),
            takes_over,
            next_at,
            failures: 0,
            empties: 0,
            interest,
        })
    }

    /// Serves a bucket from now on, if it was not served before.
    pub fn watch(&mut self, key: BucketKey, interest: PollInterest, now: Instant) {
        let begin = if interest == PollInterest::Forgotten { now + SELDOM } else { now };
        let bucket = self.bucket(key, interest, begin);
        if bucket.interest == PollInterest::Forgotten && interest != PollInterest::Forgotten {
            bucket.next_at = bucket.next_at.min(now);
        }
        bucket.interest = interest;
    }

    /// Something was put into this bucket.
    pub fn poke(&mut self, key: BucketKey, now: Instant) {
        let bucket = self.bucket(key, PollInterest::Selling, now);
        bucket.empties = 0;
        if bucket.failures == 0 {
            bucket.next_at = bucket.next_at.min(now);
        }
    }

    /// The buckets that are served and not forgotten.
    pub fn served(&self) -> impl Iterator<Item = BucketKey> {
        let served = self.buckets.iter().filter(|(_, bucket)| {
            bucket.interest != PollInterest::Forgotten || !bucket.in_flight.is_empty()
        });
        served.map(|(key, _)| *key)
    }

    /// Entries that were claimed and not acknowledged.
    #[must_use]
    pub fn num_claimed(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.in_flight.len() + bucket.ended.len()).sum()
    }

    /// The worker has a new name: what it holds, and what it does not know of in this bucket, is to
    /// be taken over.
    pub fn renamed(&mut self, doubtful: &[BucketKey], now: Instant) {
        for (key, bucket) in &mut self.buckets {
            let holds = !bucket.in_flight.is_empty() || !bucket.ended.is_empty();
            if holds || doubtful.contains(key) {
                bucket.takes_over = true;
                bucket.next_at = if bucket.failures == 0 { now } else { bucket.next_at };
            }
        }
    }

    /// Whether predecessors may still hold entries.
    #[must_use]
    pub fn takes_over(&self) -> bool {
        self.has_predecessors || self.buckets.values().any(|bucket| bucket.takes_over)
    }

    /// Buckets in which to take over before anything is claimed there.
    #[must_use]
    pub fn to_take_over(&self, now: Instant) -> Vec<BucketKey> {
        let due = |bucket: &BucketState| bucket.takes_over && bucket.next_at <= now;
        self.buckets.iter().filter(|(_, bucket)| due(bucket)).map(|(key, _)| *key).collect()
    }

    /// The worker holds exactly these entries in a bucket. What it knows of them stays known.
    pub fn took_over(&mut self, key: BucketKey, entries: Vec<OutboxEntry>, now: Instant) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        let known = std::mem::take(&mut bucket.in_flight).into_iter();
        let mut known: HashMap<_, _> = known.map(|known| (known.entry.id.clone(), known)).collect();
        let ended: HashSet<_> = bucket.ended.iter().map(|ended| &ended.id).collect();
        let entries = entries.into_iter().filter(|entry| !ended.contains(&entry.id));
        let in_flight = entries.map(|entry| {
            let fresh = InFlight { due: now, failures: 0, attempts: 0, seen: None, entry };
            known.remove(&fresh.entry.id).unwrap_or(fresh)
        });
        bucket.in_flight = in_flight.collect();
        (bucket.takes_over, bucket.failures, bucket.next_at) = (false, 0, now);
        self.has_predecessors &= self.buckets.values().any(|bucket| bucket.takes_over);
    }

    /// The outbox did not do what it was asked to in this bucket.
    pub fn failed(&mut self, key: BucketKey, now: Instant) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        bucket.failures = bucket.failures.saturating_add(1);
        bucket.next_at = now + self.limits.rest(bucket.failures);
    }

    /// What to claim: at most so many entries of each bucket. Buckets that gave something the last
    /// time share one window, the others another.
    #[must_use]
    pub fn to_claim(&self, now: Instant) -> Vec<(BucketKey, usize)> {
        let asks = |bucket: &BucketState, at| {
            bucket.next_at <= at && bucket.room(self.limits.claim_max) > 0
        };
        if !self.buckets.values().any(|bucket| asks(bucket, now)) {
            return Vec::new();
        }
        // What is due soon is asked for too: one exchange is cheaper than two.
        let soon = now + self.limits.poll_max / 4;
        let asked = || {
            let due = move |bucket: &BucketState| {
                asks(bucket, now) || (bucket.failures == 0 && asks(bucket, soon))
            };
            self.buckets.iter().filter(move |(_, bucket)| due(bucket))
        };
        let num_busy = asked().filter(|(_, bucket)| bucket.empties == 0).count();
        let num_idle = asked().count() - num_busy;
        let share = |among: usize| (self.limits.window / among.max(1)).max(1);
        asked()
            .map(|(key, bucket)| {
                let share = share(if bucket.empties == 0 { num_busy } else { num_idle });
                (*key, share.min(bucket.room(self.limits.claim_max)))
            })
            .collect()
    }

    /// A claim for up to `asked` entries brought these. True: there may be more.
    pub fn claimed(
        &mut self,
        key: BucketKey,
        asked: usize,
        entries: Vec<OutboxEntry>,
        now: Instant,
    ) -> bool {
        let (limits, longest) = (self.limits, self.longest_wait());
        let Some(bucket) = self.buckets.get_mut(&key) else { return false };
        let (is_full, is_empty) = (entries.len() >= asked, entries.is_empty());
        let fresh = |entry| InFlight { entry, due: now, failures: 0, attempts: 0, seen: None };
        bucket.in_flight.extend(entries.into_iter().map(fresh));
        bucket.failures = 0;
        let longest = match bucket.interest {
            PollInterest::Selling => longest,
            PollInterest::Resting => longest.max(RARELY),
            PollInterest::Forgotten => longest.max(SELDOM),
        };
        let wait = doubled(limits.poll_min, longest, bucket.empties);
        bucket.empties = if is_empty { bucket.empties.saturating_add(1) } else { 0 };
        bucket.next_at = if is_full { now } else { now + wait };
        is_full
    }

    /// How long a bucket of a running sale is left alone.
    fn longest_wait(&self) -> Duration {
        let selling =
            self.buckets.values().filter(|bucket| bucket.interest == PollInterest::Selling);
        let looks = selling.count().saturating_mul(self.limits.workers);
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.limits.poll_max.max(Duration::from_secs(1).saturating_mul(looks) / LOOKS_PER_S)
    }

    /// Takes out what is to be acknowledged now, as much of each bucket as one call takes.
    pub fn take_ended(&mut self, now: Instant) -> Vec<(BucketKey, Vec<EndedEntry>)> {
        let most = usize::try_from(codes::CLAIM_MAX).unwrap_or(1);
        let due = |bucket: &BucketState| {
            let is_due = bucket.failures == 0 || bucket.next_at <= now;
            !bucket.ended.is_empty() && !bucket.takes_over && is_due
        };
        let due = self.buckets.iter_mut().filter(|(_, bucket)| due(bucket));
        let take = |bucket: &mut BucketState| {
            let num = bucket.ended.len().min(most);
            bucket.ended.drain(..num).collect()
        };
        due.map(|(key, bucket)| (*key, take(bucket))).collect()
    }

    /// These were acknowledged.
    pub fn acknowledged(&mut self, key: BucketKey) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.failures = 0;
        }
    }

    /// These were perhaps not acknowledged: it is tried again, and they are not published again.
    pub fn not_acknowledged(&mut self, key: BucketKey, ended: Vec<EndedEntry>, now: Instant) {
        self.failed(key, now);
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.ended.extend(ended);
        }
    }

    /// The broker is away: nothing is claimed or published for a while. True: that is news.
    pub fn broker_away(&mut self, now: Instant) -> bool {
        let before = self.away.map(|(rounds, _)| rounds);
        let rounds = before.unwrap_or(0).saturating_add(1);
        self.away = Some((rounds, now + self.limits.rest(rounds)));
        before.is_none()
    }

    /// Another worker says that the broker takes messages again: it may be tried at once.
    pub fn broker_recovered(&mut self, now: Instant) {
        if let Some((_, at)) = &mut self.away {
            *at = now;
        }
    }

    /// The broker takes messages. True: that is news.
    pub fn broker_well(&mut self) -> bool {
        self.away.take().is_some()
    }

    /// Whether the broker is away.
    #[must_use]
    pub fn is_broker_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether the broker may be tried.
    #[must_use]
    pub fn is_broker_due(&self, now: Instant) -> bool {
        self.away.is_none_or(|(_, at)| at <= now)
    }

    /// When there is something to do next, if nobody pokes before.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let away = self.away.map(|(_, at)| at);
        let next_of = |bucket: &BucketState| {
            if !bucket.asks_nothing() {
                return Some(bucket.next_at);
            }
            let claim = (bucket.room(self.limits.claim_max) > 0).then_some(bucket.next_at);
            let publish = bucket.in_flight.iter().map(|in_flight| in_flight.due).min();
            let next = [claim, publish].into_iter().flatten().min()?;
            Some(away.map_or(next, |at| next.max(at)))
        };
        self.buckets.values().filter_map(next_of).chain(away).min()
    }
}
