//! A ledger that fails for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use floodgate::db::{
    Anomalies, AnomaliesOverAll, AuditRow, BlindInsert, Error, ErrorClass, Ledger, LedgerSize,
    OrderCursor, Visitor,
};
use floodgate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, KeepOutcome, NewDeadLetter, Order,
    OrderIntent, OrderTimeline, Phase, RequestId, Sale, SaleDraft, SaleId, SkuNo,
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It cannot be reached; nothing is written.
    Down,
    /// It answers when the fault is over.
    Frozen,
    /// It writes, and its answer is lost.
    Mute,
    /// It writes, its answer is lost, and it is down from then on.
    MuteThenDown,
    /// It never says what became of this one request.
    NeverSays(RequestId),
    /// It refuses every batch with this request, with an error that explains nothing.
    Refuses(RequestId),
    /// It can be read, and refuses every write with an error of this class.
    RefusesAll(ErrorClass),
    /// Whoever brings this request panics.
    Kills(RequestId),
    /// It takes orders, and no refusals.
    RecordsNothing,
    /// It writes what holds this request, and whoever brought it panics.
    WritesAndKills(RequestId),
    /// It refuses every dead letter with this request, as a table that was changed by hand would.
    RefusesLetter(RequestId),
}

/// A ledger in front of another, with a switch.
pub struct FaultyLedger {
    inner: Arc<dyn Ledger>,
    fault: watch::Sender<Fault>,
    batches: Mutex<Vec<Vec<u64>>>,
    num_refused: AtomicUsize,
}

impl FaultyLedger {
    pub fn new(inner: Arc<dyn Ledger>) -> Self {
        Self {
            inner,
            fault: watch::Sender::new(Fault::None),
            batches: Mutex::default(),
            num_refused: AtomicUsize::new(0),
        }
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// The requests of every batch that was brought here.
    pub fn batches(&self) -> Vec<Vec<u64>> {
        self.batches.lock().clone()
    }

    /// How many calls came while it could not be reached.
    pub fn num_refused(&self) -> usize {
        self.num_refused.load(Ordering::SeqCst)
    }

    /// Before a call.
    async fn begin(&self) -> Result<(), Error> {
        let mut fault = self.fault.subscribe();
        drop(fault.wait_for(|fault| *fault != Fault::Frozen).await);
        let fault = *fault.borrow();
        if fault == Fault::Down { Err(self.away()) } else { Ok(()) }
    }

    fn away(&self) -> Error {
        self.num_refused.fetch_add(1, Ordering::SeqCst);
        Error::NoConnection { reason: "it is down on purpose".to_owned() }
    }

    /// Before a call that writes.
    async fn begin_write(&self) -> Result<(), Error> {
        self.begin().await?;
        let Fault::RefusesAll(class) = *self.fault.borrow() else { return Ok(()) };
        self.num_refused.fetch_add(1, Ordering::SeqCst);
        Err(match class {
            ErrorClass::Retry => Error::Full,
            ErrorClass::Down => Error::NoConnection { reason: "no write, on purpose".to_owned() },
            ErrorClass::Unknown => Error::TimedOut { doing: "anything" },
            ErrorClass::Bug => Error::Unstorable { what: "anything, on purpose".to_owned() },
        })
    }

    /// After a call that wrote.
    fn end(&self, doing: &'static str) -> Result<(), Error> {
        let fault = *self.fault.borrow();
        match fault {
            Fault::Mute => Err(Error::TimedOut { doing }),
            Fault::MuteThenDown => {
                self.set(Fault::Down);
                Err(Error::TimedOut { doing })
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Ledger for FaultyLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<BlindInsert, Error> {
        self.begin_write().await?;
        let fault = *self.fault.borrow();
        self.batches.lock().push(batch.iter().map(|intent| intent.request.get()).collect());
        let holds = |request| batch.iter().any(|intent| intent.request == request);
        match fault {
            Fault::NeverSays(request) if holds(request) => {
                return Err(Error::TimedOut { doing: "place" });
            }
            Fault::Refuses(request) if holds(request) => {
                return Err(Error::Unstorable { what: "an order, on purpose".to_owned() });
            }
            Fault::Kills(request) if holds(request) => panic!("this order kills, on purpose"),
            _ => {}
        }
        let dies = matches!(fault, Fault::WritesAndKills(request) if holds(request));
        let placing = self.inner.place(batch).await?;
        assert!(!dies, "the answer kills, on purpose");
        self.end("place").map(|()| placing)
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        self.begin().await?;
        let seen = self.inner.examine(batch).await?;
        self.end("examine").map(|()| seen)
    }

    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error> {
        self.begin_write().await?;
        if *self.fault.borrow() == Fault::RecordsNothing {
            return Err(self.away());
        }
        self.inner.record_failures(failures).await?;
        self.end("record failures")
    }

    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        self.inner.create_sale(draft, now_ms).await
    }

    async fn turn_sale(
        &self,
        id: SaleId,
        epoch: Epoch,
        to: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        self.inner.turn_sale(id, epoch, to, now_ms).await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.begin().await?;
        self.inner.sales().await
    }

    async fn tally(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        self.begin().await?;
        self.inner.tally(sku).await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.begin().await?;
        self.inner.available(sku).await
    }

    async fn scan_orders(&self, sku: SkuNo, visit: Visitor<Order>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_orders(sku, visit).await
    }

    async fn scan_failures(&self, sku: SkuNo, visit: Visitor<Failure>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_failures(sku, visit).await
    }

    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_audit(sku, visit).await
    }

    async fn journey(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        self.begin().await?;
        self.inner.journey(request).await
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        self.begin().await?;
        self.inner.failure(request).await
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        self.begin().await?;
        self.inner.orders_of(buyer, cursor, limit).await
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error> {
        self.begin().await?;
        self.inner.anomalies(sku).await
    }

    async fn anomalies_over_all(&self) -> Result<AnomaliesOverAll, Error> {
        self.begin().await?;
        self.inner.anomalies_over_all().await
    }

    async fn keep_dead_letters(
        &self,
        letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<KeepOutcome>, Error> {
        self.begin_write().await?;
        if let Fault::RefusesLetter(request) = *self.fault.borrow()
            && letters.iter().any(|letter| letter.requests.contains(&request))
        {
            return Err(Error::Unstorable { what: "a letter, on purpose".to_owned() });
        }
        let kept = self.inner.keep_dead_letters(letters, now_ms).await?;
        self.end("keep dead letters").map(|()| kept)
    }

    async fn dead_letters(
        &self,
        of: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.begin().await?;
        self.inner.dead_letters(of, limit).await
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        self.begin().await?;
        self.inner.dead_letter(no).await
    }

    async fn turn_dead_letter(&self, turn: DeadLetterTransition) -> Result<bool, Error> {
        self.begin_write().await?;
        let turned = self.inner.turn_dead_letter(turn).await?;
        self.end("turn a dead letter").map(|()| turned)
    }

    async fn ending_letters(
        &self,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        self.begin().await?;
        self.inner.ending_letters(after, limit).await
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        self.begin().await?;
        self.inner.count_dead_letters().await
    }

    async fn dead_among(&self, requests: Vec<RequestId>) -> Result<Vec<RequestId>, Error> {
        self.begin().await?;
        self.inner.dead_among(requests).await
    }

    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        self.begin().await?;
        self.inner.secret(name).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.begin_write().await?;
        self.inner.next_token(name).await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.begin().await?;
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
