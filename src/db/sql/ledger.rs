//! Implements [`Ledger`]: assigns each method to the readers or the writers, with a time limit.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Database, SqlLedger, TimeoutClass, WriterFence, WriterThreads};
use super::{audit, examine, failures, place, sales, tokens};
use crate::db::sql::dead_letters;
use crate::db::{
    Anomalies, AuditRow, BlindInsert, CrossSkuAnomalies, Error, Ledger, LedgerSize, OrderCursor,
    Visitor,
};
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, NewDeadLetter, Order, OrderIntent,
    OrderTimeline, Phase, RequestId, Sale, SaleDraft, SaleId, SkuNo, StoreDeadLetterOutcome,
};

impl<D: Database> SqlLedger<D> {
    /// The migrations applied while opening, by full name, oldest first.
    #[must_use]
    pub fn migrated(&self) -> &[String] {
        &self.migrated
    }

    /// Number of running reader and writer threads.
    #[must_use]
    pub fn num_threads(&self) -> usize {
        let writers = self.writers.as_ref().map_or(0, |writers| writers.workers.num_threads());
        self.readers.num_threads() + writers
    }

    async fn read<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    {
        self.readers.run(operation, move |conn| conn.run_limited(TimeoutClass::Caller, job)).await
    }

    /// Reads all rows of a SKU, without a limit for the whole job; the visitor may end it early.
    async fn read_all<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    {
        self.readers
            .run_long(operation, move |conn| conn.run_limited(TimeoutClass::Scan, job))
            .await
    }

    async fn write<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D, WriterFence) -> Result<T, Error> + Send + 'static,
    {
        let Some(WriterThreads { workers, fence }) = &self.writers else {
            return Err(Error::ReadOnly { operation });
        };
        let fence = *fence;
        let job =
            move |conn: &mut D| conn.run_limited(TimeoutClass::Caller, |conn| job(conn, fence));
        workers.run(operation, job).await
    }
}

fn convert_rows<R, T: TryFrom<R, Error = Error>>(rows: Vec<R>) -> Result<Vec<T>, Error> {
    rows.into_iter().map(T::try_from).collect()
}

impl<D> std::fmt::Debug for SqlLedger<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlLedger").field("writes", &self.writers.is_some()).finish_non_exhaustive()
    }
}

#[async_trait]
impl<D: Database> Ledger for SqlLedger<D> {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<BlindInsert, Error> {
        let clock = Arc::clone(&self.clock);
        self.write("placing orders", move |conn, fence| {
            // The time is read here because the job may have waited in the queue.
            place::place(conn, fence, batch, clock.wall_ms())
        })
        .await
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

    async fn set_sale_phase(
        &self,
        sale: SaleId,
        epoch: Epoch,
        next: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error> {
        self.write("setting a sale's phase", move |conn, fence| {
            sales::set_phase(conn, fence, (&sale, epoch), next, now_ms)
        })
        .await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.read("reading sales", sales::sales).await
    }

    async fn ledger_size(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        self.read_all("counting orders", move |conn| audit::ledger_size(conn, sku)).await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.read("reading the stock", move |conn| sales::available(conn, sku)).await
    }

    async fn scan_orders(&self, sku: SkuNo, mut visit: Visitor<Order>) -> Result<(), Error> {
        self.read_all("scanning orders", move |conn| {
            conn.snapshot(|conn| conn.each_order(sku, &mut visit))
        })
        .await
    }

    async fn scan_failures(&self, sku: SkuNo, mut visit: Visitor<Failure>) -> Result<(), Error> {
        self.read_all("scanning failures", move |conn| {
            conn.snapshot(|conn| conn.each_failure(sku, &mut visit))
        })
        .await
    }

    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        self.read_all("reading an order", move |conn| {
            let request = request.to_db();
            let indexed = conn.timeline_row(request, D::INDEXED_REQUESTS)?;
            let row = match D::UNINDEXED_REQUESTS {
                Some(unindexed) if indexed.is_none() => {
                    conn.with_audit_limit(|conn| conn.timeline_row(request, unindexed))?
                }
                _ => indexed,
            };
            row.map(OrderTimeline::try_from).transpose()
        })
        .await
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        let job = move |conn: &mut D| {
            conn.failure_row(request.to_db())?.map(Failure::try_from).transpose()
        };
        self.read("reading a failure", job).await
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        self.read("reading a buyer's orders", move |conn| {
            convert_rows(conn.order_page(buyer.to_db(), cursor, limit)?)
        })
        .await
    }

    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error> {
        self.read_all("auditing", move |conn| audit::scan(conn, sku, visit)).await
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error> {
        self.read_all("auditing", move |conn| audit::anomalies(conn, sku)).await
    }

    async fn anomalies_across_skus(&self) -> Result<CrossSkuAnomalies, Error> {
        self.read_all("auditing", audit::anomalies_across_skus).await
    }

    async fn store_dead_letters(
        &self,
        new: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<StoreDeadLetterOutcome>, Error> {
        self.write("storing dead letters", move |conn, fence| {
            dead_letters::store(conn, fence, &new, now_ms)
        })
        .await
    }

    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.read("reading dead letters", move |conn| {
            convert_rows(conn.dead_letter_page(filter, limit)?)
        })
        .await
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        self.read("reading a dead letter", move |conn| dead_letters::content(conn, no)).await
    }

    async fn transition_dead_letter(
        &self,
        transition: DeadLetterTransition,
    ) -> Result<bool, Error> {
        self.write("changing a dead letter", move |conn, fence| {
            dead_letters::apply(conn, fence, &transition)
        })
        .await
    }

    async fn final_dead_letters(
        &self,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        self.read("reading dead letters", move |conn| {
            let rows = conn.final_dead_letters(after.0, limit)?;
            rows.into_iter().map(|(row, body)| Ok((row.try_into()?, body))).collect()
        })
        .await
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        self.read("counting dead letters", dead_letters::counts).await
    }

    async fn dead_lettered_among(&self, requests: Vec<RequestId>) -> Result<Vec<RequestId>, Error> {
        self.read("reading dead letters", move |conn| {
            dead_letters::dead_lettered_among(conn, &requests)
        })
        .await
    }

    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        if self.writers.is_none() {
            let stored = self.read("reading a secret", |conn| Ok(conn.secret_value(name)?)).await?;
            return stored.ok_or(Error::ReadOnly { operation: "creating a secret" });
        }
        self.write("creating a secret", move |conn, fence| tokens::secret(conn, fence, name)).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.write("incrementing a token", move |conn, fence| tokens::next_token(conn, fence, name))
            .await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.read("pinging the ledger", |conn| Ok(conn.ping()?)).await
    }

    async fn close(&self) {
        // Readers first: an open reader prevents the checkpoint of the write-ahead log.
        self.readers.close().await;
        if let Some(WriterThreads { workers, .. }) = &self.writers {
            let cleanup = workers.run_long("closing", |conn| {
                conn.before_close();
                Ok(())
            });
            // Fails only when the ledger is closed already, or the clean-up panicked.
            cleanup.await.ok();
            workers.close().await;
        }
    }
}
