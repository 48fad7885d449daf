//! Which intents of a delivery may be put to the ledger, and what is wrong with the others. Pure.
//!
//! The ledger believes what an intent says of price, slot and quota, because it must not look them
//! up for every row. So nothing reaches it that the sale does not say, too.

use std::sync::Arc;

use bytes::Bytes;

use crate::broker::Delivery;
use crate::domain::{BucketNo, Epoch, OrderIntent, Sku, SkuNo};
use crate::messages::envelope;
use crate::messages::envelope::{EnvelopeFlaw, MalformedEnvelope};

/// What a delivery came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    /// Nothing of it can be used.
    Poison(MalformedEnvelope),
    /// It names a SKU or an opening that is not known here: the ledger must be asked first.
    Stranger,
    /// Intent by intent; at least one.
    Parts {
        /// What may be put to the ledger, with its bytes.
        good: Vec<(Bytes, OrderIntent)>,
        /// What may not.
        poison: Vec<(Bytes, MalformedEnvelope)>,
    },
}

/// What is known of a SKU: itself, and the latest opening of its sale.
pub type KnownSku = (Arc<Sku>, Epoch);

/// Judges one delivery by what `known` tells of a SKU. `is_fresh`: this was read from the ledger
/// after the delivery came, so that what it does not tell does not exist.
pub fn judge(
    delivery: &Delivery,
    installation: &str,
    is_fresh: bool,
    known: impl Fn(SkuNo) -> Option<KnownSku>,
) -> Validation {
    let parts = match envelope::open(&delivery.headers, &delivery.body, installation) {
        Ok(parts) => parts,
        Err(malformed) => return Validation::Poison(malformed),
    };
    let (mut good, mut poison) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let intent = match part.read {
            Ok(intent) => OrderIntent { published_at_ms: delivery.headers.sent_at_ms, ..intent },
            Err(malformed) => {
                poison.push((part.bytes, malformed));
                continue;
            }
        };
        let found = known(intent.sku);
        if !is_fresh && found.as_ref().is_none_or(|(_, epoch)| intent.epoch > *epoch) {
            return Validation::Stranger;
        }
        match check(&intent, found) {
            Ok(()) => good.push((part.bytes, intent)),
            Err(malformed) => poison.push((part.bytes, malformed)),
        }
    }
    Validation::Parts { good, poison }
}

/// Compares an intent with what its SKU makes of a reservation.
fn check(intent: &OrderIntent, known: Option<KnownSku>) -> Result<(), MalformedEnvelope> {
    let Some((sku, latest)) = known else {
        return Err(MalformedEnvelope::new(
            EnvelopeFlaw::Sku,
            format!("no sale has sku {}", intent.sku),
        ));
    };
    let wrong = |what: String| Err(MalformedEnvelope::new(EnvelopeFlaw::Content, what));
    let most = sku.policy.max_quantity();
    if intent.quantity > most {
        return wrong(format!("quantity {} is more than {most}", intent.quantity));
    }
    if intent.epoch < Epoch(1) || intent.epoch > latest {
        return wrong(format!("epoch {} is none of 1 to {}", intent.epoch.0, latest.0));
    }
    let home = BucketNo::home_of(intent.buyer, sku.buckets);
    if intent.bucket != home {
        return wrong(format!("bucket {}, the buyer's is {home}", intent.bucket));
    }
    let slot = sku.policy.slot(intent.request);
    if intent.slot != slot {
        return wrong(format!("slot {}, the policy's is {slot}", intent.slot));
    }
    if intent.quota != sku.policy.quota() {
        let (said, right) = (intent.quota, sku.policy.quota());
        return wrong(format!("quota {said:?}, the policy's is {right:?}"));
    }
    let amount = sku.price.saturating_mul(i64::from(intent.quantity));
    if intent.amount != amount {
        return wrong(format!("amount {}, price times quantity is {amount}", intent.amount));
    }
    let pay_by_ms = sku.pay_by_ms(intent.placed_at_ms);
    if intent.pay_by_ms != pay_by_ms {
        return wrong(format!("payment by {}, the SKU says {pay_by_ms}", intent.pay_by_ms));
    }
    Ok(())
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
