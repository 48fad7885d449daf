//! What the ledgers in SQL databases do alike: the same tables, the same steps, nearly the same
//! words.
//!
//! [`Queries`] is what every database understands, [`Database`] what each does in its own way, and
//! [`SqlLedger`] the ledger made of both: a set of threads that read, and a set that write.

use diesel::QueryResult;
use diesel::connection::SimpleConnection;
use diesel::result::Error as Diesel;
use diesel_migrations::EmbeddedMigrations;

use super::Error;
use super::rows::NewOrder;
use super::workers::Workers;
use crate::domain::{Failure, Order, SkuNo};
use crate::runtime::clock::SharedClock;

pub(super) mod audit;
mod dead_letter_queries;
mod dead_letters;
pub(super) mod examine;
mod failures;
mod ledger;
mod place;
mod queries;
mod sales;
pub(super) mod statements;
mod tokens;
mod transaction;

pub use dead_letter_queries::DeadLetterQueries;
pub use place::QuotaClaim;
pub use queries::{IN_LIST_MAX, Queries, SkuAndBuyer};
pub use tokens::{WRITER, WriteMode, WriterFence};
pub use transaction::{TransactionEnd, write};

/// A ledger in an SQL database.
pub struct SqlLedger<D> {
    pub(super) readers: Workers<D>,
    /// `None`: opened for reading only.
    pub(super) writers: Option<WriterThreads<D>>,
    pub(super) migrated: Vec<String>,
    /// The time of rows.
    pub(super) clock: SharedClock,
}

/// The threads that write, and their right to.
pub(super) struct WriterThreads<D> {
    pub(super) workers: Workers<D>,
    pub(super) fence: WriterFence,
}

/// How long a job may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutClass {
    /// As long as its caller waits.
    Caller,
    /// As long as the database goes on answering: a SKU is read from end to end.
    Scan,
}

/// Receives rows one at a time; returning `false` ends the scan early.
pub type RowVisitor<'a, T> = &'a mut dyn FnMut(T) -> bool;

/// What a database does in its own way. It is its own connection.
pub trait Database: SimpleConnection + Queries + DeadLetterQueries + Send + 'static {
    /// Its migrations.
    const MIGRATIONS: EmbeddedMigrations;
    /// What a migration that failed leaves behind, for whoever reads of the failure.
    const AFTER_FAILED_MIGRATION: &'static str;
    /// Begins a transaction that writes.
    const BEGIN: &'static str;
    /// Which orders the unique index of request ids holds, as a condition that lets the database
    /// use it. The others are in slot 0 and are found by their buyer.
    const INDEXED_REQUESTS: &'static str;
    /// The same for the orders that the index leaves out, if there are any.
    const LEFT_OUT_REQUESTS: Option<&'static str>;
    /// Request ids with several orders, without the index of requests: it would be the first to be
    /// wrong, and it may leave slot 0 out. Parameter: most rows.
    const REPEATED_REQUESTS: &'static str;

    /// Runs a job. Where a connection can hang or be left in doubt, this is what limits the job and
    /// gives the connection up after an error.
    fn attend<T>(
        &mut self,
        _patience: TimeoutClass,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        job(self)
    }

    /// Allows one statement of a scan the time to read a whole SKU before it answers.
    fn patiently<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        statement(self)
    }

    /// Runs a job that reads everything as of one instant.
    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>;

    /// Says what a COMMIT that failed came to: `Refused`, nothing was written; `NotConfirmed`,
    /// nobody knows.
    fn failed_commit(&mut self, said: Diesel) -> Error;

    /// Runs a job while no other process migrates this ledger; `CannotOpen` when another process
    /// does not finish.
    fn alone<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        job(self)
    }

    /// Whether a table exists.
    fn has_table(&mut self, name: &str) -> QueryResult<bool>;

    /// The writer's token; it cannot change before the transaction ends.
    fn writer_token(&mut self) -> QueryResult<i64>;

    /// Sets a token, 0 where there is none, to `next`, an SQL expression of its present value, and
    /// returns it; part of a transaction.
    fn raise_token(&mut self, name: &str, next: &'static str) -> QueryResult<i64>;

    /// Writes orders, sorted by their key. A unique key that objects is an error, and may leave
    /// some of them written: the transaction must be rolled back then.
    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()>;

    /// Whether any of these requests is recorded as failed, by anybody who was first. What is not
    /// recorded yet cannot be recorded unseen before the transaction ends.
    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool>;

    /// The requests of these failures that are orders of any process; part of a transaction.
    /// The answer stays true until it ends.
    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>>;

    /// Adds units to the buyers' quotas, sorted by their key; `false`: one of them does not fit,
    /// and the transaction must be rolled back.
    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool>;

    /// Takes units from several SKUs, sorted by their key; `false`: one of them has not so many,
    /// and the transaction must be rolled back.
    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool> {
        for (sku, units) in units {
            if self.take_stock(*sku, *units)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Visits the orders of a SKU by buyer and slot; part of a snapshot.
    fn each_order(&mut self, sku: SkuNo, visit: RowVisitor<'_, Order>) -> Result<(), Error>;

    /// Visits the recorded failures of a SKU by request; part of a snapshot.
    fn each_failure(&mut self, sku: SkuNo, visit: RowVisitor<'_, Failure>) -> Result<(), Error>;

    /// Puts the database in order before the last writer goes.
    fn leave(&mut self) {}
}
