//! Buckets in the memory of this process.
//!
//! Serves two tiers: in `memory` the books count units and buyers themselves; in `ledger` they only
//! remember requests and results, and the database counts. On death of the process everything here
//! is gone and is rebuilt from the ledger; on death of a gate nothing is.
//!
//! A book sits behind a `std` mutex because that one poisons: a panic in the middle of a change
//! makes every later call fail with [`Error::HalfWritten`] instead of selling from a half-written
//! book.

mod loading;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use async_trait::async_trait;

use loading::MemoryLoader;

use super::{
    BucketHealth, BucketKey, Error, LoaderToken, Loading, QueuedPage, Stock, StoredRequest,
};
use crate::domain::invariants::GateFacts;
use crate::domain::{
    Book, BookSnapshot, BucketNo, BuyerId, Counting, Epoch, Failure, Loan, Order, OrderIntent,
    Phase, RequestId, RequestStatus, Reservation, Sku, SkuNo, Verdict,
};

type SkuIndex = Arc<ArcSwap<HashMap<SkuNo, Arc<SkuBooks>>>>;

/// The last loader of each SKU.
type Loaders = Arc<parking_lot::Mutex<HashMap<SkuNo, LoaderToken>>>;

/// All buckets of one SKU.
#[derive(Debug)]
struct SkuBooks {
    sku: Arc<Sku>,
    books: Vec<Mutex<Book>>,
    /// Units left over all books and loans; the ledger's word where the ledger counts.
    left: AtomicI64,
    sold_out: AtomicBool,
}

impl SkuBooks {
    fn lock(&self, bucket: BucketNo) -> Result<MutexGuard<'_, Book>, Error> {
        let book = self.books.get(usize::from(bucket.0)).ok_or(Error::NotLoaded(self.sku.no))?;
        book.lock().map_err(|_poisoned| Error::HalfWritten { sku: self.sku.no, bucket })
    }

    /// Runs one change of one book and carries its effect over to the shelf's sum.
    fn change<T>(&self, bucket: BucketNo, change: impl FnOnce(&mut Book) -> T) -> Result<T, Error> {
        let mut book = self.lock(bucket)?;
        let before = book.left();
        let result = change(&mut book);
        let after = book.left();
        drop(book);
        if before != after {
            self.add_left(after.cast_signed() - before.cast_signed());
        }
        Ok(result)
    }

    fn add_left(&self, units: i64) {
        let left = self.left.fetch_add(units, Ordering::AcqRel) + units;
        self.sold_out.store(left <= 0, Ordering::Release);
        // Another change may have come between the two stores above; the later sum wins.
        if (self.left.load(Ordering::Acquire) <= 0) != (left <= 0) {
            self.sold_out.store(self.left.load(Ordering::Acquire) <= 0, Ordering::Release);
        }
    }
}

/// Buckets in the memory of this process.
#[derive(Debug)]
pub struct MemoryStock {
    counting: Counting,
    shelves: SkuIndex,
    loaders: Loaders,
}

impl MemoryStock {
    /// A stock without any SKU.
    #[must_use]
    pub fn new(counting: Counting) -> Self {
        Self { counting, shelves: Arc::default(), loaders: Arc::default() }
    }

    fn shelf(&self, sku: SkuNo) -> Result<Arc<SkuBooks>, Error> {
        self.shelves.load().get(&sku).cloned().ok_or(Error::NotLoaded(sku))
    }
}

#[async_trait]
impl Stock for MemoryStock {
    async fn load(
        &self,
        sku: Arc<Sku>,
        num_orders: u64,
        loader: LoaderToken,
    ) -> Result<Box<dyn Loading>, Error> {
        Ok(Box::new(MemoryLoader::begin(self, sku, num_orders, loader)?))
    }

    async fn condition(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        let Ok(shelf) = self.shelf(sku.no) else { return Ok(BucketHealth::Missing) };
        for bucket in 0..shelf.sku.buckets {
            if shelf.lock(BucketNo(bucket))?.stands() != (phase, epoch) {
                return Ok(BucketHealth::OtherPhase);
            }
        }
        Ok(BucketHealth::Ready)
    }

    async fn turn(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        // Books that are being published have the pair of those that they replace.
        let _published = self.loaders.lock();
        let shelf = self.shelf(sku.no)?;
        for bucket in 0..shelf.sku.buckets {
            shelf.lock(BucketNo(bucket))?.turn(phase, epoch);
        }
        Ok(())
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error> {
        self.shelf(bucket.sku)?.change(bucket.bucket, |book| {
            batch.iter().map(|reservation| book.reserve(reservation)).collect()
        })
    }

    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        for (bucket, order) in orders {
            self.shelf(order.sku)?.lock(bucket)?.settle(&order);
        }
        Ok(())
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        let keeps_failures = self.counting == Counting::Here;
        self.shelf(bucket.sku)?.change(bucket.bucket, |book| {
            for failure in refused {
                if book.knows(failure.request) {
                    book.release(failure.request, failure.reason);
                } else if keeps_failures {
                    book.load_failure(&failure);
                }
            }
        })
    }

