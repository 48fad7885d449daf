//! The sales as buyers see them: a read model in memory, replaced as a whole.
//!
//! Written by whoever opens, pauses or closes a sale, after the ledger has it, and by whoever reads
//! the ledger; read by every request without a lock.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::domain::{Epoch, Phase, Sale, SaleId, Sku, SkuNo};

/// A sale with shared SKUs.
#[derive(Debug, Clone)]
pub struct CatalogSale {
    /// The sale.
    pub sale: Sale,
    /// Its SKUs, shared with the gates.
    pub skus: Vec<Arc<Sku>>,
}

impl CatalogSale {
    /// The SKU with this public name.
    #[must_use]
    pub fn sku(&self, id: &str) -> Option<&Arc<Sku>> {
        self.skus.iter().find(|sku| sku.id.as_str() == id)
    }

    /// How far the sale has come.
    fn pair(&self) -> (Epoch, Phase) {
        (self.sale.epoch, self.sale.phase)
    }
}

#[derive(Debug, Default)]
struct CatalogIndex {
    by_id: HashMap<SaleId, Arc<CatalogSale>>,
    by_sku: HashMap<SkuNo, Arc<CatalogSale>>,
    in_order: Vec<Arc<CatalogSale>>,
}

/// All sales of this installation.
#[derive(Debug, Default)]
pub struct Catalog {
    pages: ArcSwap<CatalogIndex>,
}

impl Catalog {
    /// The sale with this public name.
    #[must_use]
    pub fn sale(&self, id: &str) -> Option<Arc<CatalogSale>> {
        self.pages.load().by_id.get(id).cloned()
    }

    /// The sale that a SKU belongs to, and the SKU.
    #[must_use]
    pub fn of_sku(&self, no: SkuNo) -> Option<(Arc<CatalogSale>, Arc<Sku>)> {
        let listed = self.pages.load().by_sku.get(&no).cloned()?;
        let sku = listed.skus.iter().find(|sku| sku.no == no).cloned()?;
        Some((listed, sku))
    }

    /// All sales, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<CatalogSale>> {
        self.pages.load().in_order.clone()
    }

    /// Enters a sale or replaces the one with the same number, unless that one is further on: of
    /// two readings of the ledger the earlier one may come later.
    pub fn put(&self, sale: &Sale) {
        let listed = Arc::new(CatalogSale {
            sale: sale.clone(),
            skus: sale.skus.iter().cloned().map(Arc::new).collect(),
        });
        self.pages.rcu(|old| {
            let mut in_order = old.in_order.clone();
            match in_order.iter_mut().find(|page| page.sale.no == sale.no) {
                Some(page) if page.pair() > listed.pair() => return Arc::clone(old),
                Some(page) => *page = Arc::clone(&listed),
                None => in_order.push(Arc::clone(&listed)),
            }
            Arc::new(CatalogIndex {
                by_id: in_order
                    .iter()
                    .map(|page| (page.sale.id.clone(), Arc::clone(page)))
                    .collect(),
                by_sku: in_order
                    .iter()
                    .flat_map(|page| page.skus.iter().map(|sku| (sku.no, Arc::clone(page))))
                    .collect(),
                in_order,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::samples;

    fn sale(epoch: i64, phase: Phase) -> Sale {
        Sale {
            no: 1,
            id: "sale".parse().unwrap(),
            title: "Sale".to_owned(),
            starts_at_ms: 0,
            ends_at_ms: 1,
            phase,
            epoch: Epoch(epoch),
            skus: vec![samples::sku()],
        }
    }

    #[test]
    fn a_late_reading_of_the_ledger_takes_nothing_back() {
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
                assert_eq!(catalog.sale("sale").unwrap().sale, *step);
                assert_eq!(catalog.of_sku(samples::sku().no).unwrap().0.sale, *step);
            }
        }
    }
}
