//! The only place that names concrete backends. Nothing above this file knows which tier runs.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Settings, Tier};
use crate::db::sqlite::{OpenOptions, SqliteLedger};
use crate::db::{Error, Ledger};
use crate::domain::Counting;
use crate::stock::{MemoryStock, Stock};

/// What a tier stands on.
#[derive(Clone)]
pub struct Backends {
    /// Where orders become true.
    pub ledger: Arc<dyn Ledger>,
    /// Where units are counted and results are read.
    pub stock: Arc<dyn Stock>,
    /// Who counts units.
    pub counting: Counting,
}

impl Backends {
    /// The stock of a tier in front of an opened ledger.
    #[must_use]
    pub fn new(tier: Tier, ledger: Arc<dyn Ledger>) -> Self {
        let counting = match tier {
            Tier::Ledger => Counting::InLedger,
            Tier::Memory | Tier::Gate | Tier::Pipeline => Counting::Here,
        };
        Self { ledger, stock: Arc::new(MemoryStock::new(counting)), counting }
    }
}

/// Opens what the configured tier stands on. Blocks.
///
/// # Errors
/// [`Error::CannotOpen`] with what is wrong and what to do.
pub fn open(settings: &Settings) -> Result<Backends, Error> {
    let options = options(settings, true)?;
    if !options.path.exists() {
        tracing::warn!(path = %options.path.display(), "no ledger there yet, creating a new one");
    }
    let ledger = SqliteLedger::open(&options)?;
    Ok(Backends::new(settings.tier, Arc::new(ledger)))
}

/// Opens the ledger for reading, beside a running server or without one. Blocks.
///
/// # Errors
/// [`Error::CannotOpen`] with what is wrong and what to do.
pub fn open_ledger_for_reading(settings: &Settings) -> Result<Arc<dyn Ledger>, Error> {
    Ok(Arc::new(SqliteLedger::open_for_reading(&options(settings, false)?)?))
}

/// Brings the ledger's schema up to date and returns what was applied. Blocks.
///
/// # Errors
/// [`Error::CannotOpen`] with what is wrong and what to do.
pub fn migrate(settings: &Settings) -> Result<Vec<String>, Error> {
    SqliteLedger::migrate(&options(settings, true)?)
}

/// The migrations that the ledger lacks; `None` when there is no ledger yet. Blocks.
///
/// # Errors
/// [`Error::CannotOpen`] with what is wrong and what to do.
pub fn pending_migrations(settings: &Settings) -> Result<Option<Vec<String>>, Error> {
    let options = options(settings, false)?;
    if !options.path.exists() {
        return Ok(None);
    }
    let standing = SqliteLedger::schema_standing(&options)?;
    standing.check_not_newer()?;
    Ok(Some(standing.pending))
}

fn options(settings: &Settings, create: bool) -> Result<OpenOptions, Error> {
    let ledger = &settings.ledger;
    let Some(path) = ledger.url.strip_prefix("sqlite://") else {
        let reason = format!("ledger.url {} is not sqlite://path", ledger.url);
        return Err(Error::CannotOpen { reason });
    };
    Ok(OpenOptions {
        path: PathBuf::from(path),
        create,
        readers: ledger.readers,
        job_queue_max: ledger.job_queue_max,
        busy_timeout_ms: ledger.busy_timeout_ms,
        job_deadline_ms: ledger.job_deadline_ms,
        cache_kib: ledger.cache_kib,
        size_max_kib: 0,
    })
}
