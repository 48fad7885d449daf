//! Loads books from the ledger; see [`Loading`].

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::super::{Error, Loading};
use super::{MemoryStock, SkuBooks};
use crate::domain::{
    Book, BucketNo, BuyerId, Counting, Epoch, Failure, Order, OrderIntent, Phase, Sku,
};

pub(super) struct MemoryLoader {
    stock: MemoryStock,
    sku: Arc<Sku>,
    books: Vec<Book>,
    queued: Vec<OrderIntent>,
    change_no: i32,
}

impl MemoryLoader {
    pub(super) fn begin(stock: &MemoryStock, sku: Arc<Sku>) -> Result<Self, Error> {
        if stock.index.get(sku.no).is_ok() {
            let reason = "a process loads the buckets in its memory once".to_owned();
            return Err(Error::Fenced { sku: sku.no, reason });
        }
        let book = |_| Book::new(Arc::clone(&sku), stock.counting);
        let books = (0..sku.buckets.max(1)).map(book).collect();
        Ok(Self { stock: stock.clone(), sku, books, queued: Vec::new(), change_no: 0 })
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut Book> {
        let home = BucketNo::home_of(buyer, self.sku.buckets);
        self.books.get_mut(usize::from(home.0))
    }
}

#[async_trait]
impl Loading for MemoryLoader {
    /// New books are empty.
    async fn clear(&mut self) -> Result<(), Error> {
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
        let Self { stock, sku, mut books, change_no, .. } = *self;
        for (number, book) in (0..).zip(books.iter_mut()) {
            if stock.counting == Counting::InStock {
                book.set_available(sku.share(available, number));
            }
            book.load_change(change_no);
            book.set_phase(phase, epoch);
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
