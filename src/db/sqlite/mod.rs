//! The ledger in one `SQLite` file.
//!
//! One thread writes, a few read, all blocking and all outside the actors. The file is in
//! write-ahead mode, so that readers and the writer do not wait for each other, and every commit is
//! flushed to the disk before anybody hears of it.
//!
//! On death: the next start finds exactly the committed transactions. Two processes never write one
//! file: the second finds the lock of the first, and where locks do not work (network file systems)
//! every write checks a token that the second took.

use async_trait::async_trait;
use diesel::prelude::SqliteConnection;

use super::migrate::Standing;
use super::workers::Workers;
use super::{Anomalies, AuditRow, Error, Ledger, OrderCursor, Placing, Tally, Visit};
use crate::domain::{
    BuyerId, Examination, Failure, Order, OrderIntent, Phase, RequestId, Sale, SaleDraft, SaleId,
    SkuNo,
};

mod audit;
mod connection;
mod examine;
mod failures;
mod file;
mod open;
mod place;
mod sales;
mod scan;
mod statements;
mod tokens;

pub use open::OpenOptions;

/// A ledger in one `SQLite` file.
pub struct SqliteLedger {
    readers: Workers<SqliteConnection>,
    /// `None`: opened for reading only.
    writer: Option<Writer>,
    migrated: Vec<String>,
}

struct Writer {
    workers: Workers<SqliteConnection>,
    fence: tokens::Fence,
}

impl SqliteLedger {
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

    /// The migrations that opening applied, by full name, oldest first.
    #[must_use]
    pub fn migrated(&self) -> &[String] {
        &self.migrated
    }

    /// Jobs that wait for the writer.
    #[must_use]
    pub fn num_writes_waiting(&self) -> usize {
        self.writer.as_ref().map_or(0, |writer| writer.workers.num_waiting())
    }

    async fn read<T, F>(&self, doing: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut SqliteConnection) -> Result<T, Error> + Send + 'static,
    {
        self.readers.run(doing, job).await
    }

    async fn write<T, F>(&self, doing: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut SqliteConnection, tokens::Fence) -> Result<T, Error> + Send + 'static,
    {
        let Some(Writer { workers, fence }) = &self.writer else {
            return Err(Error::ReadOnly { doing });
        };
        let fence = *fence;
        workers.run(doing, move |conn| job(conn, fence)).await
    }
}

impl std::fmt::Debug for SqliteLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteLedger")
            .field("writes", &self.writer.is_some())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Placing, Error> {
        self.write("placing orders", |conn, fence| place::place(conn, fence, batch)).await
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        self.read("examining a batch", move |conn| examine::examine(conn, &batch)).await
    }

    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error> {
        self.write("recording failures", move |conn, fence| {
            failures::record_failures(conn, fence, &failures)
        })
        .await
    }

    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        self.write("creating a sale", move |conn, fence| {
            sales::create_sale(conn, fence, &draft, now_ms)
        })
        .await
    }

    async fn turn_sale(
        &self,
        sale: SaleId,
        next: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error> {
        self.write("turning a sale", move |conn, fence| {
            sales::turn_sale(conn, fence, &sale, next, now_ms)
        })
        .await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.read("reading sales", sales::sales).await
    }

    async fn tally(&self, sku: SkuNo) -> Result<Tally, Error> {
        self.readers.run_long("counting orders", move |conn| audit::tally(conn, sku)).await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.read("reading the stock", move |conn| sales::available(conn, sku)).await
    }

    async fn scan_orders(&self, sku: SkuNo, visit: Visit<Order>) -> Result<(), Error> {
        self.readers
            .run_long("scanning orders", move |conn| scan::scan_orders(conn, sku, visit))
            .await
    }

    async fn scan_failures(&self, sku: SkuNo, visit: Visit<Failure>) -> Result<(), Error> {
        self.readers
            .run_long("scanning failures", move |conn| scan::scan_failures(conn, sku, visit))
            .await
    }

    async fn order(&self, request: RequestId) -> Result<Option<Order>, Error> {
        self.read("reading an order", move |conn| scan::order(conn, request)).await
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        self.read("reading a failure", move |conn| failures::failure(conn, request)).await
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        self.read("reading a buyer's orders", move |conn| {
            scan::orders_of(conn, buyer, cursor, limit)
        })
        .await
    }

    async fn scan_audit(&self, sku: SkuNo, visit: Visit<AuditRow>) -> Result<(), Error> {
        self.readers.run_long("auditing", move |conn| audit::scan(conn, sku, visit)).await
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error> {
        self.readers.run_long("auditing", move |conn| audit::anomalies(conn, sku)).await
    }

    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        if self.writer.is_none() {
            let known =
                self.read("reading a secret", move |conn| tokens::known_secret(conn, name)).await?;
            return known.ok_or(Error::ReadOnly { doing: "making a secret" });
        }
        self.write("making a secret", move |conn, fence| tokens::secret(conn, fence, name)).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.write("counting a token up", move |conn, fence| tokens::next_token(conn, fence, name))
            .await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.read("looking for the ledger", sales::ping).await
    }

    async fn close(&self) {
        // Readers first: an open one keeps the log from being folded back.
        self.readers.close().await;
        if let Some(Writer { workers, .. }) = &self.writer {
            let folded = workers.run_long("folding the log", |conn| {
                connection::fold_log(conn).map_err(Error::refused("folding the log"))
            });
            if let Err(error) = folded.await {
                tracing::warn!(%error, "the ledger's log stays; the next start folds it back");
            }
            workers.close().await;
        }
    }
}

#[cfg(test)]
#[path = "plans_tests.rs"]
mod plans_tests;
