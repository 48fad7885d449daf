//! The typed settings. Fields are named exactly as the keys; what each means, its unit and its
//! default stand in `config/default.toml`. No field has a default here: a key missing there does
//! not load.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::pipeline::{AmqpSettings, OutboxKind, OutboxSettings, RelaySettings};
use super::stores::{Durability, KeeperSettings, LedgerSettings, RedisSettings};

/// Everything that can be configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which components a purchase passes.
    pub tier: Tier,
    /// Which part of the pipeline this process runs.
    pub role: Role,
    /// Prefix of every shared name (Redis keys, exchanges, queues).
    pub namespace: String,
    /// The public listener.
    pub http: HttpSettings,
    /// The internal listener.
    pub internal: InternalSettings,
    /// Who may use the internal listener.
    pub admin: AdminSettings,
    /// Who is the buyer.
    pub auth: AuthSettings,
    /// Where orders are kept.
    pub ledger: LedgerSettings,
    /// Where units are counted, in tiers `gate` and `pipeline`.
    pub redis: RedisSettings,
    /// Accepted intents on their way to the broker, in tier `pipeline`.
    pub outbox: OutboxSettings,
    /// Outbox to broker.
    pub relay: RelaySettings,
    /// The broker.
    pub amqp: AmqpSettings,
    /// Preparing sales.
    pub keeper: KeeperSettings,
    /// Stock gates.
    pub gate: GateSettings,
    /// The one writer of orders.
    pub consumer: ConsumerSettings,
    /// Restarts.
    pub supervisor: SupervisorSettings,
    /// Stopping in order.
    pub shutdown: ShutdownSettings,
    /// Logging.
    pub log: LogSettings,
    /// Drills.
    pub faults: FaultSettings,
}

/// Which components a purchase passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Stock counted in memory, orders straight to the ledger.
    Memory,
    /// Stock counted by the database.
    Ledger,
    /// Stock counted by Redis, orders straight to the ledger.
    Gate,
    /// Stock counted by Redis, orders through outbox and broker.
    Pipeline,
}

/// Which part of the pipeline a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    All,
    /// HTTP and gates.
    Api,
    /// Outbox to broker.
    Relay,
    /// Broker to ledger.
    Consumer,
    /// Loading of buckets, rescue of work whose holder died, dead letters.
    Keeper,
}

impl Role {
    /// Whether it serves buyers: the public listener and the gates.
    #[must_use]
    pub const fn sells(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    /// Whether it carries accepted intents to the broker.
    #[must_use]
    pub const fn relays(self) -> bool {
        matches!(self, Self::All | Self::Relay)
    }

    /// Whether it writes what the broker delivers.
    #[must_use]
    pub const fn consumes(self) -> bool {
        matches!(self, Self::All | Self::Consumer)
    }

    /// Whether it loads buckets, rescues work of the dead, and keeps dead letters.
    #[must_use]
    pub const fn keeps(self) -> bool {
        matches!(self, Self::All | Self::Keeper)
    }
}

/// How a buyer proves who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// `X-Buyer-Id`, believed as it is: development and tests.
    Header,
    /// HS256 bearer token.
    Jwt,
}

/// Shape of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors: one JSON object a line.
    Json,
}

