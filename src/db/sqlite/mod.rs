//! The ledger in one `SQLite` file.
//!
//! One thread writes, a few read, all blocking and all outside the actors. The file is in
//! write-ahead mode, so that readers and the writer do not wait for each other, and every commit is
//! flushed to the disk before anybody hears of it.
//!
//! On death: the next start finds exactly the committed transactions. Two processes never write one
//! file: the second finds the lock of the first, and where locks do not work (network file systems)
//! every write checks a token that the second took.

use diesel::prelude::SqliteConnection;

use super::Error;
use super::migrate::Standing;
use super::sql::SqlLedger;

mod connection;
mod database;
mod file;
mod open;
mod scan;
mod statements;

pub use open::OpenOptions;

/// A ledger in one `SQLite` file.
pub type SqliteLedger = SqlLedger<SqliteConnection>;

impl SqlLedger<SqliteConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the reason and the remedy: no such directory, not a database, cut off or
    /// damaged, not writable, open in another process, schema of a newer program.
    pub fn open(options: &OpenOptions) -> Result<Self, Error> {
        open::open(options)
    }

    /// Opens the ledger for reading only, whether a server has it open or not; takes no lock and
    /// writes nothing into it. `create` does not apply. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also when the schema is not the present one.
    pub fn open_for_reading(options: &OpenOptions) -> Result<Self, Error> {
        open::open_for_reading(options)
    }

    /// Brings the schema up to date and lets go of the file again; what was applied, by full name.
    /// Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with what is wrong and what to do.
    pub fn migrate(options: &OpenOptions) -> Result<Vec<String>, Error> {
        open::migrate(options)
    }

    /// How the schema of an existing ledger compares with this program's. Changes nothing. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_standing(options: &OpenOptions) -> Result<Standing, Error> {
        open::schema_standing(options)
    }

    /// Looks at every page of the file, beside a running server or without one, for damage that
    /// opening does not see, which reads only the start of each table. Takes about 0.4 s for each
    /// million orders once the file is in memory, and the time to read it before. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with what is damaged and the remedy.
    pub fn check_pages(options: &OpenOptions) -> Result<(), Error> {
        open::check_pages(options)
    }
}

#[cfg(test)]
#[path = "plans_tests.rs"]
mod plans_tests;
