//! Connections to one file, and the write transaction.

use std::path::Path;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{CustomizeConnection, Error as PoolError};
use diesel::sql_types::{BigInt, Text};

use super::file::explain;
use super::tokens::Fence;
use crate::db::Error;

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything, and makes the file when it is missing.
    Create,
    /// Everything.
    Write,
    /// Reads; opened so that it can take part in the log of a running writer.
    Read,
    /// Reads, and the operating system holds it to that.
    ReadOnly,
}

/// The settings of a connection.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    pub(super) busy_timeout: Duration,
    pub(super) cache_kib: u32,
    /// Most KiB the file may have; 0 is no limit.
    pub(super) size_max_kib: u64,
}

/// The size of a page in a ledger that this program made.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The address of a file for `SQLite`, which reads `%`, `?` and `#` as parts of an address.
pub(super) fn uri(path: &Path, access: Access) -> Result<String, Error> {
    let Some(text) = path.to_str() else {
        let reason = format!("the path {} is not UTF-8: choose another", path.display());
        return Err(Error::CannotOpen { reason });
    };
    let plain = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let mode = match access {
        Access::Create => "rwc",
        Access::Write | Access::Read => "rw",
        Access::ReadOnly => "ro",
    };
    Ok(format!("file:{plain}?mode={mode}"))
}

/// Opens a connection and sets it up.
pub(super) fn connect(
    path: &Path,
    access: Access,
    tuning: &Tuning,
) -> Result<SqliteConnection, Error> {
    let mut conn = SqliteConnection::establish(&uri(path, access)?)
        .map_err(|error| explain(path, &error.to_string()))?;
    set_up(&mut conn, access, tuning).map_err(|error| explain(path, &error.to_string()))?;
    Ok(conn)
}

fn set_up(conn: &mut SqliteConnection, access: Access, tuning: &Tuning) -> QueryResult<()> {
    let busy_timeout_ms = tuning.busy_timeout.as_millis();
    // First of all, so that the statements after it wait for a lock too.
    conn.batch_execute(&format!("PRAGMA busy_timeout = {busy_timeout_ms}"))?;
    // Sorting a SKU's orders must not need memory that grows with them.
    conn.batch_execute(&format!(
        "PRAGMA foreign_keys = ON; PRAGMA cache_size = -{}; PRAGMA temp_store = FILE; \
         PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;",
        tuning.cache_kib
    ))?;
    match access {
        Access::Read | Access::ReadOnly => conn.batch_execute("PRAGMA query_only = ON"),
        Access::Create | Access::Write => {
            // FULL: with NORMAL a power cut takes back orders that buyers were told of.
            // The log is folded back into the file every 64 MiB: buyers come in no order, so nearly
            // every order touches a page of its own, and the longer the log, the more orders share
            // one when it is folded. It is shortened to that size after a scan held it up.
            conn.batch_execute(
                "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 16000; \
                 PRAGMA journal_size_limit = 67108864;",
            )?;
            if tuning.size_max_kib > 0 {
                let pages = tuning.size_max_kib.saturating_mul(1024) / PAGE_BYTES;
                conn.batch_execute(&format!("PRAGMA max_page_count = {}", pages.max(1)))?;
            }
            Ok(())
        }
    }
}

/// Sets up the connections that a pool makes.
#[derive(Debug)]
pub(super) struct ReaderSetup(pub(super) Access, pub(super) Tuning);

impl CustomizeConnection<SqliteConnection, PoolError> for ReaderSetup {
    fn on_acquire(&self, conn: &mut SqliteConnection) -> Result<(), PoolError> {
        set_up(conn, self.0, &self.1).map_err(PoolError::QueryError)
    }
}

#[derive(QueryableByName)]
struct TextCell {
    #[diesel(sql_type = Text)]
    cell: String,
}

#[derive(QueryableByName)]
struct NumberCell {
    #[diesel(sql_type = BigInt)]
    cell: i64,
}

/// Asks for one text; `sql` names its column `cell`.
pub(super) fn text_cell(conn: &mut SqliteConnection, sql: &str) -> QueryResult<String> {
    diesel::sql_query(sql).get_result::<TextCell>(conn).map(|row| row.cell)
}

/// Asks for one number; `sql` names its column `cell`.
pub(super) fn number_cell(conn: &mut SqliteConnection, sql: &str) -> QueryResult<i64> {
    diesel::sql_query(sql).get_result::<NumberCell>(conn).map(|row| row.cell)
}

