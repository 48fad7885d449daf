//! Buckets in the memory of this process.
//!
//! Serves two tiers: in `memory` the books count units and buyers; in `ledger` they only keep
//! requests and results, and the database counts. If the process exits, the books are lost and are
//! rebuilt from the ledger; if a gate exits, nothing is lost.
//!
//! Each book has a `std` mutex because that one is poisoned by a panic: after a panic during a
//! change every later call fails with [`Error::HalfWritten`] instead of selling from a half-written
//! book.

mod loading;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use loading::MemoryLoader;

use super::{BucketHealth, Error, Loading, QueuedPage, SkuIndex, Stock, sum_facts};
use crate::domain::invariants::BucketFacts;
use crate::domain::{
    Book, BucketKey, BucketNo, BucketSnapshot, BuyerId, Counting, Epoch, Failure, LoaderToken,
    Loan, Order, OrderIntent, Phase, RequestId, RequestRecord, Sku, SkuNo, StockChange, Verdict,
    Withdrawal, withdrawn_from,
};

#[derive(Debug)]
struct SkuBooks {
    sku: Arc<Sku>,
    books: Vec<Mutex<Book>>,
    /// Units left over all books and loans, or in the ledger if that counts units.
    left: AtomicI64,
}

impl SkuBooks {
    fn lock(&self, bucket: BucketNo) -> Result<MutexGuard<'_, Book>, Error> {
        let book = self.books.get(usize::from(bucket.0)).ok_or(Error::NotLoaded(self.sku.no))?;
        book.lock().map_err(|_poisoned| Error::HalfWritten { sku: self.sku.no, bucket })
    }

    /// Changes one book and adds the difference to `left`.
    fn change<T>(&self, bucket: BucketNo, change: impl FnOnce(&mut Book) -> T) -> Result<T, Error> {
        let mut book = self.lock(bucket)?;
        let before = book.left();
        let result = change(&mut book);
        let after = book.left();
        drop(book);
        if before != after {
            self.left.fetch_add(after.cast_signed() - before.cast_signed(), Ordering::AcqRel);
        }
        Ok(result)
    }
}

/// Buckets in the memory of this process.
#[derive(Debug, Clone)]
pub struct MemoryStock {
    counting: Counting,
    index: Arc<SkuIndex<SkuBooks>>,
}

impl MemoryStock {
    /// A stock without any SKU.
    pub fn new(counting: Counting) -> Self {
        Self { counting, index: Arc::default() }
    }
}

#[async_trait]
impl Stock for MemoryStock {
    /// A load registers, and no other process loads.
    fn register(&self, _: &Arc<Sku>) {}

    fn forget(&self, sku: SkuNo) {
        self.index.remove(sku);
    }

    async fn load(&self, sku: Arc<Sku>, _: LoaderToken) -> Result<Box<dyn Loading>, Error> {
        Ok(Box::new(MemoryLoader::begin(self, sku)?))
    }

    async fn health(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        let Ok(sku_books) = self.index.get(sku.no) else { return Ok(BucketHealth::Missing) };
        let (mut is_in_phase, mut latest) = (true, (Epoch(0), Phase::Draft));
        let mut change_no = i32::MAX;
        for bucket in 0..sku_books.sku.buckets {
            let book = sku_books.lock(BucketNo(bucket))?;
            let found = book.phase_and_epoch();
            is_in_phase &= found == (phase, epoch);
            latest = latest.max((found.1, found.0));
            change_no = change_no.min(book.change_no());
        }
        Ok(if !is_in_phase {
            BucketHealth::OtherPhase { latest }
        } else if change_no < sku.history.change_no {
            BucketHealth::OtherStock { change_no }
        } else {
            BucketHealth::Ready
        })
    }

    async fn purge(&self, sku: &Arc<Sku>) -> Result<(), Error> {
        self.forget(sku.no);
        Ok(())
    }

