//! Database rows of dead letters and their conversion to and from the domain; see `rows`.

use diesel::prelude::*;

use super::Error;
use super::rows::{narrow, readable, units, unstorable};
use super::schema::dead_letters;
use crate::domain::{DeadLetter, DeadLetterNo, DeadLetterOrigin, DeadLetterState, NewDeadLetter};

/// A row to be inserted into `dead_letters`.
#[derive(Debug, Clone, Insertable)]
#[diesel(table_name = dead_letters, treat_none_as_default_value = false)]
pub struct NewDeadLetterRow<'a> {
    pub(super) letter_no: i64,
    pub(super) digest: &'a [u8],
    pub(super) origin: &'static str,
    pub(super) reason: &'a str,
    pub(super) attempts: i32,
    pub(super) message_id: &'a str,
    pub(super) headers: &'a str,
    pub(super) body: &'a [u8],
    pub(super) body_bytes: i64,
    pub(super) dead_at_ms: i64,
    pub(super) arrivals: i32,
    pub(super) state: i16,
    pub(super) changed_at_ms: i64,
}

impl<'a> NewDeadLetterRow<'a> {
    /// The row of a first arrival at `now_ms`, without a number.
    pub(super) fn of(dead_letter: &'a NewDeadLetter, now_ms: i64) -> Result<Self, Error> {
        Ok(Self {
            letter_no: 0,
            digest: &dead_letter.digest,
            origin: dead_letter.origin.name(),
            reason: &dead_letter.reason,
            attempts: narrow("attempts", dead_letter.attempts)?,
            message_id: &dead_letter.message_id,
            headers: &dead_letter.headers,
            body: &dead_letter.body,
            body_bytes: i64::try_from(dead_letter.body_bytes)
                .or_else(|_| unstorable("body_bytes", dead_letter.body_bytes))?,
            dead_at_ms: dead_letter.dead_at_ms,
            arrivals: 1,
            state: DeadLetterState::Open.to_db(),
            changed_at_ms: now_ms,
        })
    }
}

/// A row of `dead_letters`, without digest and body.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = dead_letters)]
pub struct DeadLetterRow {
    letter_no: i64,
    origin: String,
    reason: String,
    attempts: i32,
    message_id: String,
    headers: String,
    body_bytes: i64,
    dead_at_ms: i64,
    arrivals: i32,
    state: i16,
    changed_at_ms: i64,
    note: Option<String>,
}

impl TryFrom<DeadLetterRow> for DeadLetter {
    type Error = Error;

    fn try_from(row: DeadLetterRow) -> Result<Self, Error> {
        let name = || format!("dead letter {}", row.letter_no);
        let body_bytes = u64::try_from(row.body_bytes).ok();
        Ok(Self {
            no: DeadLetterNo(row.letter_no),
            origin: readable(
                DeadLetterOrigin::from_name(&row.origin),
                name,
                "origin",
                &row.origin,
            )?,
            attempts: units(name, "attempts", row.attempts)?,
            body_bytes: readable(body_bytes, name, "body_bytes", row.body_bytes)?,
            dead_at_ms: row.dead_at_ms,
            arrivals: units(name, "arrivals", row.arrivals)?,
            state: readable(DeadLetterState::from_db(row.state), name, "state", row.state)?,
            changed_at_ms: row.changed_at_ms,
            reason: row.reason,
            message_id: row.message_id,
            headers: row.headers,
            note: row.note,
        })
    }
}
