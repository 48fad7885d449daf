//! Changes of a sale after its creation: its title, its end, and the terms of its SKUs.
//!
//! Other terms are another epoch. An intent carries its epoch and the terms of it, and is validated
//! by the terms of its own epoch, so that the intents on their way stay valid. An earlier end is
//! another epoch, too: its buckets refuse the requests of a process that does not know it.

use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::ids::{Epoch, SkuId};
use super::operator_verb::ByOperator;
use super::policy::{Policy, TermsSince};
use super::sale::{Phase, Sale, Sku, window_and_title_faults};

/// How far ahead an earlier end must lie, so that every bucket has its epoch before it comes: a
/// request that was accepted after the end would be one too many.
const END_AHEAD_MS: i64 = 2_000;

/// What an operator changes in a sale; `None`: stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaleChange {
    pub title: Option<String>,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: Option<i64>,
    pub skus: Vec<SkuChange>,
    /// Recorded with the change.
    pub by: Option<ByOperator>,
}

/// What changes in a SKU; a missing member stays. Other terms (all but the title) are in force for
/// new requests at once; orders and requests on their way keep theirs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SkuChangeBody)]
pub struct SkuChange {
    #[serde(rename = "sku_id")]
    #[schema(value_type = String)]
    pub id: SkuId,
    /// Shown to buyers.
    pub title: Option<String>,
    /// Price of one unit, in the currency's smallest unit.
    pub price: Option<i64>,
    /// Most units over all orders of a buyer; only of the policy `quota`. A smaller limit takes no
    /// order away.
    pub limit: Option<u32>,
    /// Most units in one order.
    pub max_quantity: Option<u32>,
    /// How long an order may stay unpaid, seconds; 0: for ever.
    pub payment_window_s: Option<i32>,
}

/// The result of a change of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaleChanged {
    Changed(Sale),
    /// No sale has this id.
    Unknown,
    /// The sale is closed.
    Closed,
    /// Every invalid part.
    Faults(Vec<String>),
}

impl Sale {
    /// The sale after a change at `now_ms`. Other terms, and an earlier end, of a sale that was
    /// opened increment the epoch.
    pub fn changed(&self, change: &SaleChange, now_ms: i64) -> SaleChanged {
        if self.phase == Phase::Closed {
            return SaleChanged::Closed;
        }
        let mut sale = self.clone();
        if let Some(title) = &change.title {
            sale.title.clone_from(title);
        }
        sale.ends_at_ms = change.ends_at_ms.unwrap_or(self.ends_at_ms);
        let mut faults = window_and_title_faults(&sale.title, sale.starts_at_ms, sale.ends_at_ms);
        let earliest_ms = now_ms.saturating_add(END_AHEAD_MS).min(self.ends_at_ms);
        if change.ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms < earliest_ms) {
            let fault = "an earlier ends_at must be 2 s ahead: close the sale to end it now";
            faults.push(fault.to_owned());
        }
        let next = Epoch(self.epoch.0 + 1);
        // A draft has no epoch, and no order under its terms.
        let has_epoch = self.epoch > Epoch(0);
        if has_epoch && sale.ends_at_ms < self.ends_at_ms {
            sale.epoch = next;
        }
        for (at, of_sku) in change.skus.iter().enumerate() {
            let id = &of_sku.id;
            if change.skus.iter().skip(at + 1).any(|other| other.id == *id) {
                faults.push(format!("sku_id {id} occurs twice"));
            }
            let Some(sku) = sale.skus.iter_mut().find(|sku| sku.id == *id).map(Arc::make_mut)
            else {
                faults.push(format!("sku {id}: the sale does not offer it"));
                continue;
            };
            let before = sku.terms();
            let found = sku.change(of_sku);
            faults.extend(found.into_iter().map(|fault| format!("sku {id}: {fault}")));
            let terms = sku.terms();
            if terms != before && has_epoch {
                if sku.history.terms.is_empty() {
                    let first = TermsSince { epoch: Epoch(0), since_ms: 0, terms: before };
                    sku.history.terms.push(first);
                }
                sku.history.terms.push(TermsSince { epoch: next, since_ms: now_ms, terms });
                sale.epoch = next;
            }
        }
        if faults.is_empty() { SaleChanged::Changed(sale) } else { SaleChanged::Faults(faults) }
    }
}

impl Sku {
    /// Changes the columns. Returns the faults.
    fn change(&mut self, change: &SkuChange) -> Vec<String> {
        let SkuChange { title, price, limit, max_quantity, payment_window_s, .. } = change;
        if let Some(title) = title {
            self.title.clone_from(title);
        }
        self.price = price.unwrap_or(self.price);
        self.payment_window_s = payment_window_s.unwrap_or(self.payment_window_s);
        let limit = limit.or(self.policy.quota());
        let max_quantity = max_quantity.unwrap_or(self.policy.max_quantity());
        match Policy::from_parts(self.policy.kind(), limit, Some(max_quantity)) {
            Ok(policy) => self.policy = policy,
            Err(fault) => return vec![fault],
        }
        self.faults()
    }
}

#[cfg(test)]
#[path = "sale_change_tests.rs"]
mod tests;
