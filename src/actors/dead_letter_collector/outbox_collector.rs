//! The outboxes: what relays gave up waits there until it is in the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use super::CollectorDeps;
use crate::actors::dead_letter_collector::store::{PendingDeadLetter, StoreOutcome, store};
use crate::actors::served::Looks;
use crate::domain::{BucketNo, SkuNo};
use crate::outbox::{self, DeadEntry};
use crate::runtime::backoff::Backoff;
use crate::services::dead_letters::headers;
use crate::stock::BucketKey;

/// Rounds between two looks at how many letters there are.
const ROUNDS_PER_COUNT: u32 = 10;

/// The lane of all outboxes.
pub(super) struct OutboxCollector {
    /// What the ledger refused, and what is to be stored; still in its outbox.
    hand: Vec<PendingDeadLetter<(BucketKey, DeadEntry)>>,
    rounds: u32,
    looks: Looks,
    every: Duration,
    backoff: Backoff,
    fresh: Backoff,
    /// The last trouble, until a round succeeds; for one log line at each change.
    trouble: Option<String>,
}

impl OutboxCollector {
    pub(super) fn new(deps: &CollectorDeps) -> Self {
        let backoff = Backoff::new(deps.backoff_min_ms, deps.backoff_max_ms);
        Self {
            hand: Vec::new(),
            rounds: 0,
            looks: Looks::default(),
            every: Duration::from_millis(deps.every_ms.max(1)),
            backoff,
            fresh: backoff,
            trouble: None,
        }
    }

    /// Looks at every outbox, stores what was given up, collects it. Returns when to look again.
    pub(super) async fn round(&mut self, deps: &CollectorDeps) -> Duration {
        let done = self.try_round(deps).await;
        self.count(deps).await;
        match done {
            Ok(()) => {
                self.trouble = None;
                self.backoff = self.fresh;
                self.every
            }
            Err(said) => {
                if self.trouble.as_ref() != Some(&said) {
                    tracing::warn!(said, "dead entries of outboxes wait");
                    self.trouble = Some(said);
                }
                self.every.max(self.backoff.next_wait(fastrand::f64()))
            }
        }
    }

    async fn try_round(&mut self, deps: &CollectorDeps) -> Result<(), String> {
        let mut worst = Ok(());
        for key in self.looks.next(&deps.catalog, deps.clock.wall_ms()) {
            match self.look(deps, key).await {
                Ok(()) => {}
                Err(error) => worst = Err(error.to_string()),
            }
        }
        let StoreOutcome { kept, away } = store(deps, &mut self.hand).await;
        // Crash here [entry_kept_not_collected]: the letter is in the ledger and the entry still in
        // its outbox; the next round finds it again, and the ledger knows it by its digest.
        let mut by_bucket: BTreeMap<(SkuNo, BucketNo), Vec<DeadEntry>> = BTreeMap::new();
        for (key, entry) in kept {
            by_bucket.entry((key.sku, key.bucket)).or_default().push(entry);
        }
        for ((sku, bucket), entries) in by_bucket {
            let key = BucketKey { sku, bucket };
            if let Err(error) = deps.pipeline.outbox.collect(key, &entries).await {
                worst = Err(error.to_string());
            }
        }
        match away {
            Some(error) => Err(format!("{error} ({:?})", error.class())),
            None => worst,
        }
    }

    /// Takes what is new among the dead entries of one outbox.
    async fn look(&mut self, deps: &CollectorDeps, key: BucketKey) -> Result<(), outbox::Error> {
        let max = usize::from(deps.letters_max);
        let Some(room) = max.checked_sub(self.hand.len()).filter(|room| *room > 0) else {
            return Ok(());
        };
        let mut known = 0;
        for entry in deps.pipeline.outbox.dead(key, max).await? {
            let same = |held: &PendingDeadLetter<(BucketKey, DeadEntry)>| {
                let (bucket, held) = &held.from;
                *bucket == key && held.id == entry.id && held.bytes == entry.bytes
            };
            if known == room || self.hand.iter().any(same) {
                continue;
            }
            known += 1;
            let letter = headers::of_entry(&entry, &deps.pipeline.installation);
            self.hand.push(PendingDeadLetter::new(letter, (key, entry)));
        }
        Ok(())
    }

    /// Tells operators how many letters there are; not each time, because all are counted.
    async fn count(&mut self, deps: &CollectorDeps) {
        if self.rounds.is_multiple_of(ROUNDS_PER_COUNT)
            && let Ok(counts) = deps.ledger.count_dead_letters().await
        {
            deps.metrics.dead_letters(counts);
        }
        self.rounds = self.rounds.wrapping_add(1);
    }
}
