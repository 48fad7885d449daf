//! Books being loaded from the ledger; see [`Loading`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::super::{Error, LoaderToken, Loading};
use super::{Loaders, MemoryStock, SkuBooks, SkuIndex};
use crate::domain::{
    Book, BucketNo, BuyerId, Counting, Epoch, Failure, Order, OrderIntent, Phase, Sku, SkuNo,
};

/// Books being filled; see [`Loading`].
pub(super) struct MemoryLoader {
    counting: Counting,
    sku: Arc<Sku>,
    books: Vec<Book>,
    queued: Vec<OrderIntent>,
    shelves: SkuIndex,
    token: LoaderToken,
    loaders: Loaders,
}

/// Refuses a loader that another came after.
fn fenced(sku: SkuNo) -> Error {
    Error::Fenced { sku, reason: "another loader came after this one".to_owned() }
}

impl MemoryLoader {
    pub(super) fn begin(
        stock: &MemoryStock,
        sku: Arc<Sku>,
        num_orders: u64,
        token: LoaderToken,
    ) -> Result<Self, Error> {
        {
            let mut loaders = stock.loaders.lock();
            if loaders.get(&sku.no).is_some_and(|last| *last >= token) {
                return Err(fenced(sku.no));
            }
            loaders.insert(sku.no, token);
        }
        let buckets = sku.buckets.max(1);
        // Buyers are spread by a hash: a little more than the even share is enough room.
        let share = usize::try_from(num_orders).unwrap_or(0) / usize::from(buckets);
        let books = (0..buckets)
            .map(|_| {
                let mut book = Book::new(Arc::clone(&sku), stock.counting);
                book.make_room(share + share / 32);
                book
            })
            .collect();
        let (shelves, loaders) = (Arc::clone(&stock.shelves), Arc::clone(&stock.loaders));
        let (counting, queued) = (stock.counting, Vec::new());
        Ok(Self { counting, sku, books, queued, shelves, token, loaders })
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut Book> {
        let home = BucketNo::home_of(buyer, self.sku.buckets);
        self.books.get_mut(usize::from(home.0))
    }
}

#[async_trait]
impl Loading for MemoryLoader {
    /// New books are filled beside the ones in use; what those have accepted is entered, too.
    async fn clear(&mut self) -> Result<(), Error> {
        let Some(shelf) = self.shelves.load().get(&self.sku.no).cloned() else { return Ok(()) };
        for bucket in (0..shelf.sku.buckets).map(BucketNo) {
            self.queued.extend(shelf.lock(bucket)?.unsettled());
        }
        Ok(())
    }

    async fn queued(&mut self, rows: Vec<OrderIntent>) -> Result<(), Error> {
        self.queued.extend(rows);
        Ok(())
    }

    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error> {
        for order in rows {
            if let Some(book) = self.home(order.buyer) {
                book.load_order(&order);
            }
        }
        Ok(())
    }

    async fn failures(&mut self, rows: Vec<Failure>) -> Result<(), Error> {
        for failure in rows {
            if let Some(book) = self.home(failure.buyer) {
                book.load_failure(&failure);
            }
        }
        Ok(())
    }

    async fn publish(
        mut self: Box<Self>,
        available: u32,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error> {
        let mut held = 0_u32;
        for intent in std::mem::take(&mut self.queued) {
            if let Some(book) = self.home(intent.buyer) {
                held = held.saturating_add(book.load_queued(&intent));
            }
        }
        let available = available.saturating_sub(held);
        let Self { counting, sku, mut books, shelves, token, loaders, .. } = *self;
        // Held until the books are published: the next loader comes before or after.
        let last = loaders.lock();
        if last.get(&sku.no) != Some(&token) {
            return Err(fenced(sku.no));
        }
        let before = shelves.load().get(&sku.no).cloned();
        for (number, book) in (0..).zip(books.iter_mut()) {
            if counting == Counting::Here {
                book.stock(sku.share(available, number));
            }
            book.turn(phase, epoch);
            // The old book may have gone on while this one was loaded.
            let old = before.as_ref().and_then(|shelf| shelf.lock(BucketNo(number)).ok());
            if let Some((phase, epoch)) = old.map(|book| book.stands()) {
                book.turn(phase, epoch);
            }
        }
        let shelf = Arc::new(SkuBooks {
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
        Ok(())
    }
}
