//! The write transaction of recorded failures.

use std::collections::HashSet;

use super::queries::IN_LIST_MAX;
use super::transaction::retry_concurrent;
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::Error;
use crate::db::rows::FailureRow;
use crate::domain::Failure;

/// Records failures. The first record of a request stays, and a request with an order gets none.
pub(super) fn record_failures<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    failures: &[Failure],
) -> Result<(), Error> {
    if failures.is_empty() {
        return Ok(());
    }
    retry_concurrent("orders of the same requests", || {
        write(conn, fence, |conn| record(conn, failures))
    })
}

/// Writes failures and then reads orders, whereas `place` writes orders and then reads failures:
/// one of two concurrent transactions reads the other's row. `None`: a concurrent order was
/// written.
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
    if ordered_among(conn, &recorded)?.is_empty() {
        Ok(TransactionEnd::Commit(Some(())))
    } else {
        Ok(TransactionEnd::RollBack(None))
    }
}

/// The requests of these failures that have orders.
fn ordered_among<D: Database>(conn: &mut D, failures: &[Failure]) -> Result<HashSet<i64>, Error> {
    let mut ordered = HashSet::new();
    for chunk in failures.chunks(IN_LIST_MAX) {
        ordered.extend(conn.ordered_among(chunk)?);
    }
    Ok(ordered)
}
