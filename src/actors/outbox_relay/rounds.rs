//! What a relay worker holds and does next. Pure: no actor, no clock, no store.
//!
//! A round looks at the hands that are in doubt, claims, publishes and reports. A hand is in doubt
//! when the worker begins and after every call whose outcome is not known; then it is read before
//! anything else is done in its bucket, and what the worker believed of it is forgotten. One bucket
//! in trouble waits by itself: the others go on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::backoff::doubled;
use crate::outbox::{Entry, Hand};
use crate::stock::BucketKey;

/// How many buckets the idle workers of one process look at in a second, at most: many buckets are
/// looked at less often than few.
const LOOKS_PER_S: u32 = 10_000;

/// How often a bucket of a sale that sells nothing is looked at: only work that was given back can
/// appear there.
const RARELY: Duration = Duration::from_secs(1);

/// How often that of a sale is looked at which nobody remembers.
const SELDOM: Duration = Duration::from_secs(60);

/// What a bucket is worth looking at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Its sale sells, or may again.
    Selling,
    /// Its sale is over, or has not begun.
    Resting,
    /// Its sale has been over for long.
    Forgotten,
}

/// Limits of one worker.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most entries in hand, per bucket.
    pub claim_max: usize,
    /// What one round should bring, over all buckets.
    pub window: usize,
    /// Tries to publish one entry.
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

impl Limits {
    pub(super) fn rest(&self, failures: u32) -> Duration {
        doubled(self.retry_min, self.retry_max, failures.saturating_sub(1))
    }
}

/// One entry in hand.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) entry: Entry,
    /// Not published before.
    pub(super) due: Instant,
    /// Rounds in which the broker did not take it.
    pub(super) failures: u32,
}

/// One bucket, as one worker sees it.
#[derive(Debug)]
pub(super) struct Tray {
    pub(super) slots: Vec<Slot>,
    /// Whether the hand must be read before anything else.
    in_doubt: bool,
    /// When to read the hand or to claim.
    next_at: Instant,
    /// Calls to the outbox that failed, in a row.
    failures: u32,
    /// Reports that failed, in a row: nothing is claimed until one is taken.
    unreported: u32,
    /// Claims that brought nothing, in a row.
    empties: u32,
    interest: Interest,
}

impl Tray {
    fn new(interest: Interest, next_at: Instant) -> Self {
        Self {
            slots: Vec::new(),
            in_doubt: true,
            next_at,
            failures: 0,
            unreported: 0,
            empties: 0,
            interest,
        }
    }

    fn room(&self, claim_max: usize) -> usize {
        let may_claim = !self.in_doubt && self.unreported == 0;
        if may_claim { claim_max.saturating_sub(self.slots.len()) } else { 0 }
    }
}

/// Everything one worker holds.
#[derive(Debug)]
pub struct Rounds {
    pub(super) limits: Limits,
    pub(super) trays: HashMap<BucketKey, Tray>,
    /// Rounds in a row in which the broker was away, and when it is tried again.
    away: Option<(u32, Instant)>,
}

