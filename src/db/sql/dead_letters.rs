//! Dead letters.

use std::collections::BTreeSet;

use super::queries::IN_LIST_MAX;
use super::tokens::count_up;
use super::transaction::{are_new, until_undisturbed};
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::Error;
use crate::db::dead_letter_rows::NewDeadLetterRow;
use crate::domain::{
    DeadLetterContent, DeadLetterCounts, DeadLetterNo, DeadLetterState, DeadLetterTransition,
    KeepOutcome, NewDeadLetter, RequestId,
};

/// The token that numbers letters.
const NUMBERS: &str = "dead-letter";

/// Keeps letters, all of them or none; a message that is there already is the same letter.
pub(super) fn keep<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    letters: &[NewDeadLetter],
    now_ms: i64,
) -> Result<Vec<KeepOutcome>, Error> {
    if letters.is_empty() {
        return Ok(Vec::new());
    }
    // In the order of their key: writers that meet wait for each other instead of in a circle.
    let mut sorted: Vec<(usize, &NewDeadLetter)> = letters.iter().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, letter)| letter.digest);
    until_undisturbed("copies of the same letters", || {
        write(conn, fence, |conn| {
            let mut kept = Vec::with_capacity(sorted.len());
            for (index, letter) in &sorted {
                match keep_one(conn, letter, now_ms)? {
                    Some(done) => kept.push((*index, done)),
                    None => return Ok(TransactionEnd::RollBack(None)),
                }
            }
            kept.sort_unstable_by_key(|(index, _)| *index);
            Ok(TransactionEnd::Commit(Some(kept.into_iter().map(|(_, done)| done).collect())))
        })
    })
}

/// `None`: another process wrote the same letter in between.
fn keep_one<D: Database>(
    conn: &mut D,
    letter: &NewDeadLetter,
    now_ms: i64,
) -> Result<Option<KeepOutcome>, Error> {
    let mut row = NewDeadLetterRow::of(letter, now_ms)?;
    // The first UPDATE locks the row: whoever replays it waits, and then sees the new arrival.
    if conn.letter_came(&row)? > 0 {
        let reopened = conn.reopen_letter(&letter.digest, now_ms)? > 0;
        return Ok(Some(if reopened { KeepOutcome::Again } else { KeepOutcome::Known }));
    }
    row.letter_no = count_up(conn, NUMBERS)?;
    if !are_new(conn.insert_letter(&row))? {
        return Ok(None);
    }
    let requests: BTreeSet<i64> = letter.requests.iter().map(|request| request.to_db()).collect();
    let rows: Vec<(i64, i64)> = requests.into_iter().map(|id| (id, row.letter_no)).collect();
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_dead_requests(chunk)?;
    }
    Ok(Some(KeepOutcome::New))
}

/// One letter with everything that is kept of it, as of one instant.
pub(super) fn whole<D: Database>(
    conn: &mut D,
    no: DeadLetterNo,
) -> Result<Option<DeadLetterContent>, Error> {
    conn.snapshot(|conn| {
        let Some((row, body)) = conn.letter_row(no.0)? else { return Ok(None) };
        let ids = conn.requests_of_letter(no.0)?;
        Ok(Some(DeadLetterContent { letter: row.try_into()?, body, requests: requests(ids)? }))
    })
}

/// Changes the state of a letter; `false`: it is not as it was seen.
pub(super) fn turn<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    turn: &DeadLetterTransition,
) -> Result<bool, Error> {
    write(conn, fence, |conn| {
        let turned = conn.turn_letter(turn)? == 1;
        Ok(if turned { TransactionEnd::Commit(true) } else { TransactionEnd::RollBack(false) })
    })
}

/// How many letters there are.
pub(super) fn counts<D: Database>(conn: &mut D) -> Result<DeadLetterCounts, Error> {
    let mut counts = DeadLetterCounts::default();
    for (state, number) in conn.letter_counts()? {
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

/// Which of these requests are in an open or parked letter.
pub(super) fn dead_among<D: Database>(
    conn: &mut D,
    asked: &[RequestId],
) -> Result<Vec<RequestId>, Error> {
    let ids: Vec<i64> = asked.iter().map(|request| request.to_db()).collect();
    let mut dead = BTreeSet::new();
    for chunk in ids.chunks(IN_LIST_MAX) {
        dead.extend(conn.dead_among(chunk)?);
    }
    requests(dead)
}

fn requests(ids: impl IntoIterator<Item = i64>) -> Result<Vec<RequestId>, Error> {
    let known = |id| {
        RequestId::from_db(id)
            .ok_or_else(|| Error::Unreadable { what: format!("dead request {id}: no request id") })
    };
    ids.into_iter().map(known).collect()
}
