//! The entries that a relay worker has claimed, and its next step. Pure: no actor, no clock, no
//! store.
//!
//! Each bucket backs off by itself: a failing bucket does not delay the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::Route;
use crate::config::RelaySettings;
use crate::domain::BucketKey;
use crate::messages::envelope::BODY_BYTES_MAX;
use crate::outbox::{EntryId, OutboxEntry};
use crate::redis::scripts::codes;
use crate::runtime::backoff::{Backoff, doubled};

/// Most polls of empty buckets per second by the workers that poll for their process: the more
/// buckets, the longer the interval.
const POLLS_PER_S: u32 = 2_000;

/// Poll interval of a bucket whose sale is not open, because only reclaimed entries can appear
/// there; and of a bucket that another worker polls for the process, should that one wait for the
/// broker.
const IDLE_POLL_MAX: Duration = Duration::from_secs(1);

/// Poll interval of a bucket whose sale is dormant.
const DORMANT_POLL_MAX: Duration = Duration::from_secs(60);

/// The `spread` of [`Backoff::next_wait`] for retries without jitter: few workers retry at once.
pub(super) const NO_JITTER: f64 = 1.0;

/// How often a bucket is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollInterest {
    /// The sale is open or paused.
    Selling,
    /// The sale has not opened yet, or is closed.
    Idle,
    /// The sale has been closed for long: [`crate::domain::Sale::is_dormant`].
    Dormant,
}

/// A claimed entry without a confirm.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) entry: OutboxEntry,
    /// Earliest time of the next publish.
    pub(super) due: Instant,
    /// Counts the rounds that ended without a confirm.
    pub(super) backoff: Backoff,
    /// Counted refusals.
    pub(super) attempts: u32,
    /// Confirms of its queue before its last counted attempt; `None`: never sent.
    pub(super) confirmed_before: Option<u64>,
    /// Why it is published as a dead letter.
    pub(super) given_up: Option<String>,
}

impl InFlight {
    fn new(entry: OutboxEntry, due: Instant, backoff: Backoff) -> Self {
        let length = entry.bytes.len();
        // No gate writes such an entry, and the broker may close the channel for its length.
        let given_up = (length > BODY_BYTES_MAX).then(|| {
            format!("an entry of {length} bytes: only the first {BODY_BYTES_MAX} are kept")
        });
        Self { entry, due, backoff, attempts: 0, confirmed_before: None, given_up }
    }
}

/// The state of one bucket in one worker.
#[derive(Debug)]
pub(super) struct BucketState {
    pub(super) in_flight: Vec<InFlight>,
    /// Confirmed, to be acknowledged.
    pub(super) ended: Vec<EntryId>,
    /// Whether an earlier name may hold entries that are not in `in_flight`.
    takeover_pending: bool,
    /// Earliest time of the next outbox call.
    next_at: Instant,
    /// Counts the consecutive failed outbox calls.
    backoff: Backoff,
    /// Consecutive empty claims.
    empty_claims: u32,
    interest: PollInterest,
}

impl BucketState {
    /// Entries that may be claimed now.
    fn capacity(&self, claim_max: usize) -> usize {
        if self.can_claim() { claim_max.saturating_sub(self.in_flight.len()) } else { 0 }
    }

    /// A bucket claims nothing while an acknowledgement is outstanding.
    fn can_claim(&self) -> bool {
        !self.takeover_pending && self.ended.is_empty()
    }
}

/// The buckets of one worker.
pub struct RelayPlan {
    pub(super) settings: RelaySettings,
    /// The index of this worker, below `settings.workers`.
    worker: usize,
    /// Installation id that messages carry.
    pub(super) installation: Arc<str>,
    /// Number of order queues.
    pub(super) queues: u16,
    /// The backoff of a bucket or an entry before its first failure.
    backoff: Backoff,
    pub(super) buckets: HashMap<BucketKey, BucketState>,
    /// Whether predecessors may hold entries in buckets that are added later.
    has_predecessors: bool,
    /// Confirms of each queue.
    pub(super) confirmed: HashMap<Route, u64>,
}

impl RelayPlan {
    pub fn new(
        settings: RelaySettings,
        worker: usize,
        (installation, queues): (Arc<str>, u16),
        backoff: Backoff,
        has_predecessors: bool,
    ) -> Self {
        let (buckets, confirmed) = (HashMap::new(), HashMap::new());
        Self {
            settings,
            worker,
            installation,
            queues,
            backoff,
            buckets,
            has_predecessors,
            confirmed,
        }
    }

    fn bucket(
        &mut self,
        key: BucketKey,
        interest: PollInterest,
        next_at: Instant,
    ) -> &mut BucketState {
        self.buckets.entry(key).or_insert_with(|| BucketState {
            in_flight: Vec::new(),
            ended: Vec::new(),
            takeover_pending: self.has_predecessors,
            next_at,
            backoff: self.backoff,
            empty_claims: 0,
            interest,
        })
    }

