//! The typed settings. Each field is named as its key; `config/default.toml` documents meaning,
//! unit and default. No field has a default here: a key missing there fails to load. A URL may
//! contain a password: show it through [`redact_url`] only.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::effective::redact_url;

/// Everything that can be configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub tier: Tier,
    pub role: Role,
    pub namespace: String,
    pub http: HttpSettings,
    pub internal: InternalSettings,
    pub admin: AdminSettings,
    pub auth: AuthSettings,
    pub ledger: LedgerSettings,
    pub redis: RedisSettings,
    pub outbox: OutboxSettings,
    pub relay: RelaySettings,
    pub amqp: AmqpSettings,
    pub maintenance: MaintenanceSettings,
    pub reconciler: ReconcilerSettings,
    pub gate: GateSettings,
    pub consumer: ConsumerSettings,
    pub supervisor: SupervisorSettings,
    pub shutdown: ShutdownSettings,
    pub log: LogSettings,
    pub faults: FaultSettings,
}

/// Defines a setting whose values have a name in files, messages and metric labels.
macro_rules! named_values {
    ($(#[$doc:meta])* enum $kind:ident {
        $($(#[$variant_attr:meta])* $variant:ident => $name:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
        pub enum $kind {
            $($(#[$variant_attr])* #[serde(rename = $name)] $variant,)+
        }

        impl $kind {
            /// The name in configuration, messages and metric labels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

named_values! {
/// The components that a purchase passes.
enum Tier {
    /// Stock counted in memory, orders straight to the ledger.
    Memory => "memory",
    /// Stock counted by the database.
    Ledger => "ledger",
    /// Stock counted by Redis, orders straight to the ledger.
    Gate => "gate",
    /// Stock counted by Redis, orders through outbox and broker.
    Pipeline => "pipeline",
} }

named_values! {
/// The part of the pipeline that a process runs.
enum Role {
    All => "all",
    /// HTTP and gates.
    Api => "api",
    /// Outbox to broker.
    Relay => "relay",
    /// Broker to ledger.
    Consumer => "consumer",
    /// Loading buckets, rescuing abandoned claims, storing dead letters, reconciling.
    #[serde(alias = "keeper")]
    Maintenance => "maintenance",
} }

impl Role {
    /// Whether it runs the public listener and the gates.
    #[must_use]
    pub const fn sells(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    /// Whether it publishes accepted intents to the broker.
    #[must_use]
    pub const fn relays(self) -> bool {
        matches!(self, Self::All | Self::Relay)
    }

    /// Whether it writes delivered intents to the ledger.
    #[must_use]
    pub const fn consumes(self) -> bool {
        matches!(self, Self::All | Self::Consumer)
    }

    /// Whether it loads buckets, rescues abandoned claims, stores dead letters and reconciles.
    #[must_use]
    pub const fn maintains(self) -> bool {
        matches!(self, Self::All | Self::Maintenance)
    }
}

named_values! {
/// How a buyer authenticates.
enum AuthMode {
    /// `X-Buyer-Id`, unverified: for development and tests.
    Header => "header",
    /// HS256 bearer token.
    Jwt => "jwt",
} }

named_values! {
/// What Redis must have done before a request counts as accepted.
enum Durability {
    /// The master answered.
    Plain => "plain",
    /// As `Plain`; the master must also have an append-only file.
    Aof => "aof",
    /// `redis.replicas_min` replicas have confirmed.
    Replicated => "replicated",
} }

named_values! {
/// The Redis structure that queues accepted intents.
enum OutboxKind {
    /// A list, and a private list per relay worker.
    List => "list",
    /// A stream with a consumer group.
    Stream => "stream",
} }

named_values! {
/// The format of log lines.
enum LogFormat {
    Text => "text",
    /// One JSON object per line.
    Json => "json",
} }

/// The public listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    pub bind: SocketAddr,
    pub workers: usize,
    pub backlog: u32,
    pub connections_max: usize,
    pub body_max_bytes: usize,
    pub keep_alive_ms: u64,
    pub answer_deadline_ms: u64,
    pub sales_refresh_ms: u64,
}

impl HttpSettings {
    /// Worker threads, with 0 replaced by the number of cores.
    #[must_use]
    pub fn workers_effective(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }
}

/// The internal listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InternalSettings {
    pub bind: SocketAddr,
}

/// Access to the internal listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminSettings {
    pub token: SecretString,
    pub token_file: PathBuf,
}

impl AdminSettings {
    /// The token that callers must present; `None` if unset, which requires a loopback listener.
    #[must_use]
    pub fn bearer(&self) -> Option<&SecretString> {
        (!self.token.expose_secret().is_empty()).then_some(&self.token)
    }
}

/// Authentication of buyers, and request ids.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    pub mode: AuthMode,
    pub jwt_secret_file: PathBuf,
    pub signing_key_file: PathBuf,
    pub request_id_ttl_s: u64,
    /// The content of `jwt_secret_file`. Not a key.
    #[serde(skip)]
    pub jwt_secret: Option<SecretString>,
    /// The content of `signing_key_file`. Not a key.
    #[serde(skip)]
    pub signing_key: Option<SecretString>,
}

/// The ledger, which stores orders.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerSettings {
    pub url: String,
    pub readers: usize,
    pub writers: usize,
    pub job_queue_max: usize,
    pub busy_timeout_ms: u64,
    pub statement_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    pub job_deadline_ms: u64,
    pub cache_kib: u32,
}

impl LedgerSettings {
    /// The database file, if the ledger is SQLite.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").filter(|path| !path.is_empty()).map(Path::new)
    }

    /// `<db>.lock` next to the database: the process that owns the ledger locks this file.
    #[must_use]
    pub fn lock_path(&self) -> Option<PathBuf> {
        self.sqlite_path().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".lock");
            PathBuf::from(name)
        })
    }
}

