//! Submits intents to the ledger writer: takes permits, finds the present address, awaits the
//! outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::actors::ledger_writer::LedgerWriter;
use crate::actors::supervisor::supervised::Address;
use crate::db::ErrorClass;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::{NoOutcome, PlaceOrders, WriteError, WriteResult};
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
    /// per intent, in order: `Unavailable` if it was certainly not written; `None`: unknown.
    pub async fn place(&self, intents: Vec<OrderIntent>) -> Vec<Option<PlaceOutcome>> {
        let certain_outcome = |written: WriteResult| match written.map_err(|error| error.cause) {
            Ok(outcome) => Some(outcome),
            Err(NoOutcome::Ledger(class)) if class != ErrorClass::Unknown => {
                Some(PlaceOutcome::Unavailable)
            }
            Err(_) => None,
        };
        let written = self.submit(intents, false, false).await;
        written.into_iter().map(certain_outcome).collect()
    }

    /// Submits for an order consumer, answered at COMMIT. Returns one result per intent, in order.
    pub async fn write(&self, intents: Vec<OrderIntent>, exclusive: bool) -> Vec<WriteResult> {
        self.submit(intents, exclusive, true).await
    }

    async fn submit(
        &self,
        intents: Vec<OrderIntent>,
        exclusive: bool,
        at_commit: bool,
    ) -> Vec<WriteResult> {
        let expected = intents.len();
        let (reply, written) = oneshot::channel();
        let begun = Arc::<AtomicBool>::default();
        let sent = async {
            let permit = self.permits.take(expected).await?;
            let writer = self.address.wait_up().await;
            let begun = Arc::clone(&begun);
            let orders = PlaceOrders { intents, exclusive, at_commit, reply, begun, permit };
            writer.try_send(orders).ok()
        };
        let written = match sent.await {
            Some(()) => written.await.ok().filter(|written| written.len() == expected),
            None => None,
        };
        written.unwrap_or_else(|| {
            let is_begun = begun.load(Ordering::Acquire);
            let (cause, text) = if is_begun {
                (NoOutcome::Crashed, "the ledger writer crashed while writing it")
            } else {
                (NoOutcome::NotTried, "the ledger writer crashed before it began")
            };
            vec![Err(WriteError { cause, text: text.into() }); expected]
        })
    }
}
