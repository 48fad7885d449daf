//! What the checks of Redis and RabbitMQ compare with: the installation and sales of the ledger.

use super::Check;
use crate::config::Settings;
use crate::domain::{Epoch, Phase, Sale};
use crate::{db, tier};

/// Facts about a ledger that exists.
#[derive(Debug, Default)]
pub(super) struct LedgerFacts {
    /// The id that the ledger writes into its buckets.
    pub(super) installation: String,
    pub(super) sales: Vec<Sale>,
    pub(super) open_dead_letters: u64,
}

/// Looks for dead letters, which every tier has.
pub(super) async fn examine(settings: &Settings) -> Vec<Check> {
    let facts = LedgerFacts::read(settings).await.ok().flatten();
    facts.iter().map(LedgerFacts::dead_letters).collect()
}

impl LedgerFacts {
    /// Reads them; `None` if the ledger does not exist yet.
    pub(super) async fn read(settings: &Settings) -> Result<Option<Self>, db::Error> {
        if tier::pending_migrations(settings)?.is_none() {
            return Ok(None);
        }
        let ledger = tier::open_ledger_for_reading(settings)?;
        let installation = tier::installation(ledger.as_ref()).await;
        let sales = ledger.sales().await;
        let dead_letters = ledger.count_dead_letters().await;
        ledger.close().await;
        match installation {
            Ok(installation) => Ok(Some(Self {
                installation: installation.to_string(),
                sales: sales?,
                open_dead_letters: dead_letters?.open,
            })),
            Err(db::Error::ReadOnly { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Warns of dead letters that wait for an operator.
    fn dead_letters(&self) -> Check {
        let open = self.open_dead_letters;
        check! { "dead letters";
            open > 0 => Warn "{open} open in the ledger: their buyers wait"
                -> "`floodgate dlq list`, then replay, park or discard each";
            else => Ok "none open in the ledger"
        }
    }

    /// A sale that is open, now or from the start of its window.
    pub(super) fn open_sale(&self) -> Option<&Sale> {
        self.sales.iter().find(|sale| sale.phase == Phase::Open)
    }

    /// The first sale that is behind a bucket of it; `latest` has the latest pair of the buckets of
    /// a SKU, by its number.
    pub(super) fn behind(
        &self,
        latest: impl Fn(i32) -> Option<(Epoch, Phase)>,
    ) -> Option<(&Sale, Epoch)> {
        let is_later = |sale: &Sale, pair: &(Epoch, Phase)| *pair > (sale.epoch, sale.phase);
        self.sales.iter().find_map(|sale| {
            let pairs = sale.skus.iter().filter_map(|sku| latest(sku.no.0));
            let later = pairs.filter(|pair| is_later(sale, pair)).max()?;
            Some((sale, later.0))
        })
    }
}
