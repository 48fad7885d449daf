//! The way to the order consumer: permits, its present address, and what to do about a doubt.

use tokio::sync::oneshot;

use super::child::Address;
use super::order_consumer::OrderConsumer;
use super::permits::Permits;
use crate::backoff::Backoff;
use crate::domain::{OrderIntent, Outcome};
use crate::messages::{PlaceOrders, Settlement};

/// Submits intents. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OrderDoor {
    /// Intents inside the consumer at once.
    pub permits: Permits,
    /// Where the consumer is now.
    pub address: Address<OrderConsumer>,
    /// First wait before a doubtful submission is put again, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest such wait, milliseconds.
    pub backoff_max_ms: u64,
}

impl OrderDoor {
    /// Brings every intent to an outcome. A submission whose outcome is unknown is put again with
    /// the same request ids until it is known: giving units back on a doubt could sell them twice.
    /// The waiting ends with the process when the consumer's restart budget is used up; until then
    /// the intents stand as unsettled in the stock.
    pub async fn place_until_known(&self, intents: Vec<OrderIntent>) -> Vec<Outcome> {
        let mut backoff = Backoff::new(self.backoff_min_ms, self.backoff_max_ms);
        loop {
            if let Some(outcomes) = self.place(intents.clone()).await {
                return outcomes;
            }
            tracing::warn!(
                intents = intents.len(),
                attempt = backoff.failures() + 1,
                "outcome unknown, asking the ledger again with the same request ids"
            );
            tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
        }
    }

    /// One submission. `None`: nobody knows what became of it.
    async fn place(&self, intents: Vec<OrderIntent>) -> Option<Vec<Outcome>> {
        let permit = self.permits.take(intents.len()).await?;
        let consumer = self.address.wait_up().await;
        let expected = intents.len();
        let (reply, outcomes) = oneshot::channel();
        let settlement = Settlement::Reply(reply);
        consumer.try_send(PlaceOrders { intents, settlement, permit }).ok()?;
        outcomes.await.ok().filter(|outcomes| outcomes.len() == expected)
    }
}
