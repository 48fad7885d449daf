//! Undeliverable messages in a ledger with injected faults.

use async_trait::async_trait;
use floodgate::db::{DeadLetterStore, Error};
use floodgate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, NewDeadLetter, RequestId, SkuNo, StoreDeadLetterOutcome,
};

use super::{Fault, FaultyLedger};

#[async_trait]
impl DeadLetterStore for FaultyLedger {
    async fn store_dead_letters(
        &self,
        dead_letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error> {
        self.begin_write().await?;
        if let Fault::RefusesDeadLetter(request) = *self.fault.borrow()
            && dead_letters.iter().flat_map(|it| &it.requests).any(|dead| dead.request == request)
        {
            return Err(Error::Unstorable { what: "a dead letter, on purpose".to_owned() });
        }
        let outcomes = self.inner.store_dead_letters(dead_letters, now_ms).await?;
        self.end("store dead letters").map(|()| outcomes)
    }

    async fn dead_letter_page(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<(DeadLetterNo, Result<DeadLetter, Error>)>, Error> {
        self.begin().await?;
        self.inner.dead_letter_page(filter, limit).await
    }

    async fn num_dead_letters(&self, filter: DeadLetterFilter) -> Result<u64, Error> {
        self.begin().await?;
        self.inner.num_dead_letters(filter).await
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        self.begin().await?;
        self.inner.dead_letter(no).await
    }

    async fn transition_dead_letter(
        &self,
        transition: DeadLetterTransition,
    ) -> Result<bool, Error> {
        self.begin_write().await?;
        let done = self.inner.transition_dead_letter(transition).await?;
        self.end("transition a dead letter").map(|()| done)
    }

    async fn holding_dead_letters(
        &self,
        skus: Vec<SkuNo>,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        self.begin().await?;
        self.inner.holding_dead_letters(skus, after, limit).await
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        self.begin().await?;
        self.inner.count_dead_letters().await
    }

    async fn dead_lettered_among(
        &self,
        requests: Vec<RequestId>,
        replayed_since_ms: i64,
    ) -> Result<Vec<RequestId>, Error> {
        self.begin().await?;
        self.inner.dead_lettered_among(requests, replayed_since_ms).await
    }
}
