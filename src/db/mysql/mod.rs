//! The ledger in MySQL or MariaDB.
//!
//! A few threads write, a few read, all blocking and all outside the actors; each borrows a
//! connection for each job. Any number of processes may write one ledger: rows are locked in the
//! order of their keys, and the stock's row, which everybody needs, last and for the shortest time.
//!
//! On death: the server rolls back what was not committed, at the latest when the connection has
//! been silent for longer than a job may take.

use super::Error;
use super::migrate::Standing;
use super::sql::SqlLedger;

mod client;
mod database;
pub mod health;
mod open;
mod pool;
mod scan;
mod session;
mod statements;

pub use client::MysqlConnection;
pub use open::MysqlOptions;

/// A ledger in MySQL or MariaDB.
pub type MysqlLedger = SqlLedger<MysqlConnection>;

impl SqlLedger<MysqlConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the reason and the remedy: nobody listens, no such user or database, no
    /// right to it, tables of another program, schema of a newer program.
    pub fn open(options: &MysqlOptions) -> Result<Self, Error> {
        open::open(options)
    }

    /// Opens the ledger for reading only; its sessions cannot write. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also when the schema is not the present one.
    pub fn open_for_reading(options: &MysqlOptions) -> Result<Self, Error> {
        open::open_for_reading(options)
    }

    /// Brings the schema up to date; what was applied, by full name. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with what is wrong and what to do.
    pub fn migrate(options: &MysqlOptions) -> Result<Vec<String>, Error> {
        open::migrate(options)
    }

    /// How the schema compares with this program's. Changes nothing. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_standing(options: &MysqlOptions) -> Result<Standing, Error> {
        open::schema_standing(options)
    }
}