    async fn set_phase(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        let sku_books = self.index.get(sku.no)?;
        for bucket in 0..sku_books.sku.buckets {
            sku_books.lock(BucketNo(bucket))?.set_phase(phase, epoch);
        }
        Ok(())
    }

    async fn change_stock(&self, sku: &Arc<Sku>, change: StockChange) -> Result<(), Error> {
        let sku_books = self.index.get(sku.no)?;
        for bucket in (0..sku_books.sku.buckets).map(BucketNo) {
            let units = change.share(&sku_books.sku, bucket);
            sku_books.change(bucket, |book| book.change_stock(change.no, units))?;
        }
        Ok(())
    }

    async fn withdraw(&self, sku: SkuNo, units: u32) -> Result<Withdrawal, Error> {
        let sku_books = self.index.get(sku)?;
        if self.counting == Counting::InLedger {
            return Ok(Withdrawal { units, ..Withdrawal::default() });
        }
        let mut withdrawal = Withdrawal::default();
        let buckets = || (0..sku_books.sku.buckets).map(BucketNo);
        let mut free = Vec::new();
        for bucket in buckets() {
            let book = sku_books.lock(bucket)?;
            if book.loans().any(|(to, _)| to == BucketNo::LEDGER) {
                let reason = "an earlier withdrawal of units is not completed".to_owned();
                return Err(Error::Unavailable { reason });
            }
            free.push(book.available());
        }
        for (bucket, units) in buckets().zip(withdrawn_from(&free, units)) {
            let loan = sku_books.change(bucket, |book| book.withdraw(units))?;
            withdrawal.units += loan.map_or(0, |loan| loan.units);
            withdrawal.loans.extend(loan.map(|loan| (bucket, loan)));
        }
        Ok(withdrawal)
    }

