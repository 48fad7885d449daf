//! Loads books from the ledger; see [`Loading`].

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::super::{Error, Loading};
use super::{LatestLoad, MemoryStock, SkuBooks};
use crate::domain::{
    Book, BucketNo, BuyerId, Counting, Epoch, Failure, LoaderToken, Order, OrderIntent, Phase, Sku,
    SkuNo,
};

pub(super) struct MemoryLoader {
    stock: MemoryStock,
    sku: Arc<Sku>,
    books: Vec<Book>,
    queued: Vec<OrderIntent>,
    token: LoaderToken,
    change_no: i32,
}

impl Drop for MemoryLoader {
    /// From here on settled orders are not stored for this load.
    fn drop(&mut self) {
        if let Some(load) = self.stock.loaders.lock().get_mut(&self.sku.no)
            && load.token == self.token
        {
            load.settled = None;
        }
    }
}

fn fenced(sku: SkuNo) -> Error {
    Error::Fenced { sku, reason: "another loader came after this one".to_owned() }
}

impl MemoryLoader {
    pub(super) fn begin(
        stock: &MemoryStock,
        sku: Arc<Sku>,
        token: LoaderToken,
    ) -> Result<Self, Error> {
        {
            let mut loaders = stock.loaders.lock();
            if loaders.get(&sku.no).is_some_and(|last| last.token >= token) {
                return Err(fenced(sku.no));
            }
            loaders.insert(sku.no, LatestLoad { token, settled: Some(Vec::new()) });
        }
        let book = |_| Book::new(Arc::clone(&sku), stock.counting);
        let books = (0..sku.buckets.max(1)).map(book).collect();
        Ok(Self { stock: stock.clone(), sku, books, queued: Vec::new(), token, change_no: 0 })
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut Book> {
        let home = BucketNo::home_of(buyer, self.sku.buckets);
        self.books.get_mut(usize::from(home.0))
    }
}

#[async_trait]
impl Loading for MemoryLoader {
    /// New books are filled beside the ones in use and take over their unsettled requests.
    async fn clear(&mut self) -> Result<(), Error> {
        let Ok(sku_books) = self.stock.index.get(self.sku.no) else { return Ok(()) };
        for bucket in (0..sku_books.sku.buckets).map(BucketNo) {
            self.queued.extend(sku_books.lock(bucket)?.unsettled());
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

    fn stock_change(&mut self, no: i32) {
        self.change_no = no;
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
        let (stock, sku, mut books) =
            (self.stock.clone(), Arc::clone(&self.sku), std::mem::take(&mut self.books));
        // Locked until the books are published, so that no other loader begins in between.
        let mut loaders = stock.loaders.lock();
        let load = loaders.get_mut(&sku.no).filter(|last| last.token == self.token);
        let settled = load.ok_or_else(|| fenced(sku.no))?.settled.take();
        let old = stock.index.get(sku.no).ok();
        for (number, book) in (0..).zip(books.iter_mut()) {
            if stock.counting == Counting::InStock {
                book.set_available(sku.share(available, number));
            }
            book.load_change(self.change_no);
            book.set_phase(phase, epoch);
            // The replaced book may have advanced during the load.
            if let Some(replaced) = old.as_ref().and_then(|old| old.lock(BucketNo(number)).ok()) {
                let (phase, epoch) = replaced.phase_and_epoch();
                book.set_phase(phase, epoch);
            }
        }
        for order in settled.into_iter().flatten() {
            let home = BucketNo::home_of(order.buyer, sku.buckets);
            if let Some(book) = books.get_mut(usize::from(home.0)) {
                book.settle(&order);
            }
        }
        let left = match stock.counting {
            Counting::InStock => books.iter().map(Book::left).sum::<u64>(),
            Counting::InLedger => u64::from(available),
        };
        let sku_books = Arc::new(SkuBooks {
            books: books.into_iter().map(Mutex::new).collect(),
            left: AtomicI64::new(i64::try_from(left).unwrap_or(i64::MAX)),
            sku,
        });
        stock.index.change(|skus| drop(skus.insert(sku_books.sku.no, Arc::clone(&sku_books))));
        Ok(())
    }
}
