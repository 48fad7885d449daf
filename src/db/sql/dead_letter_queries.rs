//! The rows of dead letters and the queries about them; see `rows` and `queries`.

use diesel::dsl::{count_star, insert_into, sql, update};
use diesel::prelude::*;
use diesel::sql_types::{Bool, Text};

use super::queries::queries;
use crate::db::Error;
use crate::db::rows::{narrow, number, readable};
use crate::db::schema::{dead_letters, dead_requests};
use crate::domain::{
    DeadLetter, DeadLetterFilter, DeadLetterNo, DeadLetterOrigin, DeadLetterState,
    DeadLetterTransition, NewDeadLetter, OrderKey, RequestId, SkuNo,
};

/// A row of `dead_letters`, without digest and body.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = dead_letters, treat_none_as_default_value = false)]
pub struct DeadLetterRow {
    pub(super) letter_no: i64,
    pub(super) origin: String,
    pub(super) reason: String,
    pub(super) attempts: i32,
    message_id: String,
    pub(super) headers: String,
    body_bytes: i64,
    pub(super) dead_at_ms: i64,
    arrivals: i32,
    state: i16,
    changed_at_ms: i64,
    note: Option<String>,
}

impl DeadLetterRow {
    /// The row of a first arrival at `now_ms`, without a number.
    pub(super) fn first_arrival(dead_letter: &NewDeadLetter, now_ms: i64) -> Result<Self, Error> {
        Ok(Self {
            letter_no: 0,
            origin: dead_letter.origin.name().to_owned(),
            reason: dead_letter.reason.clone(),
            attempts: narrow("attempts", dead_letter.attempts)?,
            message_id: dead_letter.message_id.clone(),
            headers: dead_letter.headers.clone(),
            body_bytes: narrow("body_bytes", dead_letter.body_bytes)?,
            dead_at_ms: dead_letter.dead_at_ms,
            arrivals: 1,
            state: DeadLetterState::Open.to_db(),
            changed_at_ms: now_ms,
            note: None,
        })
    }
}

impl TryFrom<DeadLetterRow> for DeadLetter {
    type Error = Error;

    fn try_from(row: DeadLetterRow) -> Result<Self, Error> {
        let name = || format!("dead letter {}", row.letter_no);
        let origin = DeadLetterOrigin::from_name(&row.origin);
        Ok(Self {
            no: DeadLetterNo(row.letter_no),
            origin: readable(origin, name, "origin", &row.origin)?,
            attempts: number(name, "attempts", row.attempts)?,
            body_bytes: number(name, "body_bytes", row.body_bytes)?,
            dead_at_ms: row.dead_at_ms,
            arrivals: number(name, "arrivals", row.arrivals)?,
            state: readable(DeadLetterState::from_db(row.state), name, "state", row.state)?,
            changed_at_ms: row.changed_at_ms,
            reason: row.reason,
            message_id: row.message_id,
            headers: row.headers,
            note: row.note,
        })
    }
}

/// The numbers of the states for which [`DeadLetterState::holds_requests`] holds.
fn holding_states() -> impl Iterator<Item = i16> {
    let states = DeadLetterState::ALL.into_iter().filter(|state| state.holds_requests());
    states.map(DeadLetterState::to_db)
}

/// A query of dead letters with the conditions of a filter. A macro, because the type of a query
/// differs per database.
macro_rules! filtered {
    ($query:ident, $filter:ident) => {{
        let mut query = $query;
        if let Some(state) = $filter.state {
            query = query.filter(dead_letters::state.eq(state.to_db()));
        }
        if let Some(origin) = $filter.origin {
            query = query.filter(dead_letters::origin.eq(origin.name()));
        }
        if let Some(reason) = &$filter.reason {
            let contains = sql::<Bool>("INSTR(LOWER(dead_letters.reason), LOWER(");
            query = query.filter(contains.bind::<Text, _>(reason).sql(")) > 0"));
        }
        if let Some(since_ms) = $filter.since_ms {
            query = query.filter(dead_letters::dead_at_ms.ge(since_ms));
        }
        if let Some(until_ms) = $filter.until_ms {
            query = query.filter(dead_letters::dead_at_ms.lt(until_ms));
        }
        if let Some(after) = $filter.after {
            query = if $filter.is_oldest_first() {
                query.filter(dead_letters::letter_no.gt(after.0))
            } else {
                query.filter(dead_letters::letter_no.lt(after.0))
            };
        }
        if $filter.has_requests() {
            let mut with = dead_requests::table.select(dead_requests::letter_no).into_boxed();
            if let Some(request) = $filter.request.map(RequestId::to_db) {
                with = with.filter(dead_requests::request_id.eq(request));
            }
            if let Some(buyer) = $filter.buyer {
                with = with.filter(dead_requests::buyer_id.eq(buyer.to_db()));
            }
            if let Some(skus) = &$filter.skus {
                let numbers: Vec<i32> = skus.iter().map(|sku| sku.0).collect();
                with = with.filter(dead_requests::sku_no.eq_any(numbers));
            }
            query = query.filter(dead_letters::letter_no.eq_any(with));
        }
        query
    }};
}

