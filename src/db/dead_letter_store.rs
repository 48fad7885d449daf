//! The undeliverable messages, as a port.

use async_trait::async_trait;

use super::Error;
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, NewDeadLetter, RequestId, SkuNo, StoreDeadLetterOutcome,
};

/// Stores and queries dead letters; a message is identified by its digest.
#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Stores dead letters, all of them or none; one outcome for each. A message that is stored
    /// already is the same dead letter: its reason is updated, and a replayed one is reopened.
    async fn store_dead_letters(
        &self,
        dead_letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error>;

    /// Dead letters in the order of the filter, at most `limit`, each with its number; one that
    /// cannot be read is its error.
    async fn dead_letter_page(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<(DeadLetterNo, Result<DeadLetter, Error>)>, Error>;

    /// The number of dead letters that match.
    async fn num_dead_letters(&self, filter: DeadLetterFilter) -> Result<u64, Error>;

    /// One dead letter with its body and requests.
    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error>;

    /// Changes the state of a dead letter; `false`: its state or arrivals changed since the read,
    /// and nothing was written.
    async fn transition_dead_letter(&self, transition: DeadLetterTransition)
    -> Result<bool, Error>;

    /// Open and parked dead letters that may hold requests of these SKUs (at least one), with their
    /// bodies, in ascending order of their number, after `after`, at most `limit`; none: there are
    /// no more. Unreadable rows are left out and logged.
    async fn holding_dead_letters(
        &self,
        skus: Vec<SkuNo>,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error>;

    /// The number of dead letters by state.
    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error>;

    /// The requests among these that are in an open or parked dead letter, or in one that was
    /// replayed at this time or later.
    async fn dead_lettered_among(
        &self,
        requests: Vec<RequestId>,
        replayed_since_ms: i64,
    ) -> Result<Vec<RequestId>, Error>;
}
