//! The write and read transactions of dead letters.

use std::collections::BTreeSet;

use super::queries::IN_LIST_MAX;
use super::tokens::increment;
use super::transaction::{inserted, retry_concurrent};
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::Error;
use crate::db::dead_letter_rows::NewDeadLetterRow;
use crate::domain::{
    DeadLetterContent, DeadLetterCounts, DeadLetterNo, DeadLetterState, DeadLetterTransition,
    NewDeadLetter, RequestId, StoreDeadLetterOutcome,
};

/// The name of the token that numbers dead letters.
const NUMBER_TOKEN: &str = "dead-letter";

/// Stores dead letters, all of them or none; a message that is stored already is the same one.
pub(super) fn store<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    dead_letters: &[NewDeadLetter],
    now_ms: i64,
) -> Result<Vec<StoreDeadLetterOutcome>, Error> {
    if dead_letters.is_empty() {
        return Ok(Vec::new());
    }
    // In the order of their key, so that concurrent writers do not deadlock.
    let mut sorted: Vec<(usize, &NewDeadLetter)> = dead_letters.iter().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, dead_letter)| dead_letter.digest);
    retry_concurrent("copies of the same dead letters", || {
        write(conn, fence, |conn| {
            let mut outcomes = Vec::with_capacity(sorted.len());
            for (index, dead_letter) in &sorted {
                match store_one(conn, dead_letter, now_ms)? {
                    Some(outcome) => outcomes.push((*index, outcome)),
                    None => return Ok(TransactionEnd::RollBack(None)),
                }
            }
            outcomes.sort_unstable_by_key(|(index, _)| *index);
            let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
            Ok(TransactionEnd::Commit(Some(outcomes)))
        })
    })
}

/// `None`: another process stored the same dead letter concurrently.
fn store_one<D: Database>(
    conn: &mut D,
    dead_letter: &NewDeadLetter,
    now_ms: i64,
) -> Result<Option<StoreDeadLetterOutcome>, Error> {
    let mut row = NewDeadLetterRow::of(dead_letter, now_ms)?;
    // The first UPDATE locks the row: a concurrent replay waits and then reads the new arrival.
    if conn.record_arrival(&row)? > 0 {
        let reopened = conn.reopen_dead_letter(&dead_letter.digest, now_ms)? > 0;
        return Ok(Some(if reopened {
            StoreDeadLetterOutcome::Reopened
        } else {
            StoreDeadLetterOutcome::AlreadyStored
        }));
    }
    row.letter_no = increment(conn, NUMBER_TOKEN)?;
    if !inserted(conn.insert_dead_letter(&row))? {
        return Ok(None);
    }
    let requests: BTreeSet<i64> = dead_letter.requests.iter().map(|id| id.to_db()).collect();
    let rows: Vec<(i64, i64)> = requests.into_iter().map(|id| (id, row.letter_no)).collect();
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_dead_requests(chunk)?;
    }
    Ok(Some(StoreDeadLetterOutcome::New))
}

/// One dead letter with its body and requests, in one snapshot.
pub(super) fn content<D: Database>(
    conn: &mut D,
    no: DeadLetterNo,
) -> Result<Option<DeadLetterContent>, Error> {
    conn.snapshot(|conn| {
        let Some((row, body)) = conn.dead_letter_row(no.0)? else { return Ok(None) };
        let ids = conn.requests_of_dead_letter(no.0)?;
        Ok(Some(DeadLetterContent {
            dead_letter: row.try_into()?,
            body,
            requests: request_ids(ids)?,
        }))
    })
}

/// Changes the state of a dead letter; `false`: its state or arrivals changed since the read.
pub(super) fn apply<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    transition: &DeadLetterTransition,
) -> Result<bool, Error> {
    write(conn, fence, |conn| {
        let changed = conn.update_dead_letter(transition)? == 1;
        Ok(if changed { TransactionEnd::Commit(true) } else { TransactionEnd::RollBack(false) })
    })
}

/// The number of dead letters by state.
pub(super) fn counts<D: Database>(conn: &mut D) -> Result<DeadLetterCounts, Error> {
    let mut counts = DeadLetterCounts::default();
    for (state, number) in conn.dead_letter_counts()? {
        let number = number.unsigned_abs();
        match DeadLetterState::from_db(state) {
            Some(DeadLetterState::Open) => counts.open = number,
            Some(DeadLetterState::Replayed) => counts.replayed = number,
            Some(DeadLetterState::Parked) => counts.parked = number,
            Some(DeadLetterState::Discarded) => counts.discarded = number,
            None => {
                let what = format!("{number} dead letters: state is {state}");
                return Err(Error::Unreadable { what });
            }
        }
    }
    Ok(counts)
}

/// The requests among these that are in an open or parked dead letter.
pub(super) fn dead_lettered_among<D: Database>(
    conn: &mut D,
    requests: &[RequestId],
) -> Result<Vec<RequestId>, Error> {
    let ids: Vec<i64> = requests.iter().map(|request| request.to_db()).collect();
    let mut dead = BTreeSet::new();
    for chunk in ids.chunks(IN_LIST_MAX) {
        dead.extend(conn.dead_lettered_among(chunk)?);
    }
    request_ids(dead)
}

fn request_ids(ids: impl IntoIterator<Item = i64>) -> Result<Vec<RequestId>, Error> {
    let request_id = |id| {
        RequestId::from_db(id)
            .ok_or_else(|| Error::Unreadable { what: format!("dead request {id}: no request id") })
    };
    ids.into_iter().map(request_id).collect()
}
