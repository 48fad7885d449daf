//! What outboxes in Redis have in common, however the entries wait.

use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;

use super::lives::{Known, Lives};
use super::wire::{Wire, told, told_to};
use super::{DeadEntry, Entry, Error, Fate, Found, Hand, Place, Worker};
use crate::clock::SharedClock;
use crate::domain::{RequestId, TraceId};
use crate::messages::wire::intents_in;
use crate::redis_link::Links;
use crate::scripts::outbox::{
    self, Claim, Collect, GiveBack, Line, ReadList, Report, Step, letter,
};
use crate::scripts::{Installation, OutboxKeys};
use crate::stock::BucketKey;

/// Ids that one line of the log shows.
const SHOWN_IDS: usize = 10;

/// How outboxes in Redis are reached and named.
#[derive(Debug)]
pub struct OutboxOptions {
    /// The connections.
    pub links: Links,
    /// The first part of every key.
    pub namespace: String,
    /// The ledger that the buckets belong to.
    pub installation: Installation,
    /// When a dead letter was written.
    pub clock: SharedClock,
}

/// Outboxes of either kind.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) wire: Wire,
    pub(super) clock: SharedClock,
    line: Line,
    lives: Lives,
    num_vanished: AtomicU64,
}

/// A question about one hand.
struct Asking {
    bucket: BucketKey,
    keys: OutboxKeys,
    mark: u64,
    step: Step,
}

/// What a claim came to in one bucket.
pub(super) type Claimed = (BucketKey, Result<Vec<Entry>, Error>);

impl Core {
    pub(super) fn new(options: OutboxOptions, line: Line) -> Self {
        let OutboxOptions { links, namespace, installation, clock } = options;
        let wire = Wire::new(links, namespace, installation);
        Self { wire, clock, line, lives: Lives::default(), num_vanished: AtomicU64::new(0) }
    }

    /// Raises the alarm for entries that somebody else deleted.
    pub(super) fn note_vanished(&self, bucket: BucketKey, ids: &[String]) {
        if ids.is_empty() {
            return;
        }
        self.num_vanished.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let (key, num_entries) = (self.wire.keys(bucket).line(), ids.len());
        let first: Vec<_> = ids.iter().take(SHOWN_IDS).collect();
        tracing::error!(
            key,
            num_entries,
            ?first,
            "entries in hand were deleted by somebody else: \
            unless they had been published, their orders are lost to the broker"
        );
    }

    pub(super) fn num_vanished(&self) -> u64 {
        self.num_vanished.load(Ordering::Relaxed)
    }

    /// The question of how a hand stands, under a new mark.
    fn looking(&self, bucket: BucketKey, known: Option<Known>) -> Asking {
        let step = if known.is_some() { Step::Look } else { Step::Begin };
        Asking { bucket, keys: self.wire.keys(bucket), mark: fastrand::u64(..), step }
    }

    fn door<'a>(&self, asking: &'a Asking, worker: &'a Worker, max: usize) -> Claim<'a> {
        let installation = self.wire.installation;
        let Asking { keys, mark, step, .. } = asking;
        Claim { keys, installation, line: self.line, worker, mark: *mark, step: *step, max }
    }

    pub(super) async fn in_hand(&self, bucket: BucketKey, worker: &Worker) -> Result<Hand, Error> {
        let doing = "looking at a hand";
        let known = self.lives.known(worker, std::iter::once(bucket))?;
        let asking = self.looking(bucket, known.into_iter().flatten().next());
        let call = self.door(&asking, worker, 0).call();
        let answer = self.wire.ask(call, doing).await;
        let entries = self.claimed(worker, &asking, answer, doing)?;
        Ok(Hand { bucket, entries })
    }

