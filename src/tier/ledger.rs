//! Opens and looks at the configured ledger. The functions block. Their error is
//! [`db::Error::CannotOpen`] with the fault or damage and its remedy.

use std::sync::Arc;

use crate::config::{MysqlUrl, Settings, Tier, redact_url};
use crate::db::mysql::{self, MysqlLedger, MysqlOptions};
use crate::db::sql::WriteMode;
use crate::db::sqlite::{OpenOptions, SqliteLedger};
use crate::db::{self, Ledger};
use crate::runtime::clock::SharedClock;

pub(super) fn open_ledger(
    settings: &Settings,
    clock: &SharedClock,
) -> Result<Arc<dyn Ledger>, db::Error> {
    let clock = Arc::clone(clock);
    Ok(match ledger_location(settings, true)? {
        LedgerLocation::File(options) => {
            if !options.path.exists() && !options.path.is_symlink() {
                let path = options.path.display();
                tracing::warn!(%path, "ledger: file does not exist, creating it");
            }
            Arc::new(SqliteLedger::open(&OpenOptions { clock, ..options })?)
        }
        LedgerLocation::Server(options) => {
            Arc::new(MysqlLedger::open(&MysqlOptions { clock, ..options })?)
        }
    })
}

/// Opens the ledger read-only; safe beside a running server.
pub fn open_ledger_for_reading(settings: &Settings) -> Result<Arc<dyn Ledger>, db::Error> {
    Ok(match ledger_location(settings, false)? {
        LedgerLocation::File(options) => Arc::new(SqliteLedger::open_for_reading(&options)?),
        LedgerLocation::Server(options) => Arc::new(MysqlLedger::open_for_reading(&options)?),
    })
}

/// Applies pending migrations and returns their names.
pub fn migrate(settings: &Settings) -> Result<Vec<String>, db::Error> {
    match ledger_location(settings, true)? {
        LedgerLocation::File(options) => SqliteLedger::migrate(&options),
        LedgerLocation::Server(options) => MysqlLedger::migrate(&options),
    }
}

/// Rejects the path of a ledger file that [`super::open`] rejects, also if there is no file yet.
pub fn check_ledger_path(settings: &Settings) -> Result<(), db::Error> {
    match ledger_location(settings, false)? {
        LedgerLocation::File(options) => SqliteLedger::check_path(&options),
        LedgerLocation::Server(_) => Ok(()),
    }
}

/// The pending migrations; `None` if the ledger file does not exist.
pub fn pending_migrations(settings: &Settings) -> Result<Option<Vec<String>>, db::Error> {
    let status = match ledger_location(settings, false)? {
        LedgerLocation::File(options) if !options.path.exists() => return Ok(None),
        LedgerLocation::File(options) => SqliteLedger::schema_status(&options)?,
        LedgerLocation::Server(options) => MysqlLedger::schema_status(&options)?,
    };
    status.check_not_newer()?;
    Ok(Some(status.pending))
}

/// Checks every page of a ledger file; safe beside a running server. Does nothing for a database
/// server, which checks its own pages.
pub fn check_ledger_pages(settings: &Settings) -> Result<(), db::Error> {
    match ledger_location(settings, false)? {
        LedgerLocation::File(options) => SqliteLedger::check_pages(&options),
        LedgerLocation::Server(_) => Ok(()),
    }
}

/// Facts of the ledger's database server; `None` if the ledger is a file.
pub fn ledger_health(settings: &Settings) -> Result<Option<mysql::health::MysqlFacts>, db::Error> {
    match ledger_location(settings, false)? {
        LedgerLocation::File(_) => Ok(None),
        LedgerLocation::Server(options) => mysql::health::read(&options).map(Some),
    }
}

enum LedgerLocation {
    File(OpenOptions),
    Server(MysqlOptions),
}

fn ledger_location(settings: &Settings, create: bool) -> Result<LedgerLocation, db::Error> {
    let ledger = &settings.ledger;
    let invalid = |problem| db::Error::CannotOpen { reason: format!("ledger.url: {problem}") };
    if let Some(url) = MysqlUrl::parse(&ledger.url).map_err(invalid)? {
        return Ok(LedgerLocation::Server(MysqlOptions {
            trust: ledger.trust.clone(),
            writers: ledger.writers,
            readers: ledger.readers,
            job_queue_max: ledger.job_queue_max,
            job_deadline_ms: ledger.job_deadline_ms,
            lock_wait_timeout_s: ledger.busy_timeout_ms.div_ceil(1000),
            statement_timeout_ms: ledger.statement_timeout_ms,
            connect_timeout_ms: ledger.connect_timeout_ms,
            // Units or accepted requests are only in this process's memory: no other writer.
            writing: match settings.tier {
                Tier::Memory | Tier::Ledger => WriteMode::Exclusive,
                Tier::Gate | Tier::Pipeline => WriteMode::Shared,
            },
            ..MysqlOptions::new(url.client_url)
        }));
    }
    let Some(path) = ledger.url.strip_prefix("sqlite://") else {
        let url = redact_url(&ledger.url);
        let reason = format!("ledger.url {url} is neither sqlite:// nor mysql://");
        return Err(db::Error::CannotOpen { reason });
    };
    Ok(LedgerLocation::File(OpenOptions {
        create,
        readers: ledger.readers,
        job_queue_max: ledger.job_queue_max,
        busy_timeout_ms: ledger.busy_timeout_ms,
        job_deadline_ms: ledger.job_deadline_ms,
        cache_kib: ledger.cache_kib,
        ..OpenOptions::new(path)
    }))
}