    async fn end_withdrawal(
        &self,
        sku: SkuNo,
        withdrawal: &Withdrawal,
        is_recorded: bool,
    ) -> Result<(), Error> {
        let sku_books = self.index.get(sku)?;
        for (bucket, loan) in &withdrawal.loans {
            sku_books.change(*bucket, |book| book.end_withdrawal(*loan, is_recorded))?;
        }
        Ok(())
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<OrderIntent>,
    ) -> Result<Vec<Verdict>, Error> {
        self.index
            .get(bucket.sku)?
            .change(bucket.bucket, |book| batch.iter().map(|intent| book.reserve(intent)).collect())
    }

    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        for (bucket, order) in orders {
            let sku_books = self.index.get(order.sku)?;
            sku_books.change(bucket, |book| book.settle(&order))?;
            if self.counting == Counting::InLedger && !order.state.is_live() {
                // Its units are free in the ledger, which decides the next requests again.
                sku_books.left.fetch_max(i64::from(order.quantity), Ordering::AcqRel);
            }
        }
        Ok(())
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        self.index.get(bucket.sku)?.change(bucket.bucket, |book| {
            for failure in refused {
                if book.has_record(failure.request) {
                    book.release(failure.request, failure.reason);
                } else if book.keeps(&failure.reason) {
                    book.load_failure(&failure);
                }
            }
        })
    }

    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error> {
        Ok(self.index.get(bucket.sku)?.lock(bucket.bucket)?.unsettled())
    }

    async fn queued(&self, bucket: BucketKey, _page: u16) -> Result<QueuedPage, Error> {
        let intents = self.unsettled(bucket).await?;
        Ok(QueuedPage { intents, num_pages: 1, ..QueuedPage::default() })
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        self.index.get(from.sku)?.change(from.bucket, |book| book.lend(to, want))
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        let sku_books = self.index.get(from.sku)?;
        // Both halves under both locks, in bucket order: no reader counts the units twice or not at
        // all.
        let (mut lender, mut borrower) = if from.bucket < to {
            let lender = sku_books.lock(from.bucket)?;
            (lender, sku_books.lock(to)?)
        } else {
            let borrower = sku_books.lock(to)?;
            (sku_books.lock(from.bucket)?, borrower)
        };
        let units = borrower.borrow(from.bucket, loan);
        lender.clear_loan(to, loan.no);
        Ok(units)
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        let sku_books = self.index.get(to.sku)?;
        let mut total = 0;
        for from in (0..sku_books.sku.buckets).map(BucketNo).filter(|from| *from != to.bucket) {
            let open = {
                let book = sku_books.lock(from)?;
                book.loans().find(|(borrower, _)| *borrower == to.bucket)
            };
            if let Some((_, loan)) = open {
                let from = BucketKey { sku: to.sku, bucket: from };
                total += self.borrow(from, to.bucket, loan).await?;
            }
        }
        Ok(total)
    }

    async fn record(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: Option<BuyerId>,
    ) -> Result<Option<RequestRecord>, Error> {
        let sku_books = self.index.get(bucket.sku)?;
        let book = sku_books.lock(bucket.bucket)?;
        Ok(book.record(request, buyer))
    }

    async fn owned(&self, bucket: BucketKey, buyer: BuyerId) -> Result<u32, Error> {
        Ok(self.index.get(bucket.sku)?.lock(bucket.bucket)?.owned(buyer))
    }

    async fn records(
        &self,
        sku: SkuNo,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestRecord>>, Error> {
        let sku_books = self.index.get(sku)?;
        let find = |(request, buyer): (RequestId, BuyerId)| {
            let book = sku_books.lock(BucketNo::home_of(buyer, sku_books.sku.buckets))?;
            Ok(book.record(request, Some(buyer)))
        };
        requests.into_iter().map(find).collect()
    }

    fn may_have_accepted(&self, bucket: BucketKey, request: RequestId) -> bool {
        let Ok(sku_books) = self.index.get(bucket.sku) else { return true };
        sku_books.lock(bucket.bucket).map_or(true, |book| book.has_record(request))
    }

    fn left(&self, sku: SkuNo) -> u32 {
        let left =
            self.index.get(sku).map_or(0, |sku_books| sku_books.left.load(Ordering::Acquire));
        u32::try_from(left).unwrap_or(0)
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.index.get(sku).is_ok_and(|sku_books| sku_books.left.load(Ordering::Acquire) <= 0)
    }

    fn cache_left(&self, sku: SkuNo, left: u32) {
        if let (Counting::InLedger, Ok(sku_books)) = (self.counting, self.index.get(sku)) {
            sku_books.left.store(i64::from(left), Ordering::Release);
        }
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BucketSnapshot, Error> {
        Ok(self.index.get(bucket.sku)?.lock(bucket.bucket)?.snapshot())
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        let sku_books = self.index.get(sku)?;
        let mut sum = 0;
        for bucket in (0..sku_books.sku.buckets).map(BucketNo) {
            sum += sku_books.lock(bucket)?.num_unsettled() as u64;
        }
        Ok(sum)
    }

    async fn num_unsettled_in_any_state(&self, sku: SkuNo) -> Result<u64, Error> {
        match self.num_unsettled(sku).await {
            Err(Error::NotLoaded(_)) => Ok(0),
            unsettled => unsettled,
        }
    }

    async fn facts(&self, sku: SkuNo) -> Result<BucketFacts, Error> {
        let sku_books = self.index.get(sku)?;
        // All locks at once, in bucket order: one instant for the whole SKU.
        let books = (0..sku_books.sku.buckets)
            .map(|bucket| sku_books.lock(BucketNo(bucket)))
            .collect::<Result<Vec<_>, Error>>()?;
        let counts: Vec<BucketSnapshot> = books.iter().map(|book| book.snapshot()).collect();
        let counts_units = self.counting == Counting::InStock;
        Ok(sum_facts(sku_books.sku.policy, counts_units, &counts))
    }
}
