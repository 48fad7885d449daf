//! Recorded failures.

use diesel::prelude::*;

use super::connection::{End, write};
use super::tokens::Fence;
use crate::db::Error;
use crate::db::rows::FailureRow;
use crate::db::schema::{failed_requests, orders};
use crate::domain::{Failure, RequestId};

/// Records failures; the first record of a request stays, and an order is never a failure too.
pub(super) fn record_failures(
    conn: &mut SqliteConnection,
    fence: Fence,
    failures: &[Failure],
) -> Result<(), Error> {
    const DOING: &str = "recording failures";
    if failures.is_empty() {
        return Ok(());
    }
    write(conn, fence, DOING, |conn| {
        for failure in failures {
            let order = orders::table
                .filter(orders::request_id.eq(failure.request.to_db()))
                .select(orders::request_id);
            if diesel::select(diesel::dsl::exists(order))
                .get_result::<bool>(conn)
                .map_err(Error::refused(DOING))?
            {
                continue;
            }
            diesel::insert_or_ignore_into(failed_requests::table)
                .values(FailureRow::try_from(failure)?)
                .execute(conn)
                .map_err(Error::refused(DOING))?;
        }
        Ok(End::Commit(()))
    })
}

/// One recorded failure.
pub(super) fn failure(
    conn: &mut SqliteConnection,
    request: RequestId,
) -> Result<Option<Failure>, Error> {
    failed_requests::table
        .find(request.to_db())
        .select(FailureRow::as_select())
        .first(conn)
        .optional()
        .map_err(Error::refused("reading a failure"))?
        .map(Failure::try_from)
        .transpose()
}