impl Rounds {
    /// A worker that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, trays: HashMap::new(), away: None }
    }

    /// Serves a bucket from now on, if it was not served before.
    pub fn watch(&mut self, bucket: BucketKey, interest: Interest, now: Instant) {
        let begin = if interest == Interest::Forgotten { now + SELDOM } else { now };
        let tray = self.trays.entry(bucket).or_insert_with(|| Tray::new(interest, begin));
        if tray.interest == Interest::Forgotten && interest != Interest::Forgotten {
            tray.next_at = tray.next_at.min(now);
        }
        tray.interest = interest;
    }

    /// Somebody put something into this bucket.
    pub fn poke(&mut self, bucket: BucketKey, now: Instant) {
        let tray = self.trays.entry(bucket).or_insert_with(|| Tray::new(Interest::Selling, now));
        tray.empties = 0;
        if tray.failures == 0 {
            tray.next_at = tray.next_at.min(now);
        }
    }

    /// The buckets that are served.
    pub fn buckets(&self) -> impl Iterator<Item = BucketKey> {
        self.trays.keys().copied()
    }

    /// Entries in hand.
    #[must_use]
    pub fn num_in_hand(&self) -> usize {
        self.trays.values().map(|tray| tray.slots.len()).sum()
    }

    /// Hands to be read before anything else.
    #[must_use]
    pub fn to_look(&self, now: Instant) -> Vec<BucketKey> {
        let due = |tray: &Tray| tray.in_doubt && tray.next_at <= now;
        self.trays.iter().filter(|(_, tray)| due(tray)).map(|(bucket, _)| *bucket).collect()
    }

    /// A hand was read. After a report that failed its entries rest: whoever cannot say that they
    /// were published would publish them again and again.
    pub fn looked(&mut self, hand: Hand, now: Instant) {
        let Some(tray) = self.trays.get_mut(&hand.bucket) else { return };
        if hand.entries.is_empty() {
            tray.unreported = 0;
        }
        let rests = tray.unreported > 0;
        let due = if rests { now + self.limits.rest(tray.unreported) } else { now };
        let slot = |entry| Slot { entry, due, failures: 0 };
        tray.slots = hand.entries.into_iter().map(slot).collect();
        (tray.in_doubt, tray.failures, tray.next_at) = (false, 0, now);
    }

    /// The outbox did not do what it was asked to in this bucket. `in_doubt`: it may have.
    pub fn failed(&mut self, bucket: BucketKey, in_doubt: bool, now: Instant) {
        let Some(tray) = self.trays.get_mut(&bucket) else { return };
        tray.failures = tray.failures.saturating_add(1);
        tray.next_at = now + self.limits.rest(tray.failures);
        if in_doubt {
            tray.in_doubt = true;
            tray.slots.clear();
        }
    }

    /// A report was not taken, or nobody knows.
    pub fn report_failed(&mut self, bucket: BucketKey, now: Instant) {
        if let Some(tray) = self.trays.get_mut(&bucket) {
            tray.unreported = tray.unreported.saturating_add(1);
        }
        self.failed(bucket, true, now);
    }

    /// What to claim: at most so many entries of each bucket. Buckets that gave something the last
    /// time share one window, the others another.
    #[must_use]
    pub fn to_claim(&self, now: Instant) -> Vec<(BucketKey, usize)> {
        let asks = |tray: &Tray, at| tray.next_at <= at && tray.room(self.limits.claim_max) > 0;
        if !self.trays.values().any(|tray| asks(tray, now)) {
            return Vec::new();
        }
        // What is due soon is asked for too: one exchange is cheaper than two.
        let soon = now + self.limits.poll_max / 4;
        let asked = || self.trays.iter().filter(move |(_, tray)| asks(tray, soon));
        let num_busy = asked().filter(|(_, tray)| tray.empties == 0).count();
        let num_idle = asked().count() - num_busy;
        let share = |among: usize| (self.limits.window / among.max(1)).max(1);
        asked()
            .map(|(bucket, tray)| {
                let share = share(if tray.empties == 0 { num_busy } else { num_idle });
                (*bucket, share.min(tray.room(self.limits.claim_max)))
            })
            .collect()
    }

    /// A claim for up to `asked` entries brought these. True: there may be more.
    pub fn claimed(
        &mut self,
        bucket: BucketKey,
        asked: usize,
        entries: Vec<Entry>,
        now: Instant,
    ) -> bool {
        let (limits, longest) = (self.limits, self.longest_wait());
        let Some(tray) = self.trays.get_mut(&bucket) else { return false };
        let (is_full, is_empty) = (entries.len() >= asked, entries.is_empty());
        tray.slots.extend(entries.into_iter().map(|entry| Slot { entry, due: now, failures: 0 }));
        tray.failures = 0;
        let longest = match tray.interest {
            Interest::Selling => longest,
            Interest::Resting => longest.max(RARELY),
            Interest::Forgotten => longest.max(SELDOM),
        };
        let wait = doubled(limits.poll_min, longest, tray.empties);
        tray.empties = if is_empty { tray.empties.saturating_add(1) } else { 0 };
        tray.next_at = if is_full { now } else { now + wait };
        is_full
    }

    /// How long a bucket of a running sale is left alone.
    fn longest_wait(&self) -> Duration {
        let selling = self.trays.values().filter(|tray| tray.interest == Interest::Selling);
        let looks = selling.count().saturating_mul(self.limits.workers);
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.limits.poll_max.max(Duration::from_secs(1).saturating_mul(looks) / LOOKS_PER_S)
    }

    /// A report was taken.
    pub fn reported(&mut self, bucket: BucketKey) {
        if let Some(tray) = self.trays.get_mut(&bucket) {
            (tray.failures, tray.unreported) = (0, 0);
        }
    }

    /// The broker is away: nothing is claimed or published for a while. True: that is news.
    pub fn broker_away(&mut self, now: Instant) -> bool {
        let before = self.away.map(|(rounds, _)| rounds);
        let rounds = before.unwrap_or(0).saturating_add(1);
        self.away = Some((rounds, now + self.limits.rest(rounds)));
        before.is_none()
    }

    /// Somebody says that the broker takes messages again: it may be tried at once.
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
        let next_of = |tray: &Tray| {
            if tray.in_doubt {
                return Some(tray.next_at);
            }
            let claim = (tray.room(self.limits.claim_max) > 0).then_some(tray.next_at);
            let publish = tray.slots.iter().map(|slot| slot.due).min();
            let next = [claim, publish].into_iter().flatten().min()?;
            Some(away.map_or(next, |at| next.max(at)))
        };
        self.trays.values().filter_map(next_of).chain(away).min()
    }
}
