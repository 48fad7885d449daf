//! The typed settings of what keeps orders and what counts units; see `settings`.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::effective::redact_url;

/// What Redis must have done before a request counts as accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Its master said yes.
    Plain,
    /// It also keeps an append-only file.
    Aof,
    /// Replicas confirmed.
    Replicated,
}

/// Where orders are kept.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerSettings {
    /// `sqlite://path` or `mysql://..`. May hold a password: show it through [`redact_url`] only.
    pub url: String,
    /// Reader threads.
    pub readers: usize,
    /// Writer threads, where there may be several.
    pub writers: usize,
    /// Jobs that may wait for a ledger thread.
    pub job_queue_max: usize,
    /// How long a statement waits for a lock of another connection.
    pub busy_timeout_ms: u64,
    /// How long one statement may take, where the database can end it.
    pub statement_timeout_ms: u64,
    /// How long connecting may take, where that means a network.
    pub connect_timeout_ms: u64,
    /// A job without an answer by then is `unknown`.
    pub job_deadline_ms: u64,
    /// Page cache of each connection, in KiB.
    pub cache_kib: u32,
}

impl LedgerSettings {
    /// The database file, when the ledger is SQLite.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").filter(|path| !path.is_empty()).map(Path::new)
    }

    /// The file whose lock says "a process owns this ledger": `<db>.lock` next to the database.
    #[must_use]
    pub fn lock_path(&self) -> Option<PathBuf> {
        self.sqlite_path().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".lock");
            PathBuf::from(name)
        })
    }
}

impl fmt::Debug for LedgerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerSettings")
            .field("url", &redact_url(&self.url))
            .field("readers", &self.readers)
            .field("writers", &self.writers)
            .field("job_queue_max", &self.job_queue_max)
            .field("busy_timeout_ms", &self.busy_timeout_ms)
            .field("statement_timeout_ms", &self.statement_timeout_ms)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("job_deadline_ms", &self.job_deadline_ms)
            .field("cache_kib", &self.cache_kib)
            .finish()
    }
}

/// Where units are counted, in tiers `gate` and `pipeline`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSettings {
    /// Empty = none. May hold a password: show it through [`redact_url`] only.
    pub url: String,
    /// What Redis must have done before a request counts as accepted.
    pub durability: Durability,
    /// Replicas that must confirm, with [`Durability::Replicated`].
    pub replicas_min: u32,
    /// How long their confirmation is waited for.
    pub replicas_wait_ms: u64,
    /// How long connecting may take.
    pub connect_timeout_ms: u64,
    /// A command without an answer by then is `unknown`.
    pub command_timeout_ms: u64,
    /// A connection whose data nobody acknowledges is closed after this.
    pub user_timeout_ms: u64,
    /// Age at which a sold-out SKU is looked at again.
    pub sold_out_refresh_ms: u64,
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("url", &redact_url(&self.url))
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

/// Preparing sales.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeeperSettings {
    /// How long before its start a sale is loaded.
    pub preheat_ms: u64,
    /// How often sales and their buckets are looked at.
    pub every_ms: u64,
    /// The lease ends so long after its holder renewed it last.
    pub lease_ttl_ms: u64,
    /// How often work in the hands of dead processes is looked for.
    pub rescue_every_ms: u64,
    /// An accepted request that no stage of an empty pipeline holds for so long is sent again.
    pub stray_after_ms: u64,
    /// Most dead letters in hand at once that are not in the ledger yet, of each source.
    pub dead_letters_max: u16,
}