    async fn unsettled(
        &self,
        bucket: BucketKey,
        asked_before_ms: i64,
    ) -> Result<Vec<OrderIntent>, Error> {
        let mut intents = self.shelf(bucket.sku)?.lock(bucket.bucket)?.unsettled();
        intents.retain(|intent| intent.placed_at_ms < asked_before_ms);
        Ok(intents)
    }

    async fn queued(&self, bucket: BucketKey, _page: u16) -> Result<QueuedPage, Error> {
        let intents = self.shelf(bucket.sku)?.lock(bucket.bucket)?.unsettled();
        Ok(QueuedPage { intents, num_pages: 1, ..QueuedPage::default() })
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        self.shelf(from.sku)?.change(from.bucket, |book| book.lend(to, want))
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        let shelf = self.shelf(from.sku)?;
        // Both halves under both locks, in bucket order: nobody ever sees the units twice or not at
        // all.
        let (mut lender, mut borrower) = if from.bucket < to {
            let lender = shelf.lock(from.bucket)?;
            (lender, shelf.lock(to)?)
        } else {
            let borrower = shelf.lock(to)?;
            (shelf.lock(from.bucket)?, borrower)
        };
        let units = borrower.borrow(from.bucket, loan);
        lender.clear_loan(to, loan.no);
        Ok(units)
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        let shelf = self.shelf(to.sku)?;
        let mut total = 0;
        for from in (0..shelf.sku.buckets).map(BucketNo).filter(|from| *from != to.bucket) {
            let open = {
                let book = shelf.lock(from)?;
                book.loans().find(|(borrower, _)| *borrower == to.bucket)
            };
            if let Some((_, loan)) = open {
                let from = BucketKey { sku: to.sku, bucket: from };
                total += self.borrow(from, to.bucket, loan).await?;
            }
        }
        Ok(total)
    }

    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let book = shelf.lock(bucket.bucket)?;
        Ok(book.standing(request, Some(buyer)).map(StoredRequest::from))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<StoredRequest>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let book = shelf.lock(bucket.bucket)?;
        Ok(book.standing(request, None).map(StoredRequest::from))
    }

    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestStatus>>, Error> {
        let shelf = self.shelf(sku)?;
        let find = |(request, buyer): (RequestId, BuyerId)| {
            let book = shelf.lock(BucketNo::home_of(buyer, shelf.sku.buckets))?;
            Ok(book.standing(request, Some(buyer)).map(|(_, _, standing)| standing))
        };
        asked.into_iter().map(find).collect()
    }

    fn may_know(&self, bucket: BucketKey, request: RequestId) -> bool {
        let Ok(shelf) = self.shelf(bucket.sku) else { return true };
        shelf.lock(bucket.bucket).map_or(true, |book| book.knows(request))
    }

    fn left(&self, sku: SkuNo) -> u32 {
        let left = self.shelf(sku).map_or(0, |shelf| shelf.left.load(Ordering::Acquire));
        u32::try_from(left).unwrap_or(0)
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.shelves.load().get(&sku).is_some_and(|shelf| shelf.sold_out.load(Ordering::Acquire))
    }

    fn note_left(&self, sku: SkuNo, left: u32) {
        if let (Counting::InLedger, Ok(shelf)) = (self.counting, self.shelf(sku)) {
            shelf.left.store(i64::from(left), Ordering::Release);
            shelf.sold_out.store(left == 0, Ordering::Release);
        }
    }

    async fn refresh(&self, _sku: SkuNo) -> Result<(), Error> {
        Ok(())
    }

    async fn ping(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error> {
        Ok(self.shelf(bucket.sku)?.lock(bucket.bucket)?.snapshot())
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        let shelf = self.shelf(sku)?;
        let mut sum = 0;
        for bucket in (0..shelf.sku.buckets).map(BucketNo) {
            sum += shelf.lock(bucket)?.num_unsettled() as u64;
        }
        Ok(sum)
    }

    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        let Ok(shelf) = self.shelf(sku) else { return Ok(None) };
        // All locks at once, in bucket order: one instant for the whole SKU.
        let books = (0..shelf.sku.buckets)
            .map(|bucket| shelf.lock(BucketNo(bucket)))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut facts =
            GateFacts { counts_units: self.counting == Counting::Here, ..GateFacts::default() };
        let mut num_buyers = 0;
        for book in &books {
            let counts = book.snapshot();
            facts.left += book.left();
            facts.num_unsettled += counts.num_unsettled as u64;
            facts.num_ordered += counts.num_ordered as u64;
            num_buyers += counts.num_buyers as u64;
            facts.released_units += counts.released_units;
            facts.oldest_unsettled_ms =
                [facts.oldest_unsettled_ms, counts.oldest_unsettled_ms].into_iter().flatten().min();
        }
        facts.num_buyers = shelf.sku.policy.quota().map(|_| num_buyers);
        Ok(Some(facts))
    }
}
