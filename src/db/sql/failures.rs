//! Recorded failures.

use std::collections::HashSet;

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::queries::IN_LIST_MAX;
use super::{Database, End, Fence, write};
use crate::db::Error;
use crate::db::rows::FailureRow;
use crate::domain::{Failure, RequestId};

const DOING: &str = "recording failures";

/// How often orders may come in between before the call is given up; its caller tries again.
const MEETINGS_MAX: u32 = 3;

/// Records failures; the first record of a request stays, and an order is never a failure too.
pub(super) fn record_failures<D: Database>(
    conn: &mut D,
    fence: Fence,
    failures: &[Failure],
) -> Result<(), Error> {
    if failures.is_empty() {
        return Ok(());
    }
    for _ in 0..MEETINGS_MAX {
        if write(conn, fence, DOING, |conn| record(conn, failures))? {
            return Ok(());
        }
    }
    let said = Box::new("orders of the same requests kept coming in between".to_owned());
    let source = Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, said);
    Err(Error::Refused { doing: DOING, source })
}

/// Writes the failures first and looks for orders after, as `place` does it the other way round:
/// one of the two sees the other. `false`: an order came in between.
fn record<D: Database>(conn: &mut D, failures: &[Failure]) -> Result<End<bool>, Error> {
    let mut requests: Vec<i64> = failures.iter().map(|failure| failure.request.to_db()).collect();
    let ordered: HashSet<i64> = ordered_among(conn, &requests)?.into_iter().collect();
    requests.retain(|request| !ordered.contains(request));
    let mut rows = Vec::with_capacity(requests.len());
    for failure in failures {
        if !ordered.contains(&failure.request.to_db()) {
            rows.push(FailureRow::try_from(failure)?);
        }
    }
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_failures(chunk).map_err(Error::refused(DOING))?;
    }
    Ok(if ordered_among(conn, &requests)?.is_empty() {
        End::Commit(true)
    } else {
        End::RollBack(false)
    })
}

fn ordered_among<D: Database>(conn: &mut D, requests: &[i64]) -> Result<Vec<i64>, Error> {
    let mut ordered = Vec::new();
    for chunk in requests.chunks(IN_LIST_MAX) {
        ordered.extend(conn.ordered_among(chunk).map_err(Error::refused(DOING))?);
    }
    Ok(ordered)
}

/// One recorded failure.
pub(super) fn failure<D: Database>(
    conn: &mut D,
    request: RequestId,
) -> Result<Option<Failure>, Error> {
    conn.failure_row(request.to_db())
        .map_err(Error::refused("reading a failure"))?
        .map(Failure::try_from)
        .transpose()
}
