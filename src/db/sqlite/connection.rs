//! Opens and configures connections to one file.

use std::path::Path;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;

use super::OpenOptions;
use super::file::explain;
use crate::db::Error;
use crate::db::sql::Queries;

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

/// The page size of a ledger created by this program.
const PAGE_BYTES: u64 = 4096;

/// The `SQLite` URI of a file; escapes `%`, `?` and `#`.
fn uri(path: &Path, access: ConnectionAccess) -> Result<String, Error> {
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
///
/// No other code opens the file while it is connected: the system drops all locks that a process
/// has on a file when the process closes any handle of it, and without them another program takes
/// this one for gone (<https://www.sqlite.org/howtocorrupt.html>, section 2.2).
pub(super) fn connect(
    path: &Path,
    access: ConnectionAccess,
    options: &OpenOptions,
) -> Result<SqliteConnection, Error> {
    let mut conn =
        SqliteConnection::establish(&uri(path, access)?).map_err(|error| explain(path, error))?;
    set_up(&mut conn, access, options).map_err(|error| explain(path, error))?;
    Ok(conn)
}

fn set_up(
    conn: &mut SqliteConnection,
    access: ConnectionAccess,
    options: &OpenOptions,
) -> QueryResult<()> {
    let busy_timeout_ms = options.busy_timeout_ms;
    // First, so that the following statements wait for locks.
    conn.batch_execute(&format!("PRAGMA busy_timeout = {busy_timeout_ms}"))?;
    // temp_store = FILE: the memory for sorting the orders of a SKU must not grow with them.
    conn.batch_execute(&format!(
        "PRAGMA foreign_keys = ON; PRAGMA cache_size = -{}; PRAGMA temp_store = FILE; \
         PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;",
        options.cache_kib
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
            if options.size_max_kib > 0 {
                let pages = options.size_max_kib.saturating_mul(1024) / PAGE_BYTES;
                conn.batch_execute(&format!("PRAGMA max_page_count = {}", pages.max(1)))?;
            }
            Ok(())
        }
    }
}

/// Checkpoints the write-ahead log into the file and truncates it, unless a reader prevents this.
pub(super) fn checkpoint(conn: &mut SqliteConnection) -> QueryResult<()> {
    conn.number("PRAGMA wal_checkpoint(TRUNCATE)").map(drop)
}