/// Gives a configuration enum the word used in files, messages and metric labels.
macro_rules! words {
    ($kind:ty { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $kind {
            /// The word used in configuration, messages and metric labels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(Tier { Memory => "memory", Ledger => "ledger", Gate => "gate", Pipeline => "pipeline" });
words!(Role {
    All => "all", Api => "api", Relay => "relay", Consumer => "consumer", Keeper => "keeper",
});
words!(AuthMode { Header => "header", Jwt => "jwt" });
words!(Durability { Plain => "plain", Aof => "aof", Replicated => "replicated" });
words!(OutboxKind { List => "list", Stream => "stream" });
words!(LogFormat { Text => "text", Json => "json" });

/// The public listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// Address and port; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Worker threads; 0 = one per core.
    pub workers: usize,
    /// Connections the kernel may hold before they are accepted.
    pub backlog: u32,
    /// Open connections, all workers together.
    pub connections_max: usize,
    /// Longest request body, in bytes.
    pub body_max_bytes: usize,
    /// Idle connections are closed after this.
    pub keep_alive_ms: u64,
    /// After it the answer is 202 `unknown`.
    pub answer_deadline_ms: u64,
    /// Age at which the in-memory view of the sales is renewed.
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
    /// Address and port; port 0 takes a free one.
    pub bind: SocketAddr,
}

/// Who may use the internal listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminSettings {
    /// Bearer token, from `token` or read from `token_file`; see [`AdminSettings::bearer`].
    pub token: SecretString,
    /// File that held the token; empty = none.
    pub token_file: PathBuf,
}

impl AdminSettings {
    /// The token callers must present; `None` when none is set (then loopback only).
    #[must_use]
    pub fn bearer(&self) -> Option<&SecretString> {
        (!self.token.expose_secret().is_empty()).then_some(&self.token)
    }
}

/// Who is the buyer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    /// How a buyer proves who they are.
    pub mode: AuthMode,
    /// File with the HS256 secret; empty = none.
    pub jwt_secret_file: PathBuf,
    /// File with the key that signs request ids; empty = a key kept in the ledger.
    pub signing_key_file: PathBuf,
    /// How long an issued request id may be used.
    pub request_id_ttl_s: u64,
    /// What `jwt_secret_file` held. Not a key.
    #[serde(skip)]
    pub jwt_secret: Option<SecretString>,
    /// What `signing_key_file` held. Not a key.
    #[serde(skip)]
    pub signing_key: Option<SecretString>,
}

/// Stock gates.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateSettings {
    /// Requests inside one gate at once.
    pub permits: usize,
    /// Most requests decided in one step.
    pub batch_max: usize,
    /// First wait before an unanswered batch is asked about again.
    pub resubmit_backoff_min_ms: u64,
    /// Longest such wait.
    pub resubmit_backoff_max_ms: u64,
    /// Times a gate asks about one request before the buyer is told `unknown`.
    pub ask_attempts_max: u32,
    /// How often a gate looks for accepted requests that nobody brought to the ledger.
    pub sweep_every_ms: u64,
    /// How old such a request must be.
    pub sweep_after_ms: u64,
}

/// The one writer of orders.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumerSettings {
    /// Intents inside the consumer at once.
    pub permits: usize,
    /// Most intents written in one transaction.
    pub batch_max: usize,
    /// Deliveries of one order queue that may be unacknowledged at once, in tier `pipeline`.
    pub prefetch: u16,
    /// Attempts per intent when the ledger fails.
    pub attempts_max: u32,
    /// First wait between attempts.
    pub retry_backoff_min_ms: u64,
    /// Longest wait between attempts.
    pub retry_backoff_max_ms: u64,
}

/// Restarts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisorSettings {
    /// Restarts of one component inside the window before the process gives up.
    pub restarts_max: u32,
    /// Length of that window.
    pub restart_window_ms: u64,
    /// First wait before a restart.
    pub backoff_min_ms: u64,
    /// Longest wait before a restart.
    pub backoff_max_ms: u64,
    /// How often progress is looked at.
    pub heartbeat_ms: u64,
    /// A component without progress for this long is replaced.
    pub stalled_after_ms: u64,
}

/// Stopping in order.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShutdownSettings {
    /// All work is settled or given back by then.
    pub deadline_ms: u64,
    /// Wait between "not ready" and closing the public listener.
    pub drain_ms: u64,
}

/// Logging.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Level or directives.
    pub filter: String,
    /// Shape of log lines.
    pub format: LogFormat,
}

/// Drills: faults made on purpose.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSettings {
    /// Kinds of actor that panic.
    pub panic_in: Vec<String>,
    /// Share of their steps that panic, 0 to 100.
    pub panic_percent: f64,
}

impl FaultSettings {
    /// The share of steps of this kind of actor that must panic, 0.0 to 1.0.
    #[must_use]
    pub fn panic_share(&self, kind: &str) -> f64 {
        if self.panic_in.iter().any(|name| name == kind) { self.panic_percent / 100.0 } else { 0.0 }
    }
}
