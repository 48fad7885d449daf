//! Recorded failures.

use std::collections::HashSet;

use super::queries::IN_LIST_MAX;
use super::transaction::until_undisturbed;
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::Error;
use crate::db::rows::FailureRow;
use crate::domain::Failure;

/// Records failures; the first record of a request stays, and an order is never a failure too.
pub(super) fn record_failures<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    failures: &[Failure],
) -> Result<(), Error> {
    if failures.is_empty() {
        return Ok(());
    }
    until_undisturbed("orders of the same requests", || {
        write(conn, fence, |conn| record(conn, failures))
    })
}

/// Writes the failures first and looks for orders after, as `place` does it the other way round:
/// one of the two sees the other. `None`: an order came in between.
fn record<D: Database>(
    conn: &mut D,
    failures: &[Failure],
) -> Result<TransactionEnd<Option<()>>, Error> {
    let ordered = ordered_among(conn, failures)?;
    let recorded = failures.iter().filter(|failure| !ordered.contains(&failure.request.to_db()));
    let recorded: Vec<Failure> = recorded.copied().collect();
    let rows = recorded.iter().map(FailureRow::try_from).collect::<Result<Vec<_>, _>>()?;
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_failures(chunk)?;
    }
    let undisturbed = ordered_among(conn, &recorded)?.is_empty();
    Ok(if undisturbed { TransactionEnd::Commit(Some(())) } else { TransactionEnd::RollBack(None) })
}

/// The requests of these failures that are orders.
fn ordered_among<D: Database>(conn: &mut D, failures: &[Failure]) -> Result<HashSet<i64>, Error> {
    let mut ordered = HashSet::new();
    for chunk in failures.chunks(IN_LIST_MAX) {
        ordered.extend(conn.ordered_among(chunk)?);
    }
    Ok(ordered)
}
