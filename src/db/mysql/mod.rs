//! The ledger in MySQL or MariaDB.
//!
//! A few writer and reader threads, blocking and separate from the actors, borrow a connection for
//! each job. Any number of processes may write one ledger if all of them open it as `Shared`: rows
//! are locked in key order, and the row of the stock, which every batch updates, is locked last and
//! therefore for the shortest time.
//!
//! On crash: the server rolls back uncommitted transactions, at the latest when the connection was
//! idle for longer than the limit of a job.

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