    /// Reads and notes what a claim came to.
    fn claimed(
        &self,
        worker: &Worker,
        asking: &Asking,
        answer: Result<Value, Error>,
        doing: &'static str,
    ) -> Result<Vec<Entry>, Error> {
        let Asking { bucket, keys, mark, step } = asking;
        let parsed = answer.and_then(|answer| {
            let parsed = self.door(asking, worker, 0).parse(answer);
            parsed.map_err(|error| told_to(worker, keys, doing, &error))
        });
        match parsed {
            Ok(outbox::Claimed { entries, vanished }) => {
                self.note_vanished(*bucket, &vanished);
                let before = if let Step::GoOn { held } = step { *held } else { 0 };
                self.lives.note(worker, *bucket, *mark, before + entries.len());
                Ok(entries)
            }
            Err(error) => {
                self.lives.note_error(worker, *bucket, &error);
                Err(error)
            }
        }
    }

    pub(super) async fn claim(
        &self,
        worker: &Worker,
        buckets: &[(BucketKey, usize)],
    ) -> Vec<Claimed> {
        let doing = "claiming";
        let wanted = || buckets.iter().filter(|(_, max)| *max > 0);
        let known = match self.lives.known(worker, wanted().map(|(bucket, _)| *bucket)) {
            Ok(known) => known,
            Err(error) => {
                return wanted().map(|(bucket, _)| (*bucket, Err(error.clone()))).collect();
            }
        };
        let mut claimed: Vec<Claimed> = Vec::new();
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for ((bucket, max), known) in wanted().zip(known) {
            let asking = match known {
                None => self.looking(*bucket, None),
                Some(Known { mark, held: Some(held) }) => {
                    let step = Step::GoOn { held };
                    Asking { bucket: *bucket, keys: self.wire.keys(*bucket), mark, step }
                }
                Some(Known { held: None, .. }) => {
                    claimed.push((*bucket, Err(in_doubt(doing))));
                    continue;
                }
            };
            calls.push(self.door(&asking, worker, *max).call());
            asked.push(asking);
        }
        let answers = self.wire.ask_all(calls, doing).await;
        for (asking, answer) in asked.iter().zip(answers) {
            let entries = self.claimed(worker, asking, answer, doing);
            if !matches!(&entries, Ok(entries) if entries.is_empty()) {
                claimed.push((asking.bucket, entries));
            }
        }
        claimed
    }

    pub(super) async fn report(
        &self,
        worker: &Worker,
        hands: Vec<(Hand, Vec<Fate>)>,
    ) -> Vec<(BucketKey, Result<(), Error>)> {
        let doing = "reporting";
        let known = match self.lives.known(worker, hands.iter().map(|(hand, _)| hand.bucket)) {
            Ok(known) => known,
            Err(error) => {
                return hands.iter().map(|(hand, _)| (hand.bucket, Err(error.clone()))).collect();
            }
        };
        let (line, installation) = (self.line, self.wire.installation);
        let now_ms = self.clock.wall_ms();
        let mut reported = Vec::with_capacity(hands.len());
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for ((Hand { bucket, entries }, fates), known) in hands.iter().zip(known) {
            if entries.len() != fates.len() {
                let reason = format!("{} fates for {} entries", fates.len(), entries.len());
                reported.push((*bucket, Err(Error::Unavailable { reason })));
            } else if entries.is_empty() {
                reported.push((*bucket, Ok(())));
            } else if let Some(Known { mark, .. }) = known {
                let keys = &self.wire.keys(*bucket);
                let door =
                    Report { keys, installation, line, worker, mark, entries, fates, now_ms };
                calls.push(door.call());
                asked.push((*bucket, mark, fates));
            } else {
                reported.push((*bucket, Err(in_doubt(doing))));
            }
        }
        let answers = self.wire.ask_all(calls, doing).await;
        for ((bucket, mark, fates), answer) in asked.into_iter().zip(answers) {
            reported.push((bucket, self.reported(worker, bucket, mark, fates, answer)));
        }
        reported
    }

