//! Connections to one file.

use std::path::Path;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{CustomizeConnection, Error as PoolError};
use diesel::sql_types::{BigInt, Text};

use super::file::explain;
use crate::db::Error;

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionAccess {
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
pub(super) fn uri(path: &Path, access: ConnectionAccess) -> Result<String, Error> {
    let Some(text) = path.to_str() else {
        let reason = format!("the path {} is not UTF-8: choose another", path.display());
        return Err(Error::CannotOpen { reason });
    };
    let plain = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let mode = match access {
        ConnectionAccess::Create => "rwc",
        ConnectionAccess::Write | ConnectionAccess::Read => "rw",
        ConnectionAccess::ReadOnly => "ro",
    };
    Ok(format!("file:{plain}?mode={mode}"))
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
    // First of all, so that the statements after it wait for a lock too.
    conn.batch_execute(&format!("PRAGMA busy_timeout = {busy_timeout_ms}"))?;
    // Sorting a SKU's orders must not need memory that grows with them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_the_name_it_was_made_of() {
        let uri = uri(Path::new("/a b/50%?x#1.db"), ConnectionAccess::ReadOnly).unwrap();
        assert_eq!(uri, "file:/a b/50%25%3fx%231.db?mode=ro");
    }
}
