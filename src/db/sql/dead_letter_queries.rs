//! The queries about dead letters; see `queries`.

use diesel::dsl::{count_star, insert_into, update};
use diesel::prelude::*;

use super::queries::queries;
use crate::db::dead_letter_rows::{DeadLetterRow, NewDeadLetterRow};
use crate::db::mysql::MysqlConnection;
use crate::db::schema::{dead_letters, dead_requests};
use crate::domain::{DeadLetterFilter, DeadLetterState, DeadLetterTransition};

/// States in which a letter is the end of its requests.
const ENDS: [i16; 2] = [0, 2];

queries! {
/// The queries about dead letters.
trait DeadLetterQueries {
    /// Counts one arrival more of a letter, with what is new about it: 1, or 0 if it is not there.
    fn letter_came(&mut self, row: &NewDeadLetterRow<'_>) -> QueryResult<usize> {
        let values = (
            dead_letters::arrivals.eq(dead_letters::arrivals + 1),
            dead_letters::origin.eq(row.origin),
            dead_letters::reason.eq(row.reason),
            dead_letters::attempts.eq(row.attempts),
            dead_letters::headers.eq(row.headers),
            dead_letters::dead_at_ms.eq(row.dead_at_ms),
        );
        let letter = dead_letters::table.filter(dead_letters::digest.eq(row.digest));
        update(letter).set(values).execute(self)
    }

    /// Opens a replayed letter: 1, or 0 if it is not replayed.
    fn reopen_letter(&mut self, digest: &[u8], now_ms: i64) -> QueryResult<usize> {
        let letter = dead_letters::table
            .filter(dead_letters::digest.eq(digest))
            .filter(dead_letters::state.eq(DeadLetterState::Replayed.to_db()));
        let values = (
            dead_letters::state.eq(DeadLetterState::Open.to_db()),
            dead_letters::changed_at_ms.eq(now_ms),
        );
        update(letter).set(values).execute(self)
    }

    /// Writes a letter.
    fn insert_letter(&mut self, row: &NewDeadLetterRow<'_>) -> QueryResult<()> {
        insert_into(dead_letters::table).values(row).execute(self).map(drop)
    }

    /// Writes which requests are in which letter.
    fn insert_dead_requests(&mut self, rows: &[(i64, i64)]) -> QueryResult<()> {
        let value = |(request, letter): &(i64, i64)| {
            (dead_requests::request_id.eq(*request), dead_requests::letter_no.eq(*letter))
        };
        let values: Vec<_> = rows.iter().map(value).collect();
        insert_into(dead_requests::table).values(values).execute(self).map(drop)
    }

    /// Letters, newest first.
    fn letter_page(
        &mut self, filter: DeadLetterFilter, limit: u32
    ) -> QueryResult<Vec<DeadLetterRow>> {
        let mut page = dead_letters::table
            .order(dead_letters::letter_no.desc())
            .limit(i64::from(limit))
            .select(DeadLetterRow::as_select())
            .into_boxed();
        if let Some(state) = filter.state {
            page = page.filter(dead_letters::state.eq(state.to_db()));
        }
        if let Some(origin) = filter.origin {
            page = page.filter(dead_letters::origin.eq(origin.name()));
        }
        if let Some(before) = filter.before {
            page = page.filter(dead_letters::letter_no.lt(before.0));
        }
        if let Some(request) = filter.request {
            let with = dead_requests::table.filter(dead_requests::request_id.eq(request.to_db()));
            let numbers = with.select(dead_requests::letter_no);
            page = page.filter(dead_letters::letter_no.eq_any(numbers));
        }
        page.load(self)
    }

    /// Letters that are the end of their requests, with their bodies, smallest number first.
    fn ending_letters(
        &mut self, after: i64, limit: u32
    ) -> QueryResult<Vec<(DeadLetterRow, Vec<u8>)>> {
        dead_letters::table
            .filter(dead_letters::state.eq_any(ENDS))
            .filter(dead_letters::letter_no.gt(after))
            .order(dead_letters::letter_no)
            .limit(i64::from(limit))
            .select((DeadLetterRow::as_select(), dead_letters::body))
            .load(self)
    }

    /// One letter with its body.
    fn letter_row(&mut self, no: i64) -> QueryResult<Option<(DeadLetterRow, Vec<u8>)>> {
        let row = dead_letters::table.find(no);
        row.select((DeadLetterRow::as_select(), dead_letters::body)).first(self).optional()
    }

    /// The requests in a letter, smallest first.
    fn requests_of_letter(&mut self, no: i64) -> QueryResult<Vec<i64>> {
        let rows = dead_requests::table.filter(dead_requests::letter_no.eq(no));
        rows.order(dead_requests::request_id).select(dead_requests::request_id).load(self)
    }

    /// Changes the state of a letter that is as it was seen: 1, or 0.
    fn turn_letter(&mut self, turn: &DeadLetterTransition) -> QueryResult<usize> {
        let arrivals = i32::try_from(turn.arrivals).unwrap_or(i32::MAX);
        let letter = dead_letters::table
            .find(turn.no.0)
            .filter(dead_letters::state.eq(turn.from.to_db()))
            .filter(dead_letters::arrivals.eq(arrivals));
        let values = (
            dead_letters::state.eq(turn.to.to_db()),
            dead_letters::changed_at_ms.eq(turn.at_ms),
            // Without one, the note that is there stays.
            turn.note.as_ref().map(|note| dead_letters::note.eq(note)),
        );
        update(letter).set(values).execute(self)
    }

    /// How many letters there are, by state.
    fn letter_counts(&mut self) -> QueryResult<Vec<(i16, i64)>> {
        let states = dead_letters::table.group_by(dead_letters::state);
        states.select((dead_letters::state, count_star())).load(self)
    }

    /// Which of these requests are in a letter that is their end; some more than once.
    fn dead_among(&mut self, requests: &[i64]) -> QueryResult<Vec<i64>> {
        let letters = dead_letters::table.on(dead_letters::letter_no.eq(dead_requests::letter_no));
        dead_requests::table
            .inner_join(letters)
            .filter(dead_requests::request_id.eq_any(requests))
            .filter(dead_letters::state.eq_any(ENDS))
            .select(dead_requests::request_id)
            .load(self)
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_open_and_parked() {
        let ends = DeadLetterState::ALL.into_iter().filter(|state| state.is_end());
        assert_eq!(ENDS.to_vec(), ends.map(DeadLetterState::to_db).collect::<Vec<_>>());
    }
}
