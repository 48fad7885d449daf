//! Submits intents to the ledger writer: takes permits, finds the present address, awaits the
//! outcomes.

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
    /// Bound the intents inside the ledger writer.
    pub permits: Permits,
    pub address: Address<LedgerWriter>,
}

impl LedgerWriterHandle {
    /// Submits for a gate, answered when the results are written to the stock. Returns one outcome
    /// per intent, in order; `None`: the outcome is unknown.
    pub async fn place(&self, intents: Vec<OrderIntent>) -> Vec<Option<PlaceOutcome>> {
        let expected = intents.len();
        let (reply, outcomes) = oneshot::channel();
        let outcomes = match self.submit(intents, false, Settlement::Reply(reply)).await {
            Some(()) => outcomes.await.ok().filter(|outcomes| outcomes.len() == expected),
            None => None,
        };
        outcomes.unwrap_or_else(|| vec![None; expected])
    }

    /// Submits for an order consumer, answered at COMMIT. Returns one result per intent, in order.
    ///
    /// # Errors
    /// The ledger writer exited before it answered; every intent may have been written.
    pub async fn write(
        &self,
        intents: Vec<OrderIntent>,
        exclusive: bool,
    ) -> Result<Vec<WriteResult>, WriterExited> {
        let expected = intents.len();
        let (to, written) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let settlement = Settlement::AtCommit { to, begun: Arc::clone(&begun) };
        let written = match self.submit(intents, exclusive, settlement).await {
            Some(()) => written.await.ok().filter(|written| written.len() == expected),
            None => None,
        };
        let exited = if begun.load(Ordering::Acquire) {
            WriterExited::DuringWrite
        } else {
            WriterExited::BeforeWrite
        };
        written.ok_or(exited)
    }

    async fn submit(
        &self,
        intents: Vec<OrderIntent>,
        exclusive: bool,
        settlement: Settlement,
    ) -> Option<()> {
        let permit = self.permits.take(intents.len()).await?;
        let writer = self.address.wait_up().await;
        writer.try_send(PlaceOrders { intents, exclusive, settlement, permit }).ok()
    }
}
