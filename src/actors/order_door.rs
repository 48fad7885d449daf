//! The way to the order consumer: permits and its present address.

use tokio::sync::oneshot;

use super::child::Address;
use super::order_consumer::OrderConsumer;
use super::permits::Permits;
use crate::domain::{OrderIntent, Outcome};
use crate::messages::{PlaceOrders, Settlement};

/// Submits intents. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OrderDoor {
    /// Intents inside the consumer at once.
    pub permits: Permits,
    /// Where the consumer is now.
    pub address: Address<OrderConsumer>,
}

impl OrderDoor {
    /// One submission. `None`: nobody knows what became of it.
    pub async fn place(&self, intents: Vec<OrderIntent>) -> Option<Vec<Outcome>> {
        let permit = self.permits.take(intents.len()).await?;
        let consumer = self.address.wait_up().await;
        let expected = intents.len();
        let (reply, outcomes) = oneshot::channel();
        let settlement = Settlement::Reply(reply);
        consumer.try_send(PlaceOrders { intents, settlement, permit }).ok()?;
        outcomes.await.ok().filter(|outcomes| outcomes.len() == expected)
    }
}
