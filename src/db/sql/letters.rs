//! Dead letters.

use std::collections::BTreeSet;

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::queries::IN_LIST_MAX;
use super::{Database, End, Fence, write};
use crate::db::Error;
use crate::db::letter_rows::NewLetterRow;
use crate::domain::{
    DeadLetter, Kept, LetterCounts, LetterFilter, LetterNo, LetterState, LetterTurn, NewLetter,
    RequestId, WholeLetter,
};

const KEEPING: &str = "keeping dead letters";
const READING: &str = "reading dead letters";

/// The token that numbers letters.
const NUMBERS: &str = "dead-letter";

/// How often others may write the same letters in between before the call is given up.
const MEETINGS_MAX: u32 = 3;

/// Keeps letters, all of them or none; a message that is there already is the same letter.
pub(super) fn keep<D: Database>(
    conn: &mut D,
    fence: Fence,
    letters: &[NewLetter],
    now_ms: i64,
) -> Result<Vec<Kept>, Error> {
    if letters.is_empty() {
        return Ok(Vec::new());
    }
    // In the order of their key: writers that meet wait for each other instead of in a circle.
    let mut sorted: Vec<(usize, &NewLetter)> = letters.iter().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, letter)| letter.digest);
    for _ in 0..MEETINGS_MAX {
        let done = write(conn, fence, KEEPING, |conn| {
            let mut kept = Vec::with_capacity(sorted.len());
            for (index, letter) in &sorted {
                match keep_one(conn, letter, now_ms)? {
                    Some(done) => kept.push((*index, done)),
                    None => return Ok(End::RollBack(None)),
                }
            }
            kept.sort_unstable_by_key(|(index, _)| *index);
            Ok(End::Commit(Some(kept)))
        })?;
        if let Some(kept) = done {
            return Ok(kept.into_iter().map(|(_, done)| done).collect());
        }
    }
    let said = Box::new("copies of the same letters kept coming in between".to_owned());
    let source = Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, said);
    Err(Error::Refused { doing: KEEPING, source })
}

/// `None`: another process wrote the same letter in between.
fn keep_one<D: Database>(
    conn: &mut D,
    letter: &NewLetter,
    now_ms: i64,
) -> Result<Option<Kept>, Error> {
    let refused = Error::refused(KEEPING);
    let mut row = NewLetterRow::of(letter, now_ms)?;
    // The first UPDATE locks the row: whoever replays it waits, and then sees the new arrival.
    if conn.letter_came(&row).map_err(&refused)? > 0 {
        let reopened = conn.reopen_letter(&letter.digest, now_ms).map_err(&refused)? > 0;
        return Ok(Some(if reopened { Kept::Again } else { Kept::Known }));
    }
    row.letter_no = conn.count_up(NUMBERS).map_err(&refused)?;
    match conn.insert_letter(&row) {
        Ok(()) => {}
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => return Ok(None),
        Err(source) => return Err(Error::Refused { doing: KEEPING, source }),
    }
    let requests: BTreeSet<i64> = letter.requests.iter().map(|request| request.to_db()).collect();
    let rows: Vec<(i64, i64)> = requests.into_iter().map(|id| (id, row.letter_no)).collect();
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_dead_requests(chunk).map_err(&refused)?;
    }
    Ok(Some(Kept::New))
}

/// A page of letters, newest first.
pub(super) fn page<D: Database>(
    conn: &mut D,
    filter: LetterFilter,
    limit: u32,
) -> Result<Vec<DeadLetter>, Error> {
    let rows = conn.letter_page(filter, limit).map_err(Error::refused(READING))?;
    rows.into_iter().map(DeadLetter::try_from).collect()
}

/// One letter with everything that is kept of it, as of one instant.
pub(super) fn whole<D: Database>(conn: &mut D, no: LetterNo) -> Result<Option<WholeLetter>, Error> {
    conn.snapshot(READING, |conn| {
        let found = conn.letter_row(no.0).map_err(Error::refused(READING))?;
        let Some((row, body)) = found else { return Ok(None) };
        let ids = conn.requests_of_letter(no.0).map_err(Error::refused(READING))?;
        Ok(Some(WholeLetter { letter: row.try_into()?, body, requests: requests(ids)? }))
    })
}

/// The letters that a request is in, newest first.
pub(super) fn with_request<D: Database>(
    conn: &mut D,
    request: RequestId,
) -> Result<Vec<DeadLetter>, Error> {
    let rows = conn.letters_with(request.to_db()).map_err(Error::refused(READING))?;
    rows.into_iter().map(DeadLetter::try_from).collect()
}

/// Changes the state of a letter; `false`: it is not as it was seen.
pub(super) fn turn<D: Database>(
    conn: &mut D,
    fence: Fence,
    turn: &LetterTurn,
) -> Result<bool, Error> {
    const DOING: &str = "turning a dead letter";
    write(conn, fence, DOING, |conn| {
        let turned = conn.turn_letter(turn).map_err(Error::refused(DOING))? == 1;
        Ok(if turned { End::Commit(true) } else { End::RollBack(false) })
    })
}

/// How many letters there are.
pub(super) fn counts<D: Database>(conn: &mut D) -> Result<LetterCounts, Error> {
    let mut counts = LetterCounts::default();
    for (state, number) in conn.letter_counts().map_err(Error::refused(READING))? {
        let number = number.unsigned_abs();
        match LetterState::from_db(state) {
            Some(LetterState::Open) => counts.open = number,
            Some(LetterState::Replayed) => counts.replayed = number,
            Some(LetterState::Parked) => counts.parked = number,
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
        dead.extend(conn.dead_among(chunk).map_err(Error::refused(READING))?);
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