    /// Adds a bucket, or updates how often it is polled.
    pub fn watch(&mut self, key: BucketKey, interest: PollInterest, now: Instant) {
        let first = if interest == PollInterest::Dormant { now + DORMANT_POLL_MAX } else { now };
        let bucket = self.bucket(key, interest, first);
        if bucket.interest == PollInterest::Dormant && interest != PollInterest::Dormant {
            bucket.next_at = bucket.next_at.min(now);
        }
        bucket.interest = interest;
    }

    /// Removes a bucket that does not exist, once this worker has no entry of it under any name.
    pub fn remove_idle(&mut self, key: BucketKey) {
        let is_idle = |bucket: &BucketState| bucket.can_claim() && bucket.in_flight.is_empty();
        if self.buckets.get(&key).is_some_and(is_idle) {
            self.buckets.remove(&key);
        }
    }

    /// Polls a bucket at once: its outbox has entries.
    pub fn notify(&mut self, key: BucketKey, now: Instant) {
        let bucket = self.bucket(key, PollInterest::Selling, now);
        bucket.empty_claims = 0;
        if bucket.backoff.failures() == 0 {
            bucket.next_at = bucket.next_at.min(now);
        }
    }

    /// The buckets that are not dormant, or have claimed entries.
    pub fn active(&self) -> impl Iterator<Item = BucketKey> {
        let active = self.buckets.iter().filter(|(_, bucket)| {
            bucket.interest != PollInterest::Dormant || !bucket.in_flight.is_empty()
        });
        active.map(|(key, _)| *key)
    }

