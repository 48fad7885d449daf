//! Catalog of all sales: an in-memory read model of the ledger, replaced as a whole.
//!
//! The sales service writes it, after each phase change that the ledger has committed and after
//! each read of the ledger's sales. Every HTTP request reads it without a lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::RwLock;

use crate::domain::{BuyerId, Phase, Sale, SaleId, Sku, SkuNo};

#[derive(Debug, Default)]
struct CatalogIndex {
    by_id: HashMap<SaleId, Arc<Sale>>,
    by_sku: HashMap<SkuNo, Arc<Sale>>,
    in_order: Vec<Arc<Sale>>,
}

/// The buyers who may not order a SKU any more, and when they were last read.
#[derive(Debug, Default)]
struct BarredBuyers {
    buyers: HashSet<BuyerId>,
    read_at_ms: i64,
}

/// All sales of this installation.
#[derive(Debug, Default)]
pub struct Catalog {
    index: ArcSwap<CatalogIndex>,
    barred: RwLock<HashMap<SkuNo, BarredBuyers>>,
}

impl Catalog {
    /// The sale with this public name.
    pub fn sale(&self, id: &str) -> Option<Arc<Sale>> {
        self.index.load().by_id.get(id).cloned()
    }

    /// The sale with this public name, as buyers know it: they do not know drafts.
    pub fn announced(&self, id: &str) -> Option<Arc<Sale>> {
        self.sale(id).filter(|sale| sale.phase != Phase::Draft)
    }

    /// The sale with this public name, if its page is shown.
    pub fn public(&self, id: &str, now_ms: i64) -> Option<Arc<Sale>> {
        self.sale(id).filter(|sale| sale.is_public(now_ms))
    }

    /// The sales whose pages are shown, oldest first.
    pub fn all_public(&self, now_ms: i64) -> Vec<Arc<Sale>> {
        let mut sales = self.all();
        sales.retain(|sale| sale.is_public(now_ms));
        sales
    }

    /// The sale that a SKU belongs to, and the SKU.
    pub fn of_sku(&self, no: SkuNo) -> Option<(Arc<Sale>, Arc<Sku>)> {
        let sale = self.index.load().by_sku.get(&no).cloned()?;
        let sku = sale.skus.iter().find(|sku| sku.no == no).cloned()?;
        Some((sale, sku))
    }

    /// The sale with this number.
    pub fn of_no(&self, no: i32) -> Option<Arc<Sale>> {
        self.index.load().in_order.iter().find(|sale| sale.no == no).cloned()
    }

    /// All sales, oldest first.
    pub fn all(&self) -> Vec<Arc<Sale>> {
        self.index.load().in_order.clone()
    }

    /// Whether the buyer may not order this SKU any more. The ledger may bar more buyers.
    pub fn is_barred(&self, sku: SkuNo, buyer: BuyerId) -> bool {
        self.barred.read().get(&sku).is_some_and(|barred| barred.buyers.contains(&buyer))
    }

    /// The time of the last [`Self::bar`] of a SKU; 0 without one.
    pub fn bars_read_at_ms(&self, sku: SkuNo) -> i64 {
        self.barred.read().get(&sku).map_or(0, |barred| barred.read_at_ms)
    }

    /// Bars more buyers from a SKU, who were read at this time.
    pub fn bar(&self, sku: SkuNo, buyers: Vec<BuyerId>, read_at_ms: i64) {
        let mut barred = self.barred.write();
        let barred = barred.entry(sku).or_default();
        barred.buyers.extend(buyers);
        barred.read_at_ms = read_at_ms;
    }

    /// Inserts the sale or replaces the entry with its number. An older epoch or phase than the
    /// entry's is ignored: a change of phase and a read of the ledger may arrive out of order.
    pub fn put(&self, sale: &Sale) {
        if sale.retention.is_purged() {
            self.barred.write().retain(|no, _| sale.skus.iter().all(|sku| sku.no != *no));
        }
        let new = Arc::new(sale.clone());
        // Epoch and phase only grow, and a purge has no way back.
        let version = |sale: &Sale| (sale.epoch, sale.phase, sale.retention.is_purged());
        self.index.rcu(|old| {
            let mut in_order = old.in_order.clone();
            let at = in_order.partition_point(|entry| entry.no < sale.no);
            match in_order.get_mut(at).filter(|entry| entry.no == sale.no) {
                Some(entry) if version(entry) > version(sale) => return Arc::clone(old),
                Some(entry) => *entry = Arc::clone(&new),
                // Another process may have created an older sale that is read only now.
                None => in_order.insert(at, Arc::clone(&new)),
            }
            Arc::new(CatalogIndex {
                by_id: in_order.iter().map(|entry| (entry.id.clone(), Arc::clone(entry))).collect(),
                by_sku: in_order
                    .iter()
                    .flat_map(|entry| entry.skus.iter().map(|sku| (sku.no, Arc::clone(entry))))
                    .collect(),
                in_order,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Epoch, samples};

    fn sale(epoch: i64, phase: Phase) -> Sale {
        Sale { epoch: Epoch(epoch), phase, ..samples::sale() }
    }

    #[test]
    fn sales_are_listed_oldest_first_in_whichever_order_they_are_read() {
        let catalog = Catalog::default();
        for no in [2, 3, 1] {
            let id = format!("sale-{no}").parse().unwrap();
            catalog.put(&Sale { no, id, ..sale(0, Phase::Draft) });
        }
        let listed: Vec<i32> = catalog.all().iter().map(|entry| entry.no).collect();
        assert_eq!(listed, [1, 2, 3]);
    }

    #[test]
    fn a_closed_sale_is_shown_for_a_day_after_its_closing_or_its_window() {
        const DAY_MS: i64 = 86_400_000;
        let closed = Sale { ends_at_ms: 10 * DAY_MS, ..sale(1, Phase::Closed) };
        for (closed_at_ms, until_ms) in [(5, DAY_MS + 5), (20 * DAY_MS, 11 * DAY_MS)] {
            let catalog = Catalog::default();
            catalog.put(&Sale { closed_at_ms: Some(closed_at_ms), ..closed.clone() });
            let is_shown = |now_ms| {
                let listed = catalog.all_public(now_ms).len();
                assert_eq!(catalog.public("sale", now_ms).is_some(), listed == 1);
                listed == 1
            };
            assert!(is_shown(until_ms) && !is_shown(until_ms + 1), "closed at {closed_at_ms}");
        }
        let dormant = [11 * DAY_MS, 11 * DAY_MS + 1].map(|now_ms| closed.is_dormant(now_ms));
        assert_eq!(dormant, [false, true], "a day after the window");
    }

    #[test]
    fn an_older_version_does_not_replace_a_newer_one() {
        let steps = [
            sale(0, Phase::Draft),
            sale(1, Phase::Open),
            sale(1, Phase::Paused),
            sale(2, Phase::Open),
            sale(2, Phase::Paused),
            sale(2, Phase::Closed),
        ];
        for pair in steps.windows(2) {
            assert!(pair[0].phase.may_become(pair[1].phase));
        }
        let catalog = Catalog::default();
        for (at, step) in steps.iter().enumerate() {
            catalog.put(step);
            for earlier in &steps[..=at] {
                catalog.put(earlier);
                assert_eq!(catalog.all().len(), 1);
                assert_eq!(*catalog.sale("sale").unwrap(), *step);
                assert_eq!(*catalog.of_sku(samples::sku().no).unwrap().0, *step);
            }
        }
    }
}
