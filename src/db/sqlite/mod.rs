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

use super::sql::SqlLedger;

mod connection;
mod database;
mod file;
mod open;
mod statements;

pub use open::OpenOptions;

/// A ledger in one `SQLite` file.
pub type SqliteLedger = SqlLedger<SqliteConnection>;

#[cfg(test)]
#[path = "durability_tests.rs"]
mod durability_tests;
#[cfg(test)]
#[path = "plans_tests.rs"]
mod plans_tests;
