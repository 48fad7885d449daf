//! The ledger in one `SQLite` file.
//!
//! One writer thread and a few reader threads, blocking and separate from the actors. The file is
//! in write-ahead mode, so that readers and the writer do not wait for each other, and every commit
//! is flushed to the disk before its result is returned.
//!
//! On crash: the next start finds exactly the committed transactions. Two processes never write one
//! file: the lock of the first stops the second, and where locks do not work (network file systems)
//! the token taken by the second fences the first.

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