/// Redis, which counts units in tiers `gate` and `pipeline`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSettings {
    pub url: String,
    pub durability: Durability,
    pub replicas_min: u32,
    pub replicas_wait_ms: u64,
    pub connect_timeout_ms: u64,
    pub command_timeout_ms: u64,
    pub user_timeout_ms: u64,
    pub sold_out_refresh_ms: u64,
}

/// The maintenance role: loading sales, rescuing claims, storing dead letters.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceSettings {
    pub preload_ms: u64,
    pub every_ms: u64,
    pub lease_ttl_ms: u64,
    pub rescue_every_ms: u64,
    pub dead_letters_max: u16,
}

/// The reconciler, which compares Redis with the ledger.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcilerSettings {
    pub after_ms: u64,
}

/// The outbox, which queues accepted intents for the broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboxSettings {
    pub kind: OutboxKind,
    pub entries_max: u64,
    pub envelope_max: usize,
}

/// The relay, which publishes outbox entries to the broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelaySettings {
    pub workers: usize,
    pub claim_max: usize,
    pub confirm_window: usize,
    pub confirm_timeout_ms: u64,
    pub attempts_max: u32,
    pub poll_min_ms: u64,
    pub poll_max_ms: u64,
    pub heartbeat_ttl_ms: u64,
}

/// The broker.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmqpSettings {
    pub url: String,
    pub queues: u16,
    pub connect_timeout_ms: u64,
    pub heartbeat_s: u16,
    pub reconnect_min_ms: u64,
    pub reconnect_max_ms: u64,
    pub deliveries_max: u32,
}

/// `Debug` output with only the redacted URL.
macro_rules! hide_passwords {
    ($($settings:ident)+) => {$(
        impl fmt::Debug for $settings {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let url = redact_url(&self.url);
                f.debug_struct(stringify!($settings)).field("url", &url).finish_non_exhaustive()
            }
        }
    )+};
}

hide_passwords!(LedgerSettings RedisSettings AmqpSettings);

/// Stock gates.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateSettings {
    pub permits: usize,
    pub batch_max: usize,
    pub resubmit_backoff_min_ms: u64,
    pub resubmit_backoff_max_ms: u64,
    pub reserve_attempts_max: u32,
    pub resubmit_every_ms: u64,
    pub resubmit_after_ms: u64,
}

/// The ledger writer and the order consumers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumerSettings {
    pub permits: usize,
    pub batch_max: usize,
    pub prefetch: u16,
    pub attempts_max: u32,
    pub retry_backoff_min_ms: u64,
    pub retry_backoff_max_ms: u64,
}

/// Restarts of components that panic or stall.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisorSettings {
    pub restarts_max: u32,
    pub restart_window_ms: u64,
    pub backoff_min_ms: u64,
    pub backoff_max_ms: u64,
    pub heartbeat_ms: u64,
    pub stalled_after_ms: u64,
}

/// Graceful shutdown.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShutdownSettings {
    pub deadline_ms: u64,
    pub drain_ms: u64,
}

/// Logging.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    pub filter: String,
    pub format: LogFormat,
}

/// Fault injection.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSettings {
    pub panic_in: Vec<String>,
    pub panic_percent: f64,
}
