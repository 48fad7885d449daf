//! Buckets in the memory of this process.
//!
//! Serves two tiers: in `memory` the books count units and buyers themselves; in `ledger` they only
//! remember requests and results, and the database counts. On death of the process everything here
//! is gone and is rebuilt from the ledger; on death of a gate nothing is.
//!
//! A book sits behind a `std` mutex because that one poisons: a panic in the middle of a change
//! makes every later call fail with [`Error::HalfWritten`] instead of selling from a half-written
//! book.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use async_trait::async_trait;

use super::{BucketKey, Error, Loading, RequestStanding, Stock};
use crate::domain::invariants::GateFacts;
use crate::domain::{
    Book, BookSnapshot, BucketNo, BuyerId, Counting, Epoch, Failure, Order, OrderIntent, Phase,
    Refusal, RequestId, Reservation, Sku, SkuNo, Standing, TransferId, Verdict,
};

type Shelves = Arc<ArcSwap<HashMap<SkuNo, Arc<Shelf>>>>;

/// All buckets of one SKU.
#[derive(Debug)]
struct Shelf {
    sku: Arc<Sku>,
    books: Vec<Mutex<Book>>,
    /// Units left over all books and loans; the ledger's word where the ledger counts.
    left: AtomicI64,
    sold_out: AtomicBool,
}

impl Shelf {
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
    shelves: Shelves,
}

impl MemoryStock {
    /// A stock without any SKU.
    #[must_use]
    pub fn new(counting: Counting) -> Self {
        Self { counting, shelves: Arc::default() }
    }

    fn shelf(&self, sku: SkuNo) -> Result<Arc<Shelf>, Error> {
        self.shelves.load().get(&sku).cloned().ok_or(Error::NotLoaded(sku))
    }
}

/// Books being filled; see [`Loading`].
struct Loader {
    counting: Counting,
    sku: Arc<Sku>,
    books: Vec<Book>,
    shelves: Shelves,
}

impl Loader {
    fn home(&mut self, buyer: BuyerId) -> Option<&mut Book> {
        let home = BucketNo::home_of(buyer, self.sku.buckets);
        self.books.get_mut(usize::from(home.0))
    }
}

impl Loading for Loader {
    fn order(&mut self, order: &Order) {
        if let Some(book) = self.home(order.buyer) {
            book.load_order(order);
        }
    }

    fn failure(&mut self, failure: &Failure) {
        if let Some(book) = self.home(failure.buyer) {
            book.load_failure(failure);
        }
    }

    fn publish(self: Box<Self>, available: u32, phase: Phase, epoch: Epoch) {
        let Self { counting, sku, mut books, shelves } = *self;
        for (number, book) in (0..).zip(books.iter_mut()) {
            if counting == Counting::Here {
                book.stock(sku.share(available, number));
            }
            book.turn(phase, epoch);
        }
        let shelf = Arc::new(Shelf {
            books: books.into_iter().map(Mutex::new).collect(),
            left: AtomicI64::new(i64::from(available)),
            sold_out: AtomicBool::new(available == 0),
            sku,
        });
        shelves.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.insert(shelf.sku.no, Arc::clone(&shelf));
            new
        });
    }
}

#[async_trait]
impl Stock for MemoryStock {
    fn load(&self, sku: Arc<Sku>, num_orders: u64) -> Box<dyn Loading> {
        let buckets = sku.buckets.max(1);
        // Buyers are spread by a hash: a little more than the even share is enough room.
        let share = usize::try_from(num_orders).unwrap_or(0) / usize::from(buckets);
        let books = (0..buckets)
            .map(|_| {
                let mut book = Book::new(Arc::clone(&sku), self.counting);
                book.make_room(share + share / 32);
                book
            })
            .collect();
        let shelves = Arc::clone(&self.shelves);
        Box::new(Loader { counting: self.counting, sku, books, shelves })
    }

    async fn turn(&self, sku: SkuNo, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        let shelf = self.shelf(sku)?;
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

    async fn release(
        &self,
        bucket: BucketKey,
        refused: Vec<(RequestId, Refusal)>,
    ) -> Result<(), Error> {
        self.shelf(bucket.sku)?.change(bucket.bucket, |book| {
            for (request, reason) in refused {
                book.release(request, reason);
            }
        })
    }

    async fn withdraw(&self, bucket: BucketKey, requests: Vec<RequestId>) -> Result<(), Error> {
        self.shelf(bucket.sku)?.change(bucket.bucket, |book| {
            for request in requests {
                book.withdraw(request);
            }
        })
    }

    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error> {
        Ok(self.shelf(bucket.sku)?.lock(bucket.bucket)?.unsettled())
    }

    async fn lend(
        &self,
        from: BucketKey,
        to: BucketNo,
        transfer: TransferId,
        want: u32,
    ) -> Result<u32, Error> {
        self.shelf(from.sku)?.change(from.bucket, |book| book.lend(transfer, to, want))
    }

    async fn borrow(
        &self,
        from: BucketKey,
        to: BucketNo,
        transfer: TransferId,
    ) -> Result<u32, Error> {
        let shelf = self.shelf(from.sku)?;
        // Both halves under both locks, in bucket order: nobody ever sees the units twice or not at
        // all, and the record that is cleared here is what makes a repeat harmless.
        let (mut lender, mut borrower) = if from.bucket < to {
            let lender = shelf.lock(from.bucket)?;
            (lender, shelf.lock(to)?)
        } else {
            let borrower = shelf.lock(to)?;
            (shelf.lock(from.bucket)?, borrower)
        };
        let units = lender.hand_over(transfer).unwrap_or(0);
        borrower.borrow(units);
        Ok(units)
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        let shelf = self.shelf(to.sku)?;
        let mut total = 0;
        for from in (0..shelf.sku.buckets).map(BucketNo).filter(|from| *from != to.bucket) {
            let loans: Vec<_> = {
                let book = shelf.lock(from)?;
                book.loans().filter(|(_, borrower, _)| *borrower == to.bucket).collect()
            };
            for (transfer, _, _) in loans {
                let from = BucketKey { sku: to.sku, bucket: from };
                total += self.borrow(from, to.bucket, transfer).await?;
            }
        }
        Ok(total)
    }

    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<RequestStanding>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let book = shelf.lock(bucket.bucket)?;
        Ok(book.standing(request, Some(buyer)).map(RequestStanding::from))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<RequestStanding>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let book = shelf.lock(bucket.bucket)?;
        Ok(book.standing(request, None).map(RequestStanding::from))
    }

    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<Standing>>, Error> {
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

    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error> {
        Ok(self.shelf(bucket.sku)?.lock(bucket.bucket)?.snapshot())
    }

    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        let Ok(shelf) = self.shelf(sku) else { return Ok(None) };
        // All locks at once, in bucket order: one instant for the whole SKU.
        let books = (0..shelf.sku.buckets)
            .map(|bucket| shelf.lock(BucketNo(bucket)))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut facts =
            GateFacts { counts_units: self.counting == Counting::Here, ..GateFacts::default() };
        for book in &books {
            let counts = book.snapshot();
            facts.left += book.left();
            facts.num_unsettled += counts.num_unsettled as u64;
            facts.num_ordered += counts.num_ordered as u64;
            facts.num_buyers += counts.num_buyers as u64;
            facts.released_units += counts.released_units;
            facts.oldest_unsettled_ms =
                [facts.oldest_unsettled_ms, counts.oldest_unsettled_ms].into_iter().flatten().min();
        }
        Ok(Some(facts))
    }
}