    /// Reads and notes what a report came to.
    fn reported(
        &self,
        worker: &Worker,
        bucket: BucketKey,
        mark: u64,
        fates: &[Fate],
        answer: Result<Value, Error>,
    ) -> Result<(), Error> {
        let parsed = answer.and_then(|answer| {
            let parsed = Report::parse(self.line, answer);
            let told = |error| told_to(worker, &self.wire.keys(bucket), "reporting", &error);
            parsed.map_err(told)
        });
        match parsed {
            Ok(vanished) => {
                self.note_vanished(bucket, &vanished);
                let stays = |fate: &&Fate| matches!(fate, Fate::Kept | Fate::Failed);
                let held = fates.iter().filter(stays).count().saturating_sub(vanished.len());
                self.lives.note(worker, bucket, mark, held);
                Ok(())
            }
            Err(error) => {
                self.lives.note_error(worker, bucket, &error);
                Err(error)
            }
        }
    }

    pub(super) async fn give_back(&self, bucket: BucketKey, worker: &str) -> Result<u64, Error> {
        let doing = "giving a hand back";
        let (keys, installation) = (self.wire.keys(bucket), self.wire.installation);
        let door = GiveBack { keys: &keys, installation, line: self.line, worker };
        let answer = self.wire.ask(door.call(), doing).await?;
        let back = door.parse(answer).map_err(|error| told(&keys, doing, &error))?;
        self.note_vanished(bucket, &back.vanished);
        Ok(back.num_entries)
    }

    /// A part of one of the lists.
    pub(super) async fn read(
        &self,
        keys: &OutboxKeys,
        list: &str,
        places: (i64, i64),
        doing: &'static str,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let installation = self.wire.installation;
        let door = ReadList { keys, installation, list, places };
        let answer = self.wire.ask(door.call(), doing).await?;
        door.parse(answer).map_err(|error| told(keys, doing, &error))
    }

    pub(super) async fn dead(
        &self,
        bucket: BucketKey,
        max: usize,
    ) -> Result<Vec<DeadEntry>, Error> {
        let keys = self.wire.keys(bucket);
        let Some(last) = i64::try_from(max).unwrap_or(i64::MAX).checked_sub(1) else {
            return Ok(Vec::new());
        };
        if last < 0 {
            return Ok(Vec::new());
        }
        let read = self.read(&keys, &keys.dead(), (0, last), "reading dead letters").await?;
        Ok(read.iter().map(|bytes| letter_of(bytes)).collect())
    }

    pub(super) async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error> {
        let doing = "collecting dead letters";
        if dead.is_empty() {
            return Ok(());
        }
        let (keys, installation) = (self.wire.keys(bucket), self.wire.installation);
        let door = Collect { keys: &keys, installation, letters: dead };
        let answer = self.wire.ask(door.call(), doing).await?;
        // What is not there any more was collected before.
        let collected = door.parse(answer);
        collected.map(drop).map_err(|error| told(&keys, doing, &error))
    }

    /// The dead entry with this request, where it was given up.
    pub(super) async fn find_dead(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<Found>, Error> {
        let dead = self.dead(bucket, usize::MAX).await?;
        Ok(dead.into_iter().find_map(|DeadEntry { bytes, reason, .. }| {
            Some(Found { place: Place::Dead { reason }, trace: trace_in(&bytes, request)? })
        }))
    }
}

fn in_doubt(doing: &'static str) -> Error {
    Error::Unknown { doing, reason: "the hand has to be looked at first".to_owned() }
}

/// The trace of a request that an entry holds; `None`: it does not.
pub(super) fn trace_in(body: &[u8], request: RequestId) -> Option<TraceId> {
    let mut intents = intents_in(body).into_iter();
    intents.find(|intent| intent.request == request).map(|intent| intent.trace)
}

/// A dead letter; one that nobody wrote is its own content, so that it holds up no other.
fn letter_of(bytes: &[u8]) -> DeadEntry {
    letter::unpack(bytes).unwrap_or_else(|broken| DeadEntry {
        id: bytes.into(),
        bytes: bytes::Bytes::copy_from_slice(bytes),
        reason: format!("no dead letter of this program: {broken}"),
        attempts: 0,
        dead_at_ms: 0,
    })
}
