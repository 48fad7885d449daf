//! Ledger and stock of a tier, without actors and HTTP.

use std::sync::Arc;

use anyhow::Result;
use floodgate::config::{ConfigSources, Settings};
use floodgate::db::Ledger;
use floodgate::domain::SaleId;
use floodgate::runtime::clock;
use floodgate::services::audit;
use floodgate::stock::Stock;
use floodgate::tier;
use floodgate::tier::Backends;

/// The default settings with these changes.
pub fn settings(set: &[String]) -> Result<Settings> {
    Ok(Settings::load(&ConfigSources { set: set.to_vec(), ..ConfigSources::default() })?)
}

/// Limit of violations that are listed.
const VIOLATIONS_SHOWN: usize = 5;

pub struct Stores {
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
}

/// Opens ledger and stock of a tier, without actors and HTTP.
pub async fn open(settings: &Settings) -> Result<Stores, tier::Error> {
    let Backends { ledger, stock, .. } =
        tier::open(settings, &clock::SystemClock::shared()).await?;
    Ok(Stores { ledger, stock })
}

impl Stores {
    /// Audits the ledger of a sale, and its buckets if wanted. Returns the first violations, and
    /// the notes of an incomplete audit.
    pub async fn violations(&self, sale: &SaleId, with_stock: bool) -> Result<Vec<String>> {
        let stock = with_stock.then_some(self.stock.as_ref());
        let report =
            audit::audit(stock, self.ledger.as_ref(), Some(sale), clock::wall_ms()).await?;
        let shown = report.violations.iter().take(VIOLATIONS_SHOWN);
        let mut found: Vec<String> = shown.map(|violation| format!("{violation:?}")).collect();
        if with_stock && !report.could_tell {
            found.extend(report.notes);
        }
        Ok(found)
    }
}
