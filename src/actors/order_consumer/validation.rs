//! Validates the intents of a delivery against the catalog, before they reach the ledger. Pure.
//!
//! The ledger trusts the price, slot and quota of an intent, because a lookup for every row would
//! be too expensive. An intent that contradicts its sale is therefore rejected here.

use std::sync::Arc;

use bytes::Bytes;

use crate::broker::Delivery;
use crate::domain::{BucketNo, Epoch, OrderIntent, Sku, SkuNo};
use crate::messages::envelope;
use crate::messages::envelope::{EnvelopeFlaw, MalformedEnvelope};

/// The result of validating one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    /// The whole delivery is malformed.
    Poison(MalformedEnvelope),
    /// An intent has a SKU or an epoch that the catalog lacks: refresh the catalog and validate
    /// again.
    UnknownSku,
    /// The delivery's intents, at least one, each with its bytes.
    Parts { good: Vec<(Bytes, OrderIntent)>, poison: Vec<(Bytes, MalformedEnvelope)> },
}

/// Validates one delivery; `lookup` returns a SKU of the catalog and the latest epoch of its sale.
/// `is_fresh`: the catalog was read from the ledger after the delivery arrived, so that a SKU or
/// epoch it lacks does not exist.
pub fn validate(
    delivery: &Delivery,
    installation: &str,
    is_fresh: bool,
    lookup: impl Fn(SkuNo) -> Option<(Arc<Sku>, Epoch)>,
) -> Validation {
    let parts = match envelope::decode(&delivery.headers, &delivery.body, installation) {
        Ok(parts) => parts,
        Err(malformed) => return Validation::Poison(malformed),
    };
    let (mut good, mut poison) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let intent = match part.decoded {
            Ok(intent) => OrderIntent { published_at_ms: delivery.headers.sent_at_ms, ..intent },
            Err(malformed) => {
                poison.push((part.bytes, malformed));
                continue;
            }
        };
        let found = lookup(intent.sku);
        if !is_fresh && found.as_ref().is_none_or(|(_, epoch)| intent.epoch > *epoch) {
            return Validation::UnknownSku;
        }
        match check(&intent, found) {
            Ok(()) => good.push((part.bytes, intent)),
            Err(malformed) => poison.push((part.bytes, malformed)),
        }
    }
    Validation::Parts { good, poison }
}

/// Compares an intent with the one that the gate makes for its SKU.
fn check(intent: &OrderIntent, found: Option<(Arc<Sku>, Epoch)>) -> Result<(), MalformedEnvelope> {
    let Some((sku, latest)) = found else {
        return Err(MalformedEnvelope::new(
            EnvelopeFlaw::Sku,
            format!("no sale has sku {}", intent.sku),
        ));
    };
    let (max, quota) = (sku.policy.max_quantity(), sku.policy.quota());
    let home = BucketNo::home_of(intent.buyer, sku.buckets);
    let slot = sku.policy.slot(intent.request);
    let amount = sku.price.saturating_mul(i64::from(intent.quantity));
    let pay_by_ms = sku.pay_by_ms(intent.placed_at_ms);
    let what = if intent.quantity > max {
        format!("quantity {} is more than {max}", intent.quantity)
    } else if intent.epoch < Epoch(1) || intent.epoch > latest {
        format!("epoch {} is none of 1 to {}", intent.epoch.0, latest.0)
    } else if intent.bucket != home {
        format!("bucket {}, the buyer's is {home}", intent.bucket)
    } else if intent.slot != slot {
        format!("slot {}, the policy's is {slot}", intent.slot)
    } else if intent.quota != quota {
        format!("quota {:?}, the policy's is {quota:?}", intent.quota)
    } else if intent.amount != amount {
        format!("amount {}, price times quantity is {amount}", intent.amount)
    } else if intent.pay_by_ms != pay_by_ms {
        format!("payment by {}, the SKU says {pay_by_ms}", intent.pay_by_ms)
    } else {
        return Ok(());
    };
    Err(MalformedEnvelope::new(EnvelopeFlaw::Content, what))
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
