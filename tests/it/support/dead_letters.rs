//! Dead letters for tests, and an in-memory store of them that shares no code with the SQL ledgers.

use async_trait::async_trait;
use floodgate::db::{DeadLetterStore, Error};
use floodgate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, DeadLetterTransition, NewDeadLetter, OrderKey, RequestId,
    SkuNo, StoreDeadLetterOutcome,
};

use super::defective_ledger::{DefectiveLedger, LedgerDefect};
use super::offers::buyer;

/// A dead letter with these requests, whose body is their numbers.
pub fn new_dead_letter(requests: &[u64]) -> NewDeadLetter {
    let body: Vec<u8> = requests.iter().flat_map(|number| number.to_be_bytes()).collect();
    let mut digest = [0; 32];
    digest.iter_mut().zip(&body).for_each(|(to, from)| *to = *from);
    NewDeadLetter {
        digest,
        origin: DeadLetterOrigin::Consumer,
        reason: "no such SKU".to_owned(),
        attempts: 3,
        message_id: format!("m-{}", requests.len()),
        headers: "{\"routing_key\":\"0\"}".to_owned(),
        body_bytes: body.len() as u64,
        body,
        requests: requests.iter().map(|number| dead_request(*number)).collect(),
        dead_at_ms: 1_800_000_000_000,
    }
}

/// Request `number` of buyer `number`, for SKU 1.
pub fn dead_request(number: u64) -> OrderKey {
    let request = RequestId::new(number).unwrap();
    OrderKey { request, sku: SkuNo(1), buyer: buyer(number) }
}

/// Dead letters in the order of the filter, at most `limit`, all of them readable.
pub async fn read_dead_letters(
    store: &(impl DeadLetterStore + ?Sized),
    filter: DeadLetterFilter,
    limit: u32,
) -> Vec<DeadLetter> {
    let page = store.dead_letter_page(filter, limit).await.unwrap();
    page.into_iter().map(|(_, dead_letter)| dead_letter.unwrap()).collect()
}

/// Dead letters in the order of their arrival.
#[derive(Debug, Default)]
pub struct MemoryDeadLetters {
    stored: Vec<([u8; 32], DeadLetterContent)>,
    /// Those of each.
    requests: Vec<Vec<OrderKey>>,
}

impl MemoryDeadLetters {
    pub fn store(&mut self, new: NewDeadLetter, now_ms: i64) -> StoreDeadLetterOutcome {
        let existing = self.stored.iter_mut().find(|(digest, _)| *digest == new.digest);
        if let Some((_, DeadLetterContent { dead_letter, .. })) = existing {
            dead_letter.arrivals += 1;
            let is_another = dead_letter.headers != new.headers
                || dead_letter.reason != new.reason
                || dead_letter.origin != new.origin;
            (dead_letter.origin, dead_letter.reason) = (new.origin, new.reason);
            (dead_letter.headers, dead_letter.dead_at_ms) = (new.headers, new.dead_at_ms);
            dead_letter.attempts = new.attempts;
            if dead_letter.state == DeadLetterState::Replayed && is_another {
                (dead_letter.state, dead_letter.changed_at_ms) = (DeadLetterState::Open, now_ms);
                return StoreDeadLetterOutcome::Reopened;
            }
            return StoreDeadLetterOutcome::AlreadyStored;
        }
        let dead_letter = DeadLetter {
            no: DeadLetterNo(i64::try_from(self.stored.len()).unwrap() + 1),
            origin: new.origin,
            reason: new.reason,
            attempts: new.attempts,
            message_id: new.message_id,
            headers: new.headers,
            body_bytes: new.body_bytes,
            dead_at_ms: new.dead_at_ms,
            arrivals: 1,
            state: DeadLetterState::Open,
            changed_at_ms: now_ms,
            note: None,
        };
        let requests = new.requests.iter().map(|dead| dead.request).collect();
        let content = DeadLetterContent { dead_letter, body: new.body, requests };
        self.stored.push((new.digest, content));
        self.requests.push(new.requests);
        StoreDeadLetterOutcome::New
    }

    pub fn page(&self, filter: &DeadLetterFilter, limit: u32) -> Vec<DeadLetter> {
        let is_after = |no: DeadLetterNo, after| {
            if filter.is_oldest_first() { no > after } else { no < after }
        };
        let matches = |dead_letter: &DeadLetter| {
            filter.state.is_none_or(|state| dead_letter.state == state)
                && filter.origin.is_none_or(|origin| dead_letter.origin == origin)
                && filter.after.is_none_or(|after| is_after(dead_letter.no, after))
                && filter.since_ms.is_none_or(|since_ms| dead_letter.dead_at_ms >= since_ms)
                && filter.until_ms.is_none_or(|until_ms| dead_letter.dead_at_ms < until_ms)
                && filter.reason.as_deref().is_none_or(|reason| {
                    dead_letter.reason.to_lowercase().contains(&reason.to_lowercase())
                })
        };
        let is_meant = |dead: &OrderKey| {
            filter.request.is_none_or(|request| dead.request == request)
                && filter.buyer.is_none_or(|buyer| dead.buyer == buyer)
                && filter.skus.as_ref().is_none_or(|skus| skus.contains(&dead.sku))
        };
        let all = self.stored.iter().zip(&self.requests);
        let found = all.filter(|(_, dead)| !filter.has_requests() || dead.iter().any(is_meant));
        let found = found.map(|((_, content), _)| &content.dead_letter);
        let mut page: Vec<_> = found.filter(|found| matches(found)).cloned().collect();
        if !filter.is_oldest_first() {
            page.reverse();
        }
        page.truncate(limit as usize);
        page
    }

