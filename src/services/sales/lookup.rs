//! Sales as the ledger has them now. Another process may have created, opened and sold one since
//! the last read: where this process knows none, it reads before it says so.

use std::time::{Duration, Instant};

use super::{SalesError, SalesService};
use crate::db;
use crate::domain::{Sale, SaleId};
use crate::services::catalog::Catalog;

/// Shortest time between two such reads: unknown names cost the ledger no more.
const READ_GAP: Duration = Duration::from_millis(100);

/// Longest wait for one.
const READ_MAX: Duration = Duration::from_secs(1);

/// The ledger did not answer: whether there is such a sale is not known.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the sales of the ledger cannot be read")]
pub struct NotRead;

/// The last of these reads.
pub(super) struct LastRead {
    began: Instant,
    result: Result<(), NotRead>,
}

impl SalesService {
    /// What `look` finds in the catalog; if nothing, after a read of the ledger that began later
    /// than the call. A process that alone changes its sales reads nothing.
    pub async fn find<T>(
        &self,
        look: impl Fn(&Catalog) -> Option<T>,
    ) -> Result<Option<T>, NotRead> {
        let found = look(&self.catalog);
        if found.is_some() || !self.backends.is_shared {
            return Ok(found);
        }
        let read = self.read_since(self.clock.now());
        tokio::time::timeout(READ_MAX, read).await.map_err(|_elapsed| NotRead)??;
        Ok(look(&self.catalog))
    }

    async fn read_since(&self, asked: Instant) -> Result<(), NotRead> {
        let mut last = self.last_read.lock().await;
        if let Some(LastRead { began, result }) = &*last {
            if *began >= asked {
                return *result;
            }
            let gap = READ_GAP.saturating_sub(self.clock.now().saturating_duration_since(*began));
            tokio::time::sleep(gap).await;
        }
        let began = self.clock.now();
        let result = self.refresh_catalog().await.map(drop).map_err(|_error| NotRead);
        *last = Some(LastRead { began, result });
        result
    }

    /// The current sale: from the ledger if other processes may change it, or if the catalog lacks
    /// it, otherwise from the catalog.
    pub(super) async fn current_sale(&self, id: &SaleId) -> Result<Sale, SalesError> {
        match self.catalog.sale(id.as_str()) {
            Some(sale) if !self.backends.is_shared => Ok((*sale).clone()),
            _ => self.sale_in_ledger(id).await,
        }
    }

    /// Reads the sales from the ledger into the catalog, and returns one of them.
    pub(super) async fn sale_in_ledger(&self, id: &SaleId) -> Result<Sale, SalesError> {
        let sales = self.refresh_catalog().await?;
        sales.into_iter().find(|sale| sale.id == *id).ok_or(SalesError::Unknown)
    }

    /// The sale in the ledger, if a write of it that failed with `error` is committed nevertheless:
    /// its outcome is unknown, and the sale `has_write`.
    ///
    /// # Errors
    /// `error`, or that of the read.
    pub(super) async fn if_committed(
        &self,
        id: &SaleId,
        error: db::Error,
        has_write: impl Fn(&Sale) -> bool,
    ) -> Result<Sale, SalesError> {
        if error.class() != db::ErrorClass::Unknown {
            return Err(error.into());
        }
        match self.sale_in_ledger(id).await {
            Ok(sale) if has_write(&sale) => Ok(sale),
            Ok(_) | Err(SalesError::Unknown) => Err(error.into()),
            not_read => not_read,
        }
    }
}
