//! Opens and configures connections to one file.

use std::path::Path;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{CustomizeConnection, Error as PoolError};
use diesel::sql_types::{BigInt, Text};

use super::file::explain;
use crate::db::Error;

/// The access mode of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionAccess {
    /// Reads and writes; creates a missing file.
    Create,
    /// Reads and writes.
    Write,
    /// Reads only, on a file opened for writing, as the shared write-ahead log requires.
    Read,
    /// Reads only, enforced by the operating system.
    ReadOnly,
}

/// The settings of a connection.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    pub(super) busy_timeout: Duration,
    pub(super) cache_kib: u32,
    /// Maximum size of the file, KiB; 0: no limit.
    pub(super) size_max_kib: u64,
}

/// The page size of a ledger created by this program.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The `SQLite` URI of a file; escapes `%`, `?` and `#`.
pub(super) fn uri(path: &Path, access: ConnectionAccess) -> Result<String, Error> {
    let Some(text) = path.to_str() else {
        let reason = format!("the path {} is not UTF-8: choose another", path.display());
        return Err(Error::CannotOpen { reason });
    };
    let escaped = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let mode = match access {
        ConnectionAccess::Create => "rwc",
        ConnectionAccess::Write | ConnectionAccess::Read => "rw",
        ConnectionAccess::ReadOnly => "ro",
    };
    Ok(format!("file:{escaped}?mode={mode}"))
}

/// Opens a connection and sets it up.
pub(super) fn connect(
    path: &Path,
    access: ConnectionAccess,
    tuning: &Tuning,
) -> Result<SqliteConnection, Error> {
    let mut conn = SqliteConnection::establish(&uri(path, access)?)
        .map_err(|error| explain(path, &error.to_string()))?;
    set_up(&mut conn, access, tuning).map_err(|error| explain(path, &error.to_string()))?;
    Ok(conn)
}

fn set_up(
    conn: &mut SqliteConnection,
    access: ConnectionAccess,
    tuning: &Tuning,
) -> QueryResult<()> {
    let busy_timeout_ms = tuning.busy_timeout.as_millis();
    // First, so that the following statements wait for locks.
    conn.batch_execute(&format!("PRAGMA busy_timeout = {busy_timeout_ms}"))?;
    // temp_store = FILE: the memory for sorting the orders of a SKU must not grow with them.
    conn.batch_execute(&format!(
        "PRAGMA foreign_keys = ON; PRAGMA cache_size = -{}; PRAGMA temp_store = FILE; \
         PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;",
        tuning.cache_kib
    ))?;
    match access {
        ConnectionAccess::Read | ConnectionAccess::ReadOnly => {
            conn.batch_execute("PRAGMA query_only = ON")
        }
        ConnectionAccess::Create | ConnectionAccess::Write => {
            // FULL: with NORMAL a power failure loses orders that were confirmed to buyers.
            // The log is checkpointed every 64 MiB: buyer ids are in random order, so that nearly
            // every order changes another page, and the longer the log, the more orders share a
            // page at the checkpoint. After a scan delayed the checkpoint, the log is truncated to
            // that size.
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

/// Sets up the connections that a pool opens.
#[derive(Debug)]
pub(super) struct ReaderSetup(pub(super) ConnectionAccess, pub(super) Tuning);

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

/// Reads one text; `sql` names its column `cell`.
pub(super) fn text_cell(conn: &mut SqliteConnection, sql: &str) -> QueryResult<String> {
    diesel::sql_query(sql).get_result::<TextCell>(conn).map(|row| row.cell)
}

/// Reads one number; `sql` names its column `cell`.
pub(super) fn number_cell(conn: &mut SqliteConnection, sql: &str) -> QueryResult<i64> {
    diesel::sql_query(sql).get_result::<NumberCell>(conn).map(|row| row.cell)
}

/// Checkpoints the write-ahead log into the file and truncates it. False: a reader prevents this.
pub(super) fn checkpoint(conn: &mut SqliteConnection) -> QueryResult<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        busy: i64,
    }
    let row: Row = diesel::sql_query("PRAGMA wal_checkpoint(TRUNCATE)").get_result(conn)?;
    Ok(row.busy == 0)
}

/// Checks every page; `ok`, or the first damage found.
pub(super) fn quick_check(conn: &mut SqliteConnection) -> QueryResult<String> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        quick_check: String,
    }
    let row: Row = diesel::sql_query("PRAGMA quick_check(1)").get_result(conn)?;
    Ok(row.quick_check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_path_are_escaped_in_its_uri() {
        let uri = uri(Path::new("/a b/50%?x#1.db"), ConnectionAccess::ReadOnly).unwrap();
        assert_eq!(uri, "file:/a b/50%25%3fx%231.db?mode=ro");
    }
}