/// Folds the log into the file. False: a reader is in the way.
pub(super) fn fold_log(conn: &mut SqliteConnection) -> QueryResult<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        busy: i64,
    }
    let row: Row = diesel::sql_query("PRAGMA wal_checkpoint(TRUNCATE)").get_result(conn)?;
    Ok(row.busy == 0)
}

/// Looks at every page; `ok`, or the first damage found.
pub(super) fn look_at_pages(conn: &mut SqliteConnection) -> QueryResult<String> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        quick_check: String,
    }
    let row: Row = diesel::sql_query("PRAGMA quick_check(1)").get_result(conn)?;
    Ok(row.quick_check)
}

/// How a write transaction ends.
pub(super) enum End<T> {
    /// Keep what was written.
    Commit(T),
    /// Take it back; that is an answer, not an error.
    RollBack(T),
}

/// Runs `job` in one write transaction, after the check that this process is still the writer.
///
/// The transaction is begun and ended by hand: diesel rolls back when COMMIT fails and reports only
/// the first error, but whether that roll-back found an open transaction is the difference between
/// *refused* and *unknown*.
///
/// # Errors
/// `Refused`, `Fenced` and those of the job: nothing was written. `NotConfirmed`: unknown.
pub(super) fn write<T>(
    conn: &mut SqliteConnection,
    fence: Fence,
    doing: &'static str,
    job: impl FnOnce(&mut SqliteConnection) -> Result<End<T>, Error>,
) -> Result<T, Error> {
    conn.batch_execute("BEGIN IMMEDIATE").map_err(Error::refused(doing))?;
    let done = fence.check(conn).and_then(|()| job(conn));
    // Crash here [before_commit]: the log has no commit record; the next start finds nothing of
    // this transaction, and whoever asked asks again.
    match done {
        Ok(End::Commit(value)) => commit(conn, doing).map(|()| value),
        Ok(End::RollBack(value)) => {
            conn.batch_execute("ROLLBACK").map_err(Error::refused(doing))?;
            Ok(value)
        }
        Err(error) => {
            // Some failures have rolled back already, and the worker drops the connection anyway.
            conn.batch_execute("ROLLBACK").ok();
            Err(error)
        }
    }
}

fn commit(conn: &mut SqliteConnection, doing: &'static str) -> Result<(), Error> {
    let Err(source) = conn.batch_execute("COMMIT") else {
        // Crash here [after_commit]: the rows are durable and nobody was told; whoever asks again
        // finds them by request id.
        return Ok(());
    };
    match conn.batch_execute("ROLLBACK") {
        Ok(()) => Err(Error::Refused { doing, source }),
        // The transaction is gone, by commit or not: its commit record may be on the disk.
        Err(_) => Err(Error::NotConfirmed { doing, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Class;

    fn with_parents_and_children() -> SqliteConnection {
        let mut conn = SqliteConnection::establish(":memory:").unwrap();
        conn.batch_execute(
            "PRAGMA foreign_keys = ON; CREATE TABLE parents (no INTEGER PRIMARY KEY); \
             CREATE TABLE children \
               (parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
        )
        .unwrap();
        conn
    }

    #[test]
    fn a_commit_that_fails_and_can_be_rolled_back_wrote_nothing() {
        let mut conn = with_parents_and_children();
        conn.batch_execute("BEGIN IMMEDIATE; INSERT INTO children VALUES (1)").unwrap();
        // A deferred key is looked at by COMMIT, which then leaves the transaction open.
        let error = commit(&mut conn, "testing").unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(number_cell(&mut conn, "SELECT COUNT(*) AS cell FROM children").unwrap(), 0);
        conn.batch_execute("BEGIN IMMEDIATE; ROLLBACK").unwrap();
    }

    #[test]
    fn a_commit_that_fails_with_the_transaction_gone_is_unknown() {
        let mut conn = with_parents_and_children();
        conn.batch_execute("BEGIN IMMEDIATE; ROLLBACK").unwrap();
        let error = commit(&mut conn, "testing").unwrap_err();
        assert!(matches!(error, Error::NotConfirmed { .. }), "{error:?}");
        assert_eq!(error.class(), Class::Unknown);
    }

    #[test]
    fn an_address_keeps_the_name_it_was_made_of() {
        let uri = uri(Path::new("/a b/50%?x#1.db"), Access::ReadOnly).unwrap();
        assert_eq!(uri, "file:/a b/50%25%3fx%231.db?mode=ro");
    }
}
