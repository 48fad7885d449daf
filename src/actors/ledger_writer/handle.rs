//! The way to the order consumer: permits and its present address.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::actors::ledger_writer::LedgerWriter;
use crate::actors::supervisor::supervised::Address;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::{PlaceOrders, Settlement, WriteResult, WriterExited};
use crate::runtime::permits::Permits;

/// Submits intents. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LedgerWriterHandle {
    /// Intents inside the consumer at once.
    pub permits: Permits,
    /// Where the consumer is now.
    pub address: Address<LedgerWriter>,
}

impl LedgerWriterHandle {
    /// One submission: one outcome per intent, in order. `None`: nobody knows what became of it.
    pub async fn place(&self, intents: Vec<OrderIntent>) -> Vec<Option<PlaceOutcome>> {
        let expected = intents.len();
        let (reply, outcomes) = oneshot::channel();
        let told = match self.submit(intents, false, Settlement::Reply(reply)).await {
            Some(()) => outcomes.await.ok().filter(|outcomes| outcomes.len() == expected),
            None => None,
        };
        told.unwrap_or_else(|| vec![None; expected])
    }

    /// One submission, answered at COMMIT with what each intent came to.
    ///
    /// # Errors
    /// The consumer died; every intent may have been written then.
    pub async fn land(
        &self,
        intents: Vec<OrderIntent>,
        exclusive: bool,
    ) -> Result<Vec<WriteResult>, WriterExited> {
        let expected = intents.len();
        let (to, written) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let settlement = Settlement::Account { to, begun: Arc::clone(&begun) };
        let landed = match self.submit(intents, exclusive, settlement).await {
            Some(()) => written.await.ok().filter(|written| written.len() == expected),
            None => None,
        };
        let died =
            if begun.load(Ordering::Acquire) { WriterExited::OverIt } else { WriterExited::Before };
        landed.ok_or(died)
    }

    async fn submit(
        &self,
        intents: Vec<OrderIntent>,
        exclusive: bool,
        settlement: Settlement,
    ) -> Option<()> {
        let permit = self.permits.take(intents.len()).await?;
        let consumer = self.address.wait_up().await;
        consumer.try_send(PlaceOrders { intents, exclusive, settlement, permit }).ok()
    }
}