queries! {
/// The queries about dead letters.
trait DeadLetterQueries {
    /// Counts one more arrival of a stored dead letter; returns 1, or 0 if it is not stored.
    fn count_arrival(&mut self, digest: &[u8]) -> QueryResult<usize> {
        let stored = dead_letters::table.filter(dead_letters::digest.eq(digest));
        update(stored).set(dead_letters::arrivals.eq(dead_letters::arrivals + 1)).execute(self)
    }

    /// Records why and when a stored dead letter arrived.
    fn record_arrival(&mut self, digest: &[u8], row: &DeadLetterRow) -> QueryResult<usize> {
        let values = (
            dead_letters::origin.eq(&row.origin),
            dead_letters::reason.eq(&row.reason),
            dead_letters::attempts.eq(row.attempts),
            dead_letters::headers.eq(&row.headers),
            dead_letters::dead_at_ms.eq(row.dead_at_ms),
        );
        let stored = dead_letters::table.filter(dead_letters::digest.eq(digest));
        update(stored).set(values).execute(self)
    }

    /// Sets a replayed dead letter to open; returns 1, or 0 if it is not replayed, or if this is
    /// the recorded arrival, received again. A message that fails after its replay has the time of
    /// the replay in its headers; a dead letter of a relay has none, and fails as one of a
    /// consumer after its replay.
    fn reopen_dead_letter(&mut self, digest: &[u8], row: &DeadLetterRow) -> QueryResult<usize> {
        let is_another = dead_letters::headers
            .ne(&row.headers)
            .or(dead_letters::reason.ne(&row.reason))
            .or(dead_letters::origin.ne(&row.origin));
        let replayed = dead_letters::table
            .filter(dead_letters::digest.eq(digest))
            .filter(dead_letters::state.eq(DeadLetterState::Replayed.to_db()))
            .filter(is_another);
        let values = (
            dead_letters::state.eq(DeadLetterState::Open.to_db()),
            dead_letters::changed_at_ms.eq(row.changed_at_ms),
        );
        update(replayed).set(values).execute(self)
    }

    fn insert_dead_letter(
        &mut self, dead_letter: &NewDeadLetter, row: &DeadLetterRow
    ) -> QueryResult<()> {
        let digest = dead_letters::digest.eq(&dead_letter.digest[..]);
        let row = (row, digest, dead_letters::body.eq(&dead_letter.body));
        insert_into(dead_letters::table).values(row).execute(self).map(drop)
    }

    /// Writes the requests of a dead letter.
    fn insert_dead_requests(&mut self, letter_no: i64, dead: &[OrderKey]) -> QueryResult<()> {
        let value = |dead: &OrderKey| {
            (
                dead_requests::request_id.eq(dead.request.to_db()),
                dead_requests::letter_no.eq(letter_no),
                dead_requests::sku_no.eq(dead.sku.0),
                dead_requests::buyer_id.eq(dead.buyer.to_db()),
            )
        };
        let values: Vec<_> = dead.iter().map(value).collect();
        insert_into(dead_requests::table).values(values).execute(self).map(drop)
    }

    /// Dead letters that match the filter, in its order.
    fn dead_letter_page(
        &mut self, filter: &DeadLetterFilter, limit: u32
    ) -> QueryResult<Vec<DeadLetterRow>> {
        let page = dead_letters::table
            .limit(i64::from(limit))
            .select(DeadLetterRow::as_select())
            .into_boxed();
        let page = if filter.is_oldest_first() {
            page.order(dead_letters::letter_no.asc())
        } else {
            page.order(dead_letters::letter_no.desc())
        };
        filtered!(page, filter).load(self)
    }

    /// The number of dead letters that match the filter.
    fn num_dead_letters(&mut self, filter: &DeadLetterFilter) -> QueryResult<i64> {
        let all = dead_letters::table.select(count_star()).into_boxed();
        filtered!(all, filter).get_result(self)
    }

    /// Open and parked dead letters with their bodies, in ascending order of their number: those of
    /// these SKUs, and those whose requests were not readable when they were stored.
    fn holding_dead_letters(
        &mut self, skus: &[SkuNo], after: i64, limit: u32
    ) -> QueryResult<Vec<(DeadLetterRow, Vec<u8>)>> {
        // A value for each row: MariaDB would read all requests for `EXISTS`, for each page again.
        let skus: Vec<String> = skus.iter().map(|sku| sku.0.to_string()).collect();
        let may_hold = format!(
            "COALESCE((SELECT MAX(sku_no IN ({})) FROM dead_requests \
             WHERE dead_requests.letter_no = dead_letters.letter_no), 1) = 1",
            skus.join(", ")
        );
        dead_letters::table
            .filter(sql::<Bool>(&may_hold))
            .filter(dead_letters::state.eq_any(holding_states()))
            .filter(dead_letters::letter_no.gt(after))
            .order(dead_letters::letter_no)
            .limit(i64::from(limit))
            .select((DeadLetterRow::as_select(), dead_letters::body))
            .load(self)
    }

    /// One dead letter with its body.
    fn dead_letter_row(&mut self, no: i64) -> QueryResult<Option<(DeadLetterRow, Vec<u8>)>> {
        let row = dead_letters::table.find(no);
        row.select((DeadLetterRow::as_select(), dead_letters::body)).first(self).optional()
    }

    /// The requests of a dead letter, in ascending order.
    fn requests_of_dead_letter(&mut self, no: i64) -> QueryResult<Vec<i64>> {
        let rows = dead_requests::table.filter(dead_requests::letter_no.eq(no));
        rows.order(dead_requests::request_id).select(dead_requests::request_id).load(self)
    }

    /// Changes a dead letter unless its state or arrivals changed since the read; returns 1, or 0.
    fn update_dead_letter(&mut self, transition: &DeadLetterTransition) -> QueryResult<usize> {
        let arrivals = i32::try_from(transition.arrivals).unwrap_or(i32::MAX);
        let unchanged = dead_letters::table
            .find(transition.no.0)
            .filter(dead_letters::state.eq(transition.from.to_db()))
            .filter(dead_letters::arrivals.eq(arrivals));
        let values = (
            dead_letters::state.eq(transition.to.to_db()),
            dead_letters::changed_at_ms.eq(transition.at_ms),
            // `None` keeps the present note.
            transition.note.as_ref().map(|note| dead_letters::note.eq(note)),
        );
        update(unchanged).set(values).execute(self)
    }

    /// The number of dead letters by state.
    fn dead_letter_counts(&mut self) -> QueryResult<Vec<(i16, i64)>> {
        let states = dead_letters::table.group_by(dead_letters::state);
        states.select((dead_letters::state, count_star())).load(self)
    }

    /// The requests among these that are in an open or parked dead letter, or in one replayed since
    /// then; may contain duplicates.
    fn dead_lettered_among(&mut self, requests: &[i64], since_ms: i64) -> QueryResult<Vec<i64>> {
        let same_no = dead_letters::letter_no.eq(dead_requests::letter_no);
        let is_replayed = dead_letters::state.eq(DeadLetterState::Replayed.to_db());
        let is_recent = dead_letters::changed_at_ms.ge(since_ms);
        dead_requests::table
            .inner_join(dead_letters::table.on(same_no))
            .filter(dead_requests::request_id.eq_any(requests))
            .filter(dead_letters::state.eq_any(holding_states()).or(is_replayed.and(is_recent)))
            .select(dead_requests::request_id)
            .load(self)
    }
}
}
