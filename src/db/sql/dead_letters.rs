//! Stores and queries dead letters; a message is identified by its digest.

use async_trait::async_trait;

use super::dead_letter_queries::DeadLetterRow;
use super::statements::{IN_LIST_MAX, in_lists, sorted};
use super::tokens::INCREMENT;
use super::{
    Database, SqlLedger, TransactionEnd, filled, in_transaction, inserted, last_of, readable_rows,
    retry_concurrent,
};
use crate::db::rows::readable;
use crate::db::{DeadLetterStore, Error};
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterState, DeadLetterTransition, NewDeadLetter, RequestId, SkuNo, StoreDeadLetterOutcome,
};

/// The name of the token that numbers dead letters.
const NUMBER_TOKEN: &str = "dead-letter";

#[async_trait]
impl<D: Database> DeadLetterStore for SqlLedger<D> {
    async fn store_dead_letters(
        &self,
        dead_letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error> {
        self.write("storing dead letters", move |conn, fence, _| {
            if dead_letters.is_empty() {
                return Ok(Vec::new());
            }
            // In the order of their key, so that concurrent writers do not deadlock.
            let mut sorted: Vec<(usize, &NewDeadLetter)> =
                dead_letters.iter().enumerate().collect();
            sorted.sort_unstable_by_key(|(_, dead_letter)| dead_letter.digest);
            retry_concurrent("copies of the same dead letters", || {
                in_transaction(conn, fence, |conn| store(conn, &sorted, now_ms))
            })
        })
        .await
    }

    async fn dead_letter_page(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<(DeadLetterNo, Result<DeadLetter, Error>)>, Error> {
        self.read("reading dead letters", move |conn| {
            let rows = conn.dead_letter_page(&filter, limit)?;
            let read = |row: DeadLetterRow| (DeadLetterNo(row.letter_no), row.try_into());
            Ok(rows.into_iter().map(read).collect())
        })
        .await
    }

    async fn num_dead_letters(&self, filter: DeadLetterFilter) -> Result<u64, Error> {
        self.read("counting dead letters", move |conn| {
            Ok(conn.num_dead_letters(&filter)?.unsigned_abs())
        })
        .await
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        self.read("reading a dead letter", move |conn| {
            conn.snapshot(|conn| {
                let Some((row, body)) = conn.dead_letter_row(no.0)? else { return Ok(None) };
                let requests = request_ids(conn.requests_of_dead_letter(no.0)?)?;
                Ok(Some(DeadLetterContent { dead_letter: row.try_into()?, body, requests }))
            })
        })
        .await
    }

    async fn transition_dead_letter(
        &self,
        transition: DeadLetterTransition,
    ) -> Result<bool, Error> {
        self.write_at("changing a dead letter", move |conn, _| {
            let changed = conn.update_dead_letter(&transition)? == 1;
            Ok(TransactionEnd::commit_if(changed))
        })
        .await
    }

    async fn holding_dead_letters(
        &self,
        skus: Vec<SkuNo>,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        self.read("reading dead letters", move |conn| {
            filled(limit, Some(after.0), |after, limit| {
                let rows = conn.holding_dead_letters(&skus, after.unwrap_or(0), limit)?;
                let last = last_of(&rows, limit, |(row, _)| row.letter_no);
                Ok((readable_rows(rows, |(row, body)| Ok((row.try_into()?, body))), last))
            })
        })
        .await
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        self.read("counting dead letters", |conn| {
            let mut counts = DeadLetterCounts::default();
            for (state, number) in conn.dead_letter_counts()? {
                let name = || format!("{number} dead letters");
                let count = match readable(DeadLetterState::from_db(state), name, "state", state)? {
                    DeadLetterState::Open => &mut counts.open,
                    DeadLetterState::Replayed => &mut counts.replayed,
                    DeadLetterState::Parked => &mut counts.parked,
                    DeadLetterState::Discarded => &mut counts.discarded,
                };
                *count = number.unsigned_abs();
            }
            Ok(counts)
        })
        .await
    }

    async fn dead_lettered_among(
        &self,
        requests: Vec<RequestId>,
        replayed_since_ms: i64,
    ) -> Result<Vec<RequestId>, Error> {
        self.read("reading dead letters", move |conn| {
            let ids: Vec<i64> = requests.iter().map(|request| request.to_db()).collect();
            let found = |chunk: &[i64]| conn.dead_lettered_among(chunk, replayed_since_ms);
            request_ids(sorted(in_lists(&ids, found)?))
        })
        .await
    }
}

/// Stores these dead letters, sorted by their key; the outcomes are in the order of the indices.
/// `None`: another process stored one of them concurrently.
fn store<D: Database>(
    conn: &mut D,
    sorted: &[(usize, &NewDeadLetter)],
    now_ms: i64,
) -> Result<TransactionEnd<Option<Vec<StoreDeadLetterOutcome>>>, Error> {
    let mut outcomes = Vec::with_capacity(sorted.len());
    for (index, dead_letter) in sorted {
        match store_one(conn, dead_letter, now_ms)? {
            Some(outcome) => outcomes.push((*index, outcome)),
            None => return Ok(TransactionEnd::RollBack(None)),
        }
    }
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    Ok(TransactionEnd::Commit(Some(outcomes.into_iter().map(|(_, outcome)| outcome).collect())))
}

/// `None`: another process stored the same dead letter concurrently.
fn store_one<D: Database>(
    conn: &mut D,
    dead_letter: &NewDeadLetter,
    now_ms: i64,
) -> Result<Option<StoreDeadLetterOutcome>, Error> {
    let mut row = DeadLetterRow::first_arrival(dead_letter, now_ms)?;
    // The first UPDATE locks the row: a concurrent replay waits and then reads the new arrival.
    if conn.count_arrival(&dead_letter.digest)? > 0 {
        let reopened = conn.reopen_dead_letter(&dead_letter.digest, &row)? > 0;
        conn.record_arrival(&dead_letter.digest, &row)?;
        return Ok(Some(if reopened {
            StoreDeadLetterOutcome::Reopened
        } else {
            StoreDeadLetterOutcome::AlreadyStored
        }));
    }
    row.letter_no = conn.raise_token(NUMBER_TOKEN, INCREMENT)?;
    if inserted(conn.insert_dead_letter(dead_letter, &row))?.is_none() {
        return Ok(None);
    }
    let mut requests = dead_letter.requests.clone();
    requests.sort_unstable();
    requests.dedup_by_key(|dead| dead.request);
    for chunk in requests.chunks(IN_LIST_MAX) {
        conn.insert_dead_requests(row.letter_no, chunk)?;
    }
    Ok(Some(StoreDeadLetterOutcome::New))
}

fn request_ids(ids: impl IntoIterator<Item = i64>) -> Result<Vec<RequestId>, Error> {
    let request_id = |id| {
        RequestId::from_db(id)
            .ok_or_else(|| Error::Unreadable { what: format!("dead request {id}: no request id") })
    };
    ids.into_iter().map(request_id).collect()
}
