//! The ledger in MySQL or MariaDB.
//!
//! A few threads write, a few read, all blocking and all outside the actors; each borrows a
//! connection for each job. Any number of processes may write one ledger, if all of them share it:
//! rows are locked in the order of their keys, and the stock's row, which every batch needs, last
//! and for the shortest time.
//!
//! On death: the server rolls back what was not committed, at the latest when the connection has
//! been silent for longer than a job may take.

use super::sql::SqlLedger;

mod client;
mod database;
pub mod health;
mod open;
mod pool;
mod session;
mod statements;

pub use client::MysqlConnection;
pub use open::MysqlOptions;

/// A ledger in MySQL or MariaDB.
pub type MysqlLedger = SqlLedger<MysqlConnection>;
