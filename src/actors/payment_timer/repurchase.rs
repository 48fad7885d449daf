//! The purchases of late money at the gates of this process: as a buyer's, with the same checks.

use std::sync::Arc;

use async_trait::async_trait;

use super::retaker::{Purchase, Repurchase};
use crate::actors::stock_gate::GateHandle;
use crate::domain::{BuyerId, Order, Refusal, RequestId, SaleId, SkuNo};
use crate::messages::BuyAnswer;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::stock::Stock;

/// The request with which a buyer buys again after the order of a request has ended.
pub type NextRequest = Arc<dyn Fn(RequestId, &SaleId, SkuNo, BuyerId) -> RequestId + Send + Sync>;

/// Buys at the gates of this process.
pub struct GateRepurchase {
    pub gates: GateHandle,
    pub catalog: Arc<Catalog>,
    pub stock: Arc<dyn Stock>,
    pub next: NextRequest,
    pub clock: SharedClock,
}

#[async_trait]
impl Repurchase for GateRepurchase {
    fn successor(&self, order: &Order) -> Option<RequestId> {
        let (sale, sku) = self.catalog.of_sku(order.sku)?;
        Some((self.next)(order.request, &sale.id, sku.no, order.buyer))
    }

    async fn buy(&self, order: &Order, successor: RequestId) -> Purchase {
        let Some((sale, sku)) = self.catalog.of_sku(order.sku) else {
            return Purchase::NotAccepted;
        };
        match self.gates.record(&sku, successor, order.buyer).await {
            Ok(Some(record)) => return purchase(BuyAnswer::repeat(record)),
            Ok(None) => {}
            Err(_) => return Purchase::NotAccepted,
        }
        let (buyer, quantity, now_ms) = (order.buyer, order.quantity, self.clock.wall_ms());
        let intent = sku.intent(successor, buyer, sale.epoch, quantity, now_ms);
        if intent.amount != order.amount {
            return Purchase::Refused("the price has changed".to_owned());
        }
        if quantity > sku.policy.max_quantity() {
            return Purchase::Refused("fewer units are sold at once now".to_owned());
        }
        // The units and the limit that the ended order has returned to the ledger.
        if self.stock.settle(vec![(intent.bucket, *order)]).await.is_err() {
            return Purchase::NotAccepted;
        }
        match self.gates.refuse(&sale, &intent, now_ms).await {
            // What this process knows of the stock may be older than the unit that has returned;
            // of a bar it does not know which request is exempt. Gate and ledger decide.
            Ok(None | Some(Refusal::SoldOut | Refusal::Barred)) => {}
            Ok(Some(refusal)) => return purchase(BuyAnswer::refused(refusal)),
            Err(_) => return Purchase::NotAccepted,
        }
        purchase(self.gates.buy(intent).await)
    }
}

fn purchase(answer: BuyAnswer) -> Purchase {
    match answer {
        BuyAnswer::Queued { .. } => Purchase::Queued,
        BuyAnswer::Ordered { .. } => Purchase::Placed,
        // Paused: it may open again.
        BuyAnswer::Refused { refusal: Refusal::NotStarted, .. } => Purchase::NotAccepted,
        BuyAnswer::Refused { refusal, .. } => Purchase::Refused(refusal.code().to_owned()),
        BuyAnswer::Unknown | BuyAnswer::Busy => Purchase::NotAccepted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_sale_is_waited_for_and_other_refusals_are_final() {
        let refused = |refusal| purchase(BuyAnswer::refused(refusal));
        assert_eq!(refused(Refusal::NotStarted), Purchase::NotAccepted);
        for refusal in [Refusal::SoldOut, Refusal::Ended, Refusal::Barred] {
            assert_eq!(refused(refusal), Purchase::Refused(refusal.code().to_owned()));
        }
        assert_eq!(purchase(BuyAnswer::Queued { replayed: false }), Purchase::Queued);
    }
}