    pub fn get(&self, no: DeadLetterNo) -> Option<DeadLetterContent> {
        let mut contents = self.stored.iter().map(|(_, content)| content);
        contents.find(|content| content.dead_letter.no == no).cloned()
    }

    pub fn transition(&mut self, transition: DeadLetterTransition) -> bool {
        let mut dead_letters = self.stored.iter_mut().map(|(_, content)| &mut content.dead_letter);
        let expected = (transition.no, transition.from, transition.arrivals);
        let Some(dead_letter) = dead_letters.find(|l| (l.no, l.state, l.arrivals) == expected)
        else {
            return false;
        };
        (dead_letter.state, dead_letter.changed_at_ms) = (transition.to, transition.at_ms);
        dead_letter.note = transition.note.or(dead_letter.note.take());
        true
    }

    pub fn counts(&self) -> DeadLetterCounts {
        let count = |state| {
            let found =
                self.stored.iter().filter(|(_, content)| content.dead_letter.state == state);
            found.count() as u64
        };
        DeadLetterCounts {
            open: count(DeadLetterState::Open),
            replayed: count(DeadLetterState::Replayed),
            parked: count(DeadLetterState::Parked),
            discarded: count(DeadLetterState::Discarded),
        }
    }

    pub fn not_replayed(
        &self,
        skus: &[SkuNo],
        after: DeadLetterNo,
        limit: u32,
    ) -> Vec<(DeadLetter, Vec<u8>)> {
        let all = self.stored.iter().zip(&self.requests);
        let of_skus = all.filter(|(_, dead)| {
            dead.is_empty() || dead.iter().any(|dead| skus.contains(&dead.sku))
        });
        let found = of_skus.map(|((_, content), _)| content).filter(|content| {
            content.dead_letter.state != DeadLetterState::Replayed && content.dead_letter.no > after
        });
        let found = found.take(limit as usize);
        found.map(|content| (content.dead_letter.clone(), content.body.clone())).collect()
    }

    pub fn dead_lettered_among(
        &self,
        mut requests: Vec<RequestId>,
        replayed_since_ms: i64,
    ) -> Vec<RequestId> {
        let ends = |letter: &DeadLetter| {
            let is_replayed = letter.state == DeadLetterState::Replayed;
            letter.state.holds_requests()
                || is_replayed && letter.changed_at_ms >= replayed_since_ms
        };
        requests.retain(|request| {
            self.stored.iter().any(|(_, content)| {
                ends(&content.dead_letter) && content.requests.contains(request)
            })
        });
        requests
    }
}

#[async_trait]
impl DeadLetterStore for DefectiveLedger {
    async fn store_dead_letters(
        &self,
        dead_letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error> {
        if self.defect == LedgerDefect::ForgetsDeadLetters {
            return Ok(vec![StoreDeadLetterOutcome::New; dead_letters.len()]);
        }
        let rows = &mut self.rows.lock().dead_letters;
        Ok(dead_letters.into_iter().map(|dead_letter| rows.store(dead_letter, now_ms)).collect())
    }

    async fn dead_letter_page(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<(DeadLetterNo, Result<DeadLetter, Error>)>, Error> {
        let page = self.rows.lock().dead_letters.page(&filter, limit);
        Ok(page.into_iter().map(|dead_letter| (dead_letter.no, Ok(dead_letter))).collect())
    }

    async fn num_dead_letters(&self, filter: DeadLetterFilter) -> Result<u64, Error> {
        Ok(self.rows.lock().dead_letters.page(&filter, u32::MAX).len() as u64)
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        Ok(self.rows.lock().dead_letters.get(no))
    }

    async fn transition_dead_letter(
        &self,
        transition: DeadLetterTransition,
    ) -> Result<bool, Error> {
        Ok(self.rows.lock().dead_letters.transition(transition))
    }

    async fn holding_dead_letters(
        &self,
        skus: Vec<SkuNo>,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        Ok(self.rows.lock().dead_letters.not_replayed(&skus, after, limit))
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        Ok(self.rows.lock().dead_letters.counts())
    }

    async fn dead_lettered_among(
        &self,
        requests: Vec<RequestId>,
        replayed_since_ms: i64,
    ) -> Result<Vec<RequestId>, Error> {
        Ok(self.rows.lock().dead_letters.dead_lettered_among(requests, replayed_since_ms))
    }
}
