//! What this process knows of its own workers: which life is the present one, and how much each has
//! in hand.
//!
//! Nothing here is believed by the store, which checks for itself; it only tells which question to
//! ask. A call whose outcome nobody knows leaves a doubt, which only a look at the hand removes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Error, Worker};
use crate::stock::BucketKey;

/// The lives of all workers of this process.
#[derive(Debug, Default)]
pub(super) struct Lives {
    by_worker: Mutex<HashMap<Arc<str>, Life>>,
}

/// The present life of a worker.
#[derive(Debug, Default)]
struct Life {
    number: u64,
    is_replaced: bool,
    /// Where it has begun.
    hands: HashMap<BucketKey, Known>,
}

/// What is known of a hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// The mark under which it was looked at.
    pub(super) mark: u64,
    /// Entries in it; `None` where that is in doubt.
    pub(super) held: Option<usize>,
}

impl Lives {
    /// What is known of a worker's hands; `None` where its life has not begun. A later life than
    /// the one before begins with nothing.
    pub(super) fn known(
        &self,
        worker: &Worker,
        buckets: impl Iterator<Item = BucketKey>,
    ) -> Result<Vec<Option<Known>>, Error> {
        self.with(worker, |life| buckets.map(|bucket| life.hands.get(&bucket).copied()).collect())
    }

    /// Notes how many entries are in a hand.
    pub(super) fn note(&self, worker: &Worker, bucket: BucketKey, mark: u64, held: usize) {
        let known = Known { mark, held: Some(held) };
        // A life that ended meanwhile has nothing to note.
        drop(self.with(worker, |life| life.hands.insert(bucket, known)));
    }

    /// Notes that a call failed.
    pub(super) fn note_error(&self, worker: &Worker, bucket: BucketKey, error: &Error) {
        let noted = self.with(worker, |life| match error {
            Error::Unavailable { .. } => {}
            Error::Replaced { .. } => {
                life.is_replaced = true;
                life.hands.clear();
            }
            // Where it had not begun, it begins again, and is told what it has.
            Error::Unknown { .. } | Error::Damaged { .. } => {
                if let Some(known) = life.hands.get_mut(&bucket) {
                    known.held = None;
                }
            }
        });
        drop(noted);
    }

    fn with<T>(&self, worker: &Worker, look: impl FnOnce(&mut Life) -> T) -> Result<T, Error> {
        let mut by_worker = self.by_worker.lock();
        let life = by_worker.entry(worker.name.clone()).or_default();
        if life.number < worker.life {
            *life = Life { number: worker.life, ..Life::default() };
        }
        if life.number > worker.life || life.is_replaced {
            return Err(Error::Replaced { worker: worker.to_string() });
        }
        Ok(look(life))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{BucketNo, SkuNo};

    fn bucket(no: u16) -> BucketKey {
        BucketKey { sku: SkuNo(1), bucket: BucketNo(no) }
    }

    fn worker(life: u64) -> Worker {
        Worker { name: "node/1".into(), life }
    }

    fn known(lives: &Lives, life: u64) -> Result<Vec<Option<Known>>, Error> {
        lives.known(&worker(life), [0, 1].map(bucket).into_iter())
    }

    fn held(held: Option<usize>) -> Known {
        Known { mark: 7, held }
    }

    #[test]
    fn only_a_doubt_or_the_end_of_a_life_makes_a_hand_uncertain() {
        let lives = Lives::default();
        assert_eq!(known(&lives, 1), Ok(vec![None; 2]));
        lives.note(&worker(1), bucket(0), 7, 3);
        let reason = || "down".to_owned();
        lives.note_error(&worker(1), bucket(0), &Error::Unavailable { reason: reason() });
        assert_eq!(known(&lives, 1), Ok(vec![Some(held(Some(3))), None]));
        let unknown = Error::Unknown { doing: "claiming", reason: reason() };
        lives.note_error(&worker(1), bucket(0), &unknown);
        lives.note_error(&worker(1), bucket(1), &unknown);
        assert_eq!(known(&lives, 1), Ok(vec![Some(held(None)), None]));
        assert_eq!(known(&lives, 2), Ok(vec![None; 2]), "a successor knows nothing");
    }

    #[test]
    fn a_life_that_was_replaced_stays_so() {
        let lives = Lives::default();
        let replaced = |life| Err(Error::Replaced { worker: worker(life).to_string() });
        lives.note(&worker(2), bucket(0), 7, 3);
        assert_eq!(known(&lives, 1), replaced(1), "by a successor");
        lives.note_error(&worker(2), bucket(1), &Error::Replaced { worker: String::new() });
        assert_eq!(known(&lives, 2), replaced(2), "in all buckets");
        lives.note(&worker(2), bucket(0), 7, 1);
        assert_eq!(known(&lives, 2), replaced(2));
        assert_eq!(known(&lives, 3), Ok(vec![None; 2]));
    }
}