    /// Claimed entries that are not acknowledged.
    pub fn num_claimed(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.in_flight.len() + bucket.ended.len()).sum()
    }

    /// Schedules a takeover after the worker changed its name: in every bucket with claimed
    /// entries, and in the `uncertain` ones, where the old name may hold further entries.
    pub fn begin_takeover(&mut self, uncertain: &[BucketKey], now: Instant) {
        for (key, bucket) in &mut self.buckets {
            let has_claimed = !bucket.in_flight.is_empty() || !bucket.ended.is_empty();
            if has_claimed || uncertain.contains(key) {
                bucket.takeover_pending = true;
                bucket.next_at = if bucket.backoff.failures() == 0 { now } else { bucket.next_at };
            }
        }
    }

    /// Whether an outbox call for this bucket has failed since its last success.
    pub fn is_failing(&self, key: BucketKey) -> bool {
        self.buckets.get(&key).is_some_and(|bucket| bucket.backoff.failures() > 0)
    }

    /// Whether earlier names may still hold entries.
    pub fn has_pending_takeover(&self) -> bool {
        self.has_predecessors || self.buckets.values().any(|bucket| bucket.takeover_pending)
    }

    /// Buckets with a takeover that is due; they are not claimed from before it.
    pub fn takeover_due(&self, now: Instant) -> Vec<BucketKey> {
        let due = |bucket: &BucketState| bucket.takeover_pending && bucket.next_at <= now;
        self.buckets.iter().filter(|(_, bucket)| due(bucket)).map(|(key, _)| *key).collect()
    }

    /// Sets the claimed entries of a bucket to these. Entries that the plan has already keep their
    /// retry state; ended ones are not published again.
    pub fn record_takeover(&mut self, key: BucketKey, entries: Vec<OutboxEntry>, now: Instant) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        let former = std::mem::take(&mut bucket.in_flight).into_iter();
        let mut former: HashMap<_, _> =
            former.map(|former| (former.entry.id.clone(), former)).collect();
        let ended: HashSet<_> = bucket.ended.iter().collect();
        let entries = entries.into_iter().filter(|entry| !ended.contains(&entry.id));
        let in_flight = entries.map(|entry| {
            former.remove(&entry.id).unwrap_or_else(|| InFlight::new(entry, now, self.backoff))
        });
        bucket.in_flight = in_flight.collect();
        (bucket.takeover_pending, bucket.backoff, bucket.next_at) = (false, self.backoff, now);
        self.has_predecessors &= self.buckets.values().any(|bucket| bucket.takeover_pending);
    }

    /// Backs off after a failed outbox call for this bucket.
    pub fn record_failure(&mut self, key: BucketKey, now: Instant) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        bucket.next_at = now + bucket.backoff.next_wait(NO_JITTER);
    }

    /// Buckets to claim from, each with its largest number of entries. Buckets whose last claim
    /// returned entries share one window, the others a second one.
    pub fn claims_due(&self, now: Instant) -> Vec<(BucketKey, usize)> {
        let is_due = |bucket: &BucketState, at| {
            bucket.next_at <= at && bucket.capacity(self.settings.claim_max) > 0
        };
        if !self.buckets.values().any(|bucket| is_due(bucket, now)) {
            return Vec::new();
        }
        // Buckets that are due soon are included: one round trip is cheaper than two.
        let soon = now + Duration::from_millis(self.settings.poll_max_ms) / 4;
        let due = || {
            let is_included = move |bucket: &BucketState| {
                is_due(bucket, now) || (bucket.backoff.failures() == 0 && is_due(bucket, soon))
            };
            self.buckets.iter().filter(move |(_, bucket)| is_included(bucket))
        };
        let num_busy = due().filter(|(_, bucket)| bucket.empty_claims == 0).count();
        let num_idle = due().count() - num_busy;
        let window = self.settings.confirm_window;
        let share = |num_buckets: usize| (window / num_buckets.max(1)).max(1);
        due()
            .map(|(key, bucket)| {
                let share = share(if bucket.empty_claims == 0 { num_busy } else { num_idle });
                (*key, share.min(bucket.capacity(self.settings.claim_max)))
            })
            .collect()
    }

    /// Adds the entries of a claim for up to `asked` entries. Returns whether the outbox may have
    /// more.
    pub fn record_claim(
        &mut self,
        key: BucketKey,
        asked: usize,
        entries: Vec<OutboxEntry>,
        now: Instant,
    ) -> bool {
        let (first, longest) = (self.settings.poll_min_ms, self.longest_wait());
        let polls_for_process = self.polls_for_process(key);
        let Some(bucket) = self.buckets.get_mut(&key) else { return false };
        let (is_full, is_empty) = (entries.len() >= asked, entries.is_empty());
        let entries = entries.into_iter();
        bucket.in_flight.extend(entries.map(|entry| InFlight::new(entry, now, self.backoff)));
        bucket.backoff = self.backoff;
        let longest = match bucket.interest {
            PollInterest::Selling if polls_for_process => longest,
            PollInterest::Selling | PollInterest::Idle => longest.max(IDLE_POLL_MAX),
            PollInterest::Dormant => longest.max(DORMANT_POLL_MAX),
        };
        let wait = doubled(Duration::from_millis(first), longest, bucket.empty_claims);
        bucket.empty_claims = if is_empty { bucket.empty_claims.saturating_add(1) } else { 0 };
        bucket.next_at = if is_full { now } else { now + wait };
        is_full
    }

    /// Whether this worker, of those of its process, polls this bucket while it is empty. When it
    /// finds more entries than it can claim, it wakes the others.
    fn polls_for_process(&self, key: BucketKey) -> bool {
        let spread = key.sku.0.unsigned_abs().wrapping_add(key.bucket.0.into());
        usize::try_from(spread).is_ok_and(|spread| spread % self.settings.workers == self.worker)
    }

    /// Longest poll interval of a bucket of an open or paused sale.
    fn longest_wait(&self) -> Duration {
        let selling =
            self.buckets.values().filter(|bucket| bucket.interest == PollInterest::Selling);
        let polls = u32::try_from(selling.count()).unwrap_or(u32::MAX);
        Duration::from_millis(self.settings.poll_max_ms)
            .max(Duration::from_secs(1).saturating_mul(polls) / POLLS_PER_S)
    }

    /// Takes the entries to acknowledge now; per bucket at most as many as one outbox call accepts.
    pub fn take_ended(&mut self, now: Instant) -> Vec<(BucketKey, Vec<EntryId>)> {
        let max = usize::try_from(codes::CLAIM_MAX).unwrap_or(1);
        let due = |bucket: &BucketState| {
            let is_due = bucket.backoff.failures() == 0 || bucket.next_at <= now;
            !bucket.ended.is_empty() && !bucket.takeover_pending && is_due
        };
        let due = self.buckets.iter_mut().filter(|(_, bucket)| due(bucket));
        let take = |bucket: &mut BucketState| {
            let num = bucket.ended.len().min(max);
            bucket.ended.drain(..num).collect()
        };
        due.map(|(key, bucket)| (*key, take(bucket))).collect()
    }

    /// Ends the backoff of this bucket.
    pub fn record_acknowledged(&mut self, key: BucketKey) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.backoff = self.backoff;
        }
    }

    /// Backs off and keeps the entries for another acknowledgement, without publishing them again.
    pub fn retry_acknowledgement(&mut self, key: BucketKey, ended: Vec<EntryId>, now: Instant) {
        self.record_failure(key, now);
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.ended.extend(ended);
        }
    }

    /// Time of the next step if no notification arrives; `None`: no bucket and no retry is pending.
    /// `broker_at`: nothing is claimed or published before, because the broker is unavailable.
    pub fn next_at(&self, broker_at: Option<Instant>) -> Option<Instant> {
        let next_of = |bucket: &BucketState| {
            if !bucket.can_claim() {
                return Some(bucket.next_at);
            }
            let claim = (bucket.capacity(self.settings.claim_max) > 0).then_some(bucket.next_at);
            let publish = bucket.in_flight.iter().map(|in_flight| in_flight.due).min();
            let next = [claim, publish].into_iter().flatten().min()?;
            Some(broker_at.map_or(next, |at| next.max(at)))
        };
        self.buckets.values().filter_map(next_of).chain(broker_at).min()
    }
}
