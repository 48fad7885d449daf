//! Sample values for unit tests. A test overrides the fields that matter to it:
//! `OrderIntent { quantity: 2, ..intent(1) }`.

#![cfg(test)]

use std::sync::Arc;

use super::{
    BucketNo, BuyerId, Currency, Epoch, OrderIntent, Phase, Policy, RequestId, Retention, Sale,
    Sku, SkuHistory, SkuNo, SlotReturns, TraceId,
};

/// An intent for one unit of [`sku`]; the buyer has the number of the request.
pub(crate) fn intent(request: u64) -> OrderIntent {
    OrderIntent {
        request: RequestId::new(request).unwrap(),
        sku: SkuNo(1),
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: BuyerId::new(request).unwrap(),
        quantity: 1,
        slot: 0,
        quota: None,
        amount: 100,
        placed_at_ms: 1_800_000_000_000,
        payment_window_s: 900,
        trace: TraceId(9),
        published_at_ms: None,
    }
}

/// A SKU with ten units and no limit per buyer.
pub(crate) fn sku() -> Sku {
    Sku {
        no: SkuNo(1),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 100,
        initial: 10,
        policy: Policy::Unlimited { max_quantity: 1 },
        buckets: 1,
        payment_window_s: 900,
        bar_lapsed: false,
        slot_returns: SlotReturns::default(),
        ends_max: 3,
        queue_timeout_s: 0,
        history: SkuHistory::default(),
    }
}

/// An open sale of [`sku`].
pub(crate) fn sale() -> Sale {
    Sale {
        no: 1,
        id: "sale".parse().unwrap(),
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: i64::MAX,
        closed_at_ms: None,
        phase: Phase::Open,
        epoch: Epoch(1),
        currency: Currency::default(),
        ticket_required: false,
        retention: Retention::default(),
        skus: vec![Arc::new(sku())],
    }
}
